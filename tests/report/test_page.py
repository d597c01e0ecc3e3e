import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from asap_ray.report import files
from asap_ray.report.files import write_report
from asap_ray.report.page import page, script_json
from asap_ray.report.space_map import thinned

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


class Elements(HTMLParser):
    """Elements by name, texts outside of script and style, and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.figures = ""
        self.inside: list[str] = []
        self.island = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        self.island = ("id", "figures") in attrs
        if tag in ("script", "style"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.texts.append(data)
        elif self.island:
            self.figures += data


@pytest.fixture(scope="module")
def drawn(factory: Any) -> str:
    """The page of the one answer that most tests look at, drawn once."""
    return page(factory.answer(command="asap-ray +model=llama70b"))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stub for the page where only its file is under test."""
    monkeypatch.setattr(files, "page", lambda answer: f"a page with seed {answer.seed}")


def test_page_is_whole_offline_and_small(drawn: str) -> None:
    assert len(drawn) < 2_000_000
    elements = Elements(drawn)
    assert "link" not in elements.names
    assert all(value.startswith("#") for name, value in elements.attributes if value and name in ("src", "href"))
    assert "default-src 'none'" in drawn
    assert elements.names.count("script") == 3


def test_page_holds_the_figures_of_the_answer(factory: Any, drawn: str) -> None:
    words = " ".join(" ".join(Elements(drawn).texts).split())
    for text in ("61.2%", "41.9k", "$1.78", "1.25x", "1,234,567 plans", "heads_divide", "333,333", "51.0 GB"):
        assert text in words
    assert "Reason number 5" in words
    assert "no other legal plan that fits can be more than 25.0% faster" in words
    assert "credible 102 s 80.0 s 82.0 s 21.4%" in words
    assert "bound by compute, 20.0% of the step lies above its floor" in words
    assert "71.0% of the traffic is assumed to hide under compute" in words
    assert "No trial stands behind these figures" in words
    assert "asap-ray +model=llama70b" in words
    assert "https://example.org/datasheet?a=1&b=2" in words
    for line in factory.lines:
        assert line in words


def test_names_and_paths_cannot_inject_markup(factory: Any, drawn: str) -> None:
    where = factory.slice(name=f"v5p-{EVIL}")
    answer = factory.slice_answer(
        where,
        reasons=(EVIL,) * 5,
        removed={EVIL: 3},
        sample=factory.slice_answer().sample | {"remat": [EVIL] * 200 + ["none"] * 200},
    )
    plain = Elements(drawn)
    evil = Elements(
        page(
            factory.answer(
                answer, model=EVIL, stack=EVIL, command=EVIL, run_dir=Path("/runs") / EVIL, versions={EVIL: EVIL}
            )
        )
    )
    for name in ("script", "img"):
        assert evil.names.count(name) == plain.names.count(name)
    assert not any(name.startswith("on") for name, _ in evil.attributes)
    assert EVIL in "".join(evil.texts)
    assert EVIL in json.loads(evil.figures)["0-map"]["usermeta"]["columns"]["remat"]


def test_script_json_cannot_close_its_element_and_reads_back() -> None:
    value = {"a": EVIL + "\u2028<!--"}
    text = script_json(value)
    assert not re.search(r"[<>&\u2028]", text)
    assert json.loads(text) == value


def test_charts_stack_the_parts_of_the_estimates(drawn: str) -> None:
    figures = json.loads(Elements(drawn).figures)
    rows = next(rows for rows in data_of(figures["0-time"]) if "part" in rows[0])
    first = {row["part"]: row["value"] for row in rows if row["plan"] == "#1"}
    assert first == pytest.approx(
        {"matmul": 60, "attention": 10, "recompute": 12, "fsdp": 10, "tensor": 5, "optimizer": 3}
    )
    floors = next(rows for rows in data_of(figures["0-time"]) if "floor" in rows[0])
    assert [row["floor"] for row in floors] == pytest.approx([80, 82, 83.2, 88.8, 104])
    memory = next(rows for rows in data_of(figures["0-memory"]) if "part" in rows[0])
    assert sum(row["value"] for row in memory if row["plan"] == "too big 1") == pytest.approx(140)


def data_of(figure: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return [layer["data"]["values"] for layer in figure["layer"] if "values" in layer.get("data", {})]


def test_map_is_thinned_for_many_slices(factory: Any) -> None:
    columns = thinned(factory.slice_answer(), 50)
    assert {len(column) for column in columns.values()} == {50}
    assert set(columns) >= {"step", "memory", "fits", "remat", "tensor"}


def test_nothing_fits_makes_a_page_too(factory: Any) -> None:
    text = page(factory.answer(factory.slice_answer(), factory.slice_answer(ranked=(), diagnosis=None, reasons=())))
    assert "No plan fits on this slice." in text
    page(factory.answer(factory.slice_answer(ranked=(), diagnosis=None, too_big=(), sample={}, removed={})))


@pytest.mark.usefixtures("undrawn")
def test_files_are_written_whole(factory: Any, tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "one"
    paths = write_report(factory.answer(run_dir=run_dir), run_dir)
    names = {"summary.json", "leaderboard.csv", "leaderboard.json", "leaderboard.md", "report.html"}
    assert {path.name for path in paths} == names
    assert {path.name for path in run_dir.iterdir()} == names
    assert json.loads((run_dir / "summary.json").read_text())["best"]["step_time_s"] == 100.0
    assert (run_dir / "report.html").read_text() == "a page with seed 0"
    assert write_report(factory.answer(run_dir=run_dir), run_dir) == paths


@pytest.mark.usefixtures("undrawn")
def test_a_failed_write_leaves_the_old_file(factory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_report(factory.answer(), tmp_path)
    names = ("summary.json", "report.html")
    before = [(tmp_path / name).read_text() for name in names]

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(factory.answer(seed=7), tmp_path)
    assert [(tmp_path / name).read_text() for name in names] == before
    assert len(list(tmp_path.iterdir())) == 5


def test_importing_the_report_leaves_the_slow_libraries_alone() -> None:
    import subprocess
    import sys

    code = (
        "import sys, asap_ray.report.terminal, asap_ray.report.files\n"
        "print([name for name in ('altair', 'vl_convert', 'jinja2', 'rich', 'pandas') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_every_picture_is_as_the_schema_has_it_compiles_and_draws_its_marks(drawn: str) -> None:
    import altair as alt
    import vl_convert

    figures = json.loads(Elements(drawn).figures)
    assert set(figures) == {"0-time", "0-memory", "0-roofline", "0-map"}
    for name, figure in figures.items():
        alt.Chart.from_dict(figure)
        columns = figure.pop("usermeta", {}).get("columns", {})
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        svg = vl_convert.vegalite_to_svg(figure | {"width": 400, "datasets": {"plans": rows}})
        marks = {"0-time": 5 * 6 + 5, "0-memory": 6 * 5, "0-roofline": 5 * 2, "0-map": 400}
        assert svg.count('aria-roledescription="') >= marks[name]

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from asap_ray.errors import ConfigError
from asap_ray.report.terminal import announce, show


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def shown(answer: Any, monkeypatch: pytest.MonkeyPatch, width: int = 80, output: str = "rich") -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    show(answer, output, stream)
    return stream.getvalue()


def letters(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def three_slices(factory: Any) -> Any:
    return factory.answer(
        factory.slice_answer(),
        factory.slice_answer(factory.slice("v6e-256", 256, None, wrap=False), 0.5),
        factory.slice_answer(factory.slice("v5e-16", 16, 1.2), ranked=()),
    )


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(factory: Any, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    for answer in (factory.answer(), three_slices(factory), factory.answer(model="/home/someone/" + 30 * "deep/")):
        lines = letters(shown(answer, monkeypatch, width)).splitlines()
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_no_field_of_a_plan_is_broken_in_two(factory: Any, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    words = letters(shown(factory.answer(), monkeypatch, width)).split()
    for token in " ".join(factory.lines[:2]).split():
        assert token in words
    for token in ("sequence_parallel=true", "schedule=interleaved", "remat=attention"):
        assert token in words


def test_no_color_is_honoured_and_colour_is_there_without(factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert "\x1b[" in shown(factory.answer(), monkeypatch)
    monkeypatch.setenv("NO_COLOR", "")
    assert "\x1b[" in shown(factory.answer(), monkeypatch), "an empty NO_COLOR is none, as no-color.org has it"
    monkeypatch.setenv("NO_COLOR", "1")
    plain = io.StringIO()
    show(factory.answer(), "plain", plain)
    assert shown(factory.answer(), monkeypatch) == plain.getvalue()


def test_plain_where_there_is_no_terminal(factory: Any) -> None:
    stream = io.StringIO()
    show(factory.answer(), "rich", stream)
    text = stream.getvalue()
    assert "\x1b" not in text
    assert text.isascii()
    assert f"  plan    {factory.lines[0]}\n" in text
    assert "1,234,567 plans, 345,678 legal, 12,345 fit" in text
    assert "heads_divide 800,000, memory 333,333, layers_divide 88,889\n" in text
    assert "unused" not in text


def test_figures_are_those_of_the_answer(factory: Any) -> None:
    stream = io.StringIO()
    show(factory.answer(), "plain", stream)
    text = stream.getvalue()
    assert "69.0B parameters" in text
    assert "1,024 x 4,096 = 4.19M tokens" in text
    assert "100 s, likely 90.0 s to 120 s" in text
    assert "41.9k tokens/s, 655 tokens/s/chip" in text
    assert "80.0 s: the step takes 1.25x of it" in text
    assert "71.2 GB of 89.0 GB allowed" in text
    assert "$1.78 a million tokens" in text
    assert "51.0 GB" in text  # the plan that is too big needs 140 of 89 GB
    assert "No trial stands behind these figures" in text


def test_a_baseline_is_compared_with_the_best(factory: Any) -> None:
    stream = io.StringIO()
    show(factory.answer(baseline=factory.estimate(factory.lines[1], 150.0, hbm_bytes=90e9)), "plain", stream)
    wanted = f"baseline  150 s, does not fit: 1.00 GB over (90.0 GB); the best is 1.50x as fast ({factory.lines[1]})"
    assert wanted in stream.getvalue()


def test_what_differs_from_the_best_is_all_that_a_row_shows(factory: Any) -> None:
    stream = io.StringIO()
    show(factory.answer(), "plain", stream)
    row = next(line for line in stream.getvalue().splitlines() if line.lstrip().startswith("3  "))
    assert row.endswith("context=4@1.1.4 tensor=1 sequence_parallel=true remat=attention")
    assert "+4.0%" in row


def test_json_is_one_object_and_nothing_else(factory: Any) -> None:
    stream = Terminal()
    show(factory.answer(), "json", stream)
    assert json.loads(stream.getvalue())["model"] == "llama70b"


def test_heading_comes_once(factory: Any) -> None:
    answer, stream = factory.answer(), io.StringIO()
    announce(answer.model, answer.workload, (answer.slices[0].slice,), "plain", stream)
    show(answer, "plain", stream, announced=True)
    assert stream.getvalue().count("69.0B parameters") == 1


def test_nothing_fits(factory: Any) -> None:
    stream = io.StringIO()
    show(factory.answer(factory.slice_answer(ranked=(), diagnosis=None)), "plain", stream)
    assert "51.0 GB" in stream.getvalue()
    assert "fsdp=16@4.4.1 tensor=4@1.1.4" in stream.getvalue()


def test_names_cannot_control_the_terminal_nor_are_they_markup(factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(factory.answer(model="a\x1b[31m[red]b"), monkeypatch)
    assert "\x1b[31m" not in text
    assert "[red]b" in text


def test_a_stream_that_cannot_show_a_character_gets_another(factory: Any) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show(factory.answer(model="modèle"), "plain", stream)
    stream.seek(0)
    assert "mod?le" in stream.read()


def test_files_that_were_written_are_listed(factory: Any, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    stream = io.StringIO()
    show(factory.answer(run_dir=tmp_path), "plain", stream)
    assert "summary.json" in stream.getvalue()
    assert "report.html" not in stream.getvalue()


def test_unknown_output_names_what_is_allowed(factory: Any) -> None:
    with pytest.raises(ConfigError, match=r"output=jsn: did you mean json\? allowed: rich, plain, json"):
        show(factory.answer(), "jsn", io.StringIO())

"""The page of a validation, and which part of a step could alone explain an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asap_ray.plan import Plan
from asap_ray.report.blame import blame_line, blames
from asap_ray.report.validation import ValidationAnswer
from asap_ray.report.validation_page import WORST, validation_page
from asap_ray.validation import Validation
from tests.compared import TPU, make_compared
from tests.report.test_page import EVIL, Elements


def answer(*rows, unmapped: dict[str, int] | None = None) -> ValidationAnswer:
    found = Validation(
        tables=("a.csv",),
        read=len(rows),
        rows=rows,
        order=tuple(dict.fromkeys(row.group for row in rows)),
        unmapped=unmapped or {},
        complete_unmapped=0,
    )
    return ValidationAnswer(
        left_out=0,
        validation=found,
        command="asap-ray task=validate",
        run_dir=Path("runs"),
        wall_s=1.0,
        versions={"asap_ray": "1"},
    )


@pytest.fixture(scope="module")
def drawn() -> str:
    return draw()


def draw() -> str:
    """A page with thirty rows that are far off, one of another group, and one that ran out of memory."""
    rows = [
        make_compared(2.0 + i, 1.0, id=f"run-{i}", plan=Plan(micro_batch=i + 1), ranks=("a workload",))
        for i in range(30)
    ]
    rows.append(make_compared(1.0, 1.5, id="too slow", group="two", problem=TPU, inferred=("vocab: a guess",)))
    rows.append(make_compared(None, status="oom", hbm_bytes=90e9, peak_bytes=None, id="gone"))
    return validation_page(answer(*rows, unmapped={"layers: not stated": 7}))


def test_page_is_whole_offline(drawn: str) -> None:
    elements = Elements(drawn)
    assert "default-src 'none'" in drawn
    assert "link" not in elements.names
    assert all(value.startswith("#") for name, value in elements.attributes if value and name in ("src", "href"))


def test_page_holds_figures_and_the_worst_rows(drawn: str) -> None:
    words = " ".join(" ".join(Elements(drawn).texts).split())
    for text in ("a workload", "layers: not stated", "https://example.org/run", "100.0% of 1 foreseen", "too slow"):
        assert text in words
    assert "measured 31.0 s, predicted 1.00 s (0.03 of it)" in words
    assert drawn.count('<details class="panel">') == WORST
    points = json.loads(Elements(drawn).figures)["scatter"]["usermeta"]["columns"]
    assert len(points["measured"]) == 31
    assert points["measured"][-1] == 1.0
    assert points["assumed"][-1] == "1 field(s)"


def test_names_of_a_table_cannot_inject_markup(drawn: str) -> None:
    rows = [make_compared(id=EVIL, model=EVIL, source=EVIL, url=EVIL, ranks=(EVIL,), inferred=(EVIL,))]
    evil = Elements(validation_page(answer(*rows, unmapped={EVIL: 1})))
    assert evil.names.count("img") == 0
    assert evil.names.count("script") == Elements(drawn).names.count("script")
    assert not any(name.startswith("on") for name, _ in evil.attributes)


def test_no_rows_make_a_page_too() -> None:
    assert "No row has a plan and a measured step time." in validation_page(answer())
    assert "No row has a plan" in validation_page(answer(make_compared(None, status="fail")))


def test_blame_by_hand() -> None:
    # 1 s of 2 s is missing: the matmuls of 0.7 s would have to take 1.7 s, the tensor traffic of 0.3 s 1.3 s.
    found = {each.part: each.factor for each in blames(make_compared(2.0, 1.0))}
    assert found == {"matmul": pytest.approx(1.7 / 0.7), "tensor": pytest.approx(1.3 / 0.3)}
    line = blame_line(make_compared(2.0, 1.0))
    assert line == "1.00 s are missing; alone would do: matmul 2.43x or tensor 4.33x as long"


def test_a_part_shorter_than_the_excess_explains_nothing_alone() -> None:
    # 0.5 s too much: matmul could be 0.2 s of 0.7, the traffic of 0.3 s not even gone would do.
    found = {each.part: each.factor for each in blames(make_compared(0.5, 1.0))}
    assert found == {"matmul": pytest.approx(0.2 / 0.7), "tensor": None}
    parts = {f"part {i}": 0.1 for i in range(10)}
    assert blame_line(make_compared(0.5, 1.0, time_parts=parts)) == "500 ms too much; no part alone is as long"

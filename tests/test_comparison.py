"""What is summed up of which rows: who counts in the headline, what is ranked with what, who marks its failures."""

from __future__ import annotations

import pytest

from asap_ray.comparison import floors, memory_errors, memory_verdicts, summed
from asap_ray.plan import Plan
from asap_ray.ranked import certificates, rankings
from asap_ray.validation import Validation
from tests.compared import GPU, TPU, make_compared


def validation(*rows, order: tuple[str, ...] = ("one", "two"), unmapped: int = 0) -> Validation:
    return Validation(
        tables=("t.csv",), read=len(rows), rows=rows, order=order, unmapped={}, complete_unmapped=unmapped
    )


def test_headline_is_of_quality_and_group() -> None:
    rows = [
        make_compared(id="kept"),
        make_compared(id="poor", quality="B"),
        make_compared(id="left out", headline=False),
        make_compared(None, id="failed", status="fail"),
    ]
    found = validation(*rows, unmapped=1)
    assert [row.id for row in found.headline] == ["kept"]
    assert [row.id for row in found.timed] == ["kept", "poor", "left out"]
    assert found.mapped_share == 0.75


def test_a_source_partly_out_of_the_headline_is_told_by_group() -> None:
    rows = (
        make_compared(2.0, 1.0, source="s", group="one"),
        make_compared(4.0, 1.0, source="s", group="two", headline=False),
        make_compared(1.0, 1.0, source="t", group="one"),
    )
    blocks = {block.name: (block.n, block.median_ape) for block in validation(*rows).sources()}
    assert blocks == {"s": (2, 0.625), "s: one": (1, 0.5), "s: two": (1, 0.75), "t": (1, 0.0)}


def test_runs_of_one_plan_are_ranked_once_by_their_median() -> None:
    plans = [Plan(micro_batch=size) for size in (1, 2, 4)]
    rows = [
        make_compared(measured, predicted, plan=plans[i], ranks=("w",))
        for i, measured, predicted in ((0, 1.0, 1.0), (0, 3.0, 1.0), (0, 9.0, 1.0), (1, 2.0, 2.0), (2, 4.0, 3.0))
    ]
    # The first plan stands for 3 s, so the second is the best: regret 3/2 - 1.
    (block,) = rankings(rows)
    assert (block.name, block.n, block.regret_top1) == ("w", 3, 0.5)
    assert block.kendall_tau == pytest.approx(1 / 3)


def test_two_plans_or_failures_are_not_ranked() -> None:
    plans = [Plan(micro_batch=size) for size in (1, 2, 4)]
    two = [make_compared(plan=plan, ranks=("w",)) for plan in plans[:2]]
    failed = make_compared(None, plan=plans[2], ranks=("w",), status="oom")
    assert rankings([*two, failed]) == []


def test_a_row_of_several_groups_is_ranked_in_each_and_sources_apart() -> None:
    plans = [Plan(micro_batch=size) for size in (1, 2, 4)]
    rows = [make_compared(plan=plan, ranks=("v", "w")) for plan in plans]
    rows += [make_compared(plan=plan, ranks=("w",), source="other") for plan in plans[:2]]
    assert [(block.name, block.n) for block in rankings(rows)] == [("v", 3), ("w", 3)]


def test_only_sources_that_mark_failures_judge_the_memory() -> None:
    rows = [
        make_compared(None, status="oom", source="marks", hbm_bytes=90e9),
        make_compared(None, status="oom", source="marks", hbm_bytes=70e9),
        make_compared(source="marks", hbm_bytes=90e9),
        make_compared(source="marks", hbm_bytes=80e9),  # as much as is allowed
        make_compared(None, status="fail", source="marks", hbm_bytes=90e9),
        make_compared(source="silent", hbm_bytes=90e9),
    ]
    (block,) = memory_verdicts(rows)
    assert (block.name, block.tp, block.fp, block.tn, block.fn) == ("marks", 1, 1, 1, 1)
    assert summed("overall", [block, block]).tp == 2
    assert summed("overall", []).recognised is None


def test_peaks_are_compared_where_they_were_measured() -> None:
    rows = [make_compared(hbm_bytes=44e9, peak_bytes=40e9), make_compared(), make_compared(None, peak_bytes=80e9)]
    block = memory_errors("x", rows)
    assert (block.n, block.median_ape) == (2, pytest.approx(0.3))


def test_rows_below_their_floor_are_named() -> None:
    rows = [make_compared(2.0, floor_s=1.0), make_compared(1.0, floor_s=1.1, id="impossible")]
    known = floors(rows)
    assert (known.median, known.max, known.violations) == (pytest.approx(0.8), pytest.approx(1.1), ("impossible",))
    assert floors([]).max is None


def test_groups_come_in_their_order_and_the_worst_by_factor() -> None:
    rows = (
        make_compared(1.0, 3.0, id="three times", group="two", problem=TPU),
        make_compared(4.0, 1.0, id="a quarter", group="one", problem=GPU),
        make_compared(1.0, 1.0, id="right", group="one"),
    )
    found = validation(*rows)
    assert [group.errors.name for group in found.groups()] == ["one", "two"]
    assert [row.id for row in found.worst(2)] == ["a quarter", "three times"]


def test_certificates_on_a_ranked_workload_by_hand() -> None:
    # Predicted 1, 2, 3, 4 s with lower ends at 0.9 of it; measured 2, 1.7, 3.5, 5 s. After the first: 1.7 s beats the
    # best of 2 s but also the bound of 1.8 s: it does not hold, and one of three is below its lower end. After three
    # (best 1.7 s) the last takes 5 s: it holds.
    steps = [(1.0, 2.0), (2.0, 1.7), (3.0, 3.5), (4.0, 5.0)]
    rows = [
        make_compared(measured, predicted, plan=Plan(micro_batch=i + 1), ranks=("w",))
        for i, (predicted, measured) in enumerate(steps)
    ]
    one, three = certificates(rows)
    assert (one.tried, one.groups, one.holds, one.above) == (1, 1, 0.0, pytest.approx(2 / 3))
    assert (three.tried, three.groups, three.holds, three.above) == (3, 1, 1.0, 1.0)
    nothing, _ = certificates([])
    assert (nothing.groups, nothing.holds, nothing.above) == (0, None, None)

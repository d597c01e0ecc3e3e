"""Measured tables as grounds: outcomes by hand, and constants that no time of the ground can have moved."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asap_ray.contest.ground import Replay
from asap_ray.interchange.measured import MeasuredRow
from asap_ray.interchange.measured_tables import read_tables
from asap_ray.physics.calibration import CONSTANTS
from asap_ray.settings import data_dir, load_group
from asap_ray.tasks.predictions import load_mapper, map_rows
from asap_ray.tasks.replays import WITHOUT, LeftOut, case_of, load_left_out, replays
from asap_ray.tasks.validate import carried_tables
from tests.tasks.test_validate import GPT, table

TABLES = data_dir("knowledge") / "measured"
OF_CHIP = [name for name, about in CONSTANTS.items() if about["owner"] == "chip"]
OF_STACK = [name for name, about in CONSTANTS.items() if about["owner"] == "stack"]


@cache
def grounds(leave_out: str = "source") -> tuple[Replay, ...]:
    return tuple(replays(carried_tables(), leave_out, 0.05))


@cache
def rows(name: str = "vtrain_multi") -> tuple[MeasuredRow, ...]:
    return map_rows(read_tables("tables", [TABLES / f"{name}.parquet"]), load_mapper()).rows


@cache
def constants(leave_out: str) -> LeftOut:
    return load_left_out(leave_out)


def test_each_workload_with_eight_plans_that_ran_is_a_ground() -> None:
    found = grounds()
    sources = [each.source for each in found]
    assert len({each.name for each in found}) == len(found)
    assert sum("vTrain" in name for name in sources) == 49
    assert sum("Ultra-Scale" in name for name in sources) == 14
    assert all(sum(status == "complete" for status, _ in each.outcomes) >= 8 for each in found)
    assert any(status == "infeasible" for each in found for status, _ in each.outcomes)


def test_plans_stand_in_their_own_order_whatever_the_order_of_the_table() -> None:
    for ground in grounds():
        plans = [each.plan for each in ground.estimates]
        assert plans == sorted(plans)


def test_outcomes_are_medians_of_runs_and_what_never_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plans = [{"tp": tp, "dp": 8 // tp, "micro_batch_per_dp_rank": m} for tp in (1, 2, 4) for m in (1, 2, 4)]
    listed: list[dict[str, Any]] = [
        {**GPT, **plan, "id": f"a-{i}", "metric_step_time_s": 1.0 + i} for i, plan in enumerate(plans)
    ]
    listed += [{**listed[0], "id": "again", "metric_step_time_s": 3.0}, {**listed[0], "id": "more", "status": "oom"}]
    listed[8] = {**listed[8], "status": "oom", "metric_step_time_s": None}
    (ground,) = replays([table("mine.csv", *listed)], "source", 0.05)
    found = {
        (e.plan.axes["tensor"], e.plan.micro_batch): o for e, o in zip(ground.estimates, ground.outcomes, strict=True)
    }
    assert found[1, 1] == ("complete", 2.0)  # of 1 and 3 seconds; it ran, so running out once does not count
    assert found[1, 4] == ("complete", 3.0)
    assert found[4, 4] == ("infeasible", None)
    assert ground.constants == WITHOUT["unseen"]
    field = ground.field()
    assert field.best_s == 2.0
    assert np.isnan(field.step_s).sum() == 1


@pytest.mark.parametrize("leave_out", ["source", "model"])
def test_times_of_a_table_do_not_change_the_constants_used_on_it(leave_out: str) -> None:
    chosen = constants(leave_out)
    for row in rows()[:10]:
        slower = replace(row, step_time_s=(row.step_time_s or 1.0) * 2, id="other")
        assert chosen(slower) == chosen(row)


def test_constants_of_the_chip_are_of_the_fold_that_leaves_the_source_out() -> None:
    row = rows()[0]
    values = constants("source").folds[row.source, row.model]
    whole = constants("source").fitted.calibration(
        row.problem.slice.chip,
        constants("source").fitted.owners(row.problem.slice.chip, "megatron_vtrain"),
        "megatron_vtrain",
        {},
    )
    moved = [p.constant for p in values if not p.file.startswith("stack_")]
    for leave_out in ("source", "model"):
        found = constants(leave_out)(row)
        for name in moved:
            (value,) = [v for p, v in values.items() if p.constant == name and not p.file.startswith("stack_")]
            assert getattr(found, name) == value
        assert any(not math.isclose(getattr(found, n), getattr(whole, n), rel_tol=1e-4) for n in moved)


def test_without_the_source_the_stack_is_as_stated_and_without_the_model_as_its_fold() -> None:
    row = rows()[0]
    strict, by_model = constants("source")(row), constants("model")(row)
    values = constants("model").folds[row.source, row.model]
    of_stack = {p.constant: value for p, value in values.items() if p.file.startswith("stack_")}
    assert of_stack
    assert {name: getattr(by_model, name) for name in of_stack} == of_stack
    assert [getattr(strict, name) for name in OF_CHIP] == [getattr(by_model, name) for name in OF_CHIP]
    # Bridge's fit has 8.0 to 9.94 us for the host's launch, nanotron's 50 to 92.2: ours of 25 us is the median of both.
    moves = [math.log(float(f["fitted"]["host_launch_s"][0]) / stated) for f, stated in _other_launches(row.source)]
    assert len(moves) >= 2
    assert strict.host_launch_s == pytest.approx(2.5e-5 * math.exp(statistics.median(moves)))
    assert all("vTrain" not in name for f, _ in _other_launches(row.source) for name in f["rows"])


def _other_launches(source: str) -> list[tuple[dict[str, Any], float]]:
    """Files of stacks with a fit of the host's launch that saw no row of a source, with what they stated before."""
    plain = constants("source").stated.stated
    return [
        (dict(f), plain.stacks.get(str(f["stack"]), {}).get("host_launch_s", plain["gpu"].host_launch_s))
        for f in load_group("calibration").values()
        if "stack" in f and "host_launch_s" in f.get("fitted", {}) and source not in f["rows"]
    ]


def test_memory_is_of_other_publishers_alone() -> None:
    tellers = {case_of(each).id: each.source.split(",")[0] for each in grounds()}
    assert any(each.recall.cases for each in grounds())
    for ground in grounds():
        assert ground.source.split(",")[0] not in {tellers[case.id] for case in ground.recall.cases}


def test_a_model_that_its_source_never_ran_has_no_constant_of_the_stack_that_saw_the_source() -> None:
    new = replace(rows()[0], model="a new model")
    assert constants("model")(new) == constants("source")(new)
    assert constants("model")(replace(new, source="a new source")) != constants("model")(new)


def test_the_output_can_say_what_was_left_out() -> None:
    assert {each.constants for each in grounds()} == {WITHOUT["source"]}

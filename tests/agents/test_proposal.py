"""Predictions are fixed before a trial and judged after it: confirmed, refuted, no-op or invalid."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asap_ray.agents.proposal import GROUPS, Prediction, grouped, judge, predict_change, predict_step
from asap_ray.physics.estimate import TIME_PARTS
from asap_ray.search.protocol import Candidate, Result
from tests.agents.doubles import Double, more, small_pool


@pytest.fixture(scope="module")
def result() -> Result:
    pool = small_pool()
    return Double(pool).one(Candidate(number=4, plan=pool.plan(10), author="test"))


def other(result: Result, factor: float, digest: str = "other") -> Result:
    assert result.step_time_s
    return replace(result, step_time_s=factor * result.step_time_s, digest=digest)


def test_every_part_of_a_step_belongs_to_one_group() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(TIME_PARTS)
    assert grouped({"matmul": 1.0, "head": 2.0, "host": 0.5})["matmul"] == 3.0


def test_a_step_as_expected_is_confirmed_and_one_outside_is_refuted(result: Result) -> None:
    step = result.step_time_s or 0.0
    prediction = predict_step(step, 0.9 * step, 1.2 * step)
    assert judge(prediction, result, None).status == "confirmed"
    assert judge(prediction, other(result, 1.19), None).status == "confirmed"
    assert judge(prediction, other(result, 1.21), None).status == "refuted"
    assert judge(prediction, other(result, 0.89), None).status == "refuted"


def test_what_did_not_run_is_invalid_with_the_reason(result: Result) -> None:
    failed = replace(result, status="infeasible", step_time_s=None, reason="2 GB over")
    verdict = judge(predict_step(1.0, 0.5, 2.0), failed, None)
    assert (verdict.status, verdict.observed) == ("invalid", None)
    assert "2 GB over" in verdict.text


def test_a_trial_that_was_ended_as_clearly_slower_is_judged_by_its_step(result: Result) -> None:
    slow = replace(other(result, 1.4), status="pruned", reason="its interval lies above the best trial's")
    step = result.step_time_s or 0.0
    assert judge(predict_step(step, 0.9 * step, 1.2 * step), slow, None).status == "refuted"
    assert judge(predict_step(step, 0.9 * step, 1.5 * step), slow, None).status == "confirmed"


def test_the_same_program_or_the_same_figure_is_a_no_op(result: Result) -> None:
    step = result.step_time_s or 0.0
    falls = Prediction(field="step_time_s", direction="down", base=step, low=0.5 * step, high=0.9 * step)
    assert judge(falls, replace(result, step_time_s=0.7 * step), result).status == "no-op"  # the same digest
    assert judge(falls, other(result, 1.001), result).status == "no-op"
    assert judge(falls, other(result, 0.7), result).status == "confirmed"
    assert judge(falls, other(result, 1.1), result).status == "refuted"


def test_the_prediction_of_a_change_is_the_part_that_falls_most_by_its_ratio(result: Result) -> None:
    # By hand: gathering weights goes from 8 to 4 of the roofline's seconds; the trial saw 10. So 5 are predicted,
    # between 10 * 0.5^1.5 and 10 * 0.5^0.5, and a fiftieth of the 10 as room.
    assert result.roofline
    assert result.estimate
    zero = dict.fromkeys(TIME_PARTS, 0.0)
    before = more(replace(result.roofline, time_parts=zero), {"fsdp": 8.0, "matmul": 20.0})
    after = more(replace(result.roofline, time_parts=zero), {"fsdp": 4.0, "matmul": 19.0, "tensor": 2.0})
    seen = more(replace(result.estimate, time_parts=zero), {"fsdp": 10.0, "matmul": 22.0})
    found = predict_change(replace(result, estimate=seen, step_time_s=32.0), before, after)
    assert (found.field, found.direction, found.base) == ("fsdp", "down", 10.0)
    assert (found.low, found.high) == pytest.approx((10 * 0.5**1.5 - 0.2, 10 * 0.5**0.5 + 0.2))
    assert "fsdp falls from" not in found.text
    assert found.falsification.startswith("fsdp below 3.34 s or above 7.27 s")


def test_where_no_part_falls_the_step_is_predicted(result: Result) -> None:
    assert result.roofline
    slower = more(result.roofline, {"tensor": 0.5 * result.roofline.step_time_s})
    found = predict_change(result, result.roofline, slower)
    assert (found.field, found.direction) == ("step_time_s", "up")
    assert found.low < 1.5 * (result.step_time_s or 0.0) < found.high

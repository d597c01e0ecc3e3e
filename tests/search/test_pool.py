"""The pool against the space itself: one row a program, the fastest of its layouts, nothing that lacks a program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asap_ray.narrowing import fixed
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.physics.estimate import TIME_PARTS
from asap_ray.physics.roofline import Pricer
from asap_ray.rules import broken
from asap_ray.search.pool import Pool, pool_of_estimates, pool_of_space
from asap_ray.settings import load_group
from asap_ray.space import Space
from asap_ray.tasks.trial_tiers import in_our_trainer
from asap_ray.tiers.roofline import Roofline
from tests.problems import STACKS, all_plans, make_problem


def tier_of(slice_: str, stack: str, **changes: Any) -> Roofline:
    problem = make_problem(slice_, stack, **changes)
    known = calibrations_from_mappings(load_group("calibration"))
    return Roofline(problem=problem, calibration=calibration_of(problem.slice.chip, stack, known))


def pool_of(tier: Roofline, **changes: Any) -> Pool:
    space = Space(problem=tier.problem)
    return pool_of_space(space, Pricer(tier.problem, tier.calibration), tier.fitting(space), **changes)


def test_each_program_stands_once_on_its_fastest_layout() -> None:
    tier = tier_of("v5e-8", "maxtext")
    pool = pool_of(tier)
    fastest: dict[Any, float] = {}
    for each in tier.estimates(all_plans(Space(problem=tier.problem))):
        if each.fits:
            program = replace(each.plan, layout=())
            fastest[program] = min(fastest.get(program, float("inf")), each.step_time_s)
    found = {replace(pool.plan(row), layout=()): float(pool.step_s[row]) for row in range(len(pool))}
    assert found == pytest.approx(fastest)
    assert len(found) == len(pool) < tier.sweep(Space(problem=tier.problem), 1).fitting


def test_columns_are_those_of_the_plans_and_figures_those_of_the_roofline() -> None:
    tier = tier_of("v5e-4", "maxtext")
    pool = pool_of(tier)
    rows = range(0, len(pool), 17)
    for row, each in zip(rows, tier.estimates([pool.plan(row) for row in rows]), strict=True):
        assert pool.row(each.plan) == row
        assert pool.row(replace(each.plan, layout=())) == row
        assert pool.value(row, "remat") == each.plan.remat
        assert (pool.value(row, "tensor"), pool.value(row, "micro_batch")) == (
            each.plan.axes["tensor"],
            each.plan.micro_batch,
        )
        figures = (pool.step_s[row], pool.low_s[row], pool.floor_s[row], pool.hbm_bytes[row])
        assert figures == pytest.approx((each.step_time_s, each.interval_s[0], each.floor_s, each.hbm_bytes))
        assert dict(zip(TIME_PARTS, pool.parts[row], strict=True)) == pytest.approx(dict(each.time_parts))


def test_plans_without_a_program_are_left_out_and_counted_by_rule() -> None:
    tier = tier_of("h100x8", "megatron")
    program = in_our_trainer(tier.problem, STACKS["ours"], "compile")
    whole, pool = pool_of(tier), pool_of(tier, program=Pricer(program, tier.calibration))
    possible = [row for row in range(len(whole)) if broken(program, whole.plan(row)) is None]
    assert [whole.plan(row) for row in possible] == [pool.plan(row) for row in range(len(pool))]
    assert sum(pool.refused.values()) > 0


def test_plans_that_the_trainer_would_not_hold_are_left_out_and_counted_under_memory() -> None:
    tier = tier_of("v5e-4", "maxtext", model="gemma_2b", batch=32, seq_len=2048)
    known = calibrations_from_mappings(load_group("calibration"))
    ours = in_our_trainer(tier.problem, STACKS["ours"], "compile")
    trainer = Roofline(problem=ours, calibration=calibration_of(ours.slice.chip, "ours", known))
    space = Space(problem=tier.problem)
    space = space.narrowed(*fixed(tier.problem, {"context": 1, "micro_batch": 1}, "test", "space.fix"))
    plans = [space.plan(rows, i) for rows in tier.fitting(space) for i in range(len(rows))]
    plans = [plan for plan in plans if broken(ours, plan) is None]
    held = [each.hbm_bytes <= ours.slice.chip.usable_hbm_bytes for each in trainer.estimates(plans)]
    pricer = Pricer(tier.problem, tier.calibration)
    pool = pool_of_space(space, pricer, tier.fitting(space), Pricer(ours, trainer.calibration))
    assert pool.refused["memory"] == held.count(False) > 0
    left = {replace(plan, layout=()) for plan, fits in zip(plans, held, strict=True) if fits}
    assert {replace(pool.plan(row), layout=()) for row in range(len(pool))} == left
    assert left


def test_only_the_fastest_stay_where_there_are_too_many() -> None:
    tier = tier_of("v5e-4", "maxtext")
    whole, few = pool_of(tier), pool_of(tier, most=10)
    assert len(few) == 10
    assert few.left_out >= len(whole) - 10
    assert np.sort(few.step_s).tolist() == np.sort(whole.step_s)[:10].tolist()


def test_a_pool_of_given_plans_keeps_their_order() -> None:
    tier = tier_of("v5e-4", "maxtext")
    estimates = tier.estimates(Space(problem=tier.problem).sample(8, seed=1))
    pool = pool_of_estimates(tier.problem, estimates)
    assert [pool.plan(row) for row in range(8)] == [each.plan for each in estimates]
    assert pool.step_s.tolist() == [each.step_time_s for each in estimates]

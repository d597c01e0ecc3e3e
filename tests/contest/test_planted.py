"""Planted truths: never below a floor, the best of them known, all of it the same again."""

from __future__ import annotations

import numpy as np
import pytest

from asap_ray.contest.planted import RUN_TO_RUN, Planted, Truth, planted, whole_pool
from asap_ray.physics.roofline import Pricer
from asap_ray.space import Space
from tests.search.test_pool import tier_of


@pytest.fixture(scope="module")
def ground() -> Planted:
    tier = tier_of("v5e-16", "maxtext", model="llama3_8b", batch=32, seq_len=4096)
    (found,) = planted([("small", tier.problem, tier.calibration)], 1)
    return found


def test_every_legal_plan_stands_in_the_pool_with_whether_it_fits(ground: Planted) -> None:
    pool, gate = whole_pool(ground.problem, ground.calibration, most=10**6)
    limit, fitting = ground.problem.hbm_limit_bytes, set()
    space, pricer = Space(problem=ground.problem), Pricer(ground.problem, ground.calibration)
    for rows in space.chunks():
        fits = pricer.price(rows).hbm_bytes <= limit
        fitting |= {tuple(int(rows[name][i]) for name in pool.columns) for i in np.flatnonzero(fits)}
    assert {tuple(int(pool.columns[name][i]) for name in pool.columns) for i in np.flatnonzero(gate)} == fitting
    assert (pool.hbm_bytes[gate] <= limit).all()
    assert (pool.hbm_bytes[~gate] > limit).all()
    row = len(pool) - 1
    assert pool.row(pool.plan(row)) == row
    assert pool.estimate(row).step_time_s == pytest.approx(pool.step_s[row])


def test_truth_keeps_to_floors_and_its_best_is_the_least_of_all(ground: Planted) -> None:
    field = ground.field()
    runs = field.status == "complete"
    assert (field.step_s[runs] >= field.pool.floor_s[runs]).all()
    assert field.best_s == min(step for step in field.step_s if not np.isnan(step))
    assert 0.0 < field.error < 0.5


def test_one_mechanism_is_sick_and_parts_explain_the_step(ground: Planted) -> None:
    pool = ground.field().pool
    truth = Truth(pool, ground.seed)
    assert "times as long" in truth.sick
    for row in (0, len(pool) // 2):
        seen = truth.seen(row)
        assert sum(seen.time_parts.values()) == pytest.approx(truth.step_s[row])


def test_the_same_seed_is_the_same_truth_and_another_one_is_another(ground: Planted) -> None:
    pool = ground.field().pool
    first, again, other = Truth(pool, 5), Truth(pool, 5), Truth(pool, 6)
    assert (first.step_s == again.step_s).all()
    assert not np.allclose(first.step_s, other.step_s)
    noise = np.log([first.noise(row, 1) for row in range(400)])
    assert noise.std() == pytest.approx(RUN_TO_RUN, rel=0.2)
    assert first.noise(3, 1) == again.noise(3, 1) != first.noise(3, 2)

"""What is kept for the certificate, against looking at every plan at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asap_ray.certificate import TIGHTEN, Bound
from asap_ray.physics.estimate import Estimate
from asap_ray.space import Space
from asap_ray.tiers.untried import Untried
from tests.brute_force import legal_plans
from tests.problems import DENSE, make_problem
from tests.tiers.test_roofline import PROBLEMS, everything, tier

# Few distinct values, so that ties are common.
FLOORS = st.sampled_from([1.0, 1.5, 2.0])
POINT = st.tuples(FLOORS, st.sampled_from([1.0, 1.2, 2.0]), st.sampled_from([1.0, 1.1, 1.6]))


def told(points: list[tuple[float, float, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Floors, lower ends and steps [plans], each at least the one before."""
    floors, lows, steps = (np.array([point[k] for point in points]) for k in range(3))
    return floors, floors * lows, floors * lows * steps


def expected(best_s: float, figures: np.ndarray, steps: np.ndarray, rest: list[int], bound: Bound) -> None:
    """Assert that a bound is what a look at all untried plans gives."""
    order = sorted(rest, key=lambda i: (figures[i], steps[i], i))
    below = [i for i in order if figures[i] < best_s]
    assert bound.bound_s == (figures[order[0]] if order else None)
    assert bound.at_most_faster == pytest.approx(max(best_s / figures[order[0]] - 1, 0) if order else 0)
    assert bound.contenders == len(below)
    assert bound.at_bound == sum(figures[i] == figures[order[0]] for i in below)
    named: Any = [each.plan for each in bound.tighten]
    assert named == below[:TIGHTEN]
    for k, each in enumerate(bound.tighten, start=1):
        then = min(best_s, *(steps[i] for i in order[:k]))
        left = figures[order[k]] if k < len(order) else np.inf
        assert each.at_most_faster == pytest.approx(max(then / left - 1, 0))


@given(st.lists(POINT, min_size=1, max_size=40), st.integers(1, 7), st.sampled_from([None, 1.0, 1.7, 3.0, 9.0]))
def test_bounds_are_those_of_all_plans_at_once(
    points: list[tuple[float, float, float]], size: int, measured: float | None
) -> None:
    floors, lows, steps = told(points)
    # Trials are of the best estimate and, where a step was measured, of two more plans.
    tried = [int(i) for i in np.argsort(steps, kind="stable")[:: 5 if measured else len(points)][:3]]
    keeper = Untried(measured, len(tried))
    space: Any = SimpleNamespace(plan=lambda rows, i: int(rows[i]))
    for start in range(0, len(points), size):
        rows: Any = np.arange(start, min(start + size, len(points)))
        keeper.offer(space, rows, steps[rows], floors[rows], lows[rows])

    def estimates(plans: list[Any]) -> list[Any]:
        ends = {i: (float(lows[i]), 2 * float(steps[i])) for i in plans}
        return [SimpleNamespace(plan=i, floor_s=floors[i], interval_s=ends[i], step_time_s=steps[i]) for i in plans]

    found = keeper.certificate(estimates(tried), estimates)
    assert found is not None
    best = steps.min() if measured is None else measured
    rest = [i for i in range(len(points)) if i not in tried]
    assert (found.best_step_s, found.measured, found.untried) == (best, measured is not None, len(rest))
    expected(best, floors, steps, rest, found.hard)
    expected(best, lows, steps, rest, found.credible)


def test_without_a_plan_that_fits_there_is_no_certificate() -> None:
    assert Untried().certificate((), lambda _: []) is None


def bounds(estimates: list[Estimate]) -> tuple[float, float, int, int]:
    """Least floor and lower end of all plans that fit but the fastest, and how many lie below that one's step."""
    best, *rest = sorted((each for each in estimates if each.fits), key=lambda each: each.step_time_s)
    floor, low, may_win, might_win = float("inf"), float("inf"), 0, 0
    for each in rest:
        floor, low = min(floor, each.floor_s), min(low, each.interval_s[0])
        may_win += each.floor_s < best.step_time_s * (1 - 1e-9)
        might_win += each.interval_s[0] < best.step_time_s * (1 - 1e-9)
    return floor, low, may_win, might_win


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_sweep_certifies_its_best_over_every_plan_that_fits(name: str) -> None:
    _, sweep, alone = everything(name)
    found = sweep.certificate
    assert found is not None
    floor, low, may_win, might_win = bounds(alone)
    assert found.best_step_s == sweep.ranked[0].step_time_s
    assert found.untried == sweep.fitting - 1
    assert found.hard.bound_s == pytest.approx(floor)
    assert found.credible.bound_s == pytest.approx(low)
    assert (found.hard.contenders, found.credible.contenders) == (may_win, might_win)
    assert all(each.plan != sweep.ranked[0].plan for bound in (found.hard, found.credible) for each in bound.tighten)


def test_the_bounds_are_those_of_plans_enumerated_the_slow_way() -> None:
    problem = make_problem("h100:2x3", "megatron", DENSE)
    found = tier(problem).sweep(Space(problem=problem), top=3).certificate
    assert found is not None
    floor, low, *counts = bounds(tier(problem).estimates(list(legal_plans(problem))))
    assert (found.hard.bound_s, found.credible.bound_s) == (pytest.approx(floor), pytest.approx(low))
    assert [found.hard.contenders, found.credible.contenders] == counts
    assert counts[0] > 0

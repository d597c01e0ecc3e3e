"""The certificate's arithmetic, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asap_ray.certificate import PROBABILITY, TIGHTEN, bound_over, check, faster, floor_of, low_of
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan


def estimate(micro_batch: int, step: float, low: float, floor: float) -> Estimate:
    """A plan told by its micro-batch, with the figures that a certificate reads."""
    return Estimate(
        plan=Plan.parse(f"fsdp=4 micro_batch={micro_batch} remat=full"),
        step_time_s=step,
        interval_s=(low, 2 * step),
        floor_s=floor,
        serial_s=2 * step,
        mfu=0.5,
        tokens_per_s=1.0,
        hbm_bytes=1.0,
        hbm_limit_bytes=2.0,
        time_parts={},
        busy={},
        memory_parts={},
        floor_parts={},
        redundant=0.0,
    )


# The best takes 10 s.
OTHERS = tuple(
    estimate(micro_batch, step, low, floor)
    for micro_batch, step, low, floor in ((1, 11.0, 9.5, 8.0), (2, 10.5, 8.4, 9.0), (3, 14.0, 12.5, 12.0))
)


def test_the_intervals_hold_ninety_percent_so_a_lower_end_ninety_five() -> None:
    assert pytest.approx(0.95) == PROBABILITY


def test_faster_is_in_steps_a_second() -> None:
    assert faster(10.0, 8.0) == pytest.approx(0.25)
    assert faster(10.0, 12.0) == 0.0
    assert faster(10.0, None) == 0.0


def test_the_hard_bound_of_the_worked_instance() -> None:
    bound = bound_over(10.0, floor_of, OTHERS, contenders=2, at_bound=1)
    assert (bound.bound_s, bound.contenders, bound.at_bound) == (8.0, 2, 1)
    assert bound.at_most_faster == pytest.approx(0.25)
    assert [each.plan.micro_batch for each in bound.tighten] == [1, 2], (
        "the third could not win, so it need not be tried"
    )
    # With the first tried the least floor is 9 s, with both 12 s.
    assert [each.at_most_faster for each in bound.tighten] == [pytest.approx(10 / 9 - 1), 0.0]
    assert (bound.tighten[0].step_time_s, bound.tighten[0].floor_s, bound.tighten[0].low_s) == (11.0, 8.0, 9.5)


def test_the_credible_bound_takes_the_lower_ends() -> None:
    bound = bound_over(10.0, low_of, (OTHERS[1], OTHERS[0], OTHERS[2]), contenders=2, at_bound=1)
    assert bound.at_most_faster == pytest.approx(10 / 8.4 - 1)
    assert [each.plan.micro_batch for each in bound.tighten] == [2, 1]
    assert bound.tighten[0].at_most_faster == pytest.approx(10 / 9.5 - 1)


def test_a_trial_that_beats_a_measured_best_is_what_the_next_ones_are_held_against() -> None:
    # Measured 13 s, but the first is estimated at 11 s: then 9 s is left of the others, 11 / 9 - 1 = 22% faster.
    bound = bound_over(13.0, floor_of, OTHERS, contenders=3, at_bound=1)
    # With the second at 10.5 s too, the floor of 12 s is above the new best.
    assert [each.at_most_faster for each in bound.tighten] == [pytest.approx(11 / 9 - 1), 0.0, 0.0]


def test_no_more_than_a_few_plans_are_named() -> None:
    many = tuple(estimate(k, 11.0, 9.0 + k / 10, 8.0) for k in range(1, TIGHTEN + 2))
    bound = bound_over(10.0, low_of, many, contenders=50, at_bound=1)
    assert len(bound.tighten) == TIGHTEN
    assert bound.tighten[-1].at_most_faster == pytest.approx(10 / 9.4 - 1)


def test_where_nothing_is_left_nothing_can_be_faster() -> None:
    bound = bound_over(10.0, floor_of, (), contenders=0, at_bound=0)
    assert (bound.bound_s, bound.at_most_faster, bound.tighten) == (None, 0.0, ())
    last = bound_over(10.0, floor_of, (replace(OTHERS[0]),), contenders=1, at_bound=1)
    assert [each.at_most_faster for each in last.tighten] == [0.0]


STEPS = np.array([10.0, 9.0, 12.0, 11.0])
LOWS = 0.9 * STEPS  # 9, 8.1, 10.8, 9.9


@pytest.mark.parametrize(
    ("measured", "holds", "above"),
    [
        # The second plan is predicted best and takes 10 s; the least lower end of the others is 9 s.
        ((9.5, 10.0, 13.0, 11.0), True, 3),  # one is faster, but not below 9 s
        ((8.5, 10.0, 13.0, 11.0), False, 2),  # 8.5 s is
        ((10.0, 10.0, 10.5, 9.2), True, 1),  # two are below their own lower ends, none below the least
        ((8.6, 8.5, 13.0, 11.0), True, 2),  # 8.6 s is below 9 s, but the best at 8.5 s is faster still
    ],
)
def test_a_measured_group_is_held_against_the_credible_bound(
    measured: tuple[float, ...], holds: bool, above: int
) -> None:
    found = check(STEPS, LOWS, np.array(measured))
    assert (found.holds, found.above, found.untried) == (holds, above, 3)
    assert (found.best_s, found.bound_s) == (measured[1], pytest.approx(9.0))
    assert found.fastest_s == min(measured[0], *measured[2:])


def test_several_of_the_predicted_best_may_count_as_tried() -> None:
    found = check(STEPS, LOWS, np.array([8.0, 10.0, 13.0, 9.95]), tried=2)
    assert (found.best_s, found.bound_s, found.fastest_s, found.untried) == (8.0, pytest.approx(9.9), 9.95, 2)
    assert found.holds
    with pytest.raises(ValueError, match="4 plans, of which 4 are tried, leave none untried"):
        check(STEPS, LOWS, STEPS, tried=4)

"""Medians and intervals of timed steps, worked out by hand."""

from __future__ import annotations

import math

import pytest

from asap_ray.step_times import gain, interval_s, median_s, pooled


def test_one_process_has_its_scatter_and_the_spread_between_processes() -> None:
    steps = [1.0, 1.1, 0.9, 1.0, 1.0]
    assert median_s(steps) == 1.0
    # Absolute deviations 0, 0.1, 0.1, 0, 0: their median is 0, so the spread between processes is all there is.
    low, high = interval_s(steps, 0.03)
    assert (low, high) == pytest.approx((math.exp(-1.645 * 0.03), math.exp(1.645 * 0.03)))
    # Deviations 0.2, 0.1, 0, 0.1, 0.2: median 0.1, sigma 0.14826, of the median 1.2533 x 0.14826 / sqrt(5).
    low, high = interval_s([0.8, 0.9, 1.0, 1.1, 1.2], 0.0)
    assert math.log(high) == pytest.approx(1.645 * 1.2533 * 0.14826 / math.sqrt(5), rel=1e-3)
    assert low * high == pytest.approx(1.0)


def test_processes_that_agree_by_chance_are_as_far_apart_as_processes_are() -> None:
    step, (low, high) = pooled([2.0, 2.0], 0.03)
    # Variance (4 x 0.03^2 + 0) / 5, Student's t of 5 degrees of freedom 2.015, mean of two.
    half = 2.015 * math.sqrt(4 * 0.03**2 / 5) / math.sqrt(2)
    assert step == pytest.approx(2.0)
    assert (low, high) == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)))


def test_a_gain_counts_turn_by_turn() -> None:
    # The machine slows by half in the second turn; the plan takes 0.8 of the baseline in both.
    share, (low, high) = gain([1.0, 1.5], [0.8, 1.2], 0.0)
    assert share == pytest.approx(0.2)
    assert (low, high) == pytest.approx((0.2, 0.2))
    share, (low, high) = gain([1.0, 1.5], [0.8, 1.2], 0.03)
    half = 2.015 * math.sqrt(4 * 2 * 0.03**2 / 5) / math.sqrt(2)
    assert (low, high) == pytest.approx((1 - 0.8 * math.exp(half), 1 - 0.8 * math.exp(-half)))

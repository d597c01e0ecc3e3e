"""Rewards by hand: 0 for errors, a half for what changes nothing, the logistic function of the gain else."""

from __future__ import annotations

import math

import pytest

from asap_ray.agents.reward import ERRORS, reward


@pytest.mark.parametrize("status", ERRORS)
def test_an_error_is_worth_nothing_whatever_it_took(status: str) -> None:
    assert reward(status, 1.0, 2.0) == 0.0


def test_a_program_without_a_step_is_worth_nothing() -> None:
    assert reward("complete", None, 2.0) == 0.0


@pytest.mark.parametrize(
    ("step", "best", "expected"),
    [
        (1.0, 1.0, 0.5),
        (0.9, 1.0, 1 / (1 + 0.9**10)),  # 0.741: e^(-10 ln(1/0.9)) is 0.9^10
        (1.0, 0.5, 1 / (1 + 2**10)),  # twice as slow
        (0.5, 1.0, 1 - 1 / (1 + 2**10)),
        (1e-9, 1e9, 1.0),
    ],
)
def test_a_gain_is_the_logistic_function_of_ten_times_its_logarithm(step: float, best: float, expected: float) -> None:
    assert reward("complete", step, best) == pytest.approx(expected)
    assert reward("pruned", step, best) == pytest.approx(expected)


def test_what_changes_nothing_and_what_has_nothing_to_gain_on_are_neutral() -> None:
    assert reward("complete", 0.7, 1.0, no_op=True) == 0.5
    assert reward("complete", 0.7, None) == 0.5
    assert math.isfinite(reward("complete", 1e-300, 1e300))

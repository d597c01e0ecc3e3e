"""Fits against closed forms, and outliers against what they may do."""

from __future__ import annotations

import numpy as np
import pytest

from asap_ray.fitting.solve import SCATTER, cost, solve, step

OPEN = (np.array([-np.inf]), np.array([np.inf]))


def test_small_errors_give_the_posterior_of_a_linear_model() -> None:
    # Errors far below the scatter are weighed as squares: ridge regression, (J'J/s^2 + 1)^-1 J'(-e)/s^2.
    jacobian = np.array([[0.1, 0.0], [0.1, 0.2], [0.0, 0.1]])
    errors = np.array([1e-4, -2e-4, 3e-4])
    found, error = step(errors, jacobian, np.ones(3), np.zeros(2), (np.full(2, -np.inf), np.full(2, np.inf)))
    precision = jacobian.T @ jacobian / SCATTER**2 + np.eye(2)
    assert found == pytest.approx(-np.linalg.solve(precision, jacobian.T @ errors / SCATTER**2), rel=1e-3)
    assert error == pytest.approx(np.sqrt(np.diag(np.linalg.inv(precision))), rel=1e-4)


def test_one_wild_run_moves_the_fit_less_than_the_scatter_of_one() -> None:
    # Twenty runs at their estimate and one ten times slower: a mean of logarithms would move by 2.3 / 21 = 0.11.
    jacobian = np.full((21, 1), 0.12)
    errors = np.zeros(21)
    errors[0] = -np.log(10)
    bounds = (np.array([-5.0]), np.array([5.0]))
    found, _ = step(errors, jacobian, np.ones(21), np.zeros(1), bounds)
    assert 0 < 0.12 * found[0] < SCATTER / 10


def test_a_run_without_weight_says_nothing() -> None:
    jacobian, errors = np.array([[0.1], [0.1]]), np.array([0.02, -0.5])
    alone, _ = step(errors[:1], jacobian[:1], np.ones(1), np.zeros(1), OPEN)
    both, _ = step(errors, jacobian, np.array([1.0, 0.0]), np.zeros(1), OPEN)
    assert both == pytest.approx(alone)


def test_a_nonlinear_fit_finds_its_minimum_within_the_bounds() -> None:
    target = np.log([2.0, 2.0, 2.0])

    def errors(x: np.ndarray) -> np.ndarray:
        return np.log1p(np.exp(x[0])) * np.ones(3) - target

    def jacobian(x: np.ndarray) -> np.ndarray:
        return (1 / (1 + np.exp(-x[0]))) * np.ones((3, 1))

    weights, free = np.full(3, 1e4), (np.array([-5.0]), np.array([5.0]))
    found = solve(errors, jacobian, weights, np.array([3.0]), free, rounds=10)
    # log(1 + e^x) = log 2 at x = 0: the belief, which is 0 too, does not pull.
    assert found.x == pytest.approx([0.0], abs=1e-3)
    held = solve(errors, jacobian, weights, np.array([3.0]), (np.array([1.0]), np.array([5.0])), rounds=10)
    assert held.x == pytest.approx([1.0])
    assert cost(errors(held.x), weights, held.x) > found.cost


def test_runs_that_say_nothing_leave_a_belief_as_it_is() -> None:
    found = solve(lambda x: np.full(3, 0.3), lambda x: np.zeros((3, 1)), np.ones(3), np.zeros(1), OPEN, rounds=2)
    assert found.x == pytest.approx([0.0])
    assert found.error == pytest.approx([1.0])

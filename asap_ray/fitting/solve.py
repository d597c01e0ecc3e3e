"""The most probable constants given measured runs: Gauss-Newton on robust errors, within the physics' bounds.

The cost is the sum over runs of w rho(e / s) and over parameters of x^2, where e is the logarithm of estimated over
measured, s what runs scatter by when nothing is wrong (public republished figures move by 5%), w the weight of a run,
rho(z) = 2 (sqrt(1 + z^2) - 1) (soft L1: like squares for small errors, like absolute values for large ones, so that
runs that the physics does not explain pull no harder than their share), and x are parameters in units of their beliefs
(`parameters.Scale`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import lsq_linear

SCATTER = 0.05
MAX_STEP = 1.5
"""Longest step of a parameter, in standard deviations of its belief."""
REWEIGHTED, CLOSE = 8, 1e-3
"""Most rounds of reweighting, and the change of all parameters at which they end."""

Errors = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Solution:
    """Parameters `x` and their standard errors [parameters] in units of the beliefs, and the cost."""

    x: np.ndarray
    error: np.ndarray
    cost: float


def cost(errors: np.ndarray, weights: np.ndarray, x: np.ndarray) -> float:
    """What a fit makes small."""
    return float(np.sum(weights * 2 * (np.sqrt(1 + (errors / SCATTER) ** 2) - 1)) + x @ x)


def step(
    errors: np.ndarray, jacobian: np.ndarray, weights: np.ndarray, x: np.ndarray, bounds: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The minimum of the cost if errors were linear in x, by reweighted least squares, and its standard errors."""
    low, high = np.maximum(bounds[0], x - MAX_STEP), np.minimum(bounds[1], x + MAX_STEP)
    found, a = x, np.eye(len(x))
    for _ in range(REWEIGHTED):
        now = errors + jacobian @ (found - x)
        robust = np.sqrt(weights / np.sqrt(1 + (now / SCATTER) ** 2)) / SCATTER
        a = np.vstack([robust[:, None] * jacobian, np.eye(len(x))])
        b = np.concatenate([robust * (jacobian @ x - errors), np.zeros(len(x))])
        before, found = found, lsq_linear(a, b, (low, np.maximum(high, low + 1e-9))).x
        if np.max(np.abs(found - before), initial=0.0) < CLOSE:
            break
    return found, np.sqrt(np.diag(np.linalg.inv(a.T @ a)))


def solve(
    errors: Errors,
    jacobian: Callable[[np.ndarray], np.ndarray],
    weights: np.ndarray,
    start: np.ndarray,
    bounds: tuple[np.ndarray, np.ndarray],
    rounds: int,
) -> Solution:
    """Minimise the cost from `start`; each round takes one Jacobian [rows, parameters] and up to three steps with it.

    A step that does not lower the true cost is halved, and given up after four halvings.
    """
    x = np.clip(start, bounds[0], np.maximum(bounds[1], bounds[0]))
    now = errors(x)
    best, error = cost(now, weights, x), np.ones(len(x))
    for _ in range(rounds):
        slopes, before = jacobian(x), best
        for _ in range(3):
            aim, error = step(now, slopes, weights, x, bounds)
            share = 1.0
            while share > 0.05:
                trial = x + share * (aim - x)
                there = errors(trial)
                if (reached := cost(there, weights, trial)) < best:
                    break
                share /= 2
            else:
                break
            gained, x, now, best = best - reached, trial, there, reached
            if gained < 1e-3 * best:
                break
        if before - best < 2e-3 * best:
            break
    return Solution(x, error, best)

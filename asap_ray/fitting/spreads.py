"""How wide an interval must be: what predictions of unseen runs were off by, as a property of each stack.

A step is compute, traffic and host; each kind has a relative spread, and they err independently, so that the interval
of a step is e^(+-h) around its estimate with h^2 = (compute's share x its spread)^2 + … (`Pricer.interval`). Spreads
are half-widths of intervals that are to hold 90%: each stack's are fitted by quantile regression (Koenker and Bassett
1978), whose loss is least where the wanted share of its errors lies inside, as narrowly as its shares of compute,
traffic and host allow. A stack with few runs is held near the spreads of all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from asap_ray.fitting.parameters import Parameter

SPREADS = ("spread_compute", "spread_network", "spread_host")
HELD = 0.86
"""Share of the left-out runs that intervals are fitted to hold. Other runs are estimated with constants that have seen
their source, and err less: of them some 90% lie inside."""
LEAST, MOST = 0.02, 3.0
FIRST = (0.05, 0.2, 0.6)
AROUND = (0.5, 1.0, 2.0)
"""Spreads that the search starts from, of all runs, and of a stack over those of all: the loss has several valleys."""
BELIEF = 0.5
"""Standard deviation of the logarithm of a spread around that of all stacks."""
WORTH = 0.02
"""Loss of a run that a belief is weighed against: about half the error of a run that is well explained."""


def half_widths(shares: np.ndarray, spreads: np.ndarray) -> np.ndarray:
    """Half-widths of the logarithm [rows] from shares of a step [rows, kinds] and spreads [kinds]."""
    return np.sqrt(np.square(shares * spreads).sum(axis=1))


def fit_spreads(errors: np.ndarray, shares: np.ndarray, files: Sequence[str]) -> dict[Parameter, float]:
    """Spreads of each stack's file from errors of unseen runs [rows], logarithms, with their shares [rows, kinds]."""
    of, names = np.array(files), sorted(set(files))
    shared = _held(errors, shares, None)
    found = {name: _held(errors[of == name], shares[of == name], shared) for name in names}
    return {
        Parameter(name, kind): float(spread)
        for name in names
        for kind, spread in zip(SPREADS, found[name], strict=True)
    }


def _held(errors: np.ndarray, shares: np.ndarray, around: np.ndarray | None) -> np.ndarray:
    """Spreads [kinds] whose half-widths are the quantile `HELD` of the errors' sizes."""

    def loss(logs: np.ndarray) -> float:
        outside = np.abs(errors) - half_widths(shares, np.exp(logs))
        belief = 0.0 if around is None else float(np.sum(((logs - np.log(around)) / BELIEF) ** 2)) / 2
        return float(np.sum(np.maximum(HELD * outside, (HELD - 1.0) * outside))) / WORTH + belief

    bounds = [(np.log(LEAST), np.log(MOST))] * len(SPREADS)
    starts = [np.full(len(SPREADS), each) for each in FIRST] if around is None else [around * each for each in AROUND]
    found = [minimize(loss, np.log(np.clip(start, LEAST, MOST)), method="Powell", bounds=bounds) for start in starts]
    return np.exp(min(found, key=lambda each: float(each.fun)).x)

"""How wide an interval must be: what predictions of unseen runs were off by, as a property of each stack.

A step is compute, traffic and host; each kind has a relative spread, and they err independently, so that the interval
of a step is e^(+-h) around its estimate with h^2 = (compute's share x its spread)^2 + … (`Pricer.interval`). Spreads
are half-widths that hold 90%: each stack's are fitted by quantile regression (Koenker and Bassett 1978), whose loss is
least where that share of its errors lies inside, as narrowly as its shares of compute, traffic and host allow. A stack
with few runs is held near the spreads of all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from asap_ray.fitting.parameters import Parameter

SPREADS = ("spread_compute", "spread_network", "spread_host")
HELD = 0.90
LEAST, MOST = 0.02, 3.0
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

    start = np.log(np.full(len(SPREADS), 0.2) if around is None else around)
    bounds = [(np.log(LEAST), np.log(MOST))] * len(SPREADS)
    best = minimize(loss, start, method="Nelder-Mead", bounds=bounds, options={"xatol": 1e-3, "fatol": 1e-4})
    return np.exp(best.x)

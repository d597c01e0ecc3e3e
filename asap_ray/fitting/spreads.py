"""How wide an interval must be: what predictions of unseen runs were off by, as a property of each stack.

A step is compute, traffic and host; each kind has a relative spread, and they err independently, so that the interval
of a step is e^(+-h) around its estimate with h^2 = (compute's share x its spread)^2 + … (`Pricer.interval`). Spreads
are half-widths that hold 90%. They are the most probable ones if errors have a Laplace distribution (their tails are
long), then scaled together so that 90% of all runs lie inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import minimize

from asap_ray.fitting.parameters import Parameter

SPREADS = ("spread_compute", "spread_network", "spread_host")
HELD = 0.90
LEAST, MOST = 0.02, 3.0
BELIEF = 0.5
"""Standard deviation of the logarithm of a spread around that of all stacks."""
LAPLACE = float(np.log(1.0 / (1.0 - HELD)))
"""Half-width that holds 90% of a Laplace distribution, over its scale."""


def half_widths(shares: np.ndarray, spreads: np.ndarray) -> np.ndarray:
    """Half-widths of the logarithm [rows] from shares of a step [rows, kinds] and spreads [kinds]."""
    return np.sqrt(np.square(shares * spreads).sum(axis=1))


def fit_spreads(errors: np.ndarray, shares: np.ndarray, files: Sequence[str]) -> dict[Parameter, float]:
    """Spreads of each stack's file from errors of unseen runs [rows], logarithms, with their shares [rows, kinds]."""
    of, names = np.array(files), sorted(set(files))
    shared = _most_probable(errors, shares, None)
    found = {name: _most_probable(errors[of == name], shares[of == name], shared) for name in names}
    needed = np.empty(len(errors))
    for name in names:
        mine = of == name
        needed[mine] = np.abs(errors[mine]) / half_widths(shares[mine], found[name])
    scale = float(np.quantile(needed, HELD))
    return {
        Parameter(name, kind): float(np.clip(spread * scale, LEAST, MOST))
        for name in names
        for kind, spread in zip(SPREADS, found[name], strict=True)
    }


def _most_probable(errors: np.ndarray, shares: np.ndarray, around: np.ndarray | None) -> np.ndarray:
    def unlikeliness(logs: np.ndarray) -> float:
        widths = half_widths(shares, np.exp(logs))
        belief = 0.0 if around is None else float(np.sum(((logs - np.log(around)) / BELIEF) ** 2)) / 2
        return float(np.sum(np.log(widths) + LAPLACE * np.abs(errors) / widths)) + belief

    start = np.log(np.full(len(SPREADS), 0.2) if around is None else around)
    bounds = [(np.log(LEAST), np.log(MOST))] * len(SPREADS)
    return np.exp(minimize(unlikeliness, start, method="L-BFGS-B", bounds=bounds).x)


def by_file(values: Mapping[Parameter, float]) -> dict[str, dict[str, float]]:
    """Values by file and constant."""
    found: dict[str, dict[str, float]] = {}
    for parameter, value in values.items():
        found.setdefault(parameter.file, {})[parameter.constant] = value
    return found

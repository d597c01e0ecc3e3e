"""The certificate of a search: how much faster than its best trial a plan that was not tried can be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asap_ray.certificate import ROUNDING, TIGHTEN, Bound, Certificate, Figure, bound_over, floor_of, low_of
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Result, best_of


def certificate_after(pool: Pool, results: Sequence[Result], *, measured: bool) -> Certificate | None:
    """How much faster than the best trial a plan that was not tried can be; None where the pool leaves plans out.

    `measured` says whether a clock tells steps.
    """
    best = best_of(results)
    if best is None or best.step_time_s is None or pool.left_out:
        return None
    untried = np.ones(len(pool), bool)
    untried[[row for each in results if (row := pool.row(each.candidate.plan)) is not None]] = False
    rows = np.flatnonzero(untried)
    return Certificate(
        best_step_s=best.step_time_s,
        measured=measured,
        untried=len(rows),
        hard=_bound(pool, best.step_time_s, floor_of, pool.floor_s, rows),
        credible=_bound(pool, best.step_time_s, low_of, pool.low_s, rows),
    )


def _bound(pool: Pool, best_s: float, figure: Figure, figures: np.ndarray, rows: np.ndarray) -> Bound:
    first = rows[np.lexsort((pool.step_s[rows], figures[rows]))[: TIGHTEN + 1]]
    lowest = tuple(pool.estimate(int(row)) for row in first)
    below = best_s * (1 - ROUNDING)
    level = min(figure(lowest[0]) * (1 + ROUNDING), below) if lowest else 0.0
    return bound_over(
        best_s,
        figure,
        lowest,
        contenders=int((figures[rows] < below).sum()),
        at_bound=int((figures[rows] <= level).sum()),
    )

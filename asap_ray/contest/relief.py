"""Hill climbing that relieves the bottleneck, the idea of Aceso (EuroSys 2024), on a pool of plans.

From the best plan so far it looks for what its step spends most on besides the model's own arithmetic, by the
performance model (here the roofline), and tries the nearest plans that spend less on that, least change first; where
none is left the next bottleneck is taken, and at last whatever is nearest. Aceso starts from an even plan; here it is
the plan that needs the least memory, which always runs. Unlike Aceso it measures each step, as its rivals do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from asap_ray.physics.estimate import TIME_PARTS
from asap_ray.search.blackbox import NOTHING_LEFT
from asap_ray.search.pool import COLUMNS, Pool
from asap_ray.search.protocol import Candidate, Result, Told
from asap_ray.search.study import UNORDERED

USEFUL = ("matmul", "attention", "head")
"""Parts that are the model's own arithmetic: no bottleneck to relieve."""
LESS = 0.98
"""Of its seconds: a plan that spends so much on the bottleneck or less relieves it."""


class Relief:
    """Climbs from the plan of least memory; tells apart nothing but measured steps and the roofline's parts."""

    def __init__(self, pool: Pool) -> None:
        """Start at the leanest plan."""
        self.name = "relief"
        self._pool, self._number = pool, 0
        self._open = np.ones(len(pool), bool)
        self._best: tuple[float, int] | None = None
        self._steps = _coordinates(pool)

    def ask(self, count: int) -> list[Candidate]:
        """The next plans to try from where it stands."""
        found: list[Candidate] = []
        for row in self._next():
            if len(found) == count:
                break
            self._open[row] = False
            found.append(Candidate(number=self._number, plan=self._pool.plan(row), author=self.name))
            self._number += 1
        return found

    def tell(self, results: Sequence[Result]) -> None:
        """Move to the fastest plan that was measured."""
        for each in results:
            row = self._pool.row(each.candidate.plan)
            if row is not None and each.status == "complete" and each.step_time_s:
                self._best = min(self._best or (np.inf, -1), (each.step_time_s, row))

    def finished(self) -> str | None:
        """All are tried, or None."""
        return None if self._open.any() else NOTHING_LEFT

    def drain(self) -> list[Told]:
        """Nothing to tell."""
        return []

    def _next(self) -> Iterator[int]:
        pool = self._pool
        if self._best is None:  # leanest first, until one runs
            yield from self._among(np.ones(len(pool), bool), pool.hbm_bytes)
            return
        here = self._best[1]
        distance = np.abs(self._steps - self._steps[here]).sum(1)
        for part in np.argsort(-pool.parts[here], kind="stable"):
            if TIME_PARTS[int(part)] not in USEFUL and pool.parts[here, part] > 0:
                yield from self._among(pool.parts[:, part] <= LESS * pool.parts[here, part], distance)
        yield from self._among(np.ones(len(pool), bool), distance)

    def _among(self, mask: np.ndarray, order: np.ndarray) -> Iterator[int]:
        """Open rows of a mask, least of `order` first; of equals the one of least price."""
        rows = np.flatnonzero(mask & self._open)
        for row in rows[np.lexsort((self._pool.step_s[rows], order[rows]))]:
            if self._open[row]:
                yield int(row)


def _coordinates(pool: Pool) -> np.ndarray:
    """Where plans stand [plans, columns]: sizes by how often they double, names apart by one."""
    columns = []
    for name in COLUMNS:
        column = pool.columns[name]
        if name in UNORDERED:
            columns += [0.5 * (column == code) for code in np.unique(column)]
        else:
            columns.append(np.log2(np.maximum(column, 1)))
    return np.stack(columns, axis=1) if columns else np.zeros((len(pool), 1))

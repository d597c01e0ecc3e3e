"""Searches that see nothing but step times, on the same pool, gate and budget as the agents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Candidate, Result, Told
from asap_ray.search.study import Study

METHODS = ("random", "tpe", "gp", "cmaes", "nsga2", "qmc", "grid")
"""Black-box searches by name; `grid` is exhaustive, in the order of enumeration."""
NOTHING_LEFT = "every plan that is legal and fits was tried"


class BlackBox:
    """Optuna's samplers over the pool; the first trials may be given, as rows of it."""

    def __init__(self, pool: Pool, method: str, seed: int, first: Sequence[int] = (), number: int = 0) -> None:
        """Search a pool; trials are numbered from `number` on.

        Raises:
            AsapError: the sampler needs a package that is not installed.
        """
        self.name = method
        self.study = Study(pool, method, seed, number)
        self._first = list(first)
        self._open = np.ones(len(pool), bool)

    def ask(self, count: int) -> list[Candidate]:
        """The given plans first, then what the sampler asks for, each snapped to the nearest plan not tried yet."""
        found = []
        while len(found) < count and (asked := self._next()) is not None:
            number, row = asked
            self._open[row] = False
            found.append(Candidate(number=number, plan=self.study.pool.plan(row), author=self.name))
        return found

    def _next(self) -> tuple[int, int] | None:
        if self._first:
            row = self._first.pop(0)
            return self.study.enqueue(row), row
        return self.study.sample(self._open)

    def tell(self, results: Sequence[Result]) -> None:
        """Let the sampler learn."""
        for each in results:
            self.study.tell(each)

    def finished(self) -> str | None:
        """All are tried, or None."""
        return None if self._open.any() else NOTHING_LEFT

    def drain(self) -> list[Told]:
        """A sampler has nothing to tell."""
        return []


class InOrder:
    """Tries the plans of a pool in a given order of rows: exhaustive search, or the roofline's ranking."""

    def __init__(self, pool: Pool, name: str, order: Sequence[int], number: int = 0) -> None:
        """Try rows in this order; trials are numbered from `number` on."""
        self.name, self._pool, self._left, self._number = name, pool, list(order), number

    def ask(self, count: int) -> list[Candidate]:
        """The next in order."""
        taken, self._left = self._left[:count], self._left[count:]
        first, self._number = self._number, self._number + len(taken)
        return [
            Candidate(number=first + i, plan=self._pool.plan(int(row)), author=self.name) for i, row in enumerate(taken)
        ]

    def tell(self, results: Sequence[Result]) -> None:
        """Nothing is learnt."""

    def finished(self) -> str | None:
        """All are tried, or None."""
        return None if self._left else NOTHING_LEFT

    def drain(self) -> list[Told]:
        """Nothing to tell."""
        return []


def by_roofline(pool: Pool) -> np.ndarray:
    """Rows in the order of the roofline's ranking, fastest first."""
    return np.argsort(pool.step_s, kind="stable")


def black_box(pool: Pool, method: str, seed: int, first: Sequence[int] = (), number: int = 0) -> BlackBox | InOrder:
    """The black-box search of a name in `METHODS`; the `first` rows before all others, numbered from `number` on.

    Raises:
        AsapError: it needs a package that is not installed.
    """
    if method == "grid":
        return InOrder(pool, method, list(dict.fromkeys((*first, *range(len(pool))))), number)
    return BlackBox(pool, method, seed, first, number)

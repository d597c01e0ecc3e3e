"""What a sweep keeps while millions of plans pass by: the best, the nearest misses, an even spread."""

from __future__ import annotations

import numpy as np

from asap_ray.physics.estimate import Prices
from asap_ray.plan import AXES, Plan
from asap_ray.problem import Problem
from asap_ray.space import PlanColumns, Space

SAMPLE = 4000
"""Rows kept for the map of the space: half from the plans that fit, which are few, half from the others."""
SAMPLED = (*AXES, "micro_batch", "remat")


class Best:
    """Keeps the plans with the smallest scores; equal scores keep the order of enumeration."""

    def __init__(self, count: int) -> None:
        """Keep `count` plans."""
        self.count = count
        self.found: list[tuple[float, float, Plan]] = []

    def offer(self, space: Space, rows: PlanColumns, scores: np.ndarray, ties: np.ndarray | None = None) -> None:
        """Look at rows with their scores [plans]; an infinite score is never kept.

        Of equal scores the one with the smaller figure in `ties` [plans], if given, comes first.
        """
        worst, tie = self.found[-1][:2] if len(self.found) == self.count else (np.inf, -np.inf)
        ties = np.zeros(len(scores)) if ties is None else ties
        better = np.flatnonzero((scores < worst) | ((scores == worst) & (ties < tie)))
        if not len(better):
            return
        first = better[np.lexsort((ties[better], scores[better]))[: self.count]]
        self.found += [(float(scores[i]), float(ties[i]), space.plan(rows, int(i))) for i in first]
        self.found = sorted(self.found, key=lambda each: each[:2])[: self.count]

    @property
    def plans(self) -> list[Plan]:
        """The plans kept, best first."""
        return [plan for *_, plan in self.found]


class Front:
    """Keeps the plans that no other beats in both of two figures: the trade-off between memory and time."""

    def __init__(self) -> None:
        """Start empty."""
        self.found: list[tuple[float, float, Plan]] = []

    def offer(self, space: Space, rows: PlanColumns, first: np.ndarray, second: np.ndarray, mask: np.ndarray) -> None:
        """Look at the rows of a mask with both figures [plans]."""
        picked = np.flatnonzero(mask)
        if not len(picked):
            return
        picked = picked[_front(first[picked], second[picked])]
        new = [(float(first[i]), float(second[i]), int(i)) for i in picked]
        new = [each for each in new if not any(a <= each[0] and b <= each[1] for a, b, _ in self.found)]
        joined = self.found + [(a, b, space.plan(rows, i)) for a, b, i in new]
        kept = _front(np.array([a for a, _, _ in joined]), np.array([b for _, b, _ in joined]))
        self.found = [joined[i] for i in kept]

    def below(self, second: float) -> list[Plan]:
        """The plans whose second figure is below a bound, smallest first figure first."""
        return [plan for _, b, plan in self.found if b < second]


def _front(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Positions of the undominated points, by rising first figure."""
    if not len(first):
        return np.zeros(0, np.int64)
    order = np.lexsort((second, first))
    lowest = np.minimum.accumulate(second[order])
    return order[np.concatenate([[True], second[order][1:] < lowest[:-1]])]


class Sampler:
    """Keeps an even spread of rows: each chunk gives every n-th, and n doubles whenever there are too many."""

    def __init__(self, most: int) -> None:
        """Keep at most `most` rows."""
        self.most = most
        self.step, self.seen = 1, 0
        self.kept: dict[str, np.ndarray] = {}

    def offer(self, rows: PlanColumns, prices: Prices, floor: np.ndarray, fits: np.ndarray, mask: np.ndarray) -> None:
        """Look at the rows of a mask, with their prices, floors and whether they fit [plans]."""
        chosen = np.flatnonzero(mask)
        pick = chosen[-self.seen % self.step :: self.step]
        new = {name: rows[name][pick] for name in SAMPLED}
        new |= {"step_time_s": prices.step_time_s[pick], "hbm_bytes": prices.hbm_bytes[pick]}
        new |= {"floor_s": floor[pick], "fits": fits[pick]}
        self.kept = {name: np.concatenate([self.kept[name], new[name]]) if self.kept else new[name] for name in new}
        self.seen += len(chosen)
        while len(self.kept["fits"]) > self.most:
            self.kept = {name: column[::2] for name, column in self.kept.items()}
            self.step *= 2

    def columns(self, problem: Problem) -> dict[str, np.ndarray]:
        """What was kept, policies by name [sample]."""
        if not self.kept:
            return {}
        names = np.array(problem.stack.remat_names)
        return {**self.kept, "remat": names[self.kept["remat"]]}


def joined(samples: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Samples with the same columns, one after the other; empty ones are left out."""
    full = [sample for sample in samples if sample]
    return {name: np.concatenate([sample[name] for sample in full]) for name in full[0]} if full else {}

"""What the parts of a step take over what they are priced at: in one trial, and usually."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asap_ray.agents.proposal import grouped
from asap_ray.search.protocol import Result

KERNELS = ("matmul", "attention", "elementwise", "recompute")
SHAPE = ("tensor", "context", "micro_batch")
"""Columns that decide the shapes of kernels."""
TELLING = 0.005
"""Of a step: a part priced at less says nothing."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of a trial's step by group of parts: what was `seen`, and what was `priced`."""

    result: Result
    seen: Mapping[str, float]
    priced: Mapping[str, float]
    least_s: float

    @classmethod
    def of(cls, result: Result) -> Parts | None:
        """The parts of a trial; None where its estimate tells none."""
        if result.estimate is None or result.roofline is None or not result.estimate.time_parts:
            return None
        seen, priced = grouped(result.estimate.time_parts), grouped(result.roofline.time_parts)
        return cls(result, seen, priced, TELLING * result.roofline.step_time_s)

    @property
    def shape(self) -> tuple[int, ...]:
        """What decides the shapes of kernels, in the order of `SHAPE`."""
        plan = self.result.candidate.plan
        return plan.axes["tensor"], plan.axes["context"], plan.micro_batch

    def ratio(self, part: str) -> float | None:
        """What a part takes over its price; None where it is too small to say."""
        return self.seen[part] / self.priced[part] if self.priced[part] > self.least_s else None

    def beside(self, part: str = "") -> float:
        """What kernels of other kinds than `part` take over their price: the median, 1 at least."""
        ratios = [ratio for name in KERNELS if name != part and (ratio := self.ratio(name))]
        return max(1.0, statistics.median(ratios) if ratios else 1.0)


class Usual:
    """What kernels take over their price in the trials that a trial may be held against."""

    def __init__(self, trials: Sequence[Parts]) -> None:
        """Learn from trials; those of the same shape are alike, so each is looked at once."""
        self._ratios = {
            part: [(each.shape, ratio) for each in trials if (ratio := each.ratio(part))] for part in KERNELS
        }
        self._known: dict[tuple[str, tuple[int, ...]], float | None] = {}

    def elsewhere(self, part: str, shape: tuple[int, ...]) -> float | None:
        """The median over trials of other shapes; None where there is none."""
        if (part, shape) not in self._known:
            ratios = [ratio for at, ratio in self._ratios[part] if at != shape]
            self._known[part, shape] = statistics.median(ratios) if ratios else None
        return self._known[part, shape]

"""What a certificate needs of all plans that fit, kept while they pass by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from asap_ray.certificate import ROUNDING, TIGHTEN, Bound, Certificate, Figure, bound_over, floor_of, low_of
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.space import PlanColumns, Space
from asap_ray.tiers.keepers import Best


class _Least:
    """The plans with the least of one figure, and the figures of all that are below the best step."""

    def __init__(self, figure: Figure, count: int) -> None:
        self.figure, self.best = figure, Best(count)
        self.below: list[np.ndarray] = []

    def offer(
        self, space: Space, rows: PlanColumns, figures: np.ndarray, steps: np.ndarray, best_step_s: float
    ) -> None:
        # Of plans with one floor the one with the fastest estimate is the one to try.
        self.best.offer(space, rows, figures, steps)
        self.below.append(figures[figures < best_step_s])

    def bound(self, best_step_s: float, kept: Sequence[Estimate], tried: Sequence[Estimate]) -> Bound:
        """The bound over what passed by, less the plans that were tried; `kept` are estimates of `best.plans`."""
        plans = {each.plan for each in tried}
        lowest = tuple(each for each in kept if each.plan not in plans)[: TIGHTEN + 1]
        figures, out = np.concatenate([*self.below, np.zeros(0)]), np.array([self.figure(each) for each in tried])
        below = best_step_s * (1 - ROUNDING)
        level = min(self.figure(lowest[0]) * (1 + ROUNDING), below) if lowest else 0.0
        return bound_over(
            best_step_s,
            self.figure,
            lowest,
            contenders=int((figures < below).sum() - (out < below).sum()),
            at_bound=int((figures <= level).sum() - (out <= level).sum()),
        )


class Untried:
    """Keeps the plans with the lowest floors and lower ends, and counts those below the best step.

    The best step is the one given, which trials have measured, or the fastest of the estimates that pass by.
    """

    def __init__(self, best_step_s: float | None = None, tried: int = 1) -> None:
        """Keep what is needed when `tried` plans of those that pass by will not count."""
        self.measured = best_step_s is not None
        self.best_step_s = np.inf if best_step_s is None else best_step_s
        self.seen = 0
        count = TIGHTEN + 1 + tried
        self._hard, self._credible = _Least(floor_of, count), _Least(low_of, count)

    def offer(self, space: Space, rows: PlanColumns, steps: np.ndarray, floors: np.ndarray, lows: np.ndarray) -> None:
        """Look at rows that fit, with their estimates, floors and lower ends [plans]."""
        if not len(rows):
            return
        self.seen += len(rows)
        if not self.measured:
            self.best_step_s = min(self.best_step_s, float(steps.min()))
        self._hard.offer(space, rows, floors, steps, self.best_step_s)
        self._credible.offer(space, rows, lows, steps, self.best_step_s)

    def certificate(
        self, tried: Sequence[Estimate], estimates: Callable[[list[Plan]], list[Estimate]]
    ) -> Certificate | None:
        """The certificate over all that passed by but for the `tried`, which did pass by; None where none is tried.

        Before any trial that is the plan with the best estimate alone. `estimates` prices the plans that are named.
        """
        if not tried:
            return None
        best = self.best_step_s if self.measured else tried[0].step_time_s
        hard, credible = (each.bound(best, estimates(each.best.plans), tried) for each in (self._hard, self._credible))
        return Certificate(
            best_step_s=best,
            measured=self.measured,
            untried=self.seen - len(tried),
            hard=hard,
            credible=credible,
        )

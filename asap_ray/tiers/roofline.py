"""The roofline tier: the whole legal space priced in one sweep, or given plans one by one.

The sweep is exact: no legal plan is left out, so its best is the roofline's argmin, and the counts are of all plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from asap_ray.certificate import Certificate
from asap_ray.errors import ConfigError
from asap_ray.meshes import laid_out
from asap_ray.physics.calibration import Calibration
from asap_ray.physics.estimate import Estimate
from asap_ray.physics.roofline import Pricer
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.rules import broken
from asap_ray.space import PlanColumns, Space
from asap_ray.tiers.keepers import SAMPLE, Best, Front, Sampler, joined
from asap_ray.tiers.protocol import Job
from asap_ray.tiers.untried import Untried

Progress = Callable[[float], None]
"""Is told the share of the work that is done, from 0 to 1."""
TOO_BIG = 3
"""How many plans that do not fit a sweep keeps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """What pricing every legal plan came to.

    `removed` counts plans by the rule that took them, "memory" among them. `ranked` are the fastest that fit; `too_big`
    those that do not fit but would be faster, nearest miss first (or the fastest of all that do not fit); `leanest` is
    the plan that needs the least memory. `sample` holds columns of an even spread of plans. `certificate` bounds how
    much faster than the best another plan that fits can be, None where none fits.
    """

    total: int
    legal: int
    fitting: int
    removed: dict[str, int]
    ranked: tuple[Estimate, ...]
    too_big: tuple[Estimate, ...]
    leanest: Estimate | None
    sample: dict[str, np.ndarray]
    certificate: Certificate | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Roofline:
    """Evaluates plans of one problem by physics alone."""

    problem: Problem
    calibration: Calibration
    name: str = "roofline"

    def job(self, plans: Sequence[Plan]) -> Job:
        """Price given plans."""
        name = f"hardware={self.problem.slice.name}: pricing {len(plans)} plans"
        return Job(name=name, work=self.estimates, arguments=(list(plans),))

    def read(self, result: list[Estimate]) -> list[Estimate]:
        """The estimates as they are."""
        return result

    def sweep_job(self, space: Space, top: int, progress: Progress | None = None) -> Job:
        """Price a whole space of this problem; its value is a `Sweep`. With `progress` it cannot leave this process."""
        name = f"hardware={self.problem.slice.name}: pricing it"
        return Job(name=name, work=self.sweep, arguments=(space, top, TOO_BIG, progress))

    def estimates(self, plans: list[Plan]) -> list[Estimate]:
        """Price given plans, legal or not.

        Raises:
            ConfigError: a plan's mesh does not fill the slice, or its layout is not a useful one.
        """
        if not plans:
            return []
        space = Space(problem=self.problem)
        return Pricer(self.problem, self.calibration).estimates(space.columns(plans), plans)

    def on_each_layout(self, plan: Plan, key: str = "plan") -> list[Plan]:
        """A plan that a user wrote on each of its useful layouts, or on the one it names.

        Raises:
            ConfigError: the plan is not legal (the text has the rule and its reason), or its layout is not a useful
            one.
        """
        if fault := broken(self.problem, plan):
            raise ConfigError(key, plan.line, f"not legal, rule {fault[0]}: {fault[1]}")
        table = laid_out(self.problem, plan)
        return [replace(plan, layout=table.plan_layout(row)) for row in range(len(table))]

    def fitting(self, space: Space, progress: Progress | None = None) -> Iterator[PlanColumns]:
        """The open legal plans of a space of this problem that fit in memory, chunk by chunk; some may be empty."""
        pricer, limit = Pricer(self.problem, self.calibration), self.problem.hbm_limit_bytes
        removed, seen = Counter[str](), 0
        for rows in space.chunks(removed):
            yield rows.take(pricer.price(rows).hbm_bytes <= limit)
            seen += len(rows)
            if progress:
                progress((sum(removed.values()) + seen) / space.total)

    def fits_any(self, space: Space) -> bool:
        """Whether some open legal plan of a space of this problem fits in memory."""
        return any(len(rows) for rows in self.fitting(space))

    def sweep(self, space: Space, top: int, too_big: int = TOO_BIG, progress: Progress | None = None) -> Sweep:
        """Price every open legal plan of a space of this problem; `progress` is told the share of it that is done."""
        pricer, removed = Pricer(self.problem, self.calibration), Counter[str]()
        limit = self.problem.hbm_limit_bytes
        fits, fast, lean, front = Best(top), Best(too_big), Best(1), Front()
        spread, untried, legal, fitting = (Sampler(SAMPLE // 2), Sampler(SAMPLE // 2)), Untried(), 0, 0
        for rows in space.chunks(removed):
            prices = pricer.price(rows)
            inside = prices.hbm_bytes <= limit
            legal, fitting = legal + len(rows), fitting + int(inside.sum())
            fits.offer(space, rows, np.where(inside, prices.step_time_s, np.inf))
            fast.offer(space, rows, np.where(inside, np.inf, prices.step_time_s))
            front.offer(space, rows, prices.hbm_bytes, prices.step_time_s, ~inside)
            lean.offer(space, rows, prices.hbm_bytes)
            floor = pricer.floor(rows)
            steps, floors, lows = prices.step_time_s[inside], floor[inside], pricer.interval(prices, floor)[0][inside]
            untried.offer(space, rows.take(inside), steps, floors, lows)
            for sampler, mask in zip(spread, (inside, ~inside), strict=True):
                sampler.offer(rows, prices, floor, inside, mask)
            if progress:
                progress((sum(removed.values()) + legal) / space.total)
        if legal > fitting:
            removed["memory"] = legal - fitting
        # The nearest misses that would beat the best; if nothing fits or none would, the fastest of what is too big.
        nearest = front.below(fits.found[0][0])[:too_big] if fits.found else []
        found = [fits.plans, nearest or fast.plans, lean.plans]
        estimates = iter(self.estimates([plan for plans in found for plan in plans]))
        ranked, missed, leanest = ([next(estimates) for _ in plans] for plans in found)
        return Sweep(
            total=space.total,
            legal=legal,
            fitting=fitting,
            removed=dict(removed),
            ranked=tuple(ranked),
            too_big=tuple(missed),
            leanest=leanest[0] if leanest else None,
            sample=joined([sampler.columns(self.problem) for sampler in spread]),
            certificate=untried.certificate(ranked[:1], self.estimates),
        )

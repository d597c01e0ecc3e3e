"""When no plan is left: what stands in the way, or how many bytes are missing and which slice would do."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np

from asap_ray.config import Config
from asap_ray.errors import AsapError, ConfigError, DoesNotFitError
from asap_ray.narrowing import Narrowing
from asap_ray.physics.estimate import Estimate
from asap_ray.problem import Columns, Problem, coding
from asap_ray.report.progress import progress
from asap_ray.report.units import gigabytes
from asap_ray.space import PlanColumns, Space
from asap_ray.tasks.larger import smallest_that_fits
from asap_ray.tasks.running import takes_a_while
from asap_ray.tiers.roofline import Progress, Roofline, Sweep

MOST_VALUES = 16
"""How many allowed values an error lists."""


def explain_nothing(config: Config, tier: Roofline, space: Space, sweep: Sweep) -> AsapError:
    """The error that says why a sweep ranked no plan."""
    if sweep.leanest is None:
        return _nothing_legal(config, space, sweep)
    return _nothing_fits(tier, space, sweep.leanest)


@dataclass(frozen=True, kw_only=True, slots=True)
class AllButOne(Narrowing):
    """Open where at most one of some narrowings is closed."""

    others: tuple[Narrowing, ...]

    @property
    def reads(self) -> frozenset[str]:
        """The columns that any of them reads."""
        return frozenset[str]().union(*(each.reads for each in self.others))

    def closed(self, columns: Columns) -> np.ndarray:
        """Which of them closes which row [narrowings, plans]."""
        return np.array([~each.open(columns) for each in self.others])

    def open(self, columns: Columns) -> np.ndarray:
        """Which rows stay open [plans]."""
        return self.closed(columns).sum(axis=0) <= 1


def what_each_bars(space: Space, tier: Roofline | None = None) -> list[str]:
    """For each narrowing of a space without plans, the values of its first field in the plans that it alone bars.

    With a tier only plans that fit count. One pass over the space, with a bar if it is large; empty where lifting that
    narrowing alone leaves nothing.
    """
    rest = AllButOne(name="but_one", tests=(), keep=True, author="asap_ray", reason="", others=space.narrowings)
    wide = replace(space, narrowings=(rest,))
    values = [set[int]() for _ in space.narrowings]
    with _bar("looking for what is in the way", wide) as told:
        chunks = tier.fitting(wide, told) if tier else _chunks(wide, told)
        for rows in chunks:
            for closed, narrowing, found in zip(rest.closed(rows), space.narrowings, values, strict=True):
                found.update(np.unique(rows[narrowing.tests[0].field][closed]).tolist())
    return [
        _words(space.problem, each.tests[0].field, found) for each, found in zip(space.narrowings, values, strict=True)
    ]


def _bar(what: str, space: Space) -> AbstractContextManager[Progress | None]:
    return progress(what, sys.stderr, wanted=takes_a_while(space))


def _chunks(space: Space, told: Progress | None) -> Iterator[PlanColumns]:
    removed, seen = Counter[str](), 0
    for rows in space.chunks(removed):
        yield rows
        seen += len(rows)
        if told:
            told((sum(removed.values()) + seen) / space.total)


def _words(problem: Problem, field: str, codes: set[int]) -> str:
    names = coding(problem).get(field)
    words = [names[code] if names else str(code) for code in sorted(codes)]
    return ", ".join(words[:MOST_VALUES] + ["…"] * (len(words) > MOST_VALUES))


def _nothing_legal(config: Config, space: Space, sweep: Sweep) -> ConfigError:
    problem = space.problem
    most = sorted(sweep.removed.items(), key=lambda pair: -pair[1])[:4]
    why = (
        f"no plan of {problem.workload.architecture.name} on {problem.slice.name} is legal for {problem.stack.name} "
        f"(plans removed: {', '.join(f'{rule} {count:,}' for rule, count in most)})"
    )
    if space.narrowings:
        for narrowing, values in zip(space.narrowings, what_each_bars(space), strict=True):
            key, value = narrowing.reason.split("=", 1)
            if values and narrowing.keep:
                opts_in = " (others by space.numerics=[precision])" if key.endswith(".precision") else ""
                return ConfigError(key, value, f"{why}; allowed with all else as it is: {values}{opts_in}")
            if values:
                return ConfigError(key, value, f"{why}; without it some are")
        if _any_legal(replace(space, narrowings=())):
            given = {
                "space.fix": config.space.fix,
                "space.forbid": config.space.forbid,
                "plan": config.plan,
                "baseline": config.baseline,
            }
            key = next(key for key in given if given[key])
            return ConfigError(key, given[key], f"{why}; without it some are")
    if better := _batch_that_works(problem):
        return ConfigError("workload.global_batch", problem.workload.global_batch, f"{why}; allowed: such as {better}")
    return ConfigError("hardware", problem.slice.name, f"{why}; allowed: a slice that the model's dimensions divide")


def _any_legal(space: Space) -> bool:
    return any(len(rows) for rows in space.chunks())


def _batch_that_works(problem: Problem) -> str:
    devices, batch = problem.slice.devices, problem.workload.global_batch
    near = sorted({max(1, batch // devices) * devices, -(-batch // devices) * devices})
    others = {n: replace(problem, workload=replace(problem.workload, global_batch=n)) for n in near}
    return " or ".join(str(n) for n, other in others.items() if _any_legal(Space(problem=other)))


def _nothing_fits(tier: Roofline, space: Space, leanest: Estimate) -> DoesNotFitError:
    problem, limit = tier.problem, leanest.hbm_limit_bytes
    pins = ", ".join(each.reason for each in space.narrowings)
    missing = (
        f"hardware={problem.slice.name}: no plan of {problem.workload.architecture.name} fits"
        f"{f' with {pins}' if pins else ''}: the leanest needs {gigabytes(leanest.hbm_bytes)} a device where "
        f"{gigabytes(limit)} are allowed, {leanest.hbm_bytes - limit:,.0f} bytes are missing"
    )
    with _bar("looking for a slice that fits", space) as told:
        bigger, tried = smallest_that_fits(tier, space, told)
    chip = problem.slice.chip.name
    if bigger:
        would = f"the smallest {chip} slice that fits{' so' if pins else ''} is {bigger.name}"
    else:
        would = f"no {chip} slice up to {tried.name} fits" if tried else f"there is no larger {chip} slice"
    return DoesNotFitError("; ".join([missing, *_pins_that_fit(tier, space), would]))


def _pins_that_fit(tier: Roofline, space: Space) -> list[str]:
    """What may be narrowed otherwise for some plan to fit on the same slice."""
    if not space.narrowings:
        return []
    for narrowing, values in zip(space.narrowings, what_each_bars(space, tier), strict=True):
        if values and narrowing.keep:
            return [f"{narrowing.reason.split('=', 1)[0]} allowed with all else as it is: {values}"]
        if values:
            return [f"without {narrowing.reason} some do"]
    return ["without these some do"] if tier.fits_any(replace(space, narrowings=())) else []

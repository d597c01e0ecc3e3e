"""When no plan is left: which rule took the last one, or how many bytes are missing and which slice would do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from asap_ray.config import Config
from asap_ray.errors import AsapError, ConfigError, DoesNotFitError
from asap_ray.hardware import Slice, ladder
from asap_ray.physics.estimate import Estimate
from asap_ray.problem import Problem, coding
from asap_ray.report.units import gigabytes
from asap_ray.space import Space
from asap_ray.tiers.roofline import Roofline, Sweep

RUNGS = 10
"""How many larger slices are tried; each is about half as large again as the one before."""
MOST_VALUES = 16
"""How many allowed values an error lists."""


def explain_nothing(config: Config, tier: Roofline, space: Space, sweep: Sweep) -> AsapError:
    """The error that says why a sweep ranked no plan."""
    if sweep.leanest is None:
        return _nothing_legal(config, space, sweep)
    return _nothing_fits(tier, sweep.leanest)


def _nothing_legal(config: Config, space: Space, sweep: Sweep) -> ConfigError:
    problem = space.problem
    most = sorted(sweep.removed.items(), key=lambda pair: -pair[1])[:4]
    why = (
        f"no plan of {problem.workload.architecture.name} on {problem.slice.name} is legal for {problem.stack.name} "
        f"(plans removed: {', '.join(f'{rule} {count:,}' for rule, count in most)})"
    )
    for narrowing in space.narrowings:
        key, value = narrowing.reason.split("=", 1)
        without = space.lifted(narrowing)
        if narrowing.keep and (values := _values(without, narrowing.tests[0].field)):
            return ConfigError(key, value, f"{why}; allowed with all else as it is: {values}")
        if not narrowing.keep and without.survey().legal:
            return ConfigError(key, value, f"{why}; without it some are")
    if space.narrowings and replace(space, narrowings=()).survey().legal:
        given = {"space.fix": config.space.fix, "space.forbid": config.space.forbid, "plan": config.plan}
        key = next(key for key in given if given[key])
        return ConfigError(key, given[key], f"{why}; without it some are")
    if better := _batch_that_works(problem):
        return ConfigError("workload.global_batch", problem.workload.global_batch, f"{why}; allowed: such as {better}")
    return ConfigError("hardware", problem.slice.name, f"{why}; allowed: a slice that the model's dimensions divide")


def _values(space: Space, field: str) -> str:
    """What a field is in the legal plans of a space, in words; empty where there are none."""
    found = sorted({int(code) for rows in space.chunks() for code in np.unique(rows[field])})
    names = coding(space.problem).get(field)
    words = [names[code] if names else str(code) for code in found]
    return ", ".join(words[:MOST_VALUES] + ["…"] * (len(words) > MOST_VALUES))


def _batch_that_works(problem: Problem) -> str:
    devices, batch = problem.slice.devices, problem.workload.global_batch
    near = sorted({max(1, batch // devices) * devices, -(-batch // devices) * devices})
    works = []
    for candidate in near:
        other = replace(problem, workload=replace(problem.workload, global_batch=candidate))
        if Space(problem=other).survey().legal:
            works.append(str(candidate))
    return " or ".join(works)


def _nothing_fits(tier: Roofline, leanest: Estimate) -> DoesNotFitError:
    problem, limit = tier.problem, leanest.hbm_limit_bytes
    bigger, tried = smallest_that_fits(tier)
    chip = problem.slice.chip.name
    if bigger:
        would = f"the smallest {chip} slice that fits is {bigger.name}"
    else:
        would = f"no {chip} slice up to {tried.name} fits" if tried else f"there is no larger {chip} slice"
    return DoesNotFitError(
        f"hardware={problem.slice.name}: no plan of {problem.workload.architecture.name} fits: the leanest needs "
        f"{gigabytes(leanest.hbm_bytes)} a device where {gigabytes(limit)} are usable, "
        f"{leanest.hbm_bytes - limit:,.0f} bytes are missing; {would}"
    )


def smallest_that_fits(tier: Roofline) -> tuple[Slice | None, Slice | None]:
    """The smallest larger slice of the same chip on which some plan fits, and the largest one that was tried."""
    problem = tier.problem
    tried = None
    for slice_ in islice(_worth_trying(problem), RUNGS):
        tried = slice_
        other = replace(tier, problem=replace(problem, slice=slice_))
        if other.fits_any(Space(problem=other.problem)):
            return slice_, tried
    return None, tried


def _worth_trying(problem: Problem) -> Iterator[Slice]:
    """Larger slices whose memory, all of it together, holds the state at least."""
    state = problem.stack.state
    needed = problem.workload.architecture.parameters * (state.weights + state.optimizer)
    for slice_ in ladder(problem.slice.chip):
        enough = slice_.devices * slice_.chip.usable_hbm_bytes > needed
        if slice_.devices > problem.slice.devices and enough:
            yield slice_

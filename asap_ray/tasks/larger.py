"""The smallest slice of a chip on which some plan of a space fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice, takewhile

from asap_ray.chip import Chip
from asap_ray.hardware import MAX_CHIPS, Slice, default_topology, ladder, make_slice
from asap_ray.problem import Problem
from asap_ray.space import Space
from asap_ray.tiers.roofline import Progress, Roofline

RUNGS = 10
"""How many rungs of `ladder` are tried; each is about half as large again as the one before."""


def smallest_that_fits(
    tier: Roofline, space: Space, progress: Progress | None = None
) -> tuple[Slice | None, Slice | None]:
    """The smallest larger slice of the same chip on which some plan of the space fits, and the largest one tried.

    Rungs find a slice that fits; then all sizes below it are tried, smallest first, since more devices need not fit
    where fewer do: what divides them matters too.
    """
    here = tier.problem.slice
    worth = _worth_trying(tier.problem)
    rungs = list(islice((rung for rung in ladder(here.chip) if worth(rung)), RUNGS))
    tried: list[Slice] = []
    for rung in rungs:
        tried.append(rung)
        if progress:
            progress(len(tried) / (RUNGS + 1))
        if _fits(tier, space, rung):
            break
    else:
        return None, tried[-1] if tried else None
    found, known = tried[-1], {each.name for each in tried}
    for each in takewhile(lambda size: size.devices < found.devices, sizes(here.chip)):
        if worth(each) and each.name not in known and _fits(tier, space, each):
            return each, found
    return found, found


def sizes(chip: Chip) -> Iterator[Slice]:
    """Every slice that a chip comes in, smallest first: one domain or torus of each size, then whole ones joined."""
    gpu = chip.kind == "gpu"
    shapes = [(n,) if gpu else default_topology(chip, n) for n in range(1, chip.max_domain + 1)]
    inside = [shape for shape in shapes if shape is not None]
    yield from (make_slice(chip, shape) for shape in inside)
    whole = make_slice(chip, inside[-1]).chips
    yield from (make_slice(chip, inside[-1], n) for n in range(2, MAX_CHIPS // whole + 1))


def _fits(tier: Roofline, space: Space, where: Slice) -> bool:
    other = replace(tier, problem=replace(tier.problem, slice=where))
    return other.fits_any(replace(space, problem=other.problem))


def _worth_trying(problem: Problem) -> Callable[[Slice], bool]:
    """Whether a slice is larger, and its memory, all of it together, holds the weights and the optimizer at least."""
    state = problem.stack.state
    needed = problem.workload.architecture.parameters * (state.weights + state.optimizer)
    usable = problem.hbm_limit_bytes
    return lambda size: size.devices > problem.slice.devices and size.devices * usable > needed

"""In which phases weights are gathered over several mesh axes, and their gradients scattered.

XLA:TPU gathers over one or two link axes of a torus. Over three it has no all-gather and runs an all-reduce of zeros
around each shard: twice the bytes, and seconds of compilation for each one. A reduce-scatter stays one over a single
link axis; over several it becomes, for many slices and programs, an all-reduce of which each device keeps its part. So
a group of more link axes goes in phases: a gather along the inner ones first, a scatter along the outer ones first.
Each device sends as much in all as in one collective.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from asap_ray.plan import AXES, Plan

GATHERED_LINKS = 2
"""Link axes of a torus over which XLA:TPU gathers by an all-gather."""
SCATTERED_LINKS = 1
"""Link axes of a torus over which its reduce-scatter is always one."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One collective: over whole mesh axes, or over `groups` of the ranks of a single one."""

    axes: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...] | None = None


def gather_phases(axes: Sequence[str], plan: Plan) -> tuple[Phase, ...]:
    """How a group of mesh axes of a plan is gathered on a torus, the first phase first."""
    return phases(axes, plan, GATHERED_LINKS)[::-1]


def scatter_phases(axes: Sequence[str], plan: Plan) -> tuple[Phase, ...]:
    """How sums over a group of mesh axes of a plan are scattered on a torus, the first phase first."""
    return phases(axes, plan, SCATTERED_LINKS)


def phases(axes: Sequence[str], plan: Plan, links: int) -> tuple[Phase, ...]:
    """A group of mesh axes in parts of at most so many link axes each, the outermost first.

    The steps of the axes along the links are cut from the outermost on, so that the outer parts, which move most, are
    as large as can be. A group that crosses slices is one part.
    """
    steps = [(axis, link, n) for axis in axes for link, n in enumerate(_steps(axis, plan)) if n > 1]
    if any(plan.dcn[AXES.index(axis)] > 1 for axis in axes) or len({link for _, link, _ in steps}) <= links:
        return (Phase(tuple(axes)),)
    found: list[Phase] = []
    start = 0
    while start < len(steps):
        reach = range(start + 1, len(steps) + 1)
        stop = max(end for end in reach if len({link for _, link, _ in steps[start:end]}) <= links)
        found += _over(steps, start, stop)
        start = stop
    return tuple(found)


def _over(steps: Sequence[tuple[str, int, int]], start: int, stop: int) -> list[Phase]:
    """The steps from `start` to `stop` as phases: axes that are whole together, what is a part of one by itself."""
    found: list[Phase] = []
    whole: list[str] = []
    for axis in dict.fromkeys(axis for axis, _, _ in steps[start:stop]):
        before, inside, after = (
            math.prod(n for name, _, n in part if name == axis)
            for part in (steps[:start], steps[start:stop], steps[stop:])
        )
        if before * after == 1:
            whole.append(axis)
            continue
        found += [Phase(tuple(whole))] if whole else []
        whole = []
        groups = tuple(
            tuple((a * inside + b) * after + c for b in range(inside)) for a in range(before) for c in range(after)
        )
        found.append(Phase((axis,), groups))
    return found + ([Phase(tuple(whole))] if whole else [])


def _steps(axis: str, plan: Plan) -> tuple[int, ...]:
    m = AXES.index(axis)
    return plan.layout[m] if plan.layout else (plan.ici[m],)

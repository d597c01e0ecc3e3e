"""In which phases weights are gathered over several mesh axes.

XLA:TPU gathers over one or two link axes of a torus. Over three it has no all-gather and runs an all-reduce of zeros
around each shard: twice the bytes, and seconds of compilation for each one. So a group of three link axes is gathered
along the inner ones first. Each device sends as much in all as in one gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asap_ray.plan import AXES, Plan

MOST_LINKS = 2
"""Link axes of a torus over which XLA:TPU gathers by an all-gather."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One all-gather: over whole mesh axes, or over `groups` of the ranks of a single one."""

    axes: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...] | None = None


def phases(axes: Sequence[str], plan: Plan) -> tuple[Phase, ...]:
    """How a group of mesh axes of a plan is gathered on a torus, the first phase first.

    The steps of the axes along the links are split into an inner and an outer part of at most two link axes each, the
    outer one, which moves most, as large as can be. A group that crosses slices, and one that needs no split, is
    gathered at once.
    """
    steps = [(axis, link, n) for axis in axes for link, n in enumerate(_steps(axis, plan)) if n > 1]
    crosses = any(plan.dcn[AXES.index(axis)] > 1 for axis in axes)
    if crosses or len({link for _, link, _ in steps}) <= MOST_LINKS:
        return (Phase(tuple(axes)),)
    cut = max(k for k in range(len(steps)) if len({link for _, link, _ in steps[:k]}) <= MOST_LINKS)
    split = steps[cut][0]  # the axis in which the outer part ends, unless it ends with one
    place, outside = axes.index(split), 1
    for axis, _, n in steps[:cut]:
        outside *= n if axis == split else 1
    whole = lambda some: (Phase(tuple(some)),) if some else ()  # noqa: E731
    if outside == 1:
        return (*whole(axes[place:]), *whole(axes[:place]))
    inside = plan.sizes[AXES.index(split)] // outside
    inner = tuple(tuple(a * inside + b for b in range(inside)) for a in range(outside))
    outer = tuple(tuple(a * inside + b for a in range(outside)) for b in range(inside))
    return (
        *whole(axes[place + 1 :]),
        Phase((split,), inner),
        Phase((split,), outer),
        *whole(axes[:place]),
    )


def _steps(axis: str, plan: Plan) -> tuple[int, ...]:
    m = AXES.index(axis)
    return plan.layout[m] if plan.layout else (plan.ici[m],)

"""Weights brought together over the mesh axes that shard them, in phases where the compiler would not gather at once.

XLA:TPU gathers over one or two link axes of a torus. Over three it has no all-gather and runs an all-reduce of zeros
around each shard: twice the bytes, and seconds of compilation for each one. So a group of three link axes is gathered
along the inner ones first. Gradients go back in one reduction over the whole group, which uses all links at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
from jax.sharding import PartitionSpec

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
    size = plan.sizes[AXES.index(split)]
    whole = lambda some: (Phase(tuple(some)),) if some else ()  # noqa: E731
    if outside == 1:
        return (*whole(axes[place:]), *whole(axes[:place]))
    inside = size // outside
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


def gathered(weight: jax.Array, shards: PartitionSpec, plan: Plan, torus: bool) -> jax.Array:
    """A weight's shards brought together over the mesh axes named; its gradient is reduce-scattered over them.

    `torus` says that the compiler is that of a chip whose links form one.
    """
    for dimension, entry in enumerate(shards):
        axes = (entry,) if isinstance(entry, str) else tuple(entry or ())
        if axes:
            steps = phases(axes, plan) if torus else (Phase(axes),)
            weight = _together(weight, axes, dimension, steps)
    return weight


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _together(weight: jax.Array, axes: tuple[str, ...], dimension: int, steps: tuple[Phase, ...]) -> jax.Array:
    for step in steps:
        groups = [list(group) for group in step.groups] if step.groups else None
        weight = jax.lax.all_gather(weight, step.axes, axis=dimension, tiled=True, axis_index_groups=groups)
    return weight


def _forward(weight: jax.Array, axes: tuple[str, ...], dimension: int, steps: tuple[Phase, ...]) -> tuple:
    return _together(weight, axes, dimension, steps), None


def _backward(axes: tuple[str, ...], dimension: int, steps: tuple[Phase, ...], _: None, gradient: jax.Array) -> tuple:
    summed = jax.lax.psum_scatter(gradient, axes, scatter_dimension=dimension, tiled=True)
    # The barrier keeps XLA:TPU from moving the reduction out of a loop that adds its results up, at which it may fail.
    return (jax.lax.optimization_barrier(summed),)


_together.defvjp(_forward, _backward)

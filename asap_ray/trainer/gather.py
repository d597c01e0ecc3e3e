"""Weights brought together over the mesh axes that shard them, in phases where the compiler would not gather at once.

`physics.phases` says which and why. Gradients go back in one reduction over the whole group, which uses all links at
once.
"""

from __future__ import annotations

from functools import partial

import jax
from jax.sharding import PartitionSpec

from asap_ray.physics.phases import Phase, phases
from asap_ray.plan import Plan


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

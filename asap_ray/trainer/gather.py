"""Weights brought together over the mesh axes that shard them, and their gradients scattered over these.

`physics.phases` says in which phases, and why.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from asap_ray.physics.phases import Phase, gather_phases, scatter_phases
from asap_ray.plan import Plan

Phases = tuple[Phase, ...]


def gathered(weight: jax.Array, shards: PartitionSpec, plan: Plan, torus: bool, leading: int = 0) -> jax.Array:
    """A weight's shards brought together over the mesh axes named; its gradient is reduce-scattered over them.

    `torus` says that the compiler is that of a chip whose links form one; `leading` dimensions come before those of the
    weight.
    """
    for dimension, there, back in _steps(shards, plan, torus):
        weight = _together(weight, leading + dimension, there, back)
    return weight


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def held(shard: jax.Array, whole: jax.Array, shards: PartitionSpec, plan: Plan, torus: bool) -> jax.Array:
    """A weight that was gathered before, as it is; its gradient is the shard's, scattered as `gathered` does."""
    return whole


def _held_forward(shard: jax.Array, whole: jax.Array, shards: PartitionSpec, plan: Plan, torus: bool) -> tuple:
    return whole, None


def _held_backward(shards: PartitionSpec, plan: Plan, torus: bool, _: None, gradient: jax.Array) -> tuple:
    mine = gradient
    for dimension, there, back in _steps(shards, plan, torus)[::-1]:
        (mine,) = _backward(dimension, there, back, None, mine)
    return mine, jnp.zeros_like(gradient)


held.defvjp(_held_forward, _held_backward)


def _steps(shards: PartitionSpec, plan: Plan, torus: bool) -> list[tuple[int, Phases, Phases]]:
    """For each dimension that is sharded, the phases in which it is gathered, and those in which it is scattered."""
    found = []
    for dimension, entry in enumerate(shards):
        axes = (entry,) if isinstance(entry, str) else tuple(entry or ())
        if axes:
            at_once = (Phase(axes),)
            there = gather_phases(axes, plan) if torus else at_once
            back = scatter_phases(axes, plan) if torus else at_once
            found.append((dimension, there, back))
    return found


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _together(weight: jax.Array, dimension: int, there: Phases, back: Phases) -> jax.Array:
    for phase in there:
        weight = jax.lax.all_gather(weight, phase.axes, axis=dimension, tiled=True, axis_index_groups=_groups(phase))
    return weight


def _forward(weight: jax.Array, dimension: int, there: Phases, back: Phases) -> tuple:
    return _together(weight, dimension, there, back), None


def _backward(dimension: int, there: Phases, back: Phases, _: None, gradient: jax.Array) -> tuple:
    for phase in back:
        gradient = jax.lax.psum_scatter(
            gradient, phase.axes, scatter_dimension=dimension, axis_index_groups=_groups(phase), tiled=True
        )
    # The barrier keeps XLA:TPU from moving the reduction out of a loop that adds its results up, at which it may fail.
    return (jax.lax.optimization_barrier(gradient),)


def _groups(phase: Phase) -> list[list[int]] | None:
    return [list(group) for group in phase.groups] if phase.groups else None


_together.defvjp(_forward, _backward)

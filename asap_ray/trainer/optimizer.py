"""AdamW on sharded state: gradients summed over replicas, clipped by their norm, moments sharded over data with ZeRO-1.

Without ZeRO every data rank updates its own copy of a weight in the same way. With it, each has a part of the moments:
gradients are reduce-scattered over data, and the updates of the parts gathered, in the format of gradients on the wire.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from asap_ray.plan import AXES
from asap_ray.trainer.sharding import mesh_axes_of
from asap_ray.trainer.spec import Spec, psum

LEARNING_RATE = 3e-4
CLIP_NORM = 1.0
Weights = dict[Any, jax.Array]
"""Arrays by the path of their weight in the model."""


class State(NamedTuple):
    """What lasts from step to step."""

    weights: Weights
    optimizer: Any


class AdamW:
    """The optimizer of one plan: how its state lies on the mesh, and the update of one device's part."""

    def __init__(
        self,
        spec: Spec,
        specs: Mapping[Any, PartitionSpec],
        shapes: Mapping[Any, tuple[int, ...]],
        moments: jnp.dtype | None = None,
    ) -> None:
        """`specs` and `shapes` are those of the weights by path; `moments` is the format of the first moment."""
        self.spec, self.specs = spec, dict(specs)
        zero = spec.plan.zero > 0 and spec.sizes["data"] > 1
        self.parts = {path: self._part(specs[path], shape) if zero else None for path, shape in shapes.items()}
        self.transform = optax.adamw(LEARNING_RATE, b1=0.9, b2=0.95, weight_decay=0.1, mu_dtype=moments)

    def _part(self, spec: PartitionSpec, shape: tuple[int, ...]) -> int | None:
        """The dimension along which data ranks divide a weight's moments; None where none is divisible."""
        for dimension, size in enumerate(shape):
            entry = spec[dimension] if dimension < len(spec) else None
            axes = (entry,) if isinstance(entry, str) else entry or ()
            if size % (math.prod(self.spec.sizes[axis] for axis in axes) * self.spec.sizes["data"]) == 0 and size > 1:
                return dimension
        return None

    @property
    def state_specs(self) -> State:
        """How the state lies on the mesh."""
        moments = {path: self._moment_spec(path) for path in self.specs}
        adam = optax.ScaleByAdamState(count=PartitionSpec(), mu=moments, nu=moments)  # type: ignore[arg-type]
        empty = optax.EmptyState()
        return State(dict(self.specs), (adam, empty, empty))  # type: ignore[arg-type]

    def _moment_spec(self, path: Any) -> PartitionSpec:
        part, spec = self.parts[path], self.specs[path]
        if part is None:
            return spec
        entries = [*spec, *[None] * (part + 1 - len(spec))]
        own = entries[part]
        entries[part] = (*((own,) if isinstance(own, str) else own or ()), "data")
        return PartitionSpec(*entries)

    def start(self, weights: Weights) -> State:
        """The first state of weights of global shapes."""
        return State(weights, self.transform.init(weights))

    def update(self, state: State, gradients: Weights) -> tuple[State, jax.Array]:
        """The state after a step of these gradients, of this device's shards, and their global norm."""
        summed = {path: self._summed(path, gradient) for path, gradient in gradients.items()}
        norm = self._norm(summed)
        scale = jnp.minimum(1.0, CLIP_NORM / (norm + 1e-6))
        summed = {path: each.astype(jnp.float32) * scale for path, each in summed.items()}
        parts = {path: self._own(path, weight) for path, weight in state.weights.items()}
        updates: Weights
        updates, optimizer = self.transform.update(summed, state.optimizer, parts)  # type: ignore[assignment]
        weights = {path: weight + self._whole(path, updates[path]) for path, weight in state.weights.items()}
        return State(weights, optimizer), norm

    def _summed(self, path: Any, gradient: jax.Array) -> jax.Array:
        """A gradient summed over the axes on which its weight is replicated; with ZeRO, this data rank's part of it."""
        over = [axis for axis in AXES if axis not in mesh_axes_of(self.specs[path])]
        gradient, part = gradient.astype(self.spec.dtype), self.parts[path]
        if part is None:
            return psum(gradient, self.spec, *over)
        rest = psum(gradient, self.spec, *(axis for axis in over if axis != "data"))
        return jax.lax.psum_scatter(rest, "data", scatter_dimension=part, tiled=True)

    def _own(self, path: Any, weight: jax.Array) -> jax.Array:
        part = self.parts[path]
        if part is None:
            return weight
        size = weight.shape[part] // self.spec.sizes["data"]
        return jax.lax.dynamic_slice_in_dim(weight, jax.lax.axis_index("data") * size, size, part)

    def _whole(self, path: Any, update: jax.Array) -> jax.Array:
        part = self.parts[path]
        if part is None:
            return update
        narrow = update.astype(self.spec.dtype)
        return jax.lax.all_gather(narrow, "data", axis=part, tiled=True).astype(update.dtype)

    def _norm(self, gradients: Weights) -> jax.Array:
        """The norm over all devices: each number counts once, however many devices hold it."""
        by_axes: dict[tuple[str, ...], jax.Array] = {}
        for path, gradient in gradients.items():
            axes = mesh_axes_of(self._moment_spec(path))
            square = jnp.sum(jnp.square(gradient.astype(jnp.float32)))
            by_axes[axes] = by_axes.get(axes, jnp.zeros((), jnp.float32)) + square
        return jnp.sqrt(sum(psum(square, self.spec, *axes) for axes, square in by_axes.items()))

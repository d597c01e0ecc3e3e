"""From a plan to a mesh of devices, and from the logical axes of a weight to the mesh axes that shard it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from asap_ray.hardware import Slice
from asap_ray.plan import AXES, Plan
from asap_ray.problem import sharding_axes
from asap_ray.stack import Stack

BATCH_AXES = ("data", "fsdp", "expert")
"""Mesh axes over which the sequences of a micro-batch are split."""

GATHERED = ("embed", "latent", "expert_embed")
"""Logical axes whose shards are brought together where a weight is used; along the others it is used in parts."""

ROW_TILE = 16
"""Rows of 2-byte numbers that a TPU keeps together."""

Names = tuple[str | None, ...]
"""The logical axis of each dimension of a weight; None is never sharded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Which mesh axes shard each logical axis of a weight, on a mesh of these sizes.

    `embed` is d_model, `latent` the narrow inside of latent attention: weights that have one of them are split over the
    axes that shard dense weights, those with `expert_embed` over the ones that shard routed experts. `heads`, `mlp` and
    `vocab` are split over the tensor axis, `experts` over the expert axis, `layers` over the pipeline.
    """

    mesh_axes: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]

    def axes(self, name: str | None, size: int) -> tuple[str, ...]:
        """The mesh axes that split a dimension of some size; none where they do not divide it."""
        axes = tuple(axis for axis in self.mesh_axes.get(name or "", ()) if self.sizes[axis] > 1)
        return axes if size % math.prod(self.sizes[axis] for axis in axes) == 0 else ()

    def spec(self, names: Names, shape: Sequence[int]) -> PartitionSpec:
        """How a weight of a global shape lies on the mesh, dimension by dimension."""
        return PartitionSpec(*(self.axes(name, size) or None for name, size in zip(names, shape, strict=True)))

    def of_matrix(self, names: Names, shape: Sequence[int]) -> tuple[PartitionSpec, PartitionSpec]:
        """How a matrix [wide, narrow] lies on the mesh, and the axes of it that are brought together where it is used.

        The tensor axis splits its wide dimension, and so do the axes that shard weights where each device then has
        whole tiles of rows: a gather puts these one after the other. Else they split the narrow dimension, if they can.
        """
        (wide, narrow), split = shape, self.axes(names[0], shape[0])
        shards = tuple(axis for axis in self.mesh_axes.get(names[1] or "", ()) if self.sizes[axis] > 1)
        ranks, rows = math.prod(self.sizes[axis] for axis in shards), wide
        for axis in split:
            rows //= self.sizes[axis]
        by_rows = rows % (ranks * ROW_TILE) == 0 or (narrow % ranks and rows % ranks == 0)
        if not shards or (not by_rows and narrow % ranks):
            return PartitionSpec(split or None, None), PartitionSpec(None, None)
        if by_rows:
            return PartitionSpec((*split, *shards), None), PartitionSpec(shards, None)
        return PartitionSpec(split or None, shards), PartitionSpec(None, shards)


def rules(stack: Stack, sizes: Mapping[str, int]) -> Rules:
    """The rules for a stack's habits on a mesh of given axis sizes."""
    dense = sharding_axes(stack)
    return Rules(
        mesh_axes={
            "layers": ("pipeline",),
            "embed": dense,
            "latent": dense,
            "expert_embed": tuple(axis for axis in dense if axis != "expert"),
            "heads": ("tensor",),
            "mlp": ("tensor",),
            "vocab": ("tensor",),
            "experts": ("expert",),
        },
        sizes=dict(sizes),
    )


def mesh_axes_of(spec: PartitionSpec) -> tuple[str, ...]:
    """All mesh axes in a spec."""
    flat: list[str] = []
    for entry in spec:
        flat.extend((entry,) if isinstance(entry, str) else entry or ())
    return tuple(flat)


def device_mesh(plan: Plan, slice_: Slice, devices: Sequence[Any]) -> Mesh:
    """The mesh of a plan on devices of a slice, with an axis for each of `plan.AXES`, of its size across times inside.

    TPU devices say where they are (`coords`, `core_on_chip`, `slice_index`), and each mesh axis takes its steps along
    the link axes that the plan's layout names, the later axis innermost. Others come in order: domain by domain.

    Args:
        plan: a legal plan of the slice; without a layout its axes lie on the links in the order of their devices.
        slice_: the slice.
        devices: as many as the slice has, real ones or those of a topology.

    Raises:
        ValueError: there are not as many devices as the plan has.
    """
    if len(devices) != math.prod(plan.sizes):
        raise ValueError(f"{len(devices)} devices for a plan of {math.prod(plan.sizes)}")
    inside = [axis.size for axis in slice_.axes]
    grid = np.empty((slice_.slices, *inside), object)
    for position, device in enumerate(devices):
        grid[_place(device, position, slice_, inside)] = device
    steps = plan.layout or _plain_layout(plan, inside)
    # [across each axis, then for each link axis the step of each mesh axis along it] -> [mesh axis: across, inside...]
    parts = [list(plan.dcn), *([steps[m][j] for m in range(len(AXES))] for j in range(len(inside)))]
    spread = grid.reshape([size for part in parts for size in part])
    order = [level * len(AXES) + m for m in range(len(AXES)) for level in range(len(parts))]
    array = spread.transpose(order).reshape(plan.sizes)
    return Mesh(array, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _place(device: Any, position: int, slice_: Slice, inside: Sequence[int]) -> tuple[int, ...]:
    coords = getattr(device, "coords", None)
    if slice_.chip.kind != "tpu" or coords is None:
        index = np.unravel_index(position, (slice_.slices, *inside))
        return tuple(int(i) for i in index)
    core = (device.core_on_chip,) if slice_.axes[-1].on_chip else ()
    where = tuple(coords[: len(slice_.topology)])
    return (getattr(device, "slice_index", 0) or 0, *where, *core)


def _plain_layout(plan: Plan, inside: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Steps along each link axis where a plan names none: the last mesh axis takes the last links first."""
    left = list(inside)
    steps = [[1] * len(inside) for _ in AXES]
    for m in reversed(range(len(AXES))):
        rest = plan.ici[m]
        for j in reversed(range(len(inside))):
            steps[m][j] = math.gcd(rest, left[j])
            rest, left[j] = rest // steps[m][j], left[j] // steps[m][j]
        if rest > 1:
            raise ValueError(f"{AXES[m]}={plan.ici[m]} does not lie on links of {'x'.join(map(str, inside))}")
    return tuple(map(tuple, steps))

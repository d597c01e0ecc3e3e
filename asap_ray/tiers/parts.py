"""A profile's critical path as the parts of a step that physics knows (`physics.estimate.TIME_PARTS`)."""

from __future__ import annotations

from typing import Any

from asap_ray.physics.estimate import TIME_PARTS

KERNELS = {"matmul": "matmul", "attention": "attention"}
"""Parts of compute by an op's category; the rest is elementwise."""
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute")
SHARDING = ("fsdp", "context", "expert")
"""Mesh axes over which dense weights are sharded, and gathered together."""


def time_parts(profile: Any) -> dict[str, float]:
    """Seconds on the critical path by part; they sum to the step time of the profile.

    What no op accounts for (gaps of the schedule) is `host`.
    """
    parts: dict[str, float] = dict.fromkeys(TIME_PARTS, 0.0)
    for op in profile.ops:
        parts[part_of(op.category, op.phase, tuple(op.axes))] += op.exposed_s
    parts["host"] += max(0.0, profile.step_time_s - sum(parts.values()))
    return parts


def part_of(category: str, phase: str, axes: tuple[str, ...]) -> str:
    """The part that an op belongs to.

    Of collectives, all-to-alls belong to experts, permutations to the pipeline or the ring of attention, what runs over
    the tensor axis to it. Other gathers and scatters are of weights and their gradients; what is summed over all else
    is gradients.
    """
    if category in COLLECTIVES:
        return _traffic(category, axes)
    if category == "other":  # the host's part, which no unit of the device works on
        return "host"
    if phase == "optimizer":
        return "optimizer"
    if phase == "recompute":
        return "recompute"
    return KERNELS.get(category, "elementwise")


def _traffic(category: str, axes: tuple[str, ...]) -> str:
    if category == "all_to_all":
        return "expert" if "expert" in axes else "context"
    if category == "permute":
        return next((axis for axis in ("pipeline", "context", "expert", "tensor") if axis in axes), "context")
    if axes == ("tensor",):
        return "tensor"
    if axes == ("pipeline",):
        return "pipeline"
    weights = category in ("all_gather", "reduce_scatter") and any(axis in axes for axis in SHARDING)
    return "fsdp" if weights and "data" not in axes else "gradient"

"""A problem: what is tuned, and how a plan's axes and knobs read as columns.

A column is an integer array over plans: `data` … `tensor` (total axis sizes), `data_ici`, `data_dcn`, … and the knobs
of `plan.KNOBS`, with `schedule`, `remat`, `precision` and `attention` as codes, positions in `plan.SCHEDULES`,
`Stack.remat_names`, `plan.PRECISIONS` and `plan.ATTENTION_KERNELS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from asap_ray.hardware import Slice
from asap_ray.plan import ATTENTION_KERNELS, AXES, KNOBS, PRECISIONS, SCHEDULES, Plan
from asap_ray.stack import Stack
from asap_ray.workload import Workload

Columns = Mapping[str, np.ndarray]
Size = TypeVar("Size", int, np.ndarray)
NONE, GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE = range(len(SCHEDULES))
FLASH, UNFUSED = range(len(ATTENTION_KERNELS))
MESH_COLUMNS = AXES + tuple(f"{axis}_{level}" for axis in AXES for level in ("ici", "dcn"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What is tuned: a workload on a slice, for a stack; `numerics` are the opted-in knobs that change results.

    `margin` is the share of the usable memory that a plan must leave free, since no estimate of memory is exact.
    """

    workload: Workload
    slice: Slice
    stack: Stack
    numerics: tuple[str, ...] = ()
    margin: float = 0.0

    @property
    def hbm_limit_bytes(self) -> float:
        """Bytes that a plan may need on one device."""
        return self.slice.chip.usable_hbm_bytes * (1.0 - self.margin)

    @property
    def precisions(self) -> tuple[str, ...]:
        """The workload's own precision first, then what the user has opted in to and the chip multiplies."""
        own = self.workload.precision
        extra = self.stack.precisions if "precision" in self.numerics else ()
        return (own, *(name for name in extra if name != own and self.slice.chip.multiplies(name)))

    def mfu(self, step_time_s: float) -> float:
        """Model FLOPs utilisation: the model's own FLOPs (attention by the keys it sees, nothing recomputed) over what
        all chips do at their bf16 peak, whatever the precision; so rates of all plans and rows compare, and a narrower
        format may exceed 1."""
        return self.workload.model_flops / (step_time_s * self.slice.chips * self.slice.chip.peak_flops["bf16"])


def usable_axes(problem: Problem) -> tuple[str, ...]:
    """Mesh axes that the stack has and the model can use: `expert` needs experts."""
    moe = problem.workload.architecture.experts is not None
    return tuple(axis for axis in problem.stack.axes if axis != "expert" or moe)


def batch_shards(stack: Stack, c: Mapping[str, Size]) -> Size:
    """Ranks over which the batch is split (of columns [plans]): data, fsdp, and expert where that axis multiplies."""
    shards = c["data"] * c["fsdp"]
    return shards * c["expert"] if stack.expert_multiplies else shards


def weight_shards(stack: Stack, c: Columns) -> np.ndarray:
    """Ranks over which each dense weight is sharded besides tensor and pipeline [plans]."""
    shards = c["fsdp"]
    for axis in sharding_axes(stack)[1:]:
        shards = shards * c[axis]
    return shards


def sharding_axes(stack: Stack) -> tuple[str, ...]:
    """Mesh axes whose ranks gather weights together: fsdp, and what else the stack shards weights over."""
    return ("fsdp", *(axis for axis in stack.shards_weights if axis != "expert" or stack.expert_multiplies))


def replica_axes(stack: Stack) -> tuple[str, ...]:
    """Mesh axes over whose ranks weights are replicated and gradients reduced."""
    ranks = ("data", "fsdp", "context", *(["expert"] if stack.expert_multiplies else []))
    return tuple(axis for axis in ranks if axis not in sharding_axes(stack))


def divided_axes(stack: Stack) -> tuple[str, ...]:
    """Mesh axes within which an expert group lies where it subdivides them, from the nearest ranks outwards; those that
    shard weights come first."""
    return tuple(sorted(("context", "fsdp", "data"), key=lambda axis: axis not in sharding_axes(stack)))


def expert_split(c: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Sizes inside and across the slice of an expert group that subdivides context, fsdp and data [plans].

    Its ranks are the nearest ones: as many inside as divide what those axes hold inside, the rest across.
    """
    inside = np.gcd(c["expert"], c["context_ici"] * c["fsdp_ici"] * c["data_ici"])
    return inside, c["expert"] // inside


def columns_of(problem: Problem, plans: list[Plan]) -> dict[str, np.ndarray]:
    """The columns that rules read, for given plans [plans].

    Raises:
        ValueError: a plan names a recomputation policy that the stack does not have.
    """
    ici, dcn = np.array([p.ici for p in plans], np.int64), np.array([p.dcn for p in plans], np.int64)
    columns = {axis: ici[:, i] * dcn[:, i] for i, axis in enumerate(AXES)}
    columns |= {f"{axis}_ici": ici[:, i] for i, axis in enumerate(AXES)}
    columns |= {f"{axis}_dcn": dcn[:, i] for i, axis in enumerate(AXES)}
    codes = coding(problem)
    for knob in KNOBS:
        values = [getattr(plan, knob) for plan in plans]
        columns[knob] = np.array([codes[knob].index(v) if knob in codes else int(v) for v in values], np.int64)
    return columns


def coding(problem: Problem) -> dict[str, tuple[str, ...]]:
    """Names of the categorical knobs; a code is a position here."""
    return {
        "schedule": SCHEDULES,
        "remat": problem.stack.remat_names,
        "precision": PRECISIONS,
        "attention": ATTENTION_KERNELS,
    }

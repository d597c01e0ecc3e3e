"""What is said of plans: one `Estimate` each, or `Prices` as columns, with parts that sum to the whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np

from asap_ray.plan import Plan

TIME_PARTS = (
    "matmul",
    "attention",
    "elementwise",
    "recompute",
    "head",
    "tensor",
    "context",
    "expert",
    "fsdp",
    "gradient",
    "pipeline",
    "offload",
    "bubble",
    "optimizer",
    "host",
    "input",
)
"""Where the critical path of a step goes: compute by kind, traffic by mesh axis as far as it is not hidden, the
rest."""
KERNEL_PARTS = ("matmul", "attention", "elementwise", "recompute", "head")
"""Parts in which kernels run: matrix units compute, or wait for HBM."""
TRAFFIC_PARTS = ("tensor", "context", "expert", "fsdp", "gradient", "pipeline", "offload")
HOST_PARTS = ("host", "optimizer", "input")
KINDS = (KERNEL_PARTS, TRAFFIC_PARTS, HOST_PARTS)
"""Parts by what decides how well they are known; a bubble is made of all three."""

Levels = tuple[np.ndarray, np.ndarray]  # seconds on ICI, on DCN
RESOURCES = ("compute", "hbm", "ici", "dcn", "pcie", "bubble", "host")


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a tier says of one plan.

    `time_parts` are seconds on the critical path and sum to the step; `busy` are seconds in which each resource works,
    hidden or not; `memory_parts` are bytes on the fullest device and sum to `hbm_bytes`; `floor_parts` are the least
    seconds of each resource. `mfu` is `Problem.mfu` of the step; `redundant` is the FLOPs of recomputation over the
    model's own. `interval_s` is made to hold 90% of measured steps (`Pricer.interval`), cut at the floor.
    `overhead_s` is what of the step no plan changes.
    """

    plan: Plan
    step_time_s: float
    interval_s: tuple[float, float]
    floor_s: float
    serial_s: float
    mfu: float
    tokens_per_s: float
    hbm_bytes: float
    hbm_limit_bytes: float
    time_parts: Mapping[str, float]
    busy: Mapping[str, float]
    memory_parts: Mapping[str, float]
    floor_parts: Mapping[str, float]
    redundant: float
    overhead_s: float = 0.0
    source: str = "roofline"

    @property
    def fits(self) -> bool:
        """Whether the plan fits in memory."""
        return self.hbm_bytes <= self.hbm_limit_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """One step away from a plan: `field` becomes `value`. It has an estimate, or the reason why no such plan is
    legal."""

    field: str
    value: str
    estimate: Estimate | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """Estimates of many plans as columns [plans]; the mappings are as in `Estimate`."""

    step_time_s: np.ndarray
    serial_s: np.ndarray
    hbm_bytes: np.ndarray
    time_parts: Mapping[str, np.ndarray]
    busy: Mapping[str, np.ndarray]
    memory_parts: Mapping[str, np.ndarray]


def summed(columns: Iterable[np.ndarray]) -> np.ndarray:
    """The sum of some columns [plans], row by row."""
    return reduce(np.add, columns)


def kinds_of_time(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Shares of compute, traffic and host in a step [plans, 3], where a bubble is shared as all else is."""
    seconds = np.stack([summed(parts[name] for name in kind) for kind in KINDS], axis=1)
    return seconds / seconds.sum(axis=1, keepdims=True)


def busy(
    batches: np.ndarray,
    parts: Mapping[str, np.ndarray],
    wires: Mapping[str, Levels],
    waits: np.ndarray,
    hbm: np.ndarray,
) -> dict[str, np.ndarray]:
    """Seconds in which each of `RESOURCES` works in a step [plans].

    Made of the parts of a step and, of one micro-batch, its traffic (`gradient` is of the whole step), the seconds in
    which kernels wait for HBM, and those in which they keep it busy.
    """
    links = {kind: levels for kind, levels in wires.items() if kind not in ("gradient", "offload")}
    ici, dcn = (sum(levels[k] for levels in links.values()) for k in (0, 1))
    return {
        "compute": np.maximum(summed(parts[name] for name in KERNEL_PARTS) - batches * waits, 0.0),
        "hbm": batches * hbm + parts["optimizer"],
        "ici": batches * ici + wires["gradient"][0],
        "dcn": batches * dcn + wires["gradient"][1],
        "pcie": batches * wires["offload"][0],
        "bubble": parts["bubble"],
        "host": parts["host"],
    }

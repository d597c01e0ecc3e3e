"""The exact answer of one call, as the report reads it: one Answer, with a SliceAnswer for each slice asked about.

Plain values only. The task fills them, the report shows them; nothing in the report prices a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from asap_ray.certificate import Certificate
    from asap_ray.diagnosis import Diagnosis
    from asap_ray.hardware import Slice
    from asap_ray.physics.estimate import Estimate
    from asap_ray.workload import Workload

TRIAL_ENDS = ("complete", "pruned", "infeasible", "failed", "timeout")


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceAnswer:
    """What the whole space of one slice came to.

    `removed` says how many plans each rule took, "memory" among them; `reasons` has one sentence for each plan of
    `ranked`; `too_big` holds the fastest plans that miss the memory. `ranked` is empty, and `diagnosis` None, where no
    plan fits.

    `sample` holds columns of up to a few thousand plans for the map of the space: step_time_s, floor_s, hbm_bytes,
    fits, remat, micro_batch and the six mesh axes, each of shape [plans]. `certificate` bounds how much faster than the
    best another plan can be.
    """

    slice: Slice
    total: int
    legal: int
    fitting: int
    removed: Mapping[str, int]
    ranked: tuple[Estimate, ...]
    reasons: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    too_big: tuple[Estimate, ...] = ()
    sample: Mapping[str, np.ndarray] = field(default_factory=dict)
    certificate: Certificate | None = None

    @property
    def best(self) -> Estimate | None:
        """The fastest plan that fits, where one does."""
        return self.ranked[0] if self.ranked else None

    @property
    def usd_per_million_tokens(self) -> float | None:
        """What a million tokens cost at the best plan, in dollars; None where the chip's price or a plan is missing."""
        return None if self.best is None else usd_per_million_tokens(self.slice, self.best)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One workload on one or more slices, in the order they were asked for.

    The fields after `stop_reason` describe a search with trials; the exact answer has none and leaves them.
    """

    task: str
    model: str
    workload: Workload
    stack: str
    seed: int
    slices: tuple[SliceAnswer, ...]
    wall_s: float
    versions: Mapping[str, str]
    run_dir: Path
    stop_reason: str
    command: str = ""
    baseline: Estimate | None = None
    resumed: bool = False
    trials: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(TRIAL_ENDS, 0))
    agents: Mapping[str, object] = field(
        default_factory=lambda: {"brain": "none", "rounds": 0, "proposals": 0, "refused": 0}
    )
    llm: Mapping[str, float] = field(default_factory=lambda: {"calls": 0, "tokens": 0, "usd": 0.0})

    @property
    def by_step_time(self) -> tuple[SliceAnswer, ...]:
        """The slices, fastest step first; those where nothing fits come last, in the order given."""
        return tuple(sorted(self.slices, key=lambda each: each.best.step_time_s if each.best else float("inf")))

    @property
    def winner(self) -> SliceAnswer:
        """The slice with the fastest step."""
        return self.by_step_time[0]


def usd_per_million_tokens(where: Slice, estimate: Estimate) -> float | None:
    """Dollars for a million tokens at this estimate's rate; None where the chip's price is not known."""
    price = where.chip.usd_per_chip_hour
    if price is None or not estimate.tokens_per_s > 0:
        return None
    return price * where.chips / 3600 / estimate.tokens_per_s * 1e6

"""A step made of what micro-batches cost on the slowest stage, the filling of the others, and what happens once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from asap_ray.physics.estimate import Levels, summed
from asap_ray.physics.stage import Kernels, Stage, StagePricer, of_a_batch
from asap_ray.problem import ZERO_BUBBLE

ZERO_BUBBLE_SHARE = 1.0 / 3.0
MOST_NEIGHBOURS = 2
"""A stage of a pipeline hands tensors to the one before and the one after it."""
Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Seconds of a step by part where traffic hides, and where nothing does; of one micro-batch, its traffic and
    kernels [plans]."""

    parts: Columns
    serial: Columns
    wires: Mapping[str, Levels]
    kernels: Kernels


class StepPricer:
    """Prices the steps of one problem's plans, if a given stage is the slowest."""

    def __init__(self, stages: StagePricer) -> None:
        """Steps of these stages."""
        self.stages = stages

    def price(self, stage: Stage, memory: Columns) -> Step:
        """Steps that this stage sets the pace of [plans]; `memory` has the bytes that the optimizer passes over."""
        kernels, wires = self.stages.kernels(stage), self.stages.wires(stage)
        total, gradient = of_a_batch(wires), summed(wires["gradient"])
        exposed, shown = self.stages.exposed(kernels.layers, kernels.head, total)
        hidden = self._hidden(stage, kernels, gradient, summed(exposed.values()) - summed(total.values()))
        every = summed(total.values())
        others, filling = self._filling(stage, kernels.layers + shown, kernels.layers + every)
        return Step(
            parts=self._parts((stage, others), {**kernels.parts, **exposed}, filling[0], gradient - hidden, memory),
            serial=self._parts((stage, others), {**kernels.parts, **total}, filling[1], gradient, memory),
            wires=wires,
            kernels=kernels,
        )

    def _hidden(self, stage: Stage, kernels: Kernels, gradient: np.ndarray, taken: np.ndarray) -> np.ndarray:
        """Seconds of gradients that hide [plans], where other traffic has `taken` some room already (negative)."""
        # Gradients go under the last backward pass, weights that ZeRO gathers under the first forward pass.
        passes = np.where(stage.c["zero"] > 0, kernels.layers, stage.backward)
        room = np.maximum(np.minimum(passes, kernels.layers + kernels.head + taken), 0.0)
        # A sum of all gradients at once begins when the last of them is there.
        early = self.stages.problem.stack.zero_scatters | (stage.c["zero"] == 0)
        return np.minimum(early * self.stages.overlap["gradient"] * gradient, room)

    def _filling(
        self, stage: Stage, hides: np.ndarray, waits: np.ndarray
    ) -> tuple[Stage, tuple[np.ndarray, np.ndarray]]:
        """The other stages, and what one micro-batch takes on one of them where traffic hides and where it does not,
        given what it takes on the slowest one without its head."""
        if not self.stages.problem.stack.stages_by_cost:
            return replace(stage, head=np.zeros(len(stage.of))), (hides, waits)
        others = stage.others
        total = of_a_batch(self.stages.wires(others))
        layers = summed(self.stages.kernels(others).parts.values())
        return others, (layers + self.stages.exposed(layers, 0.0 * layers, total)[1], layers + summed(total.values()))

    def _parts(
        self, stages: tuple[Stage, Stage], each: Columns, filling: np.ndarray, gradient: np.ndarray, memory: Columns
    ) -> dict[str, np.ndarray]:
        """Seconds of a step on the critical path, by part [plans]: `each` is paid by every micro-batch on the slowest
        stage, `filling` is what one takes on one of the others."""
        (stage, others), constants = stages, self.stages.calibration
        c, launch, batches = stage.c, constants.kernel_launch_s, stage.c["accumulation"]
        handed = constants.handoff_s * 2 * c["virtual"] * np.minimum(c["pipeline"] - 1, MOST_NEIGHBOURS)
        share = np.where(c["schedule"] == ZERO_BUBBLE, ZERO_BUBBLE_SHARE, 1.0)
        moved = 2 * memory["weights"] + memory["gradients"] + 2 * memory["optimizer"]
        # The host launches ahead of the device; where it is the slower one, the device waits for it.
        kernels = stage.kernels * launch
        waits = np.maximum(self.stages.hosted(stage) - summed(each.values()) - kernels, 0.0)
        pace = np.maximum(filling + others.kernels * launch, self.stages.hosted(others)) + handed
        return {
            **{part: batches * seconds for part, seconds in {**each, "pipeline": each["pipeline"] + handed}.items()},
            "gradient": gradient,
            "bubble": share * (c["pipeline"] - 1) / c["virtual"] * pace,
            "optimizer": constants.optimizer_passes * moved / self.stages.machine.hbm_bytes_per_s,
            "host": batches * (kernels + waits + constants.batch_overhead_s) + constants.step_overhead_s,
        }

"""A step made of what micro-batches cost on the slowest stage, the filling of the others, and what happens once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from asap_ray.physics.estimate import Levels, summed
from asap_ray.physics.layer import BACKWARD_ATTENTION
from asap_ray.physics.stage import Kernels, Stage, StagePricer, of_a_batch
from asap_ray.problem import ZERO_BUBBLE

ZERO_BUBBLE_SHARE = 1.0 / 3.0
MOST_NEIGHBOURS = 2
"""A stage of a pipeline hands tensors to the one before and the one after it."""
MOST_BACKWARD = BACKWARD_ATTENTION / (1.0 + BACKWARD_ATTENTION)
"""Share of a micro-batch that a backward pass takes at most: no kernel's takes longer, against its forward pass, than
that of attention; where the host sets the pace, it launches fewer than that share of all kernels."""
Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Seconds of a step by part where traffic hides, and where nothing does; of one micro-batch, those of its traffic,
    those in which kernels wait for HBM, and those in which they keep it busy [plans]."""

    parts: Columns
    serial: Columns
    wires: Mapping[str, Levels]
    waits: np.ndarray
    hbm: np.ndarray


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
        each = {**kernels.parts, **exposed}
        every = summed(total.values())
        hidden = self._hidden(stage, kernels, gradient, each, every)
        others, filling = self._filling(stage, kernels.layers + shown, kernels.layers + every)
        return Step(
            parts=self._parts((stage, others), each, filling[0], gradient - hidden, memory),
            serial=self._parts((stage, others), {**kernels.parts, **total}, filling[1], gradient, memory),
            wires=wires,
            waits=kernels.waits,
            hbm=kernels.hbm,
        )

    def _hidden(
        self, stage: Stage, kernels: Kernels, gradient: np.ndarray, each: Columns, traffic: np.ndarray
    ) -> np.ndarray:
        """Seconds of gradients that hide [plans], given what `each` micro-batch pays, and all of its `traffic`.

        They go under the last backward pass, weights that ZeRO gathers under the first forward pass, and both under
        what the device waits for the host meanwhile; compute that other traffic hides under is taken.
        """
        paid, launches = summed(each.values()), stage.kernels * self.stages.calibration.kernel_launch_s
        idle = self._idle(stage, paid + launches)
        backward = np.minimum(stage.backward * (1.0 - kernels.spared) + idle, MOST_BACKWARD * (paid + launches + idle))
        passes = np.where(stage.c["zero"] > 0, kernels.layers * (1.0 - kernels.spared) + idle, backward)
        left = paid - traffic + idle
        room = np.maximum(np.minimum(passes, left), 0.0)
        # A sum of all gradients at once begins when the last of them is there.
        early = self.stages.problem.stack.zero_scatters | (stage.c["zero"] == 0)
        return np.minimum(early * self.stages.overlap["gradient"] * gradient, room)

    def _idle(self, stage: Stage, device: np.ndarray) -> np.ndarray:
        """Seconds in which the device waits for the host in a micro-batch that takes it so long [plans]: the host
        launches ahead of it, and shows where it is the slower one."""
        return np.maximum(self.stages.hosted(stage) - device, 0.0)

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
        kernels = stage.kernels * launch
        waits = self._idle(stage, summed(each.values()) + kernels)
        pace = np.maximum(filling + others.kernels * launch, self.stages.hosted(others)) + handed
        return {
            **{part: batches * seconds for part, seconds in {**each, "pipeline": each["pipeline"] + handed}.items()},
            "gradient": gradient,
            "bubble": share * (c["pipeline"] - 1) / c["virtual"] * pace,
            "optimizer": constants.optimizer_passes * moved / self.stages.machine.hbm_bytes_per_s,
            "host": batches * (kernels + waits + constants.batch_overhead_s) + constants.step_overhead_s,
        }


def slowest(steps: Sequence[Step]) -> Step:
    """Of some steps of the same plans, each plan's slowest; those where nothing hides are compared on their own."""
    return reduce(_slower, steps)


def _slower(one: Step, other: Step) -> Step:
    slower = summed(other.parts.values()) > summed(one.parts.values())
    serial = summed(other.serial.values()) > summed(one.serial.values())

    def pick(mine: np.ndarray, its: np.ndarray) -> np.ndarray:
        return np.where(slower, its, mine)

    return Step(
        parts={name: pick(column, other.parts[name]) for name, column in one.parts.items()},
        serial={name: np.where(serial, other.serial[name], column) for name, column in one.serial.items()},
        wires={
            kind: (pick(ici, other.wires[kind][0]), pick(dcn, other.wires[kind][1]))
            for kind, (ici, dcn) in one.wires.items()
        },
        waits=pick(one.waits, other.waits),
        hbm=pick(one.hbm, other.hbm),
    )

"""Seconds of one op: the compiler's cycles where it gives them, else physics.

A TPU's compiler estimates cycles of the device for nearly every op of the core (on a chip with two cores that work as
one, of both together), somewhat too many of them. What it leaves out is priced as the roofline prices it: matmuls by
their shape at the calibrated rate, fused attention at its own, all else by the bytes it moves. Collectives take what
the network model says of the links that their mesh axes lie on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from asap_ray.compiler import work
from asap_ray.compiler.collectives import Collective
from asap_ray.compiler.hlo import Computation, Instruction, Module
from asap_ray.compiler.kernels import kernel_work
from asap_ray.compiler.shapes import HBM, HOST
from asap_ray.meshes import Meshes, meshes_of
from asap_ray.physics import network
from asap_ray.physics.calibration import Calibration, Machine
from asap_ray.physics.matmul import matmul_work
from asap_ray.physics.network import Link
from asap_ray.physics.traffic import axes_link
from asap_ray.physics.units import attention_waste
from asap_ray.plan import AXES, PRECISIONS, Plan
from asap_ray.problem import Problem

MOVES = frozenset(
    {
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "copy",
        "bitcast",
        "reshape",
        "transpose",
        "slice",
        "dynamic-slice",
        "dynamic-update-slice",
        "pad",
        "concatenate",
        "broadcast",
        "gather",
        "reverse",
        "iota",
    }
)
"""Opcodes that compute nothing: a fusion of these alone is a copy."""
PRECISION_OF = {"bf16": "bf16", "f16": "fp16", "f32": "fp32", "s8": "int8"}
CYCLES_FRACTION = 0.89
"""Seconds of a TPU over those that its compiler's cycles say: the median over seven public runs whose transfers hide in
compute (docs/accuracy.md, "The compile tier"). Another trainer's program agrees: MaxText's own, of Llama 2 70B on
v5p-128, has cycles for 11.65 s beside some 1.1 s of attention, and its published 65% MFU are 11.8 to 12.3 s in all."""
RING_FRACTION = 0.855
"""Of a torus link's raw rate, what a gather or a scatter along one link axis reaches: 95% of 45 GB/s, of 50 raw, in an
all-gather over 16 v5e (How to Scale Your Model, "Sharded Matrices"). `ici_fraction` is that of an all-reduce, over
several link axes."""
Resource = tuple[str, int, int]
"""What one transfer at a time can use: a link axis in one direction, the network, the copy engine."""
COPY_ENGINE: Resource = ("copy", 0, 0)
HOST_LINK: Resource = ("pcie", 0, 0)
NETWORK: Resource = ("dcn", 0, 0)
CORE: Resource = ("core", 0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one run of an op takes and does; fields as in `profile.table.Op`."""

    category: str
    seconds: float
    flops: float = 0.0
    redone_flops: float = 0.0
    hbm_bytes: float = 0.0
    resources: tuple[Resource, ...] = ()


class Costs:
    """Prices the ops of one program on one problem's machine, for the plan that it was compiled for."""

    def __init__(self, module: Module, problem: Problem, plan: Plan, calibration: Calibration) -> None:
        self.module, self.problem, self.plan, self.calibration = module, problem, plan, calibration
        self.chip = problem.slice.chip
        self.machine = Machine.achieved(self.chip, calibration)
        self._links: dict[tuple[tuple[str, ...], tuple[int, ...] | None], Link] = {}

    @cached_property
    def _meshes(self) -> Meshes:
        return meshes_of(self.problem, [self.plan])

    @cached_property
    def _peak(self) -> float:
        """FLOP/s that no op of the plan's matmuls can beat."""
        peaks = self.chip.peak_flops
        return peaks.get(self.plan.precision, peaks["bf16"]) / self.chip.devices_per_chip

    def of_op(self, computation: Computation, op: Instruction) -> Cost:
        """An op of the core."""
        if op.opcode == "custom-call":
            return self._kernel(computation, op)
        flops = work.flops(self.module, computation, op)
        moved = work.hbm_bytes(self.module, computation, op)
        category = "matmul" if flops else self._category(op)
        if self.machine.streams and op.cycles is not None:
            seconds = max(CYCLES_FRACTION * op.cycles / self.chip.clock_hz, flops / self._peak)
        else:
            seconds = max(self._matmul_s(computation, op), moved / self.machine.hbm_bytes_per_s) + self._launch_s(op)
        return Cost(category=category, seconds=seconds, flops=flops, hbm_bytes=moved)

    def _category(self, op: Instruction) -> str:
        body = self.module.called(op) if op.opcode == "fusion" else None
        opcodes = {each.opcode for each in body.instructions} if body else {op.opcode}
        return "copy" if opcodes <= MOVES else "elementwise"

    def _launch_s(self, op: Instruction) -> float:
        """A GPU starts a kernel for each op; a TPU's core runs through its program."""
        return 0.0 if self.machine.streams else self.machine.kernel_launch_s

    def _matmul_s(self, computation: Computation, op: Instruction) -> float:
        total = 0.0
        for where, matmul in work.matmuls(self.module, computation, op):
            (sizes,) = work.matmul_sizes(self.module, where, matmul)
            left = where.operands(matmul)[0].arrays[0]
            total += self._sized_s(sizes, left.dtype, left.bytes / left.elements)
        return total

    def _sized_s(self, sizes: tuple[float, ...], dtype: str, number_bytes: float = 2.0) -> float:
        m, k, n, groups = sizes
        name = PRECISION_OF.get(dtype, "fp8" if dtype.startswith("f8") else "bf16")
        peak = float(self.machine.peaks[PRECISIONS.index(name)])
        return float(matmul_work(m, k, n, peak, self.machine, groups, number_bytes).total_s)

    def _kernel(self, computation: Computation, call: Instruction) -> Cost:
        done = kernel_work(computation, call, self.problem.workload, self.plan.axes["context"])
        moved = work.hbm_bytes(self.module, computation, call)
        compute = 0.0
        if done.category == "attention":
            waste = self._padding(done.widths) if done.masked else self._attention_waste()
            peak = float(self.machine.attention_peaks[PRECISIONS.index(self.plan.precision)])
            compute = (done.flops + done.redone_flops) * waste / peak
        elif done.sizes:
            left = computation.operands(call)[0].arrays[0]
            compute = self._sized_s(done.sizes, left.dtype)
        seconds = max(compute, moved / self.machine.hbm_bytes_per_s) + self._launch_s(call)
        if call.cycles is not None and self.machine.streams:
            seconds = call.cycles / self.chip.clock_hz
        return Cost(
            category=done.category,
            seconds=seconds,
            flops=done.flops,
            redone_flops=done.redone_flops,
            hbm_bytes=moved,
        )

    def _padding(self, widths: tuple[int, ...]) -> float:
        """What narrow heads take of a systolic array over what they fill."""
        if not self.machine.streams:
            return 1.0
        return sum(-(-width // self.machine.tile) * self.machine.tile for width in widths) / sum(widths)

    def _attention_waste(self) -> float:
        """What a fused kernel computes over what is counted, on average over layers."""
        workload = self.problem.workload
        groups = workload.architecture.groups
        waste = sum(group.count * attention_waste(workload, group, self.machine) for group in groups)
        return waste / sum(group.count for group in groups)

    def of_copy(self, computation: Computation, start: Instruction) -> Cost:
        """An asynchronous copy: what it moves between HBM and the core, or between the device and its host."""
        given = computation.operands(start)
        if start.opcode.startswith("dynamic-update-slice"):  # into a buffer goes what it is updated with
            made, source = start.arrays[0], given[1].arrays[0]
            made = replace(source, space=made.space)
        else:
            made = start.arrays[1 if start.opcode.startswith(("slice", "dynamic-slice")) else 0]
            source = given[0].arrays[0]
        to_host = HOST in (made.space, source.space)
        moved = made.bytes * ((made.space == HBM) + (source.space == HBM))
        rate = self.machine.pcie_bytes_per_s if to_host else self.machine.hbm_bytes_per_s
        seconds = (made.bytes if to_host else moved) / rate
        return Cost(
            category="copy",
            seconds=seconds,
            hbm_bytes=moved,
            resources=(HOST_LINK if to_host else COPY_ENGINE,),
        )

    def of_collective(self, moved: Collective, ascending: bool | None = None) -> Cost:
        """A collective's seconds, and the links that it keeps busy; `ascending` says which way a permute goes."""
        if moved.ranks <= 1 or not moved.axes:
            return Cost(category=moved.kind, seconds=0.0)
        link = self._link(moved)
        ici, dcn = getattr(network, moved.kind)(link, moved.bytes)
        resources = [NETWORK] if moved.crosses else []
        resources += self._ways(moved, ascending) if moved.inside else []
        return Cost(category=moved.kind, seconds=float(np.sum(ici + dcn)), resources=tuple(resources))

    def _link(self, moved: Collective) -> Link:
        part = None if moved.exact else moved.links
        if (moved.axes, part) not in self._links:
            made = axes_link(self.problem, self._meshes, moved.axes, self.calibration, part)
            self._links[moved.axes, part] = made
        link, one = self._links[moved.axes, part], np.ones(1, np.int64)
        if not moved.crosses:
            link = replace(link, n_dcn=one)
        elif not moved.inside:
            link = replace(link, n_ici=one)
        if moved.kind != "permute" and not moved.exact and not moved.crosses:
            link = replace(link, n_ici=one * moved.ranks)
        if moved.kind in ("all_gather", "reduce_scatter") and self._along_one(moved):
            faster = RING_FRACTION / self.calibration.ici_fraction
            link = replace(link, gather_bytes_per_s=link.gather_bytes_per_s * faster)
        return link

    def _along_one(self, moved: Collective) -> bool:
        """Whether a collective stays on one link axis of a torus."""
        axes = self.problem.slice.axes
        used = moved.links if moved.links is not None else range(len(axes))
        return moved.inside and not moved.crosses and len(used) == 1 and axes[used[0]].fabric == "torus"

    def _ways(self, moved: Collective, ascending: bool | None) -> list[Resource]:
        """Link axes in use, each in both directions; a permute round a closed ring takes one of them."""
        axes = self.problem.slice.axes
        members = [AXES.index(axis) for axis in moved.axes]
        used = [j for j in range(len(axes)) if self._meshes.table.factors[0, members, j].prod() > 1]
        used = used if moved.links is None else [j for j in used if j in moved.links]
        one_way = moved.kind == "permute" and ascending is not None and all(axes[j].wrap for j in used)
        ways = (int(bool(ascending)),) if one_way else (0, 1)
        return [("ici", j, way) for j in used for way in ways]

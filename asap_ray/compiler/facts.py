"""What each instruction of a program is, by name, for whoever timed it: category, phase, source, work, traffic.

Figures are of one run. Without a plan the mesh is not known: a collective has its bytes, but no axes. Nothing here asks
how often a loop runs; whoever timed the ops has counted them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from asap_ray.compiler import collectives, work
from asap_ray.compiler.collectives import KINDS, DeviceMesh
from asap_ray.compiler.costs import MOVES
from asap_ray.compiler.hlo import Computation, HloError, Instruction, Module, understood
from asap_ray.compiler.kernels import FREE_CALLS, kernel_work, target
from asap_ray.plan import Plan
from asap_ray.profile.kinds import category_of, phase_of
from asap_ray.profile.table import Op
from asap_ray.workload import Workload

CONTROLS = ("while", "conditional", "call")


class Facts:
    """Reads one program; `plan` names the mesh axes of its collectives, `workload` the keys that attention sees."""

    def __init__(self, module: Module, plan: Plan | None = None, workload: Workload | None = None) -> None:
        """Take a program.

        Raises:
            HloError: the program is for another number of devices than the plan.
        """
        self.module, self.plan, self.workload = module, plan, workload
        with understood():
            self.devices = _devices(module, plan)
            self.mesh = DeviceMesh(plan, self.devices) if plan else None

    def rows(self) -> dict[str, Op]:
        """A row without time for each instruction that runs by itself, by name."""
        with understood():
            return {op.name: op for op in self._rows(self.module.entry, "other", set())}

    def _rows(self, name: str, phase: str, seen: set[str]) -> Iterator[Op]:
        if name in seen:
            return
        seen.add(name)
        computation = self.module.computations[name]
        for each in computation.instructions:
            if each.opcode in work.FREE or (each.opcode == "custom-call" and target(each) in FREE_CALLS):
                continue
            own = phase_of(self._named(each).op_name) or phase
            if each.opcode in CONTROLS or (each.opcode.endswith("-start") and each.opcode[:-6] not in KINDS):
                for called in each.called.values():
                    if called in self.module.computations:
                        yield from self._rows(called, own, seen)
            yield self._row(computation, each, own)

    def _row(self, computation: Computation, op: Instruction, phase: str) -> Op:
        named, moving = self._named(op), self._moving(computation, op)
        row = Op(
            name=op.name,
            computation=computation.name,
            scope=named.op_name,
            category="other" if op.opcode in CONTROLS else "elementwise",
            phase=phase,
            source=self.module.source(named),
        )
        if op.opcode in CONTROLS or op.opcode.endswith(("-done", "-update")):
            return row
        if moving is not None:
            return replace(row, **self._moved(*moving))
        if op.opcode == "custom-call":
            done = kernel_work(computation, op, self.workload, self.plan.axes["context"] if self.plan else 1)
            category = done.category if done.category != "custom" else category_of(target(op), opcode="custom-call")
            flops, again = done.flops, done.redone_flops
        else:
            flops, again = work.flops(self.module, computation, op), 0.0
            category = "matmul" if flops else self._category(op)
        moved = work.hbm_bytes(self.module, computation, op)
        return replace(row, category=category, flops=flops, redone_flops=again, hbm_bytes=moved)

    def _category(self, op: Instruction) -> str:
        body = self.module.called(op) if op.opcode == "fusion" else None
        opcodes = {each.opcode for each in body.instructions} if body else {op.opcode}
        if opcodes <= MOVES or op.opcode.removesuffix("-start") in MOVES:
            return "copy"
        return "custom" if op.opcode == "custom-call" else "elementwise"

    def _moving(self, computation: Computation, op: Instruction) -> tuple[Computation, Instruction] | None:
        """The collective that an instruction is, begins, or carries in a body without matmuls."""
        if op.opcode.removesuffix("-start") in KINDS:
            return computation, op
        body = self.module.called(op) or self.module.called(op, "to_apply") if op.opcode not in CONTROLS else None
        if body is None or next(work.matmuls(self.module, computation, op), None):
            return None
        inner = next((each for each in body.instructions if each.opcode.removesuffix("-start") in KINDS), None)
        return (body, inner) if inner else None

    def _moved(self, where: Computation, inner: Instruction) -> dict[str, Any]:
        kind = KINDS[inner.opcode.removesuffix("-start")]
        try:
            if self.mesh is not None:
                moved = collectives.collective(self.mesh, where, inner)
                axes = {"axes": moved.axes, "exact": moved.exact, "level": moved.level if moved.axes else ""}
                return {"category": moved.kind, "wire_bytes": moved.wire_bytes if moved.axes else 0.0, **axes}
            return {"category": kind, "wire_bytes": self._sent(kind, where, inner)}
        except HloError:  # groups in a form that is not known; the time is known all the same
            return {"category": kind}

    def _sent(self, kind: str, where: Computation, inner: Instruction) -> float:
        given = sum(array.bytes for each in where.operands(inner) for array in each.arrays)
        if kind == "permute":
            return given
        ranks = collectives.replica_groups(inner.attributes, self.devices).shape[1]
        return collectives.sent_bytes(kind, given * ranks if kind == "all_gather" else given, ranks)

    def _named(self, op: Instruction) -> Instruction:
        """What says where an op comes from: itself, else an instruction of its body."""
        if op.op_name:
            return op
        body = self.module.called(op)
        named = [each for each in (body.root, *body.instructions) if each.op_name] if body else []
        return next((each for each in named if each.opcode != "constant"), op)


def _devices(module: Module, plan: Plan | None) -> int:
    """Devices that a program's groups are about: as its header says, else no fewer than they name, and of a plan all or
    those of one slice. A program that a trace holds has lost its header."""
    if module.partitions > 1:
        return module.partitions
    every = (each for computation in module.computations.values() for each in computation.instructions)
    moving = [each for each in every if each.opcode.removesuffix("-start") in KINDS]
    named = 1 + max((collectives.last_device(each.attributes) for each in moving), default=0)
    sizes = (math.prod(plan.ici), math.prod(plan.sizes)) if plan else ()
    return min((size for size in sizes if size >= named), default=named)

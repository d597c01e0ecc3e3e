"""A program as steps of one device: what runs, what starts, what is waited for, in schedule order.

The core runs its instructions one after the other. Asynchronous work begins at a start and is waited for at a done. It
comes in many spellings: `all-gather-start`, `async-start` and `call-start` around a computation, `copy-start` and
`slice-start` of the copy engine, `send` and `recv-done` across slices, and, on TPU, fusions that end in
`AsyncCollectiveStart` and `AsyncCollectiveDone`; between these, matmul fusions carry the same all-gather along in their
bodies: it is one, and is counted at its start. Some collectives have no start: the core waits for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from asap_ray.compiler import collectives, work
from asap_ray.compiler.collectives import KINDS, Collective, DeviceMesh
from asap_ray.compiler.costs import Cost, Costs, Resource
from asap_ray.compiler.hlo import Computation, HloError, Instruction, Module
from asap_ray.compiler.kernels import FREE_CALLS, target
from asap_ray.compiler.loops import LoopReader
from asap_ray.profile.kinds import phase_of
from asap_ray.profile.table import Op

STARTED, FINISHED = "AsyncCollectiveStart", "AsyncCollectiveDone"
OVERLAPS = 3
"""Ops named beside a collective."""
_CHAIN = re.compile(r'chain_id="?(\d+)')
Key = tuple[str, str]
"""Computation and instruction."""


@dataclass(frozen=True, slots=True)
class Run:
    """An op of the core."""

    key: Key
    seconds: float


@dataclass(frozen=True, slots=True)
class Start:
    """Work beside the core begins, on its resources; `waits` says whether the core waits for it at once."""

    key: Key
    seconds: float
    resources: tuple[Resource, ...]
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """The core waits for what was started."""

    key: Key


@dataclass(frozen=True, slots=True)
class Loop:
    """A body, over and over."""

    body: str
    trips: int


@dataclass(frozen=True, slots=True)
class Branch:
    """One of several computations."""

    bodies: tuple[str, ...]


Step = Run | Start | Wait | Loop | Branch


class Program:
    """The steps of every computation that a program runs, and the rows of a profile that they belong to.

    `ops` are rows by key, without what time makes of them; `flags` say what could not be read.
    """

    def __init__(self, module: Module, costs: Costs) -> None:
        """Read all computations that the entry reaches.

        Raises:
            HloError: a loop's trips cannot be found, and it holds matmuls or collectives.
        """
        self.module, self.costs = module, costs
        self.mesh = DeviceMesh(costs.plan, module.partitions)
        self.loops = LoopReader(module)
        self.ops: dict[Key, Op] = {}
        self.flags: list[str] = []
        self.steps: dict[str, tuple[Step, ...]] = {}
        self._read(module.entry, "other")

    def _read(self, name: str, phase: str) -> None:
        if name in self.steps:
            return
        self.steps[name] = ()  # a computation does not call itself
        computation = self.module.computations[name]
        self.steps[name] = _named_overlaps(tuple(_Reader(self, computation, phase).steps()), self.ops)


class _Reader:
    """Reads the steps of one computation; `phase` is that of what calls it, for ops that do not say their own."""

    def __init__(self, program: Program, computation: Computation, phase: str) -> None:
        self.program, self.module, self.costs = program, program.module, program.costs
        self.computation, self.phase = computation, phase
        self.open: dict[tuple[str, ...], str] = {}  # fused collectives that were started, by channel and chain

    def steps(self) -> Iterator[Step]:
        for each in self.computation.instructions:
            yield from self._steps_of(each)

    def _steps_of(self, op: Instruction) -> Iterator[Step]:
        code = op.opcode
        if code in work.FREE or (code == "custom-call" and target(op) in FREE_CALLS):
            return
        if code == "while":
            yield self._loop(op)
        elif code == "conditional":
            yield self._branch(op, [name for role, name in op.called.items() if role != "condition"])
        elif code == "call":
            yield self._branch(op, [op.called["to_apply"]])
        elif code == "send":
            yield self._transfer(op)
        elif code == "recv-done":
            yield Wait(self._key(_met(self.computation.operands(op)[0])))
        elif code.endswith("-done"):
            yield from self._done(op)
        elif code.endswith("-start"):
            yield self._start(op)
        elif code == "fusion":
            yield from self._fusion(op)
        elif code in KINDS:
            yield self._collective(op, self.computation, op, waits=True)
        elif code not in ("recv",) and not code.endswith("-update"):
            yield self._run(op)

    def _key(self, name: str) -> Key:
        return self.computation.name, name

    def _run(self, op: Instruction) -> Step:
        cost = self.costs.of_op(self.computation, op)
        self._add(op, cost)
        return Run(self._key(op.name), cost.seconds)

    def _fusion(self, op: Instruction) -> Iterator[Step]:
        body = self.module.called(op)
        inner = next((each for each in body.instructions if each.opcode in KINDS), None) if body else None
        if body is None or inner is None:
            yield self._run(op)
            return
        targets = {target(each) for each in body.instructions if each.opcode == "custom-call"}
        chain = _CHAIN.search(inner.attributes)
        tie = inner.opcode, inner.attribute("channel_id") or "", chain[1] if chain else ""
        if STARTED in targets:
            self.open[tie] = op.name
            yield self._collective(op, body, inner, waits=False)
        elif FINISHED in targets:
            if tie not in self.open:
                raise HloError(f"{op.name} ends a collective that {self.computation.name} does not start")
            yield Wait(self._key(self.open.pop(tie)))
        elif next(work.matmuls(self.module, self.computation, op), None):
            yield self._run(op)  # it carries along what was started before
        else:
            yield self._collective(op, body, inner, waits=True)

    def _start(self, op: Instruction) -> Step:
        code = op.opcode.removesuffix("-start")
        if code in KINDS:
            return self._collective(op, self.computation, op, waits=False)
        if (body := self.module.called(op) or self.module.called(op, "to_apply")) is not None:
            inner = next((each for each in body.instructions if each.opcode in KINDS), None)
            if inner is not None:
                return self._collective(op, body, inner, waits=False)
        cost = self.costs.of_copy(self.computation, op)
        self._add(op, cost)
        return Start(self._key(op.name), cost.seconds, cost.resources)

    def _done(self, op: Instruction) -> Iterator[Step]:
        if op.opcode == "send-done":
            return
        started = self.computation.operands(op)[0]
        while started.opcode.endswith("-update"):
            started = self.computation.operands(started)[0]
        yield Wait(self._key(started.name))

    def _collective(self, op: Instruction, where: Computation, inner: Instruction, *, waits: bool) -> Step:
        moved = collectives.collective(self.program.mesh, where, inner)
        if waits and moved.kind == "all_reduce" and op is not inner:
            made = sum(array.bytes for array in op.arrays)
            if moved.ranks > 1 and abs(made * moved.ranks - moved.bytes) < moved.bytes / 2 / moved.ranks:
                moved = replace(moved, kind="reduce_scatter")  # the fusion keeps its own slice alone
        return self._moved(op, moved, inner, waits)

    def _transfer(self, send: Instruction) -> Step:
        moved = collectives.transfer(self.program.mesh, self.computation, send)
        return self._moved(send, moved, send, waits=False, name=_met(send))

    def _moved(
        self, op: Instruction, moved: Collective, inner: Instruction, waits: bool, name: str | None = None
    ) -> Step:
        ascending = collectives.ascends(inner.attributes) if moved.kind == "permute" else None
        cost = self.costs.of_collective(moved, ascending)
        self._add(op, cost, moved, inner, name)
        return Start(self._key(name or op.name), cost.seconds, cost.resources, waits)

    def _loop(self, op: Instruction) -> Step:
        body = op.called["body"]
        self.program._read(body, phase_of(op.op_name) or self.phase)
        trips = self.program.loops.trips(self.computation, op)
        if trips is None:
            place = f"{op.name} ({self.module.source(op) or op.op_name})"
            if self._weighs(body):
                raise HloError(f"how often the loop {place} runs cannot be read, and it holds matmuls or collectives")
            self.program.flags.append(f"the loop {place} is counted once: how often it runs cannot be read")
        return Loop(body, 1 if trips is None else trips)

    def _weighs(self, name: str) -> bool:
        """Whether a computation, or one that it runs, holds matmuls or collectives."""
        for step in self.program.steps[name]:
            bodies = (step.body,) if isinstance(step, Loop) else step.bodies if isinstance(step, Branch) else ()
            if any(self._weighs(body) for body in bodies):
                return True
            if isinstance(step, Run | Start):
                op = self.program.ops[step.key]
                if op.flops or op.wire_bytes:
                    return True
        return False

    def _branch(self, op: Instruction, bodies: list[str]) -> Step:
        for body in bodies:
            self.program._read(body, phase_of(op.op_name) or self.phase)
        return Branch(tuple(bodies))

    def _add(
        self,
        op: Instruction,
        cost: Cost,
        moved: Collective | None = None,
        inner: Instruction | None = None,
        name: str | None = None,
    ) -> None:
        named = next((each for each in (op, inner) if each is not None and each.op_name), None)
        named = named or self._representative(op)
        scope = named.op_name
        self.program.ops[self._key(name or op.name)] = Op(
            name=name or op.name,
            computation=self.computation.name,
            scope=scope,
            category=cost.category,
            phase=phase_of(scope) or self.phase,
            count=0.0,
            flops=cost.flops,
            redone_flops=cost.redone_flops,
            hbm_bytes=cost.hbm_bytes,
            wire_bytes=moved.wire_bytes if moved and moved.axes else 0.0,
            axes=moved.axes if moved else (),
            exact=moved.exact if moved else True,
            level=moved.level if moved and moved.axes else "",
            serves_as="reduce_scatter" if moved and self._is_sliced(op, moved) else "",
            source=self.module.source(named),
        )

    def _is_sliced(self, op: Instruction, moved: Collective) -> bool:
        """Whether of an all-reduce, of one array or of several, no more is read than a reduce-scatter would leave."""
        if moved.kind != "all_reduce" or moved.ranks <= 1 or not moved.bytes:
            return False
        parts = [op]
        if op.shape.startswith("("):
            parts = [each for each in self.computation.users.get(op.name, ()) if each.opcode == "get-tuple-element"]
        return bool(parts) and all(self._sliced(part, moved.ranks) for part in parts)

    def _sliced(self, value: Instruction, ranks: int) -> bool:
        return 0 < work.largest_slice(self.module, self.computation, value) <= value.arrays[0].bytes / ranks

    def _representative(self, op: Instruction) -> Instruction:
        """An instruction of a fusion's body that says where it comes from; else the op itself."""
        body = self.module.called(op)
        if body is None:
            return op
        named = [each for each in (body.root, *body.instructions) if each.op_name and each.opcode != "constant"]
        return named[0] if named else op


def _met(transfer: Instruction) -> str:
    """What ties a receive to its send: the name they meet under, else their channel."""
    return collectives.rendezvous(transfer.attributes) or f"channel {transfer.attribute('channel_id')}"


def _named_overlaps(steps: tuple[Step, ...], ops: dict[Key, Op]) -> tuple[Step, ...]:
    """Name the longest ops between each start and its wait in the start's row."""
    begun: dict[Key, int] = {}
    for index, step in enumerate(steps):
        if isinstance(step, Start) and not step.waits and ops[step.key].category != "copy":
            begun[step.key] = index
        elif isinstance(step, Wait) and step.key in begun:
            between = [each for each in steps[begun.pop(step.key) : index] if isinstance(each, Run)]
            longest = sorted(between, key=lambda run: -run.seconds)[:OVERLAPS]
            named = tuple(run.key[1] for run in longest if run.seconds)
            ops[step.key] = replace(ops[step.key], overlaps_with=named)
    return steps

"""What is alive in a scheduled program at the moment when most is: its largest temporaries, by where they come from.

A value lives from the instruction that makes it to the last one that reads it, in schedule order. Some make nothing:
tuples and their elements, bitcasts, what a loop carries (it lies where the loop's operands lay, turn after turn), and
updates of a slice, which XLA does in place. What a called computation holds comes on top of what its caller holds then.

That is the account of the schedule, not of the allocator, which packs, pads layouts to tiles, and lets some results
lie where their operands did. Arguments and results of the program are left out: they are known exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from asap_ray.compiler.hlo import Computation, HloError, Instruction, Module, understood
from asap_ray.compiler.shapes import HBM, Array, arrays
from asap_ray.profile.kinds import phase_of

TOP = 10
MOST_SCANS = 100_000
"""Computations that are gone through: programs have thousands, and each is called from one place."""
_SAME = ("bitcast", "tuple", "opt-barrier", "optimization-barrier", "parameter")
_ROLES = ("to_apply", "true_computation", "false_computation")
_ELEMENTWISE = (
    "all-reduce",
    "add",
    "subtract",
    "multiply",
    "divide",
    "convert",
    "select",
    "maximum",
    "minimum",
    "copy",
)
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Opcodes that write into their first operand, and the number of the operand that they write."""
_CALLS = ("call", "conditional")
Value = list["Buffer"]
"""The buffers of a value, those of a tuple one after the other."""


@dataclass(eq=False, slots=True)
class Buffer:
    """Room for one array: what `made` it, and who `wrote` into it later; `outer` where a caller counts it."""

    array: Array
    made: Instruction
    wrote: Instruction | None = None
    outer: bool = False

    @property
    def bytes(self) -> float:
        """Bytes of HBM that it adds to what its computation holds."""
        return 0.0 if self.outer or self.array.space != HBM else self.array.bytes


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes that a computation holds at once, and in what."""

    bytes: float = 0.0
    buffers: tuple[Buffer, ...] = ()


def live_peak(module: Module) -> Peak:
    """The fullest moment of a program's schedule, arguments and results left out."""
    with understood():
        entry = module.computations[module.entry]
        given = [[Buffer(array, each, outer=True) for array in each.arrays] for each in entry.parameters]
        return _Scan(module, entry, given, count(1)).peak


def largest(module: Module, most: int = TOP) -> tuple[tuple[str, float], ...]:
    """The largest temporaries at the fullest moment as (what, bytes), equal ones of one place together."""
    sizes: defaultdict[str, list[float]] = defaultdict(list)
    for each in live_peak(module).buffers:
        sizes[_words(module, each)].append(each.bytes)
    ranked = sorted(sizes.items(), key=lambda pair: (-sum(pair[1]), pair[0]))[:most]
    return tuple((f"{len(each)} x {what}" if len(each) > 1 else what, sum(each)) for what, each in ranked)


def _words(module: Module, buffer: Buffer) -> str:
    array, maker = buffer.array, buffer.wrote or buffer.made
    shape = f"{array.dtype}[{','.join(map(str, array.dims))}]"
    phase = phase_of(maker.op_name)
    return f"{shape} {module.source(maker) or maker.name}{phase and f', {phase}'}"


class _Scan:
    """One computation; `given` are the values of its parameters, which its caller counts."""

    def __init__(self, module: Module, computation: Computation, given: Sequence[Value], scans: Iterator[int]) -> None:
        self.module, self.computation, self.scans = module, computation, scans
        if next(scans) > MOST_SCANS:
            raise HloError("its computations call each other too often")
        self.values: dict[str, Value] = {}
        self.inside: dict[int, Peak] = {}
        self.made: list[tuple[int, Buffer]] = []
        self.last: dict[Buffer, int] = {}
        self.shares: list[tuple[int, Buffer, Buffer]] = []
        for parameter, value in zip(computation.parameters, given, strict=False):
            self.values[parameter.name] = value
        for place, each in enumerate(computation.instructions):
            self._read(place, each)
        for _, buffer in self.made:
            buffer.outer = buffer in self.returned
        self.peak = self._peak()

    @property
    def returned(self) -> Value:
        """What the computation makes for its caller, who has room for it."""
        return self.values[self.computation.root.name]

    def _read(self, place: int, op: Instruction) -> None:
        operands = [self.values[name] for name in op.operands if name in self.values]
        if op.name not in self.values:
            self.values[op.name] = self._value(place, op, operands)
        for buffer in (*self.values[op.name], *(buffer for each in operands for buffer in each)):
            self.last[buffer] = place

    def _value(self, place: int, op: Instruction, operands: list[Value]) -> Value:
        flat = [buffer for each in operands for buffer in each]
        if op.opcode in _SAME:
            return flat
        if op.opcode == "get-tuple-element":
            return self._element(op, flat)
        if op.opcode == "while":
            self.inside[place] = self._turn(op, flat)
            return flat
        if op.opcode in _CALLS:
            names = [name for role, name in op.called.items() if role in _ROLES or role.startswith("branch")]
            given = [operands] if op.opcode == "call" else [[each] for each in operands[1:]]
            scans = [
                _Scan(self.module, self.module.computations[name], each, self.scans)
                for name, each in zip(names, given, strict=False)
            ]
            self.inside[place] = max((each.peak for each in scans), key=lambda peak: peak.bytes, default=Peak())
        if op.opcode.endswith("-done"):
            return [self._taken(place, op, array, flat) for array in op.arrays]
        if op.opcode.endswith("-start"):
            return self._started(place, op, flat)
        into = self._updated(op, operands)
        made = [into.get(k) or self._new(place, op, array) for k, array in enumerate(op.arrays)]
        self.shares += [(place, each, room) for room in self._elementwise(op, operands) for each in made]
        return made

    def _new(self, place: int, op: Instruction, array: Array) -> Buffer:
        buffer = Buffer(array, op)
        self.made.append((place, buffer))
        return buffer

    def _element(self, op: Instruction, flat: Value) -> Value:
        """The buffers of one element of a tuple, which may itself be a tuple."""
        index, of = int(op.attribute("index") or 0), self.computation.by_name[op.operands[0]]
        counts = [len(arrays(part)) for part in _parts(of.shape)]
        start = sum(counts[:index])
        return flat[start : start + counts[index]]

    def _turn(self, loop: Instruction, carried: Value) -> Peak:
        """A loop's body; what it carries is written by what makes its next value, unless that is in place."""
        scan = _Scan(self.module, self.module.computations[loop.called["body"]], [carried], self.scans)
        for old, new in zip(carried, scan.returned, strict=False):
            if new is not old and old.wrote is None:
                old.wrote = new.wrote or new.made
        return scan.peak

    def _started(self, place: int, op: Instruction, flat: Value) -> Value:
        """A start's tuple: its operands, and room for what is under way."""
        left, value = list(flat), []
        for array in op.arrays:
            same = next((each for each in left if each.array == array), None)
            if same is not None:
                left.remove(same)
            value.append(same or self._new(place, op, array))
        return value

    def _taken(self, place: int, op: Instruction, array: Array, flat: Value) -> Buffer:
        """What a done hands over: room that its start has made, if it can be told."""
        fitting = [each for each in flat if each.array == array]
        ours = [each for each in fitting if each.made.name in op.operands]
        return next(iter((*ours, *fitting)), None) or self._new(place, op, array)

    def _updated(self, op: Instruction, operands: list[Value]) -> dict[int, Buffer]:
        """Which of an instruction's results are operands that it writes a slice of, by number."""
        if op.opcode in _UPDATES:
            found = [(0, 0, self._maker(op, _UPDATES[op.opcode]))]
        elif op.opcode == "fusion" and (body := self.module.called(op)):
            found = [(k, target, self._maker(op, made)) for k, target, made in _slices(body)]
        else:
            return {}
        into = {}
        for k, target, maker in found:
            if target < len(operands) and len(operands[target]) == 1 and k < len(op.arrays):
                into[k] = operands[target][0]
                into[k].wrote = into[k].wrote or maker
        return into

    def _elementwise(self, op: Instruction, operands: list[Value]) -> Value:
        """Operands in whose room a result of the same shape may lie: each element is read to make that element."""
        if op.opcode != "fusion" or not (body := self.module.called(op)):
            return [buffer for each in operands for buffer in each] if op.opcode in _ELEMENTWISE else []
        plain = [
            int(each.literal)
            for each in body.parameters
            if all(user.opcode in _ELEMENTWISE for user in body.users.get(each.name, ()))
        ]
        return [buffer for k in plain if k < len(operands) for buffer in operands[k]]

    def _maker(self, op: Instruction, made: int | Instruction) -> Instruction:
        """What made a slice that is written: an operand by its number, or an instruction of a fusion."""
        maker = self.computation.by_name[op.operands[made]] if isinstance(made, int) else made
        return op if maker.opcode in ("parameter", "get-tuple-element") else maker

    def _peak(self) -> Peak:
        count = len(self.computation.instructions)
        change, end = [0.0] * (count + 1), {each: self.last[each] + 1 for _, each in self.made}
        for place, new, old in self.shares:
            if old.array == new.array and end.get(old) == place + 1 and old.bytes and new.bytes:
                end[old] = place
        for place, buffer in self.made:
            change[place] += buffer.bytes
            change[end[buffer]] -= buffer.bytes
        here, best, at = 0.0, -1.0, 0
        for place in range(count):
            here += change[place]
            most = here + (self.inside[place].bytes if place in self.inside else 0.0)
            if most > best:
                best, at = most, place
        inside = self.inside.get(at, Peak())
        alive = [each for place, each in self.made if place <= at < end[each] and each.bytes]
        return Peak(bytes=max(best, 0.0), buffers=(*alive, *inside.buffers))


def _slices(body: Computation) -> Iterator[tuple[int, int, int | Instruction]]:
    """Results of a fusion that are updates of a slice of one of its parameters: numbers of the result and of the
    parameter, and what makes the slice, an instruction or a parameter's number."""
    results = body.operands(body.root) if body.root.opcode == "tuple" else (body.root,)
    for k, each in enumerate(results):
        update = _through(body, each)
        if update.opcode in _UPDATES:
            parts = body.operands(update)
            target, made = _through(body, parts[0]), _through(body, parts[_UPDATES[update.opcode]])
            if target.opcode == "parameter":
                yield k, int(target.literal), int(made.literal) if made.opcode == "parameter" else made


def _through(body: Computation, op: Instruction) -> Instruction:
    while op.opcode in ("bitcast", "copy", "convert", "reshape", "transpose"):
        op = body.operands(op)[0]
    return op


def _parts(shape: str) -> list[str]:
    """The elements of a printed tuple."""
    parts, depth, start = [], 0, 1
    for place, sign in enumerate(shape):
        if sign in "({[":
            depth += 1
        elif sign in ")}]":
            depth -= 1
        if (sign == "," and depth == 1) or (sign == ")" and depth == 0):
            parts.append(shape[start:place])
            start = place + 1
    return parts

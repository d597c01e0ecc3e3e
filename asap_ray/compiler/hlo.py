"""Scheduled HLO text, as `compiled.as_text()` prints it for TPU and CUDA, read line by line.

What stands in a line is taken apart only as far as all readers need it: name, shape, opcode, operands. Attributes stay
text and are searched when they are asked for. A computation's instructions are in schedule order; its root need not be
the last one. Some instructions span lines (a Pallas kernel's metadata), and some of these lines begin with `}}`: only a
line that is `}` alone ends a computation.

An op's source is in its metadata (`source_file`, `source_line`) or, in newer texts, in tables of files and stack frames
before the first computation, which `stack_frame_id` points into.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from asap_ray.compiler.shapes import Array, arrays
from asap_ray.errors import AsapError, shown

PACKAGE = "asap_ray/"
_HEAD = re.compile(r"(ENTRY )?%?([\w.\-]+) \(")
_ARROW = ") -> "
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_CLOSE = re.compile(r"\}(, execution_thread=.*)?$")
_TUPLE = re.compile(r"(\(.*?\)) ([a-z][\w\-]*)\(")
_PLAIN = re.compile(r"(\S+) ([a-z][\w\-]*)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations|called_computations|calls)=\{([^}]*)\}")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_SOURCE = re.compile(r'source_file="([^"]*)".{0,200}?source_line=(\d+)')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_NUMBERS = re.compile(r"(\w+)=(\d+)")
SHARED = ("matmul", "whole", "gathered", "_together", "_backward", "gather_sequence", "scatter_sequence")
"""Functions of the trainer that every block goes through: who called them is what an op's source should say."""
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


class HloError(AsapError, ValueError):
    """A compiled program's text cannot be read, or does not say what a time needs."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: `shape` and `attributes` as printed, `literal` what stands between its parentheses."""

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    literal: str
    attributes: str
    root: bool = False

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays it makes, those of a tuple flattened."""
        return arrays(self.shape)

    @property
    def called(self) -> dict[str, str]:
        """Computations it calls by role: `calls`, `to_apply`, `body`, `condition`, `branch.0`, …"""
        if "=%" not in self.attributes and "={%" not in self.attributes:
            return {}
        found = dict(_CALLED.findall(self.attributes))
        for group in _BRANCHES.findall(self.attributes):
            names = [name.strip().lstrip("%") for name in group.split(",")]
            found |= {f"branch.{i}": name for i, name in enumerate(names)}
        return found

    @property
    def op_name(self) -> str:
        """The path of JAX scopes and primitives that it comes from, or nothing."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""

    @property
    def cycles(self) -> int | None:
        """The compiler's own cost of it, in cycles of the device, where it gives one."""
        found = _CYCLES.search(self.attributes)
        return int(found[1]) if found else None

    def attribute(self, name: str) -> str | None:
        """The text of an attribute up to the next one, or None: `window`, `dim_labels`, `channel_id`, `index`, …"""
        found = re.search(rf"(?:^|[ ,{{]){name}=(\{{.*?\}}|\"[^\"]*\"|[^, }}]+)", self.attributes)
        return found[1] if found else None


@dataclass(frozen=True)
class Computation:
    """A computation's instructions in schedule order."""

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """Instructions by name."""
        return {each.name: each for each in self.instructions}

    @cached_property
    def root(self) -> Instruction:
        """The instruction whose value the computation returns."""
        if not self.instructions:
            raise HloError(f"computation {self.name} is empty")
        return next((each for each in self.instructions if each.root), self.instructions[-1])

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """Parameters by number."""
        found = [each for each in self.instructions if each.opcode == "parameter"]
        return tuple(sorted(found, key=lambda each: int(each.literal)))

    @cached_property
    def users(self) -> Mapping[str, tuple[Instruction, ...]]:
        """Instructions that read each one, by name."""
        found: dict[str, list[Instruction]] = {}
        for each in self.instructions:
            for name in dict.fromkeys(each.operands):
                found.setdefault(name, []).append(each)
        return {name: tuple(users) for name, users in found.items()}

    def operands(self, instruction: Instruction) -> tuple[Instruction, ...]:
        """The instructions that one reads, in order."""
        return tuple(self.by_name[name] for name in instruction.operands if name in self.by_name)


@dataclass(frozen=True)
class Module:
    """A whole program: `header` is its first line, `frames` the file and line of each stack frame with its caller's."""

    header: str
    computations: Mapping[str, Computation]
    entry: str
    frames: Mapping[int, tuple[str, int, int, str]] = field(default_factory=dict)

    @cached_property
    def partitions(self) -> int:
        """Devices that the program's replica groups are about: those of one slice, where there are several."""
        found = {key: int(value) for key, value in _NUMBERS.findall(self.header)}
        return found.get("num_partitions", 1) * found.get("replica_count", 1)

    @cached_property
    def callers(self) -> Mapping[str, tuple[tuple[Computation, Instruction], ...]]:
        """Who calls each computation, by its name."""
        found: dict[str, list[tuple[Computation, Instruction]]] = {}
        for computation in self.computations.values():
            for each in computation.instructions:
                for name in each.called.values():
                    found.setdefault(name, []).append((computation, each))
        return {name: tuple(calls) for name, calls in found.items()}

    def called(self, instruction: Instruction, role: str = "calls") -> Computation | None:
        """The computation that an instruction calls in some role, or None."""
        return self.computations.get(instruction.called.get(role, ""))

    def source(self, instruction: Instruction) -> str:
        """`file:line` of an op: the innermost frame inside the package that is no function which every block goes
        through, else the innermost of all; nothing where none is known."""
        places = list(self._places(instruction))
        if not places:
            return ""
        own = [place for place in places if PACKAGE in place[0]] or places
        file, line, _ = next((place for place in own if place[2] not in SHARED), own[0])
        return f"{file[file.rfind(PACKAGE) :] if PACKAGE in file else file}:{line}"

    def _places(self, instruction: Instruction) -> Iterator[tuple[str, int, str]]:
        if found := _FRAME.search(instruction.attributes):
            frame = int(found[1])
            while frame in self.frames:
                file, line, parent, function = self.frames[frame]
                yield file, line, function
                frame = parent if parent < frame else 0
        elif found := _SOURCE.search(instruction.attributes):
            yield found[1], int(found[2]), ""


def parse(text: str | Iterable[str]) -> Module:
    """Read a program from its text or from its lines.

    Raises:
        HloError: it has no entry computation, or a line of a computation cannot be read.
    """
    with understood():
        return _parsed(text)


@contextmanager
def understood() -> Iterator[None]:
    """While a program is made into what it says: one that no compiler has written may say anything.

    Raises:
        HloError: it says what cannot be.
    """
    try:
        yield
    except HloError:
        raise
    except RecursionError:
        raise HloError("its computations call each other without end") from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise HloError(f"it says what no program says: {type(error).__name__} {shown(error)}") from error


def _parsed(text: str | Iterable[str]) -> Module:
    lines = iter(text.splitlines() if isinstance(text, str) else text)
    header, tables = "", {name: [] for name in _TABLES}
    computations: dict[str, Computation] = {}
    entry, table = "", None
    for line in lines:
        if line.startswith("HloModule"):
            header = line
        elif line.rstrip() in tables:
            table = tables[line.rstrip()]
        elif (found := _HEAD.match(line)) and line.rstrip("\n").endswith("{") and _ARROW in line:
            table = None
            computation = Computation(found[2], tuple(_instructions(found[2], lines)))
            computations[computation.name] = computation
            entry = computation.name if found[1] else entry
        elif table is not None and line.strip():
            table.append(line)
    if not entry:
        raise HloError("the text is no compiled program: it has no ENTRY computation")
    return Module(header=header, computations=computations, entry=entry, frames=_frames(tables))


def _instructions(computation: str, lines: Iterator[str]) -> Iterator[Instruction]:
    pending: list[str] = []
    for line in lines:
        if _CLOSE.match(line):
            if pending:
                yield _instruction(computation, "".join(pending))
            return
        if pending and _INSTRUCTION.match(line):
            yield _instruction(computation, "".join(pending))
            pending = []
        pending.append(line.rstrip("\n"))
    raise HloError(f"computation {computation} does not end: the text is cut off")


def _instruction(computation: str, line: str) -> Instruction:
    head = _INSTRUCTION.match(line)
    rest = line[head.end() :] if head else ""
    found = (_TUPLE if rest.startswith("(") else _PLAIN).match(rest)
    if not head or not found:
        raise HloError(f"computation {computation}: cannot read the instruction {line.strip()[:120]!r}")
    end = _closing(rest, found.end())
    inside = rest[found.end() : end]
    return Instruction(
        name=head[2],
        opcode=found[2],
        shape=found[1],
        operands=tuple(_OPERAND.findall(inside)),
        literal=inside,
        attributes=rest[end + 1 :].lstrip(", "),
        root=bool(head[1]),
    )


def _closing(text: str, start: int) -> int:
    """Where the parenthesis closes that was opened just before `start`."""
    end = text.index(")", start)
    opened = text.count("(", start, end)
    while opened:
        start, end = end + 1, text.index(")", end + 1)
        opened += text.count("(", start, end) - 1
    return end


def _frames(tables: Mapping[str, list[str]]) -> dict[int, tuple[str, int, int, str]]:
    """File, line, caller's frame and function of each stack frame; a caller is printed as its number and one."""
    files, functions = (
        {int(number): name.strip().strip('"') for number, _, name in map(_partition, tables[table])}
        for table in ("FileNames", "FunctionNames")
    )
    places = {int(number): _fields(rest) for number, _, rest in map(_partition, tables["FileLocations"])}
    found = {}
    for number, _, rest in map(_partition, tables["StackFrames"]):
        frame = _fields(rest)
        place = places.get(frame["file_location_id"], {})
        file = files.get(place.get("file_name_id", 0), "")
        function = functions.get(place.get("function_name_id", 0), "").rpartition(".")[2]
        found[int(number)] = (file, place.get("line", 0), frame.get("parent_frame_id", 1) - 1, function)
    return found


def _partition(line: str) -> tuple[str, str, str]:
    return line.strip().partition(" ")


def _fields(text: str) -> dict[str, int]:
    return {key: int(value) for key, value in _NUMBERS.findall(text)}

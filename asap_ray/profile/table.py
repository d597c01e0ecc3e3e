"""The normalised profile: one row an op, whoever measured or simulated it, and the questions a diagnosis asks of it.

Seconds are of one device and of a whole step, over all runs of an op. `exposed_s` is what an op adds to the critical
path: all of a compute op, of an asynchronous collective only what its consumer waits for. The exposed seconds of all
ops are the step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

CATEGORIES = (
    "matmul",
    "attention",
    "elementwise",
    "copy",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "permute",
    "custom",
    "input",
    "other",
)
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute")
COMPUTE = ("matmul", "attention", "elementwise", "copy", "custom")
PHASES = ("forward", "backward", "recompute", "optimizer", "other")
LEVELS = ("", "ici", "dcn")
Moved = Mapping[tuple[str, tuple[str, ...], str], float]
"""Bytes that a device sends in a step, by kind of collective, mesh axes and level."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One op of a program, over all its runs in a step; all figures are of one device.

    Attributes:
        name, computation: of the instruction, and of what it stands in.
        scope: the path of scopes and primitives that it comes from.
        category: one of `CATEGORIES`.
        phase: one of `PHASES`.
        count: runs a step.
        seconds: in which it works, hidden or not.
        exposed_s: that it adds to the critical path.
        flops: FLOPs as a model's own are counted: attention by the keys it sees, nothing that a kernel does again.
        redone_flops: FLOPs that a kernel does besides, such as the scores once more in a fused backward pass.
        hbm_bytes: between HBM and the core.
        wire_bytes: that the device sends.
        axes: mesh axes that a collective runs over, those of one rank left out; `exact`: its groups are all of them.
        level: `ici` or `dcn` of a collective, else nothing.
        serves_as: the category that would do: `reduce_scatter` where of an all-reduce only each rank's part is read.
        source: `file:line` in the model, where known.
        overlaps_with: the longest ops that run while a collective is under way.
    """

    name: str
    computation: str = ""
    scope: str = ""
    category: str
    phase: str = "other"
    count: float = 1.0
    seconds: float = 0.0
    exposed_s: float = 0.0
    flops: float = 0.0
    redone_flops: float = 0.0
    hbm_bytes: float = 0.0
    wire_bytes: float = 0.0
    axes: tuple[str, ...] = ()
    exact: bool = True
    level: str = ""
    serves_as: str = ""
    source: str = ""
    overlaps_with: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """The ops of one step on one device.

    `memory` is bytes by buffer kind at the peak, `largest` its largest temporaries as (what, bytes); `chip`, `clock_hz`
    are what times rest on; `source` is where they come from (`compile`, `trace`); `flags` say what is not certain.
    """

    ops: tuple[Op, ...]
    chip: str
    clock_hz: float
    source: str
    memory: Mapping[str, float] = field(default_factory=dict)
    largest: tuple[tuple[str, float], ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def step_time_s(self) -> float:
        """The critical path."""
        return math.fsum(op.exposed_s for op in self.ops)

    def total(self, figure: str, ops: Iterable[Op] | None = None) -> float:
        """The sum of one figure over some ops, or over all."""
        return math.fsum(getattr(op, figure) for op in (self.ops if ops is None else ops))

    def by(self, key: str, figure: str = "exposed_s") -> dict[str, float]:
        """Sums of a figure by `category`, `phase`, `level` or `source`, largest first."""
        found: defaultdict[str, float] = defaultdict(float)
        for op in self.ops:
            found[getattr(op, key)] += getattr(op, figure)
        return _falling(found)

    @property
    def collectives(self) -> tuple[Op, ...]:
        """Ops that move bytes between devices."""
        return tuple(op for op in self.ops if op.category in COLLECTIVES)

    def overlap(self) -> float | None:
        """The share of all traffic that hides, or None where there is none."""
        busy = self.total("seconds", self.collectives)
        return 1.0 - self.total("exposed_s", self.collectives) / busy if busy else None

    def top(self, count: int = 10, figure: str = "exposed_s") -> tuple[Op, ...]:
        """The ops with most of a figure."""
        return tuple(sorted(self.ops, key=lambda op: -getattr(op, figure))[:count])

    def mxu_use(self, peak_flops: float) -> float:
        """Share of the matrix units' peak that the whole step uses."""
        return _share(self.total("flops") + self.total("redone_flops"), self.step_time_s * peak_flops)

    def hbm_use(self, hbm_bytes_per_s: float) -> float:
        """Share of the memory's bandwidth that the whole step uses."""
        return _share(self.total("hbm_bytes"), self.step_time_s * hbm_bytes_per_s)

    def moved(self, *, as_needed: bool = False) -> Moved:
        """Bytes that the device sends, by kind, axes and level; `as_needed` takes each op as what would do in its
        place: half of an all-reduce that serves as a reduce-scatter."""
        found: defaultdict[tuple[str, tuple[str, ...], str], float] = defaultdict(float)
        for op in self.collectives:
            other = op.serves_as if as_needed else ""
            if op.wire_bytes:
                found[other or op.category, op.axes, op.level] += op.wire_bytes / (2 if other else 1)
        return _falling(found)

    @property
    def avoidable_wire_bytes(self) -> float:
        """Bytes that all-reduces send beyond what the reduce-scatters would that they serve as."""
        return math.fsum(op.wire_bytes / 2 for op in self.collectives if op.serves_as)

    @property
    def avoidable_s(self) -> float:
        """Seconds that these bytes keep links busy."""
        return math.fsum(op.seconds / 2 for op in self.collectives if op.serves_as)

    @property
    def avoidable_exposed_s(self) -> float:
        """Seconds of the step that these bytes cost: what is hidden today would hide half as long a transfer too."""
        return math.fsum(min(op.exposed_s, op.seconds / 2) for op in self.collectives if op.serves_as)

    def unexpected(self, predicted: Moved, share: float = 0.005) -> dict[tuple[str, tuple[str, ...], str], float]:
        """Bytes beyond what was predicted, by kind, axes and level, where they are above a share of all that moves.

        Collectives count as what is needed of them: what a compiler sends beyond that is `avoidable_wire_bytes`.
        """
        moved = self.moved(as_needed=True)
        least = share * math.fsum(moved.values())
        over = {key: sent - predicted.get(key, 0.0) for key, sent in moved.items()}
        return {key: sent for key, sent in over.items() if sent > least}

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` reads them back."""
        return asdict(self) | {"step_time_s": self.step_time_s}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Profile:
        """A profile from what `as_dict` gave, also after a turn through JSON."""
        known = {entry.name for entry in fields(cls)}
        plain = {key: value for key, value in given.items() if key in known}
        return cls(
            **{
                **plain,
                "ops": tuple(from_row(row) for row in given["ops"]),
                "memory": dict(given["memory"]),
                "largest": tuple((str(what), float(size)) for what, size in given["largest"]),
                "flags": tuple(given["flags"]),
            }
        )

    def rows(self) -> list[dict[str, Any]]:
        """One plain row an op; `pyarrow.Table.from_pylist` makes a table of them."""
        return [asdict(op) | {"axes": list(op.axes), "overlaps_with": list(op.overlaps_with)} for op in self.ops]


def from_row(row: Mapping[str, Any]) -> Op:
    """An op from its row."""
    return Op(**{**row, "axes": tuple(row["axes"]), "overlaps_with": tuple(row["overlaps_with"])})


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _falling(found: Mapping[Any, float]) -> dict[Any, float]:
    return dict(sorted(found.items(), key=lambda item: -item[1]))

"""What is kept of a compilation beside the code: a line of figures a plan, as in `knowledge/compiled/results.csv`.

A line holds what the compiler said and nothing of the roofline, whose figures are worked out anew wherever they are
held against it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asap_ray.errors import ConfigError, shown
from asap_ray.observation import wires
from asap_ray.physics.estimate import TIME_PARTS
from asap_ray.physics.wire import predicted_collectives
from asap_ray.problem import Problem
from asap_ray.tiers.finding import Finding

MEMORY_PARTS = ("weights", "optimizer", "arguments", "outputs", "temporaries", "code")
"""Parts of a compiled program's memory (`tiers.reading`)."""
DIGITS = 7
"""Significant digits of seconds that are kept."""
Key = tuple[str, str, str, int, int, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """How the compilation of a plan ended.

    `row` is the id of the measured run that the plan is of, empty where it is of none. Bytes are of one device, None
    where the compiler came to no figure; `over_bytes` is what is missing of the memory. `flops` are of one device and
    step, as a model's own are counted, recomputation included; `unpredicted` is the share of all bytes on wires that
    nobody predicted. `core_s` is what the compilation took on all cores together, `xla` names the bundles of flags.
    """

    row: str
    model: str
    hardware: str
    global_batch: int
    seq_len: int
    plan: str
    status: str
    reason: str = ""
    needed_bytes: float | None = None
    limit_bytes: float | None = None
    over_bytes: float = 0.0
    memory_parts: Mapping[str, float] = field(default_factory=dict)
    step_time_s: float | None = None
    time_parts: Mapping[str, float] = field(default_factory=dict)
    flops: float | None = None
    unpredicted: float | None = None
    core_s: float | None = None
    compiled_with: str = ""
    xla: str = ""
    digest: str = ""

    @property
    def key(self) -> Key:
        """What a line is found by."""
        return self.row, self.model, self.hardware, self.global_batch, self.seq_len, self.plan

    def as_row(self) -> dict[str, Any]:
        """The line, with units in the names of its figures; None is an empty cell."""
        return {
            "row": self.row,
            "model": self.model,
            "hardware": self.hardware,
            "global_batch": self.global_batch,
            "seq_len": self.seq_len,
            "plan": self.plan,
            "status": self.status,
            "reason": self.reason,
            "needed_bytes": _whole(self.needed_bytes),
            "limit_bytes": _whole(self.limit_bytes),
            "over_bytes": _whole(self.over_bytes),
            **{f"memory_{part}_bytes": _whole(self.memory_parts.get(part)) for part in MEMORY_PARTS},
            "step_time_s": _short(self.step_time_s),
            **{f"time_{part}_s": _short(self.time_parts.get(part)) for part in TIME_PARTS},
            "flops": _short(self.flops),
            "unpredicted_share": _short(self.unpredicted),
            "core_s": _short(self.core_s),
            "compiled_with": self.compiled_with,
            "xla": self.xla,
            "digest": self.digest,
        }


def recorded(found: Finding, problem: Problem, model: str, row: str = "", xla: str = "default") -> Recorded:
    """The line of a compilation of one of a problem's plans, with bundles of flags."""
    profile, seconds = found.profile, found.seconds
    moved = wires(profile.ops, predicted_collectives(problem, found.plan)) if profile else ()
    whole = sum(each.wire_bytes for each in moved)
    return Recorded(
        row=row,
        model=model,
        hardware=problem.slice.name,
        global_batch=problem.workload.global_batch,
        seq_len=problem.workload.seq_len,
        plan=found.plan.line,
        status=found.status,
        reason=found.reason,
        needed_bytes=found.hbm_bytes,
        limit_bytes=found.limit_bytes,
        over_bytes=found.over_bytes,
        memory_parts=found.memory_parts,
        step_time_s=found.estimate.step_time_s if found.estimate else None,
        time_parts=found.estimate.time_parts if found.estimate else {},
        flops=profile.total("flops") if profile else None,
        unpredicted=sum(each.wire_bytes for each in moved if not each.predicted) / whole if whole else None,
        core_s=seconds.get("cores") or sum(seconds.values()) or None,
        compiled_with=found.evidence,
        xla=xla,
        digest=found.digest,
    )


def read_record(path: Path) -> list[Recorded]:
    """The lines of a record; none where there is no file.

    Raises:
        ConfigError: a line of it is none of a record.
    """
    if not path.is_file():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [_read(row) for row in csv.DictReader(file)]
    except (OSError, csv.Error, LookupError, TypeError, ValueError) as error:
        raise ConfigError("record", path, f"a record of compilations ({shown(error)})") from error


def _read(row: Mapping[str, str]) -> Recorded:
    return Recorded(
        row=row["row"],
        model=row["model"],
        hardware=row["hardware"],
        global_batch=int(row["global_batch"]),
        seq_len=int(row["seq_len"]),
        plan=row["plan"],
        status=row["status"],
        reason=row["reason"],
        needed_bytes=_number(row["needed_bytes"]),
        limit_bytes=_number(row["limit_bytes"]),
        over_bytes=_number(row["over_bytes"]) or 0.0,
        memory_parts=_parts(row, MEMORY_PARTS, "memory_{}_bytes"),
        step_time_s=_number(row["step_time_s"]),
        time_parts=_parts(row, TIME_PARTS, "time_{}_s"),
        flops=_number(row["flops"]),
        unpredicted=_number(row["unpredicted_share"]),
        core_s=_number(row["core_s"]),
        compiled_with=row["compiled_with"],
        xla=row["xla"],
        digest=row["digest"],
    )


def _parts(row: Mapping[str, str], names: Iterable[str], column: str) -> dict[str, float]:
    """The parts that a line states; a part that the record does not know yet has no column."""
    found = {name: _number(row.get(column.format(name)) or "") for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _number(text: str) -> float | None:
    return float(text) if text else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")

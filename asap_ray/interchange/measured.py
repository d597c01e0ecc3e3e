"""Public measurements as plans: each row of a table becomes a problem, a plan and the time its step took.

    rows = read_table(Path("training.parquet"))     # interchange.measured_tables
    mapped = [mapper.map(row) for row in rows]      # each a MeasuredRow, or Unmapped with the reason

Tables are Parquet or CSV in the schema of `knowledge/measured/` (its README says what the columns mean). What a row
does not say comes from `defaults.yaml` beside them, by source and with a reason, and is listed in `inferred`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asap_ray.chip import Chip
from asap_ray.errors import ConfigError
from asap_ray.interchange.measured_mesh import Degrees, mesh_degrees, placed, slice_of
from asap_ray.interchange.measured_shape import architecture_of
from asap_ray.interchange.measured_words import Row, Unmappable, chosen, first_match, flag, number, text, whole
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.stack import Stack
from asap_ray.workload import Workload

ASSUMED = re.compile(r"([\w/()]+)=([^;(]+?)\s*(?:\(|;|$)")
ASSUMED_NAMES = {"sp(yes/no)": "sp", "fsdp/zero": "fsdp_zero"}
TRAINING_ALONE = re.compile(r"eval-corrected estimate ([\d.]+) s")
"""What a note says of steps that were timed together with an evaluation."""
CAPACITY = re.compile(r"dropping\b.*\bcapacity_factor=(\d+(?:\.\d+)?)")
PEAK_MEMORY = re.compile(r"(?:GPU mem|measured alloc|peak mem|peak|max_memory|\bmem) (\d+(?:\.\d+)?) (GiB|GB)")


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRow:
    """A measured run that can be priced.

    `inferred` names each field that the row itself does not state, and where its value is from. `step_time_s` is None
    where the source gives no time (or the run failed); `time_basis` says whether it is the source's own figure, or
    `corrected` by what else it held. The other metrics are as the source prints them, by its own conventions.
    `peak_bytes` is the measured memory, if noted: of `physics.memory.FIGURES` the `peak_figure`, on the devices of the
    `peak_stage`.
    """

    id: str
    table: str
    source: str
    url: str
    date: str
    model: str
    problem: Problem
    plan: Plan
    step_time_s: float | None
    time_basis: str
    status: str
    quality: str
    rank_group: str
    inferred: tuple[str, ...]
    tokens_per_s_per_chip: float | None
    tflops_per_chip: float | None
    mfu_percent: float | None
    peak_bytes: float | None
    peak_figure: str
    peak_stage: str
    notes: str

    @property
    def model_mfu(self) -> float | None:
        """`Problem.mfu` of the row's step, or None without a step time."""
        return None if self.step_time_s is None else self.problem.mfu(self.step_time_s)


@dataclass(frozen=True, slots=True)
class Unmapped:
    """A row that stands for no plan: its id, the reason, and whether it had shape, mesh and time at all."""

    id: str
    table: str
    reason: str
    complete: bool


@dataclass(frozen=True, kw_only=True)
class Mapper:
    """Maps rows; alike workloads on alike slices share one `Problem` object.

    `models` are the plain mappings of conf/model, `defaults` that of `knowledge/measured/defaults.yaml`; `margin` is
    what plans must leave free of the memory (`Problem.margin`).
    """

    chips: Mapping[str, Chip]
    stacks: Mapping[str, Stack]
    models: Mapping[str, Mapping[str, Any]]
    defaults: Mapping[str, Any]
    margin: float = 0.0
    problems: dict[tuple[Any, ...], Problem] = field(default_factory=dict)

    def map(self, row: Row) -> MeasuredRow | Unmapped:
        """The row as a measured plan, or why it is none."""
        try:
            return self._map(row)
        except (Unmappable, ConfigError) as error:
            reason = str(error) if isinstance(error, Unmappable) else f"{error.key}: {error.allowed}"
            return Unmapped(str(row["id"]), str(row["table"]), reason, _complete(row))

    def _map(self, row: Row) -> MeasuredRow:
        row, inferred = self._filled(row)
        trainer = ", ".join(str(row[name]) for name in ("framework", "date") if row.get(name))
        stack = self.stacks[chosen(self.defaults["frameworks"], trainer or text(row, "framework"), "framework")]
        chip_name = self.defaults["hardware"].get(text(row, "hardware"))
        if chip_name is None:
            raise Unmappable(f"hardware: {text(row, 'hardware')} is not described")
        chip = self.chips[chip_name]
        architecture, more = architecture_of(row, self.defaults["models"], self.models)
        inferred += more
        degrees = mesh_degrees(row, stack, whole(row, "chips") * chip.devices_per_chip)
        slice_ = slice_of(row, chip, degrees)
        workload = Workload(
            architecture=architecture,
            global_batch=whole(row, "global_batch_seqs"),
            seq_len=whole(row, "seq_len"),
            precision=chosen(self.defaults["precision"], text(row, "precision"), "precision"),
            expert_capacity=float(capacity[1]) if (capacity := CAPACITY.search(str(row.get("notes") or ""))) else 0.0,
        )
        key = (slice_.name, stack.name, workload)
        problem = self.problems.setdefault(
            key, Problem(workload=workload, slice=slice_, stack=stack, margin=self.margin)
        )
        plan = self._plan(row, problem, degrees, inferred)
        return _measured(row, problem, plan, tuple(inferred), self._peak(row))

    def _peak(self, row: Row) -> Mapping[str, str]:
        """What the row's source means by the peak memory that its notes state."""
        source = str(row.get("source_name") or "")
        found = (e for e in self.defaults["peaks"] if re.search(e["match"], source, re.IGNORECASE))
        return next(found, {})

    def _filled(self, row: Row) -> tuple[dict[str, Any], list[str]]:
        """The row with what its table infers, then with its source's defaults, in its empty cells."""
        filled, inferred = dict(row), []
        for found in ASSUMED.finditer(str(row.get("inferred_values") or "")):
            name, value = ASSUMED_NAMES.get(found[1], found[1]), found[2]
            if filled.get(name) is None or name == "hardware":
                filled[name] = value
                inferred.append(f"{name}: the table's own inference")
        for entry in self.defaults["sources"]:
            named = re.search(entry["match"], str(row.get("source_name") or ""), re.IGNORECASE)
            noted = re.search(entry.get("noted", ""), str(row.get("notes") or ""))
            if not (named and noted) or any(row.get(k) != v for k, v in entry.get("when", {}).items()):
                continue
            for name, value in entry["fields"].items():
                if filled.get(name) is None or name in entry.get("when", {}):
                    filled[name] = filled.get("chips") if value == "all" else value
                    inferred.append(f"{name}: {entry['why']}")
        return filled, inferred

    def _plan(self, row: Row, problem: Problem, degrees: Degrees, inferred: list[str]) -> Plan:
        micro, accumulation = _batches(row, problem, degrees, inferred)
        sp = flag(row, "sp")
        can, tensor = problem.stack.sequence_parallel, degrees.sizes["tensor"]
        plan = Plan(
            micro_batch=micro,
            accumulation=accumulation,
            zero=degrees.zero,
            virtual=degrees.virtual,
            schedule=_schedule(problem.stack, degrees),
            sequence_parallel=tensor > 1 and (True if can == (True,) else bool(sp)),
            remat=self._remat(row, problem.stack, inferred),
            precision=problem.workload.precision,
            attention="unfused" if self._unfused(row) else "flash",
        )
        return placed(problem, plan, degrees)

    def _unfused(self, row: Row) -> bool:
        return bool(re.search(self.defaults["unfused"], str(row.get("attention_kernel") or ""), re.IGNORECASE))

    def _remat(self, row: Row, stack: Stack, inferred: list[str]) -> str:
        given = row.get("remat")
        if given is None:
            inferred.append("remat: not stated; the least work")
        entry, found = first_match(self.defaults["remat"], str(given or "none"), "remat")
        if "assumed" in entry:
            inferred.append(f"remat: {entry['assumed']}")
        names = [found.expand(name) for name in entry["is"]]
        known = [name for name in names if name in stack.remat_names]
        if not known:
            raise Unmappable(f"remat: {stack.name} has no {' or '.join(names)}")
        return known[0]


def _complete(row: Row) -> bool:
    """Whether the row states a shape, a mesh and a time."""
    shape = all(row.get(name) is not None for name in ("layers", "d_model", "seq_len"))
    mesh = row.get("chips") is not None and row.get("tp") is not None and row.get("pp") is not None
    return shape and mesh and row.get("status") == "ok" and _step_time(row)[0] is not None


def _step_time(row: Row) -> tuple[float | None, str]:
    for name in ("metric_step_time_s", "derived_step_time_s"):
        if (value := number(row, name)) is not None:
            return (value, name.split("_")[0]) if value > 0 else (None, "")
    names = ("global_batch_seqs", "seq_len", "metric_tokens_per_s_per_chip", "chips")
    batch, seq_len, tokens, chips = (number(row, name) or 0.0 for name in names)
    if min(batch, seq_len, tokens, chips) > 0:
        return batch * seq_len / (tokens * chips), "tokens"
    return None, ""


def _batches(row: Row, problem: Problem, degrees: Degrees, inferred: list[str]) -> tuple[int, int]:
    """Micro-batch and accumulation; they must make up the global batch."""
    batch, ranks = problem.workload.global_batch, degrees.batch_ranks(problem.stack)
    micro, times = number(row, "micro_batch_per_dp_rank"), number(row, "grad_accum")
    if micro is None:
        inferred.append("micro_batch: not stated; 1")
        micro = 1.0
    if not micro >= 1:
        raise Unmappable(f"micro_batch_per_dp_rank: {micro:g} is not a positive whole number")
    share = batch / (ranks * micro)
    if micro != int(micro) or share != int(share) or share < 1:
        raise Unmappable("batch: micro-batches on all replicas do not make up the global batch")
    if times is not None and times != share:
        raise Unmappable("batch: micro-batch, accumulation and replicas do not multiply to the global batch")
    return int(micro), int(share)


def _schedule(stack: Stack, degrees: Degrees) -> str:
    if degrees.sizes["pipeline"] == 1:
        return "none"
    if degrees.virtual > 1:
        return "interleaved"
    return next(name for name in ("1f1b", "gpipe", "zero_bubble") if name in stack.schedules)


def _measured(
    row: Row, problem: Problem, plan: Plan, inferred: tuple[str, ...], peak: Mapping[str, str]
) -> MeasuredRow:
    notes = str(row.get("notes") or "")
    step_time_s, basis = _step_time(row) if row.get("status") == "ok" else (None, "")
    if step_time_s is not None and (alone := TRAINING_ALONE.search(notes)):
        step_time_s, basis = float(alone[1]), "corrected"
        inferred += ("step time: the evaluation within the timed block taken off, as the note works it out",)
    memory = PEAK_MEMORY.search(notes)
    unit = 2.0**30 if memory and peak.get("unit", memory[2]) == "GiB" else 1e9
    return MeasuredRow(
        id=str(row["id"]),
        table=str(row["table"]),
        source=str(row.get("source_name") or ""),
        url=str(row.get("source_url") or ""),
        date=str(row.get("date") or ""),
        model=str(row.get("model") or ""),
        problem=problem,
        plan=plan,
        step_time_s=step_time_s,
        time_basis=basis,
        status=str(row.get("status") or ""),
        quality=str(row.get("quality") or ""),
        rank_group=str(row.get("rank_group") or ""),
        inferred=inferred,
        tokens_per_s_per_chip=number(row, "metric_tokens_per_s_per_chip"),
        tflops_per_chip=number(row, "metric_tflops_per_chip"),
        mfu_percent=number(row, "metric_mfu"),
        peak_bytes=float(memory[1]) * unit if memory and math.isfinite(float(memory[1])) else None,
        peak_figure=peak.get("figure", "held"),
        peak_stage=peak.get("stage", "fullest"),
        notes=notes,
    )


def by_problem(rows: Iterable[MeasuredRow]) -> list[tuple[Problem, Sequence[MeasuredRow]]]:
    """Rows that share a problem, together, in the order of first appearance."""
    groups: dict[int, tuple[Problem, list[MeasuredRow]]] = {}
    for row in rows:
        groups.setdefault(id(row.problem), (row.problem, []))[1].append(row)
    return list(groups.values())

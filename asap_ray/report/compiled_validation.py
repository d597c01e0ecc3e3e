"""The compile tier beside what it is held against: measured step times, and the roofline of the same trainer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asap_ray.accuracy import ErrorBlock, error_block
from asap_ray.interchange.measured import MeasuredRow
from asap_ray.physics.estimate import Estimate
from asap_ray.problem import Problem
from asap_ray.report.compiled import difference
from asap_ray.report.summary import finite
from asap_ray.report.units import seconds
from asap_ray.tiers.recorded import Recorded

ALL = "all"
COMPILER, ROOFLINE, THEIRS = "compiler", "roofline", "theirs"
"""Who predicts a measured step: the compiler, the roofline for our trainer, the roofline for the trainer that ran."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """What a compiler said of a plan, and what the roofline says of it for the same trainer.

    `run` is the measured run that the plan is of, `theirs` what the roofline says of that run with the constants of
    the trainer that ran (fitted without it, as in `task=validate`).
    """

    recorded: Recorded
    problem: Problem
    roofline: Estimate
    run: MeasuredRow | None = None
    theirs: Estimate | None = None

    @property
    def memory_ratio(self) -> float | None:
        """The roofline's memory over the compiler's."""
        needed = self.recorded.needed_bytes
        return self.roofline.hbm_bytes / needed if needed else None

    @property
    def over(self) -> float:
        """Share of the memory by which the plan is too big, by the compiler; infinite where it gives no figure."""
        limit = self.recorded.limit_bytes
        return self.recorded.over_bytes / limit if limit and self.recorded.over_bytes else float("inf")

    @property
    def flops_ratio(self) -> float | None:
        """FLOPs of the program over the model's own and what the policy is priced to add."""
        if not self.recorded.flops:
            return None
        priced = self.problem.workload.model_flops * (1.0 + self.roofline.redundant) / self.problem.slice.devices
        return self.recorded.flops / priced

    @property
    def measured_s(self) -> float | None:
        """The measured step."""
        return self.run.step_time_s if self.run else None

    def predicted(self, by: str) -> float | None:
        """The step by one of the predictors."""
        if by == COMPILER:
            return self.recorded.step_time_s
        estimate = self.roofline if by == ROOFLINE else self.theirs
        return estimate.step_time_s if estimate else None

    @property
    def differs(self) -> str:
        """The parts in which the compiler's step differs from the roofline's of the same trainer."""
        found = self.recorded.time_parts
        return difference(found, self.roofline.time_parts, seconds) if found else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledAnswer:
    """Everything that was held against each other, with the record of the command.

    `unrecorded` are plans of the list that the record lacks; `left_out` are measured runs on TPUs that were not
    compiled, by reason; `differs` says by source what its runs and our trainer do not have in common.
    """

    rows: tuple[Beside, ...]
    unrecorded: tuple[str, ...]
    left_out: Mapping[str, Sequence[str]]
    differs: Mapping[str, str]
    record: Path
    command: str
    run_dir: Path
    wall_s: float
    versions: Mapping[str, str]

    @property
    def complete(self) -> list[Beside]:
        """The plans that compiled and fit."""
        return [row for row in self.rows if row.recorded.status == "complete"]

    @property
    def refused(self) -> list[Beside]:
        """The plans that do not fit by their compiler."""
        return [row for row in self.rows if row.recorded.status == "infeasible"]

    @property
    def let_through(self) -> list[Beside]:
        """Of those the ones that the roofline would have let through, the worst first."""
        return sorted((row for row in self.refused if row.roofline.fits), key=lambda row: -row.over)

    @property
    def kept_out(self) -> list[Beside]:
        """The plans that fit by their compiler, and that the roofline would have refused."""
        return [row for row in self.complete if not row.roofline.fits]

    @property
    def timed(self) -> list[Beside]:
        """The plans of measured runs that compiled."""
        return [row for row in self.rows if row.measured_s and row.recorded.step_time_s]

    def memory(self) -> list[ErrorBlock]:
        """Errors of the roofline's memory against the compiler's: of all complete plans, then by chip."""
        return [_memory(ALL, self.complete), *(_memory(*each) for each in _split(self.complete, _chip).items())]

    def steps(self) -> list[tuple[str, dict[str, ErrorBlock]]]:
        """Errors of the step against what was measured, by predictor: by source, the largest first, then of all."""
        sources = sorted(_split(self.timed, _source).items(), key=lambda each: -len(each[1]))
        return [(name, _steps(name, rows)) for name, rows in (*sources, (ALL, self.timed))]


def _chip(row: Beside) -> str:
    return row.problem.slice.chip.name


def _source(row: Beside) -> str:
    return row.run.source if row.run else ""


def _split(rows: Sequence[Beside], key: Any) -> dict[str, list[Beside]]:
    found: dict[str, list[Beside]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _memory(name: str, rows: Sequence[Beside]) -> ErrorBlock:
    predicted = np.array([row.roofline.hbm_bytes for row in rows])
    needed = np.array([row.recorded.needed_bytes or np.nan for row in rows])
    return error_block(name, predicted, needed, np.zeros(len(rows), bool))


def _steps(name: str, rows: Sequence[Beside]) -> dict[str, ErrorBlock]:
    measured = np.array([row.measured_s or np.nan for row in rows])
    inferred = np.array([bool(row.run and row.run.inferred) for row in rows], bool)
    return {
        by: error_block(name, np.array([row.predicted(by) or np.nan for row in rows]), measured, inferred)
        for by in (COMPILER, ROOFLINE, THEIRS)
    }


def compiled_fields(answer: CompiledAnswer) -> dict[str, Any]:
    """The object that `output=json` prints."""
    return finite(
        {
            "task": "validate",
            "tier": "compile",
            "record": str(answer.record),
            "plans": {
                "recorded": len(answer.rows),
                "unrecorded": list(answer.unrecorded),
                "status": dict(Counter(row.recorded.status for row in answer.rows)),
                "compiled_with": dict(Counter(row.recorded.compiled_with for row in answer.rows)),
            },
            "memory": [asdict(each) for each in answer.memory()],
            "refusals": {
                "refused": len(answer.refused),
                "let_through": [{"plan": row.recorded.plan, "over": row.over} for row in answer.let_through],
                "kept_out": [row.recorded.plan for row in answer.kept_out],
            },
            "steps": [
                {"source": name, "differs": answer.differs.get(name, ""), **{by: asdict(e) for by, e in found.items()}}
                for name, found in answer.steps()
            ],
            "left_out": {reason: list(ids) for reason, ids in answer.left_out.items()},
            "wall_s": answer.wall_s,
            "versions": answer.versions,
        }
    )


def compiled_row(row: Beside) -> dict[str, Any]:
    """One line of `compiled.csv`: the record's line, then what it is held against."""
    run, roofline = row.run, row.roofline
    return finite(
        {
            **row.recorded.as_row(),
            "source": run.source if run else "",
            "measured_s": row.measured_s,
            "roofline_s": roofline.step_time_s,
            "theirs_s": row.theirs.step_time_s if row.theirs else None,
            "differs": row.differs,
            "roofline_bytes": roofline.hbm_bytes,
            "roofline_limit_bytes": roofline.hbm_limit_bytes,
            "memory_ratio": row.memory_ratio,
            "flops_ratio": row.flops_ratio,
            **{f"roofline_{part}_s": value for part, value in roofline.time_parts.items()},
            **{f"roofline_{part}_bytes": value for part, value in roofline.memory_parts.items()},
        }
    )

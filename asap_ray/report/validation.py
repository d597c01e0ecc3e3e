"""A validation as JSON and as a table of rows: every figure with its count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asap_ray.comparison import Compared, coverages, errors, floors, memory_errors, memory_verdicts, split_by, summed
from asap_ray.ranked import certificates, rankings
from asap_ray.report.summary import finite
from asap_ray.validation import Validation


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationAnswer:
    """What was compared, with the record of the command; `left_out` are timed rows that the constants were fitted to,
    and that were therefore predicted with constants fitted without them."""

    validation: Validation
    left_out: int
    command: str
    run_dir: Path
    wall_s: float
    versions: Mapping[str, str]


def validation_fields(answer: ValidationAnswer) -> dict[str, Any]:
    """The object that `output=json` prints.

    `overall` holds every timed row, `headline` those of quality A outside of the groups that are left out of it (as
    `groups.yaml` says); `overall_stated` and `overall_inferred` part the rows by whether any field is assumed.
    """
    found, timed = answer.validation, answer.validation.timed
    memory = memory_verdicts(found.rows)
    overall = summed("overall", memory)
    return finite(
        {
            "task": "validate",
            "tables": found.tables,
            "rows": {**_counts(found), "left_out": answer.left_out},
            "overall": asdict(errors("overall", timed)),
            "headline": asdict(errors("headline", found.headline)),
            "overall_stated": asdict(errors("stated", [row for row in timed if not row.inferred])),
            "overall_inferred": asdict(errors("inferred", [row for row in timed if row.inferred])),
            "groups": [_group(each) for each in found.groups()],
            "by_source": [asdict(each) for each in found.sources()],
            "by_hardware": [asdict(errors(*each)) for each in split_by(timed, lambda row: row.hardware).items()],
            "ranking": [asdict(each) for each in rankings(found.rows)],
            "ranking_summary": [asdict(each) for each in found.ranking_summaries()],
            "memory": {**asdict(overall), "recognised": overall.recognised, "refused": overall.refused},
            "memory_by_source": [asdict(each) for each in memory],
            "memory_error": asdict(memory_errors("overall", found.rows)),
            "memory_error_by_source": _memory_sources(found),
            "floor": asdict(floors(timed)),
            "floor_violations": len(floors(timed).violations),
            "coverage": _coverage(found),
            "certificate": [asdict(each) for each in certificates(found.rows)],
            "unmapped": found.unmapped,
            "wall_s": answer.wall_s,
            "versions": answer.versions,
        }
    )


def _counts(found: Validation) -> dict[str, Any]:
    return {
        "read": found.read,
        "mapped": len(found.rows),
        "timed": len(found.timed),
        "unmapped": sum(found.unmapped.values()),
        "complete_unmapped": found.complete_unmapped,
        "mapped_share": found.mapped_share,
        "time_basis": dict(Counter(row.time_basis for row in found.timed)),
        "status": dict(Counter(row.status for row in found.rows)),
    }


def _group(group: Any) -> dict[str, Any]:
    ranking = asdict(group.ranking)
    del ranking["name"]
    return {**asdict(group.errors), **ranking}


def _memory_sources(found: Validation) -> list[dict[str, Any]]:
    blocks = [memory_errors(*each) for each in split_by(found.rows, lambda row: row.source).items()]
    return [asdict(each) for each in blocks if each.n]


def _coverage(found: Validation) -> dict[str, Any]:
    timed = found.timed
    stacks = split_by(timed, lambda row: row.problem.stack.name)
    kinds = split_by(timed, lambda row: row.problem.slice.chip.kind)
    return {
        **asdict(coverages("overall", timed)),
        "headline": asdict(coverages("headline", found.headline)),
        "by_stack": [asdict(coverages(*each)) for each in stacks.items()],
        "by_kind": [asdict(coverages(*each)) for each in kinds.items()],
    }


def row_fields(row: Compared) -> dict[str, Any]:
    """One line of `rows.csv`: a row's prediction beside its measurement."""
    problem, estimate = row.problem, row.estimate
    return finite(
        {
            "id": row.id,
            "table": row.table,
            "source": row.source,
            "group": row.group,
            "headline": row.headline,
            "model": row.model,
            "slice": problem.slice.name,
            "stack": problem.stack.name,
            "seq_len": problem.workload.seq_len,
            "global_batch": problem.workload.global_batch,
            "plan": estimate.plan.line,
            "status": row.status,
            "quality": row.quality,
            "time_basis": row.time_basis,
            "measured_s": row.measured_s,
            "predicted_s": estimate.step_time_s,
            "ratio": row.ratio if row.measured_s else None,
            "low_s": estimate.interval_s[0],
            "high_s": estimate.interval_s[1],
            "floor_s": estimate.floor_s,
            "serial_s": estimate.serial_s,
            "hbm_bytes": estimate.hbm_bytes,
            "hbm_limit_bytes": estimate.hbm_limit_bytes,
            "fits": estimate.fits,
            "measured_peak_bytes": row.peak_bytes,
            "predicted_peak_bytes": row.predicted_peak_bytes,
            **{f"{part}_s": seconds for part, seconds in estimate.time_parts.items()},
            "ranks": "; ".join(row.ranks),
            "inferred": "; ".join(row.inferred),
            "url": row.url,
        }
    )


def row_columns(rows: Sequence[Compared]) -> dict[str, list[Any]]:
    """The rows as columns."""
    records = [row_fields(row) for row in rows]
    return {name: [record[name] for record in records] for name in records[0]} if records else {}

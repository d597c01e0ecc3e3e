"""Files made from the events of a run, which can be deleted and made again: `trials.parquet` and `optuna.journal`.

The table has a row for each trial of the last run. The journal is one Optuna study a slice, or
a slice and tier where plans were compiled and then run, for `optuna.storages.JournalStorage` and what reads it: a
dashboard, importances, plots. Every trial has all parameters, and each of these the same distribution: what the search
could have tried, not what it came to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asap_ray.drafts import draft_of
from asap_ray.plan import AXES, KNOBS, Plan
from asap_ray.report.answer import Tried
from asap_ray.tasks import record

if TYPE_CHECKING:
    import pyarrow as pa
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

TABLE, JOURNAL = "trials.parquet", "optuna.journal"
Row = dict[str, Any]
Values = Mapping[str, Sequence[int | str]]
"""What parameters of a slice's search may be, by name."""
COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("slice", "bundle"), "string"),
    "trial": "int64",
    **dict.fromkeys(("author", "status", "reason", "plan"), "string"),
    **dict.fromkeys((*AXES, *(f"{axis}_dcn" for axis in AXES)), "int64"),
    **{knob: {"bool": "bool", "int": "int64", "str": "string"}[type(getattr(Plan(), knob)).__name__] for knob in KNOBS},
    **dict.fromkeys(("step_time_s", "step_low_s", "step_high_s"), "double"),
    **dict.fromkeys(("roofline_step_time_s", "roofline_low_s", "roofline_high_s"), "double"),
    **dict.fromkeys(("hbm_bytes", "limit_bytes", "over_bytes", "roofline_hbm_bytes"), "double"),
    **dict.fromkeys(("took_s", "elapsed_s"), "double"),
    **dict.fromkeys(("cached", "cut"), "bool"),
    **dict.fromkeys(("tier", "source", "evidence", "digest", "began_at", "ended_at"), "string"),
}
"""Columns of the table with their types: sizes of axes are whole, `_dcn` what of them crosses slices; times are ISO
8601 in UTC; what is not known is null."""
ATTRIBUTES = ("trial", "author", "plan", "status", "reason", "hbm_bytes", "roofline_step_time_s", "source")
PARAMETERS = ("bundle", *AXES, *(f"{axis}_dcn" for axis in AXES), *KNOBS)


def write_derived(events: Sequence[Mapping[str, Any]], run_dir: Path) -> tuple[Path, ...]:
    """Write both files for the last run of a ledger; none where it has no trial.

    Raises:
        OSError: a file cannot be written.
    """
    run = record.last_run(events)
    rows = trial_rows(run)
    if not rows:
        return ()
    known = {event["slice"]: event["values"] for event in run if event["kind"] == "parameters"}
    with draft_of(run_dir / TABLE) as draft:
        _write_table(rows, draft)
    with draft_of(run_dir / JOURNAL) as draft:
        _write_journal(rows, known, draft)
    return run_dir / TABLE, run_dir / JOURNAL


def trial_rows(run: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row for each trial of one run that has ended, by slice and number, with the columns of `COLUMNS`."""
    began = {(event["slice"], event["trial"]): event["at"] for event in run if event["kind"] == "trial"}
    ended = [event for event in run if event["kind"] == "tried" and "trial" in event]
    rows = []
    for event in ended:
        row = _row(record.read_tried(event))
        rows.append({**row, "began_at": began.get((row["slice"], row["trial"]), event["at"]), "ended_at": event["at"]})
    order = list(dict.fromkeys(row["slice"] for row in rows))
    return sorted(rows, key=lambda row: (order.index(row["slice"]), row["trial"]))


def _row(tried: Tried) -> Row:
    found, plan, before = tried.finding, tried.finding.plan, tried.roofline
    now = found.estimate
    return {
        "slice": tried.where,
        "bundle": tried.bundle,
        "trial": tried.number,
        "author": tried.author,
        "status": found.status,
        "reason": found.reason,
        "plan": plan.line,
        **plan.axes,
        **{f"{axis}_dcn": size for axis, size in zip(AXES, plan.dcn, strict=True)},
        **{knob: getattr(plan, knob) for knob in KNOBS},
        "step_time_s": now.step_time_s if now else None,
        "step_low_s": now.interval_s[0] if now else None,
        "step_high_s": now.interval_s[1] if now else None,
        "roofline_step_time_s": before.step_time_s,
        "roofline_low_s": before.interval_s[0],
        "roofline_high_s": before.interval_s[1],
        **{name: getattr(found, name) for name in ("hbm_bytes", "limit_bytes", "over_bytes")},
        "roofline_hbm_bytes": before.hbm_bytes,
        "took_s": tried.took_s,
        **{name: getattr(tried, name) for name in ("elapsed_s", "cut")},
        "cached": found.cached,
        "tier": found.source,
        "source": now.source if now else found.source,
        "evidence": found.evidence,
        "digest": found.digest,
    }


def _write_table(rows: Sequence[Row], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    parquet.write_table(pa.Table.from_pylist(list(rows), schema=_schema()), path, compression="zstd")


def _schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_()}
    return pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])


def _write_journal(rows: Sequence[Row], known: Mapping[str, Values], path: Path) -> None:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    studies = list(dict.fromkeys((row["slice"], row["tier"]) for row in rows))
    for where, tier in studies:
        here = [row for row in rows if (row["slice"], row["tier"]) == (where, tier)]
        alone = [slice_ for slice_, _ in studies].count(where) == 1
        name = where if alone else f"{where} {tier}"
        study = optuna.create_study(storage=storage, study_name=name, direction="minimize")
        study.add_trials(_frozen(here, known.get(where, {})))


def _frozen(rows: Sequence[Row], known: Values) -> list[FrozenTrial]:
    """Trials of one study: what does not fit is pruned, with a constraint that carries the bytes over."""
    from optuna.trial import FrozenTrial, TrialState

    states = {"complete": TrialState.COMPLETE, "infeasible": TrialState.PRUNED, "pruned": TrialState.PRUNED}
    distributions = {
        name: _distribution([*known.get(name, ()), *(row[name] for row in rows)], type(rows[0][name]))
        for name in PARAMETERS
    }
    found = []
    for number, row in enumerate(rows):
        state = states.get(row["status"], TrialState.FAIL)
        if row["step_time_s"] is None and state == TrialState.COMPLETE:  # a program that cannot be read has no time
            state = TrialState.FAIL
        trial = FrozenTrial(
            number=number,
            trial_id=number,
            state=state,
            value=row["step_time_s"],
            datetime_start=datetime.fromisoformat(row["began_at"]),
            datetime_complete=datetime.fromisoformat(row["ended_at"]),
            params={name: row[name] for name in PARAMETERS},
            distributions=distributions,
            user_attrs={name: row[name] for name in ATTRIBUTES},
            system_attrs={},
            intermediate_values={},
        )
        trial.set_constraint("hbm_over_bytes", row["over_bytes"] or (1.0 if row["status"] == "infeasible" else 0.0))
        found.append(trial)
    return found


def _distribution(values: Sequence[int | str | bool], kind: type) -> BaseDistribution:
    """Whole numbers in the range of the values, by ratio where they are sizes; what is no number as categories."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if kind is not int:
        return CategoricalDistribution(sorted({kind(value) for value in values}, key=str))
    numbers = [int(value) for value in values]
    return IntDistribution(min(numbers), max(numbers), log=min(numbers) >= 1)

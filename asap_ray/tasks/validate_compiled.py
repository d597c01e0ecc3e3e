"""`task=validate tiers=[compile]`: hold the compile tier against measured steps, and the roofline against it in memory.

What compilers said is read from the record; `validate.recompile=true` compiles what the cache lacks and writes the
record anew. The roofline's figures are worked out each time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from asap_ray.config import Config
from asap_ray.drafts import write_whole
from asap_ray.interchange.measured import MeasuredRow
from asap_ray.interchange.measured_tables import read_tables
from asap_ray.physics.estimate import Estimate
from asap_ray.report.compiled_validation import Beside, CompiledAnswer, compiled_fields, compiled_row
from asap_ray.report.compiled_validation_outline import compiled_outline
from asap_ray.report.leaderboard import csv_text
from asap_ray.tasks.compiled_cases import (
    RESULTS,
    Case,
    cases,
    compiled_anew,
    load_plans,
    record_dir,
    source_of,
    write_record,
)
from asap_ray.tasks.predictions import load_constants, load_mapper, map_rows, predict
from asap_ray.tasks.running import begin, command_line, tell, versions, write_files
from asap_ray.tiers.recorded import Recorded, read_record
from asap_ray.tiers.roofline import Roofline


def run(config: Config, tables: list[str]) -> int:
    """Run the task over the runs of some tables; returns the exit status.

    Raises:
        AsapError: something for the user to change.
    """
    started = time.monotonic()
    runs = {
        row.id: row
        for row in map_rows(read_tables("tables", tables), load_mapper(config.config_dir, config.space.margin)).rows
    }
    listed = cases(config, runs)
    if config.validate.recompile:
        write_record(compiled_anew(config, listed))
    answer = compared(config, listed, started)
    fields = compiled_fields(answer)
    ledger = begin(config)
    texts = {
        "compiled.json": json.dumps(fields, indent=2, allow_nan=False) + "\n",
        "compiled.csv": csv_text([compiled_row(row) for row in answer.rows]),
    }
    write_files(config, lambda: [write_whole(config.run_path / name, text) for name, text in texts.items()])
    ledger.append("validated", fields)
    tell(config, fields, compiled_outline(answer, list(texts)))
    return 0


def compared(config: Config, listed: list[Case], started: float) -> CompiledAnswer:
    """Each plan of the record beside the roofline, and beside the run that it is of."""
    path = record_dir() / RESULTS
    lines = {line.key: line for line in read_record(path)}
    known = [case for case in listed if case.key in lines]
    theirs = _theirs(config, [case.run for case in known if case.run])
    rows = [_beside(case, lines[case.key], theirs) for case in known]
    plans = load_plans()
    sources = dict.fromkeys(row.run.source for row in rows if row.run)
    return CompiledAnswer(
        rows=tuple(rows),
        unrecorded=tuple(f"{case.row} {case.plan.line}".strip() for case in listed if case.key not in lines),
        left_out={entry["reason"]: entry["rows"] for entry in plans["left_out"]},
        differs={name: text for name in sources if (text := source_of(plans, name).get("differs"))},
        record=path,
        command=command_line(),
        run_dir=config.run_path,
        wall_s=time.monotonic() - started,
        versions=versions(),
    )


def _theirs(config: Config, runs: list[MeasuredRow]) -> Mapping[str, Estimate]:
    """What the roofline says of runs for the trainers that ran, with constants that were fitted without them."""
    found = predict(runs, load_constants(config.config_dir))
    return {run.id: each for run, each in zip(runs, found, strict=True) if isinstance(each, Estimate)}


def _beside(case: Case, line: Recorded, theirs: Mapping[str, Estimate]) -> Beside:
    (estimate,) = Roofline(problem=case.problem, calibration=case.calibration).estimates([case.plan])
    return Beside(recorded=line, problem=case.problem, roofline=estimate, run=case.run, theirs=theirs.get(case.row))

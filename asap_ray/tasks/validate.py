"""`task=validate`: hold the roofline against what people measured, row by row, and say how far it is off.

It needs no model and no hardware: each row of a table names its own. Nothing is fitted here. With `tiers=[compile]` it
is the compile tier that is held against them (`validate_compiled`).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from asap_ray.config import Config
from asap_ray.drafts import draft_of, write_whole
from asap_ray.interchange.measured_groups import MeasuredGroups
from asap_ray.interchange.measured_tables import read_tables
from asap_ray.report.leaderboard import csv_text
from asap_ray.report.progress import progress
from asap_ray.report.validation import ValidationAnswer, row_columns, row_fields, validation_fields
from asap_ray.report.validation_outline import outline
from asap_ray.report.validation_page import validation_page
from asap_ray.settings import data_dir, read_settings
from asap_ray.tasks.peaks import predicted_peaks
from asap_ray.tasks.predictions import beside, load_constants, load_mapper, map_rows, predict
from asap_ray.tasks.running import begin, command_line, tell, versions, write_files

KEY = "validate.tables"
ENOUGH_FOR_A_BAR = 500
"""Rows whose pricing takes about a second."""


def carried_tables() -> list[str]:
    """The tables that the project carries."""
    return sorted(str(path) for path in (data_dir("knowledge") / "measured").glob("*.parquet"))


def run(config: Config) -> int:
    """Run the task; returns the exit status.

    Raises:
        AsapError: something for the user to change.
    """
    started = time.monotonic()
    tables = config.validate.tables or carried_tables()
    if config.compiles:
        from asap_ray.tasks import validate_compiled  # it knows compilers, which pricing needs not

        return validate_compiled.run(config, tables)
    rows = read_tables(KEY, tables)
    mapper, constants = load_mapper(config.config_dir, config.space.margin), load_constants(config.config_dir)
    groups = MeasuredGroups(read_settings(data_dir("knowledge") / "measured" / "groups.yaml"))
    with progress("pricing measured runs", sys.stderr, wanted=len(rows) >= ENOUGH_FOR_A_BAR) as told:
        mapped = map_rows(rows, mapper)
        estimates = predict(mapped.rows, constants, told)
        peaks = predicted_peaks(mapped.rows, estimates, constants)
    answer = ValidationAnswer(
        validation=beside(tables, mapped, estimates, peaks, groups),
        left_out=sum(constants.left_out(row) for row in mapped.rows if row.step_time_s),
        command=command_line(),
        run_dir=config.run_path,
        wall_s=time.monotonic() - started,
        versions=versions(),
    )
    fields = validation_fields(answer)
    ledger = begin(config)
    files = _write(config, answer, fields)
    ledger.append("validated", fields)
    tell(config, fields, outline(answer, files))
    return 0


def _write(config: Config, answer: ValidationAnswer, fields: dict[str, Any]) -> list[str]:
    """Write the run's files; returns their names."""
    rows = answer.validation.rows
    texts = {
        "report.html": validation_page(answer),
        "validation.json": json.dumps(fields, indent=2, allow_nan=False) + "\n",
        "rows.csv": csv_text([row_fields(row) for row in rows]),
    }

    def write() -> None:
        for name, text in texts.items():
            write_whole(config.run_path / name, text)
        _write_parquet(config.run_path / "rows.parquet", row_columns(rows))

    write_files(config, write)
    return [*texts, "rows.parquet"]


def _write_parquet(path: Path, columns: dict[str, list[Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    with draft_of(path) as draft:
        parquet.write_table(pa.table(columns), draft, compression="zstd")

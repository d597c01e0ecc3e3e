"""What nights have come to, from the events of their directory, and as a Parquet table for DuckDB and others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asap_ray.drafts import draft_of
from asap_ray.report.night import Row, row_of

TABLE = "history.parquet"
RESUMED_S = 12 * 3600.0
"""A night that began so long ago is not taken up again: the next one has its own."""
COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("night", "cell", "workload", "slice", "stack", "verdict", "cause", "why", "reason"), "string"),
    "ok": "bool",
    **dict.fromkeys(("plan", "bundle", "source", "evidence", "digest", "stopped", "run_dir"), "string"),
    **dict.fromkeys(("step_time_s", "low_s", "high_s", "roofline_step_time_s", "floor_s"), "double"),
    **dict.fromkeys(("mfu", "hbm_bytes", "chip_hours", "wall_s", "ratio"), "double"),
    **dict.fromkeys(("trials", "trials_to_best", "attempts"), "int64"),
    **dict.fromkeys(("parts", "versions", "settings", "words"), "string"),
}
"""Columns with their types; `night` is a UTC time as 20261201T010000Z, the last four are JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """What the events of a directory hold: rows of cells, the oldest first, with their verdicts; and the night that no
    event says has ended, None where there is none."""

    rows: tuple[Row, ...]
    verdicts: Mapping[tuple[str, str], Mapping[str, Any]]
    open_night: str | None
    names: frozenset[str]

    def before(self, night: str, cell: str) -> list[Row]:
        """A cell's rows of nights before one."""
        return [each for each in self.rows if each.cell == cell and each.night < night]

    def of(self, night: str) -> dict[str, Row]:
        """The rows of a night by cell."""
        return {each.cell: each for each in self.rows if each.night == night}


def kept(events: Iterable[Mapping[str, Any]]) -> Kept:
    """What events tell; of a cell that was run again in one night the last row counts."""
    rows: dict[tuple[str, str], Row] = {}
    verdicts: dict[tuple[str, str], Mapping[str, Any]] = {}
    names, open_night = set[str](), None
    for event in events:
        if event["kind"] == "night":
            open_night = event["night"]
            names.add(event["night"])
        elif event["kind"] == "night_ended":
            open_night = None
        elif event["kind"] == "cell":
            rows[event["night"], event["cell"]] = row_of(event)
        elif event["kind"] == "judged":
            verdicts[event["night"], event["cell"]] = event
    ordered = sorted(rows.values(), key=lambda each: each.night)
    return Kept(rows=tuple(ordered), verdicts=verdicts, open_night=open_night, names=frozenset(names))


def name_of(now: datetime, found: Kept) -> tuple[str, bool]:
    """The name of the night that begins now, and whether it takes up one that was cut short."""
    if found.open_night is not None and (now - _began(found.open_night)).total_seconds() < RESUMED_S:
        return found.open_night, True
    plain = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    name, count = plain, 1
    while name in found.names:
        count += 1
        name = f"{plain}-{count}"
    return name, False


def _began(night: str) -> datetime:
    return datetime.strptime(night.partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)


def write_history(found: Kept, root: Path) -> Path:
    """Write the table, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    kinds = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    table = pa.Table.from_pylist(_records(found.rows, found.verdicts), schema=schema)
    with draft_of(root / TABLE) as draft:
        parquet.write_table(table, draft, compression="zstd")
    return root / TABLE


def _records(rows: Sequence[Row], verdicts: Mapping[tuple[str, str], Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        told = verdicts.get((row.night, row.cell), {})
        plain = {name: getattr(row, name) for name in COLUMNS if hasattr(row, name)}
        texts = {name: json.dumps(plain[name], default=dict) for name in ("parts", "versions", "settings", "words")}
        judged = {name: told.get(name) for name in ("verdict", "cause", "ratio")}
        found.append({**plain, **texts, **judged, "why": "; ".join(told.get("why", ()))})
    return found

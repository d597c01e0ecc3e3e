"""What a night came to: a row for each cell, held against earlier nights, on one page, as JSON and on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from asap_ray.report import units
from asap_ray.report.outline import Block, Grid
from asap_ray.report.page import template

Verdict = Literal["improved", "unchanged", "regressed", "new", "failed"]
ORDER: tuple[Verdict, ...] = ("failed", "regressed", "improved", "new", "unchanged")
TITLES: Mapping[str, str] = {
    "failed": "Failed",
    "regressed": "Regressed",
    "improved": "Improved",
    "new": "New",
    "unchanged": "Unchanged",
}
MEASURED = ("run", "command")
"""Tiers whose steps are timed by a clock: two that differ by less than their intervals do not differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A cell of one night. Times are in seconds, sizes in bytes; what is not known is None.

    `ok` says that its study has an answer, else `reason` says why not. `trials_to_best` counts the trials up to the one
    that the best plan came from. `parts` are the parts of the best step, `versions` what the figures depend on, `words`
    the command, `settings` what stood in the files that its words name.
    """

    night: str
    cell: str
    workload: str
    slice: str
    stack: str
    words: tuple[str, ...]
    ok: bool
    reason: str = ""
    attempts: int = 1
    plan: str = ""
    bundle: str = ""
    source: str = ""
    evidence: str = ""
    digest: str = ""
    step_time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    roofline_step_time_s: float | None = None
    floor_s: float | None = None
    mfu: float | None = None
    hbm_bytes: float | None = None
    trials: int = 0
    trials_to_best: int | None = None
    chip_hours: float = 0.0
    wall_s: float = 0.0
    stopped: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    run_dir: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A row with its verdict: against which night, by what ratio of steps, and why, the cause first."""

    row: Row
    verdict: Verdict
    cause: str = ""
    why: tuple[str, ...] = ()
    against: str = ""
    before_s: float | None = None

    @property
    def ratio(self) -> float | None:
        """The step over that of the night it is held against."""
        if not self.before_s or self.row.step_time_s is None:
            return None
        return self.row.step_time_s / self.before_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Night:
    """One night: its name, a UTC time; the matrix; its cells; what it spent; and where its files are."""

    name: str
    matrix: str
    cells: tuple[Judged, ...]
    wall_s: float
    chip_hours: float
    folder: str

    def of(self, verdict: Verdict) -> tuple[Judged, ...]:
        """The cells of one verdict."""
        return tuple(each for each in self.cells if each.verdict == verdict)

    @property
    def status(self) -> int:
        """The exit status: 3 where a cell failed, 2 where one regressed, else 0."""
        return 3 if self.of("failed") else 2 if self.of("regressed") else 0


def row_of(mapping: Mapping[str, Any]) -> Row:
    """A row as an event tells it; fields of other versions are passed over."""
    names = {each.name for each in fields(Row)}
    given = {name: value for name, value in mapping.items() if name in names}
    return Row(**{**given, "words": tuple(given["words"])})


def night_fields(night: Night) -> dict[str, Any]:
    """The night as one JSON object."""
    return {
        "task": "nightly",
        "night": night.name,
        "matrix": night.matrix,
        "status": night.status,
        "counts": {verdict: len(night.of(verdict)) for verdict in ORDER},
        "wall_s": night.wall_s,
        "chip_hours": night.chip_hours,
        "cells": [_judged_fields(each) for each in night.cells],
        "folder": night.folder,
    }


def _judged_fields(each: Judged) -> dict[str, Any]:
    told = {"verdict": each.verdict, "cause": each.cause, "why": list(each.why), "against": each.against}
    row = {name: value for name, value in asdict(each.row).items() if name != "settings"}  # in history.parquet
    return {**row, **told, "before_s": each.before_s, "ratio": each.ratio}


def night_text(night: Night) -> str:
    """The same, as it lies in a file."""
    return json.dumps(night_fields(night), indent=2, allow_nan=False) + "\n"


def night_blocks(night: Night) -> Iterator[Block]:
    """What a reader is told: what went wrong first."""
    for verdict in ORDER:
        if found := night.of(verdict):
            yield Block(title=TITLES[verdict], grid=cells_grid(found))
            yield Block(facts=tuple((each.row.cell, line) for each in found for line in each.why))
    counts = ", ".join(f"{len(night.of(verdict))} {verdict}" for verdict in ORDER if night.of(verdict))
    spent = f"{units.seconds(night.wall_s)}, {units.three_digits(night.chip_hours)} chip-hours"
    yield Block(title=f"Night {night.name}", facts=(("cells", counts), ("spent", spent), ("page", night.folder)))


def cells_grid(cells: Sequence[Judged]) -> Grid:
    """Cells with their steps, beside those that they are held against."""
    header = ("cell", "step", "before", "change", "trials", "to best", "by", "plan")
    rows = tuple(
        (
            each.row.cell,
            units.seconds(each.row.step_time_s),
            units.seconds(each.before_s),
            f"{100 * (each.ratio - 1):+.1f}%" if each.ratio else units.DASH,
            str(each.row.trials),
            units.DASH if each.row.trials_to_best is None else str(each.row.trials_to_best),
            each.row.source or units.DASH,
            each.row.plan,
        )
        for each in cells
    )
    return Grid(header=header, rows=rows, words=("cell", "by", "plan"))


def night_page(night: Night, history: Mapping[str, Sequence[Row]]) -> str:
    """The whole page as HTML; `history` has each cell's earlier rows, the oldest first."""
    return template("night.html.j2").render(
        title=f"Night of {night.name}",
        lead=f"{len(night.cells)} cells of {night.matrix}, {units.seconds(night.wall_s)}, "
        f"{units.three_digits(night.chip_hours)} chip-hours",
        cards=[(TITLES[verdict], str(len(night.of(verdict))), "cells") for verdict in ORDER],
        sections=[
            (TITLES[verdict], cells_grid(found), [(each.row.cell, "; ".join(each.why)) for each in found if each.why])
            for verdict in ORDER
            if (found := night.of(verdict))
        ],
        history=[(cell, _history_grid(rows)) for cell, rows in history.items() if rows],
    )


def _history_grid(rows: Sequence[Row]) -> Grid:
    cells = tuple(
        (
            row.night,
            units.seconds(row.step_time_s) if row.ok else "failed",
            str(row.trials),
            row.source or units.DASH,
            " ".join(f"{name} {number}" for name, number in row.versions.items() if name in ("jax", "libtpu")),
            row.plan or row.reason,
        )
        for row in reversed(rows)
    )
    header = ("night", "step", "trials", "by", "with", "plan")
    return Grid(header=header, rows=cells, words=("night", "by", "with", "plan"))

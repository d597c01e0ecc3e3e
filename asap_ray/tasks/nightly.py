"""`task=nightly`: a study of each cell of a matrix, which begins with what the nights before have found.

Each cell is a process of its own with its own events, `nightly.parallel` at a time, and all share one memory. Time and
chip-hours are of all together: what one leaves over is the others', and cells that were longest without an answer come
first. A night that was cut short is taken up by the same command; two never overlap.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from asap_ray.config import Config
from asap_ray.drafts import write_whole
from asap_ray.ledger import Ledger
from asap_ray.report.answer import Tried
from asap_ray.report.night import Judged, Night, Row, night_blocks, night_fields, night_page, night_text
from asap_ray.report.summary import finite
from asap_ray.tasks.night import webhook
from asap_ray.tasks.night.history import Kept, kept, name_of, write_history
from asap_ray.tasks.night.lock import night_lock
from asap_ray.tasks.night.matrix import Cell, cells_of
from asap_ray.tasks.night.running import attempt, read_cell
from asap_ray.tasks.night.sharing import Purse, Share, side_by_side
from asap_ray.tasks.night.verdicts import NIGHTS, judged
from asap_ray.tasks.running import begin, tell, write_files

LEAST_MINUTES = 0.05
"""A cell is not begun with less."""


def run(config: Config) -> int:
    """Run the task; returns the exit status: 3 where a cell failed, 2 where one regressed, else 0.

    Raises:
        AsapError: something for the user to change.
    """
    cells, address = cells_of(config), webhook.address_of(config.nightly.webhook_hosts, os.environ)
    ledger, root = begin(config), config.run_path
    with night_lock(root):
        night = _night(config, cells, ledger, root)
        folder = Path(night.folder)
        found = kept(ledger.events())
        history = {each.row.cell: found.before(night.name, each.row.cell)[-NIGHTS:] for each in night.cells}
        write_files(config, lambda: write_whole(folder / "night.json", night_text(night)))
        write_files(config, lambda: write_whole(folder / "night.html", night_page(night, history)))
        write_files(config, lambda: write_history(found, root))
        if address is not None and (complaint := webhook.tell(address, night)):
            _say(complaint)
        counts = {"status": night.status, "wall_s": night.wall_s, "chip_hours": night.chip_hours}
        ledger.append("night_ended", {"night": night.name, **counts})
    tell(config, night_fields(night), night_blocks(night))
    return night.status


def _night(config: Config, cells: Sequence[Cell], ledger: Ledger, root: Path) -> Night:
    started, before = time.monotonic(), kept(ledger.events())
    name, resumed = name_of(datetime.now(UTC), before)
    write_files(config, lambda: (root / "nights" / name).mkdir(parents=True, exist_ok=True))
    if not resumed:
        ledger.append("night", {"night": name, "matrix": config.nightly.matrix, "cells": [each.name for each in cells]})
    found: dict[str, Judged] = {}
    parallel = config.nightly.parallel
    done = {cell: row for cell, row in before.of(name).items() if row.ok}  # before the night was cut short
    spent_s = sum(row.wall_s for row in done.values()) / parallel
    purse = Purse(
        minutes=config.budget.minutes,
        chip_hours=config.budget.chip_hours,
        parallel=parallel,
        started=started - spent_s,
        spent=sum(row.chip_hours for row in done.values()),
    )
    todo = _order([each for each in cells if each.name not in done], before)
    for cell in [each for each in cells if each.name in done]:
        found[cell.name] = _found_before(config, cell, name, root, before)
        ledger.append("judged", _told(found[cell.name]))

    def lend(cell: Cell, left: int) -> Share:
        share = purse.lend(cell.name, left)
        if not _nothing_left(share):
            ledger.append("cell_began", {"night": name, "cell": cell.name, **asdict(share)})
            _say("  ".join(("", cell.name, *share.words)))
        return share

    def work(cell: Cell, share: Share, stop: threading.Event) -> tuple[Row, list[Tried]]:
        return _study(config, cell, name, root, share, stop)

    for cell, (row, tried) in side_by_side(todo, parallel, lend, work):
        purse.paid(cell.name, row.chip_hours)
        if row.attempts:
            ledger.append("cell", finite(asdict(row)))
        found[cell.name] = judged(row, before.before(name, cell.name), tried, config.nightly.tolerance)
        ledger.append("judged", _told(found[cell.name]))
    return Night(
        name=name,
        matrix=config.nightly.matrix or "",
        cells=tuple(found[each.name] for each in cells),
        wall_s=time.monotonic() - purse.started,
        chip_hours=purse.spent,
        folder=str(root / "nights" / name),
    )


def _told(each: Judged) -> dict[str, object]:
    told = {"night": each.row.night, "cell": each.row.cell, "verdict": each.verdict, "cause": each.cause}
    return finite({**told, "why": list(each.why), "against": each.against, "ratio": each.ratio})


def _order(cells: Sequence[Cell], before: Kept) -> list[Cell]:
    """Cells that were longest without an answer first, so that none starves where time runs out."""
    last = {row.cell: row.night for row in before.rows if row.ok}
    return sorted(cells, key=lambda each: last.get(each.name, ""))


def _found_before(config: Config, cell: Cell, night: str, root: Path, before: Kept) -> Judged:
    """A cell that had its answer before the night was cut short."""
    row, folder = before.of(night)[cell.name], root / "nights" / night / cell.name
    tried = read_cell(night, cell, folder, row.attempts)[1]
    return judged(row, before.before(night, cell.name), tried, config.nightly.tolerance)


def _study(
    config: Config, cell: Cell, night: str, root: Path, share: Share, stop: threading.Event
) -> tuple[Row, list[Tried]]:
    """What a cell comes to, with its trials; nothing is attempted where nothing is left for it."""
    if spent := _nothing_left(share):
        row = Row(
            night=night,
            cell=cell.name,
            workload=cell.workload,
            slice=cell.slice,
            stack=cell.stack,
            words=cell.words,
            ok=False,
            reason=spent,
            attempts=0,
        )
        return row, []
    folder = root / "nights" / night / cell.name
    attempts = attempt(cell, folder, root / "memory", share, config.nightly.retries, _say, stop)
    return read_cell(night, cell, folder, attempts)


def _nothing_left(share: Share) -> str:
    if share.minutes is not None and share.minutes < LEAST_MINUTES:
        return "no time was left for it: budget.minutes"
    return "no chip-hours were left for it: budget.chip_hours" if share.chip_hours == 0 else ""


def _say(line: str) -> None:
    print(line, file=sys.stderr)
    sys.stderr.flush()

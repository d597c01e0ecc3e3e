"""`task=calibrate`: fit the constants of the roofline to measured runs, and say how well they predict unseen ones.

It needs no model. Without tables, the runs that the project carries decide, starting from what conf/calibration states
by hand. With tables of the user's own, it starts from the constants as they are, and moves them as far as the runs say.
The result is a folder that any later command takes: `--config-dir RUN/conf`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from typing import Any

import numpy as np

from asap_ray.config import Config
from asap_ray.drafts import write_whole
from asap_ray.errors import ConfigError
from asap_ray.fitting.folds import Fitter, Fold, Whole
from asap_ray.fitting.observations import Observations
from asap_ray.fitting.parameters import Values, beliefs_of
from asap_ray.fitting.spreads import fit_spreads
from asap_ray.fitting.store import FOLDS, fitted_text, write_folds
from asap_ray.interchange.measured import MeasuredRow
from asap_ray.interchange.measured_tables import read_tables
from asap_ray.report.calibration import CalibrationAnswer, calibration_fields, outline
from asap_ray.report.progress import progress
from asap_ray.settings import load_group, setting_files
from asap_ray.tasks.here import calibrate_here
from asap_ray.tasks.machine import LOCAL
from asap_ray.tasks.predictions import Mapped, load_mapper, map_rows
from asap_ray.tasks.running import begin, command_line, tell, versions, write_files
from asap_ray.tasks.validate import carried_tables

KEY = "calibrate.tables"
ROUNDS = 6
USED = ("A", "B")
"""Qualities of rows that constants are fitted to; C are headlines alone."""
LEAST = 3
"""Runs without which there is nothing to fit."""
SPREAD_ROWS = 20
"""Runs of a stack that may change its intervals, where they are a user's own."""
INFORMED = 0.9
"""Share of a belief's width that the runs may leave at most, for a constant to count as fitted."""
_observed: Observations | None = None  # for the processes that evaluate it: they are forked from this one


def run(config: Config) -> int:
    """Run the task; returns the exit status.

    Raises:
        AsapError: something for the user to change.
    """
    if LOCAL in config.hardware.slices:
        return calibrate_here(config)
    started = time.monotonic()
    tables = config.calibrate.tables or carried_tables()
    mapped = map_rows(read_tables(KEY, tables), load_mapper(config.config_dir))
    rows = [row for row in mapped.rows if row.step_time_s and (row.quality or USED[0]) in USED]
    if len(rows) < LEAST:
        raise ConfigError(KEY, ", ".join(tables), _too_few(len(rows), mapped))
    files = load_group("calibration", config.config_dir)
    observed = Observations(rows, beliefs_of(files, keeps_fits=config.calibrate.tables is not None))
    ledger = begin(config)  # a folder that cannot be written to is told before minutes of work, not after them
    whole, folds = _fitted(observed, config.calibrate.folds)
    answer = CalibrationAnswer(
        tables=tuple(tables),
        scale=whole.scale,
        solution=whole.solution,
        rows=tuple(rows),
        before=observed.errors({}),
        after=observed.errors(whole.values),
        unseen=_unseen(observed, folds),
        command=command_line(),
        run_dir=config.run_path,
        wall_s=time.monotonic() - started,
        versions=versions(),
    )
    fields = calibration_fields(answer)
    write_files(config, lambda: _write(config, answer, files, whole, folds, observed))
    ledger.append("calibrated", fields)
    tell(config, fields, outline(answer, INFORMED))
    return 0


def _too_few(found: int, mapped: Mapped) -> str:
    """What is allowed where there is nothing to fit to, and what most often keeps rows from being used."""
    (why,) = (reason for reason, _ in mapped.unmapped.most_common(1) or [("", 0)])
    allowed = f"allowed: tables with {LEAST} or more runs of a known plan and time; {found} of {mapped.read} rows are"
    return f"{allowed}{f', most often for {why!r}' if why else ''}; task=validate tells why"


def _fitted(observed: Observations, cross_validates: bool) -> tuple[Whole, list[Fold]]:
    """The fit to all rows and, where asked for, those of the folds; estimates run on all cores."""
    global _observed
    _observed = observed
    folds: list[Fold] = []
    cores = os.cpu_count() or 1
    with (
        ProcessPoolExecutor(cores, mp_context=get_context("fork"), initializer=_follow_parent) as pool,
        progress("fitting constants", sys.stderr) as told,
    ):

        def columns(jobs: list[tuple[Values, np.ndarray]]) -> list[np.ndarray]:
            return list(pool.map(_errors, *zip(*jobs, strict=True)))

        fitter = Fitter(observed, columns)
        whole = fitter.whole(ROUNDS, lambda share: told(share / 2) if told else None)
        if cross_validates:
            count = len({(row.source, row.model) for row in observed.rows})
            for fold in fitter.folds(whole):
                folds.append(fold)
                if told:
                    told(0.5 + len(folds) / count / 2)
    return whole, folds


def _follow_parent() -> None:
    """End this process with the one that forked it, also where that was killed: it would wait for work forever."""
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _errors(values: Values, wanted: np.ndarray) -> np.ndarray:
    assert _observed is not None
    return _observed.errors(values, wanted)


def _unseen(observed: Observations, folds: Sequence[Fold]) -> np.ndarray | None:
    """Errors of each row with the constants of the fold that has not seen it [rows]; None without folds."""
    if not folds:
        return None
    found = np.zeros(len(observed.rows))
    for fold in folds:
        own = observed.where(row.source == fold.source and row.model == fold.model for row in observed.rows)
        found += observed.errors(fold.values, own)
    return found


def _write(
    config: Config,
    answer: CalibrationAnswer,
    files: Mapping[str, Mapping[str, Any]],
    whole: Whole,
    folds: Sequence[Fold],
    observed: Observations,
) -> None:
    """Write calibration files, as a folder for --config-dir, and the folds."""
    folder = config.run_path / "conf" / "calibration"
    folder.mkdir(parents=True, exist_ok=True)
    fitted = answer.fitted(INFORMED)
    if answer.unseen is not None:
        spreads = fit_spreads(answer.unseen, observed.shares(whole.values), observed.stack_files)
        for parameter, value in spreads.items():
            # A user's few runs do not say how wide intervals must be.
            if config.calibrate.tables is None or observed.of_file(parameter.file).sum() >= SPREAD_ROWS:
                fitted.setdefault(parameter.file, {})[parameter.constant] = (value, 0.0)
        write_folds(config.run_path / FOLDS, folds, answer.rows)
    paths = setting_files("calibration", config.config_dir)
    for name, constants in fitted.items():
        touched = [row for row, own in zip(answer.rows, observed.of_file(name), strict=True) if own]
        text = paths[name].read_text() if name in paths else _new_file(name, touched)
        # Runs of the user's own add to what was fitted before; those that are carried fit everything anew.
        kept = files.get(name, {}) if config.calibrate.tables else {}
        found = {**{key: tuple(pair) for key, pair in kept.get("fitted", {}).items()}, **constants}
        counts = Counter(kept.get("rows", {})) + Counter(row.source for row in touched)
        write_whole(folder / f"{name}.yaml", fitted_text(text, found, counts))


def _new_file(name: str, rows: Sequence[MeasuredRow]) -> str:
    """What stands above the fit in a file that does not exist yet."""
    if name.startswith("stack_"):
        return f"stack: {name.removeprefix('stack_')}\n"
    return f"base: {rows[0].problem.slice.chip.kind}\n"

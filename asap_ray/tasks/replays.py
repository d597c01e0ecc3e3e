"""Tables of measured runs as grounds to search: one for each workload with enough distinct plans that ran.

The constants with which the roofline prices a ground are fitted without its source. Of a chip and its links no row of
the source had a part in them. What a stack decides needs runs of that stack, which are often of one source alone:
with `source` it is left as it was stated before any fit, with `model` it is fitted to the source's other models
(`fitting.folds`), never to a row of the ground.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from asap_ray.contest.ground import Outcome, Replay
from asap_ray.fitting.parameters import Beliefs, Values, beliefs_of
from asap_ray.fitting.store import FOLDS, named_folds
from asap_ray.interchange.measured import MeasuredRow
from asap_ray.interchange.measured_groups import MeasuredGroups
from asap_ray.interchange.measured_tables import read_tables
from asap_ray.physics.calibration import CONSTANTS, Calibration, calibration_of
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.settings import data_dir, load_group, read_settings, setting_files
from asap_ray.tasks.predictions import load_mapper, map_rows, predict

LEAST = 8
"""Distinct plans that must have run for a search among them to mean anything."""
WITHOUT = {
    "source": "chip and links: fitted without the source; stack: as stated, fitted to nothing",
    "model": "chip and links: fitted without the source; stack: fitted to the source's other models",
    "unseen": "as fitted: no row of the source had a part in it",
}
"""What the constants of a ground were fitted without, by `compare.leave_out`."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The constants for a row of a source, chosen by the names of source and model alone: no time of the row is read.

    `folds` holds what was fitted without each source and model; `fitted` are the constants with all fits, `stated`
    without any.
    """

    fitted: Beliefs
    stated: Beliefs
    folds: dict[tuple[str, str], Values]
    leave_out: str

    def known(self, source: str) -> Values | None:
        """The constants of any fold of a source: those of chips are the same in all; None of a source never seen."""
        return next((values for (name, _), values in self.folds.items() if name == source), None)

    def about(self, source: str) -> str:
        """What they were fitted without."""
        return WITHOUT["unseen" if self.known(source) is None else self.leave_out]

    def __call__(self, row: MeasuredRow) -> Calibration:
        """The constants for a row."""
        chip, stack = row.problem.slice.chip, row.problem.stack.name
        owners = self.fitted.owners(chip, stack)
        any_fold = self.known(row.source)
        own = self.folds.get((row.source, row.model))
        if any_fold is None:
            return self.fitted.calibration(chip, owners, stack, {})
        found = self.fitted.calibration(chip, owners, stack, own or any_fold)
        if self.leave_out == "model" and own is not None:
            return found
        plain = calibration_of(chip, stack, self.stated.stated)
        return replace(found, **{n: getattr(plain, n) for n, about in CONSTANTS.items() if about["owner"] == "stack"})


def load_left_out(leave_out: str, config_dir: str | None = None) -> LeftOut:
    """The constants by source and model; of a user's own calibrations nothing is left out.

    Raises:
        ConfigError: a calibration cannot be used.
    """
    files = load_group("calibration", config_dir)
    own = setting_files("calibration", config_dir).values()
    ours = all(path.is_relative_to(data_dir("conf")) for path in own)
    return LeftOut(
        fitted=beliefs_of(files, keeps_fits=True),
        stated=beliefs_of(files, keeps_fits=False),
        folds=named_folds(data_dir("knowledge") / FOLDS) if ours else {},
        leave_out=leave_out,
    )


def replays(tables: Sequence[str], leave_out: str, margin: float, config_dir: str | None = None) -> list[Replay]:
    """The grounds of some tables, in the order of first appearance.

    Raises:
        ConfigError: a table cannot be read.
    """
    mapped = map_rows(read_tables("compare.tables", tables), load_mapper(config_dir, margin))
    groups = MeasuredGroups(read_settings(data_dir("knowledge") / "measured" / "groups.yaml"))
    workloads: dict[tuple[str, str, int], list[MeasuredRow]] = {}
    for row in mapped.rows:
        for name in groups.ranks_of(row):
            workloads.setdefault((row.source, name, id(row.problem)), []).append(row)
    wanted = {key: rows for key, rows in workloads.items() if _ran(rows) >= LEAST}
    constants = load_left_out(leave_out, config_dir)
    chosen = list({id(row): row for rows in wanted.values() for row in rows}.values())
    priced = dict(zip(map(id, chosen), predict(chosen, constants), strict=True))
    found: dict[str, Replay] = {}
    for (source, name, _), rows in wanted.items():
        ground = _replay(source, name, rows, [priced[id(row)] for row in rows], constants.about(source))
        if ground is not None:
            found[_fresh(ground.name, rows[0], found)] = replace(ground, name=_fresh(ground.name, rows[0], found))
    return list(found.values())


def _fresh(name: str, row: MeasuredRow, taken: dict[str, Replay]) -> str:
    """A name that no other ground has: a workload may have been run with several kernels, each a stack of its own."""
    return name if name not in taken else f"{name}, {row.problem.stack.name}"


def _ran(rows: Sequence[MeasuredRow]) -> int:
    return len({row.plan for row in rows if row.status == "ok" and row.step_time_s})


def _replay(
    source: str, name: str, rows: Sequence[MeasuredRow], priced: Sequence[Estimate | str], about: str
) -> Replay | None:
    """The ground of a workload; None where too few can be priced.

    Plans stand in their own order: some tables are sorted by what was measured, and the order of a pool decides ties.
    """
    estimates: dict[Plan, Estimate] = {}
    runs: dict[Plan, list[MeasuredRow]] = {}
    for row, estimate in zip(rows, priced, strict=True):
        if not isinstance(estimate, str) and (row.step_time_s or row.status != "ok"):
            estimates.setdefault(row.plan, estimate)
            runs.setdefault(row.plan, []).append(row)
    plans = sorted(runs)
    outcomes = tuple(_outcome(runs[plan]) for plan in plans)
    if sum(status == "complete" for status, _ in outcomes) < LEAST:
        return None
    return Replay(
        name=f"{source}: {name}",
        source=source,
        constants=about,
        problem=rows[0].problem,
        estimates=tuple(estimates[plan] for plan in plans),
        outcomes=outcomes,
    )


def _outcome(rows: Sequence[MeasuredRow]) -> Outcome:
    """What comes of a plan: the median of its runs where any ran, else that it did not fit or failed."""
    steps = [row.step_time_s for row in rows if row.status == "ok" and row.step_time_s]
    if steps:
        return "complete", statistics.median(steps)
    return ("infeasible" if any(row.status == "oom" for row in rows) else "failed"), None

"""Tables of measured runs as grounds to search: one for each workload with enough distinct plans that ran.

The constants with which the roofline prices a ground are fitted without its source. Of a chip and its links no row of
the source had a part in them. What a stack decides needs runs of that stack, which are often of one source alone:
with `source` it is what was stated before any fit, moved as fits to other sources have moved the same constant of other
stacks (the median), with `model` it is fitted to the source's other models (`fitting.folds`), never to a row of the
ground. The memory of a ground is what the fastest plans of other publishers' grounds have to say.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from asap_ray.cases import Case, situation_of
from asap_ray.contest.ground import Outcome, Replay
from asap_ray.contest.methods import publisher_of
from asap_ray.fitting.parameters import Beliefs, Parameter, Values, beliefs_of
from asap_ray.fitting.store import FOLDS, named_folds
from asap_ray.interchange.measured import MeasuredRow
from asap_ray.interchange.measured_groups import MeasuredGroups
from asap_ray.interchange.measured_tables import read_tables
from asap_ray.physics.calibration import CONSTANTS, Calibration, calibration_of
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.recall import recalled
from asap_ray.settings import data_dir, load_group, read_settings, setting_files
from asap_ray.tasks.predictions import load_mapper, map_rows, predict

LEAST = 8
"""Distinct plans that must have run for a search among them to mean anything."""
OF_STACK = tuple(name for name, about in CONSTANTS.items() if about["owner"] == "stack")
FEW = 2
"""Stacks of other sources whose fits say which way a constant is off; one alone says nothing."""
TINY = 1e-9
WITHOUT = {
    "source": "chip and links: fitted without the source; stack: as stated, moved as fits of other stacks were",
    "model": "chip and links: fitted without the source; stack: fitted to the source's other models",
    "unseen": "as fitted: no row of the source had a part in it",
}
"""What the constants of a ground were fitted without, by `compare.leave_out`."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The constants for a row of a source, chosen by the names of source and model alone: no time of the row is read.

    `folds` holds what was fitted without each source and model; `fitted` are the constants with all fits, `stated`
    without any. `files` are the calibrations as they are written, with the sources that each was fitted to.
    """

    fitted: Beliefs
    stated: Beliefs
    folds: Mapping[tuple[str, str], Values]
    files: Mapping[str, Mapping[str, Any]]
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
        return replace(found, **{name: self._moved(name, plain, row.source) for name in OF_STACK})

    def _moved(self, name: str, plain: Calibration, source: str) -> float:
        """A constant of a stack as stated, moved as fits without the source have moved it in the median."""
        stated, moves = getattr(plain, name), []
        for file in self.files.values():
            if "stack" in file and name in file.get("fitted", {}) and source not in file.get("rows", {}):
                before, after = self._stated_of(str(file["stack"]), name), float(file["fitted"][name][0])
                moves.append(after - before if _linear(name) else math.log(max(after, TINY) / max(before, TINY)))
        move = statistics.median(moves) if len(moves) >= FEW else 0.0
        about = CONSTANTS[name]
        return min(max(stated + move if _linear(name) else stated * math.exp(move), about["least"]), about["most"])

    def _stated_of(self, stack: str, name: str) -> float:
        """What a stack's own file, or else the class of its chips, states."""
        stated = self.stated.stated
        return float(stated.stacks.get(stack, {}).get(name, getattr(stated["gpu"], name)))


def _linear(name: str) -> bool:
    """Whether fits move the constant itself, not its logarithm."""
    return Parameter("", name).linear


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
        files=files,
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
    return _remembering(list(found.values()))


def _remembering(grounds: Sequence[Replay]) -> list[Replay]:
    """The grounds, each with what those of other sources have to say: their fastest plans."""
    cases = [(publisher_of(each.source), case_of(each)) for each in grounds]
    found = []
    for ground in grounds:
        others = [case for name, case in cases if name != publisher_of(ground.source)]
        found.append(replace(ground, recall=recalled(others, situation_of(ground.problem))))
    return found


def case_of(ground: Replay) -> Case:
    """The fastest plan of a ground, as the memory would have it."""
    pairs = zip(ground.estimates, ground.outcomes, strict=True)
    estimate, step_s = min(((e, step) for e, (_, step) in pairs if step), key=lambda pair: pair[1])
    return Case(
        situation=situation_of(ground.problem),
        source="replay",
        evidence=ground.source,
        bundle="default",
        plan=estimate.plan.line,
        status="complete",
        roofline_s=estimate.step_time_s,
        step_time_s=step_s,
    )


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

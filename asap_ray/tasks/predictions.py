"""What the roofline says of measured runs: rows of tables mapped, given a time, and priced, each with the constants
that may be used for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asap_ray.chip import chip_from_mapping
from asap_ray.comparison import Compared
from asap_ray.errors import AsapError, shown
from asap_ray.fitting.parameters import Beliefs, beliefs_of
from asap_ray.fitting.store import FOLDS, Folds, read_folds
from asap_ray.interchange.measured import Mapper, MeasuredRow, Unmapped
from asap_ray.interchange.measured_flops import timed
from asap_ray.interchange.measured_groups import MeasuredGroups
from asap_ray.physics.calibration import CONSTANTS, Calibration
from asap_ray.physics.estimate import Estimate
from asap_ray.physics.roofline import Pricer
from asap_ray.problem import Problem
from asap_ray.settings import data_dir, load_group, read_settings, setting_files
from asap_ray.space import Space
from asap_ray.stack import stack_from_mapping
from asap_ray.validation import Validation

STATUSES = ("ok", "oom", "fail")
UNTIMED = "step time: not stated, nor a rate whose FLOP convention is known"
MOST_REASON = 160

CalibrationFor = Callable[[MeasuredRow], Calibration]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mapped:
    """The rows of some tables that stand for a plan, and how many do not, or have no time, by reason."""

    read: int
    rows: tuple[MeasuredRow, ...]
    unmapped: Counter[str]
    complete_unmapped: int


def load_mapper(config_dir: str | None = None, margin: float = 0.0) -> Mapper:
    """The mapper of measured rows, with the user's own chips, stacks and models; plans must leave a `margin` of the
    memory.

    Raises:
        ConfigError: a setting cannot be used.
    """
    return Mapper(
        chips={name: chip_from_mapping(given) for name, given in load_group("hardware", config_dir).items()},
        stacks={name: stack_from_mapping(given) for name, given in load_group("stack", config_dir).items()},
        models=load_group("model", config_dir),
        defaults=read_settings(data_dir("knowledge") / "measured" / "defaults.yaml"),
        margin=margin,
    )


def map_rows(table_rows: Sequence[Mapping[str, Any]], mapper: Mapper) -> Mapped:
    """Rows as measured plans, with a step time where any figure gives one; the same row twice counts once."""
    rows: list[MeasuredRow] = []
    unmapped: Counter[str] = Counter()
    complete, seen = 0, set[tuple[object, ...]]()
    for given in table_rows:
        content = _content(given)
        found = Unmapped("", "", "duplicate: the same row again", False) if content in seen else mapper.map(given)
        seen.add(content)
        if isinstance(found, Unmapped):
            unmapped[shown(found.reason, MOST_REASON)] += 1
            complete += found.complete
            continue
        if found.status not in STATUSES:
            unmapped[f"status: {shown(found.status or 'nothing', 40)} is none of {', '.join(STATUSES)}"] += 1
            continue
        found = timed(found, mapper.defaults["flops"])
        if found.status == "ok" and found.step_time_s is None:
            unmapped[UNTIMED] += 1
        rows.append(found)
    return Mapped(read=len(table_rows), rows=tuple(rows), unmapped=unmapped, complete_unmapped=complete)


def _content(row: Mapping[str, Any]) -> tuple[object, ...]:
    """All that a row says; where it has no id of its own, its place in the table is none of it."""
    hidden = ("table", "id") if str(row["id"]).startswith(f"{row['table']}-") else ("table",)
    return tuple((name, row[name]) for name in sorted(row) if name not in hidden and row[name] is not None)


@dataclass(frozen=True, slots=True)
class Constants:
    """How the constants are chosen that a row is predicted with: those of conf/calibration, but for a row that they
    were fitted to, those that were fitted without it (`fitting.folds`)."""

    beliefs: Beliefs
    folds: Folds

    def __call__(self, row: MeasuredRow) -> Calibration:
        """The constants for a row."""
        chip, stack = row.problem.slice.chip, row.problem.stack.name
        return self.beliefs.calibration(chip, self.beliefs.owners(chip, stack), stack, self.folds.values_for(row) or {})

    def left_out(self, row: MeasuredRow) -> bool:
        """Whether the calibration was fitted to the row, which is therefore predicted from the others."""
        return self.folds.values_for(row) is not None


def load_constants(config_dir: str | None = None) -> Constants:
    """The constants of conf/calibration and their folds; a user's own calibrations are taken as they are.

    Raises:
        ConfigError: a calibration cannot be used.
    """
    files = load_group("calibration", config_dir)
    own = setting_files("calibration", config_dir).values()
    ours = all(path.is_relative_to(data_dir("conf")) for path in own)
    folds = read_folds(data_dir("knowledge") / FOLDS) if ours else Folds((), {})
    return Constants(beliefs_of(files, keeps_fits=True), folds)


def predict(
    rows: Sequence[MeasuredRow], calibration_for: CalibrationFor, told: Callable[[float], None] | None = None
) -> list[Estimate | str]:
    """What the roofline says of each row's plan, or why it says nothing; rows that share problem and constants are
    priced together.

    Args:
        rows: measured runs.
        calibration_for: the constants that a row is predicted with.
        told: takes the share of the rows that is done.
    """
    groups: dict[tuple[object, ...], tuple[Problem, Calibration, list[int]]] = {}
    for i, row in enumerate(rows):
        calibration = calibration_for(row)
        key = (id(row.problem), *(getattr(calibration, name) for name in CONSTANTS))
        groups.setdefault(key, (row.problem, calibration, []))[2].append(i)
    found: list[Estimate | str] = [""] * len(rows)
    done = 0
    for problem, calibration, members in groups.values():
        for i, estimate in zip(members, _priced(problem, calibration, [rows[i] for i in members]), strict=True):
            found[i] = estimate
        done += len(members)
        if told:
            told(done / len(rows))
    return found


def _priced(problem: Problem, calibration: Calibration, rows: Sequence[MeasuredRow]) -> list[Estimate | str]:
    pricer, space = Pricer(problem, calibration), Space(problem=problem)
    try:
        plans = [row.plan for row in rows]
        return [_finite(each) for each in pricer.estimates(space.columns(plans), plans)]
    except (AsapError, ArithmeticError, ValueError) as error:
        # A table may hold a plan that only its trainer knows how to run; it must not take the others with it.
        if len(rows) == 1:
            return [f"plan: {shown(str(error), MOST_REASON)}"]
        return [each for row in rows for each in _priced(problem, calibration, [row])]


def _finite(estimate: Estimate) -> Estimate | str:
    figures = (estimate.step_time_s, estimate.hbm_bytes, estimate.floor_s)
    return estimate if all(0 < figure < math.inf for figure in figures) else "plan: its estimate is no finite number"


def beside(
    tables: Sequence[str],
    mapped: Mapped,
    estimates: Sequence[Estimate | str],
    peaks: Sequence[float | None],
    groups: MeasuredGroups,
) -> Validation:
    """Each row beside its estimate; what has none is counted with the rows that could not be mapped."""
    found, unmapped, complete = [], mapped.unmapped.copy(), mapped.complete_unmapped
    for row, estimate, peak in zip(mapped.rows, estimates, peaks, strict=True):
        if isinstance(estimate, str):
            unmapped[estimate] += 1
            complete += row.step_time_s is not None
        else:
            found.append(_compared(row, estimate, peak, groups))
    return Validation(
        tables=tuple(tables),
        read=mapped.read,
        rows=tuple(found),
        order=groups.names,
        unmapped=dict(unmapped.most_common()),
        complete_unmapped=complete,
    )


def _compared(row: MeasuredRow, estimate: Estimate, peak: float | None, groups: MeasuredGroups) -> Compared:
    group, headline = groups.group_of(row)
    return Compared(
        id=row.id,
        table=row.table,
        source=row.source or row.table,
        url=row.url,
        model=row.model,
        group=group,
        headline=headline,
        ranks=groups.ranks_of(row),
        problem=row.problem,
        estimate=estimate,
        measured_s=row.step_time_s,
        time_basis=row.time_basis,
        status=row.status,
        quality=row.quality,
        inferred=row.inferred,
        peak_bytes=row.peak_bytes,
        predicted_peak_bytes=peak,
    )

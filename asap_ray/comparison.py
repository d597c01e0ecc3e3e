"""Predictions beside measurements: each row of a table with what is said of it, and the figures that sum them up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from asap_ray.accuracy import (
    LARGE_GROUP,
    CoverageBlock,
    ErrorBlock,
    MemoryBlock,
    RankingBlock,
    RankingSummary,
    coverage_block,
    error_block,
    memory_block,
    ranking_block,
    ranking_summary,
)
from asap_ray.physics.estimate import Estimate
from asap_ray.problem import Problem

LEAST_PLANS = 3
"""Distinct plans that a ranking needs to say anything."""
HEADLINE_QUALITY = "A"


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One measured run beside its estimate.

    `measured_s` is None where the run failed or its source gives no time; `time_basis` says how it was come by (metric,
    derived, tokens, tflops, mfu). `group` is the row of the table of results that it belongs to, `headline` whether
    that counts in the headline; `ranks` are the workloads among whose plans it is ranked. `peak_bytes` is the measured
    memory, `predicted_peak_bytes` what is predicted of the same figure on the same devices. `inferred` are the fields
    that the row does not state, each with where its value is from.
    """

    id: str
    table: str
    source: str
    url: str
    model: str
    group: str
    headline: bool
    ranks: tuple[str, ...]
    problem: Problem
    estimate: Estimate
    measured_s: float | None
    time_basis: str
    status: str
    quality: str
    inferred: tuple[str, ...]
    peak_bytes: float | None
    predicted_peak_bytes: float | None

    @property
    def hardware(self) -> str:
        """The chip."""
        return self.problem.slice.chip.name

    @property
    def ratio(self) -> float:
        """Predicted over measured time; NaN where no time was measured."""
        return self.estimate.step_time_s / self.measured_s if self.measured_s else float("nan")


def errors(name: str, rows: Sequence[Compared]) -> ErrorBlock:
    """Errors of the step times of timed rows."""
    predicted, measured = _times(rows)
    return error_block(name, predicted, measured, np.array([bool(row.inferred) for row in rows], bool))


def memory_errors(name: str, rows: Iterable[Compared]) -> ErrorBlock:
    """Errors of the peak memory of the rows whose source measured it."""
    known = [row for row in rows if row.peak_bytes]
    return error_block(
        name,
        np.array([row.predicted_peak_bytes or 0.0 for row in known]),
        np.array([row.peak_bytes or 0.0 for row in known]),
        np.array([bool(row.inferred) for row in known], bool),
    )


def rankings(rows: Iterable[Compared]) -> list[RankingBlock]:
    """One block for each workload of which at least three plans were measured; runs of one plan count by their
    median."""
    workloads: dict[tuple[str, str], defaultdict[tuple[object, ...], list[Compared]]] = {}
    for row in rows:
        if row.status == "ok" and row.measured_s:
            for name in row.ranks:
                plans = workloads.setdefault((row.source, name), defaultdict(list))
                plans[row.problem.stack.name, row.problem.workload.architecture, row.estimate.plan].append(row)
    blocks = []
    for (_, name), plans in workloads.items():
        if len(plans) >= LEAST_PLANS:
            measured = [float(np.median([row.measured_s or 0.0 for row in alike])) for alike in plans.values()]
            predicted = [float(np.median([row.estimate.step_time_s for row in alike])) for alike in plans.values()]
            blocks.append(ranking_block(name, np.array(predicted), np.array(measured)))
    return blocks


def memory_verdicts(rows: Iterable[Compared]) -> list[MemoryBlock]:
    """Of each source that marks runs out of memory: what was foreseen of them, and of the runs that went well."""
    sources: defaultdict[str, list[Compared]] = defaultdict(list)
    for row in rows:
        if row.status in ("ok", "oom"):
            sources[row.source].append(row)
    marking = {name: found for name, found in sources.items() if any(row.status == "oom" for row in found)}
    return [_verdicts(name, found) for name, found in marking.items()]


def _verdicts(name: str, rows: Sequence[Compared]) -> MemoryBlock:
    misses = np.array([not row.estimate.fits for row in rows], bool)
    return memory_block(name, misses, np.array([row.status == "oom" for row in rows], bool))


def summed(name: str, blocks: Iterable[MemoryBlock]) -> MemoryBlock:
    """Verdicts of several sources together."""
    blocks = list(blocks)
    counts = {key: sum(getattr(each, key) for each in blocks) for key in ("tp", "fp", "tn", "fn")}
    return MemoryBlock(name=name, **counts)


def coverages(name: str, rows: Sequence[Compared]) -> CoverageBlock:
    """How often the intervals hold the measured times."""
    predicted, measured = _times(rows)
    low, high = (np.array([row.estimate.interval_s[end] for row in rows]) for end in (0, 1))
    return coverage_block(name, predicted, low, high, measured)


def _times(rows: Sequence[Compared]) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([row.estimate.step_time_s for row in rows], float),
        np.array([row.measured_s or float("nan") for row in rows], float),
    )


def split_by(rows: Iterable[Compared], key: Callable[[Compared], str]) -> dict[str, list[Compared]]:
    """Rows by a name, in the order of first appearance."""
    found: defaultdict[str, list[Compared]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return dict(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Floors:
    """Floors over measured times: their median and largest, and the ids of rows measured below their floor."""

    n: int
    median: float | None
    max: float | None
    violations: tuple[str, ...]


def floors(rows: Sequence[Compared]) -> Floors:
    """How far below the measured times the floors lie."""
    values = [row.estimate.floor_s / row.measured_s for row in rows if row.measured_s]
    return Floors(
        n=len(values),
        median=float(np.median(values)) if values else None,
        max=max(values, default=None),
        violations=tuple(row.id for row in rows if row.measured_s and row.measured_s < row.estimate.floor_s),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """One row of the table of results: errors, and the rankings among its own rows."""

    errors: ErrorBlock
    ranking: RankingSummary


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """All rows of some tables beside their estimates.

    `read` counts the rows of the tables, `unmapped` those that stand for no plan, or have no time, by reason;
    `complete_unmapped` those of them that state shape, mesh and time. `order` are the names of the groups, as they are
    to be shown.
    """

    tables: tuple[str, ...]
    read: int
    rows: tuple[Compared, ...]
    order: tuple[str, ...]
    unmapped: Mapping[str, int]
    complete_unmapped: int

    @property
    def timed(self) -> list[Compared]:
        """The rows with a measured step time."""
        return [row for row in self.rows if row.measured_s]

    @property
    def headline(self) -> list[Compared]:
        """Timed rows of the best quality whose group counts in the headline."""
        return [row for row in self.timed if row.headline and row.quality == HEADLINE_QUALITY]

    @property
    def mapped_share(self) -> float | None:
        """Share that could be mapped of the rows with a shape, a mesh and a time."""
        timed = len(self.timed)
        return timed / (timed + self.complete_unmapped) if timed + self.complete_unmapped else None

    def groups(self) -> list[Group]:
        """The groups that have timed rows, in their order."""
        found = split_by(self.timed, lambda row: row.group)
        return [
            Group(errors=errors(name, found[name]), ranking=ranking_summary(name, rankings(found[name])))
            for name in self.order
            if name in found
        ]

    def sources(self) -> list[ErrorBlock]:
        """Errors by source; a source whose rows are in several groups, of which one is out of the headline, by group
        besides."""
        blocks = []
        for source, rows in split_by(self.timed, lambda row: row.source).items():
            blocks.append(errors(source, rows))
            parts = split_by(rows, lambda row: row.group)
            if not all(row.headline for row in rows):
                blocks += [errors(f"{source}: {name}", parts[name]) for name in self.order if name in parts]
        return blocks

    def ranking_summaries(self) -> list[RankingSummary]:
        """Over all ranked workloads, and over the large ones."""
        blocks = rankings(self.rows)
        large = [each for each in blocks if each.n >= LARGE_GROUP]
        return [
            ranking_summary("all groups", blocks),
            ranking_summary(f"groups of {LARGE_GROUP} plans or more", large),
        ]

    def worst(self, count: int) -> list[Compared]:
        """The timed rows whose predicted and measured times differ by the largest factor."""
        return sorted(self.timed, key=lambda row: -abs(float(np.log(row.ratio))))[:count]

"""Predictions beside measurements: each row of a table with what is said of it, and the figures that sum them up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from asap_ray.accuracy import (
    CoverageBlock,
    ErrorBlock,
    MemoryBlock,
    coverage_block,
    error_block,
    memory_block,
)
from asap_ray.physics.estimate import Estimate
from asap_ray.problem import Problem


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

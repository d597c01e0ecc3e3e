"""A calibration as JSON and on a terminal: what was fitted from where, and how far off unseen runs are predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asap_ray.fitting.parameters import Scale
from asap_ray.fitting.solve import Solution
from asap_ray.interchange.measured import MeasuredRow
from asap_ray.report import units
from asap_ray.report.outline import Block, Grid
from asap_ray.report.summary import finite


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationAnswer:
    """What was fitted, with the errors of each row, log(estimated / measured): with the constants as they were, as
    fitted, and as fitted without the row (None where that was not asked for)."""

    tables: tuple[str, ...]
    scale: Scale
    solution: Solution
    rows: tuple[MeasuredRow, ...]
    before: np.ndarray
    after: np.ndarray
    unseen: np.ndarray | None
    command: str
    run_dir: Path
    wall_s: float
    versions: Mapping[str, str]

    def fitted(self, informed: float) -> dict[str, dict[str, tuple[float, float]]]:
        """Value and standard error by file and constant, of those that the runs told at least so much of that no more
        than `informed` of the belief's width is left, or that moved by as much as they know."""
        found: dict[str, dict[str, tuple[float, float]]] = {}
        values = self.scale.values(self.solution.x)
        columns = zip(values.items(), self.solution.x, self.solution.error, self.scale.spread, strict=True)
        for (parameter, value), x, error, spread in columns:
            if error <= informed or abs(x) > 1 - informed:
                wide = float(error * spread) if parameter.linear else float(error * spread * value)
                found.setdefault(parameter.file, {})[parameter.constant] = (value, wide)
        return found


def by_source(answer: CalibrationAnswer, errors: np.ndarray) -> dict[str, tuple[int, float, float, float]]:
    """Rows, median and 90% quantile of the absolute error, and bias, by source."""
    found: dict[str, list[float]] = {}
    for row, error in zip(answer.rows, errors, strict=True):
        found.setdefault(row.source, []).append(float(np.expm1(error)))
    return {
        source: (len(off), *np.quantile(np.abs(off), (0.5, 0.9)).tolist(), float(np.median(off)))
        for source, off in sorted(found.items(), key=lambda pair: -len(pair[1]))
    }


def calibration_fields(answer: CalibrationAnswer) -> dict[str, Any]:
    """The object that `output=json` prints."""
    sets = {"before": answer.before, "fitted": answer.after, "unseen": answer.unseen}
    return finite(
        {
            "task": "calibrate",
            "tables": list(answer.tables),
            "rows": len(answer.rows),
            "constants": {
                file: {name: {"value": value, "error": error} for name, (value, error) in found.items()}
                for file, found in answer.fitted(1.0).items()
            },
            "errors": {
                name: {
                    source: {"n": n, "median_ape": median, "p90_ape": p90, "bias": bias}
                    for source, (n, median, p90, bias) in by_source(answer, errors).items()
                }
                for name, errors in sets.items()
                if errors is not None
            },
            "wall_s": answer.wall_s,
            "versions": dict(answer.versions),
            "command": answer.command,
        }
    )


def outline(answer: CalibrationAnswer, informed: float) -> Iterator[Block]:
    """Everything, most important first."""
    yield Block(title="Errors of the step time, median and 90% quantile, by source", grid=_errors(answer))
    yield Block(title="Constants", grid=_constants(answer, informed))
    facts = [("use them with", f"--config-dir {answer.run_dir / 'conf'}"), ("took", units.seconds(answer.wall_s))]
    yield Block(facts=tuple(facts))


def _errors(answer: CalibrationAnswer) -> Grid:
    sets: list[tuple[str, np.ndarray]] = [("as it was", answer.before), ("fitted", answer.after)]
    if answer.unseen is not None:
        sets.append(("without the row", answer.unseen))
    found = [by_source(answer, errors) for _, errors in sets]
    rows = [(source, units.count(found[0][source][0]), *_pairs(source, found)) for source in found[0]]
    return Grid(header=("source", "runs", *(name for name, _ in sets)), rows=tuple(rows), words=("source",))


def _pairs(source: str, found: Sequence[Mapping[str, tuple[int, float, float, float]]]) -> list[str]:
    return [f"{units.percent(each[source][1])}, {units.percent(each[source][2])}" for each in found]


def _constants(answer: CalibrationAnswer, informed: float) -> Grid:
    stated = dict(zip(answer.scale.parameters, answer.scale.stated, strict=True))
    rows = [
        (f"{parameter.file}.{parameter.constant}", f"{stated[parameter]:.4g}", f"{value:.4g}", f"{error:.2g}")
        for file, constants in answer.fitted(informed).items()
        for name, (value, error) in constants.items()
        for parameter in answer.scale.parameters
        if (parameter.file, parameter.constant) == (file, name)
    ]
    return Grid(header=("constant", "stated", "fitted", "standard error"), rows=tuple(rows), words=("constant",))

"""Where fits are kept: in the calibration files themselves, and constants of each fold in one table beside the runs.

A calibration file ends with what was fitted; all above that is written by hand and stays as it is:

    base: gpu
    # Fitted by task=calibrate: value and standard error, and how many runs of each source.
    fitted:
      matmul_fraction: [0.678, 0.011]
    rows:
      'MosaicML llm-foundry benchmarking README': 47
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import yaml

from asap_ray.errors import ConfigError, shown
from asap_ray.fitting.folds import Fold
from asap_ray.fitting.parameters import Parameter, Values
from asap_ray.interchange.measured import MeasuredRow

MARK = "# Fitted by task=calibrate: value and standard error, and how many runs of each source.\n"
DIGITS = 4
TINY = 1e-12
"""Below any constant but 0: what is left of a fraction that a fit drove to its bound."""
FOLDS = "folds.parquet"
"""The table of folds, in a run's directory and under knowledge/."""


def fingerprint(row: MeasuredRow) -> str:
    """What tells a run from all others: its source, model, slice, stack, plan and time."""
    told = (row.source, row.model, row.problem.slice.name, row.problem.stack.name, repr(row.problem.workload))
    text = "|".join((*told, row.plan.line, f"{row.step_time_s or 0:.6g}"))
    return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()


def fitted_text(text: str, fitted: Mapping[str, tuple[float, float]], rows: Mapping[str, int]) -> str:
    """A calibration file's text with a new fit at its end."""
    by_hand = text.split(MARK)[0]
    if by_hand and not by_hand.endswith("\n"):
        by_hand += "\n"
    pairs = {name: [_short(value), _short(error)] for name, (value, error) in sorted(fitted.items())}
    dumped = yaml.safe_dump(
        {"fitted": pairs, "rows": dict(sorted(rows.items()))}, sort_keys=False, width=1000, default_flow_style=None
    )
    return by_hand + MARK + dumped if fitted else by_hand


def _short(number: float) -> float:
    return float(f"{number:.{DIGITS}g}") if abs(number) > TINY else 0.0


@dataclass(frozen=True, slots=True)
class Folds:
    """The constants of each fold, and which fold a run belongs to, by its fingerprint."""

    values: tuple[Values, ...]
    of: Mapping[str, int]

    def values_for(self, row: MeasuredRow) -> Values | None:
        """The constants fitted without this row; None where the calibration never saw it."""
        found = self.of.get(fingerprint(row))
        return None if found is None else self.values[found]


def write_folds(path: Path, folds: Iterable[Fold], rows: Iterable[MeasuredRow]) -> None:
    """Keep folds as a table: a row each, with its constants and the fingerprints of its runs."""
    runs: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        runs.setdefault((row.source, row.model), []).append(fingerprint(row))
    records = [
        {
            "source": fold.source,
            "model": fold.model,
            "constants": [
                (f"{p.file}.{p.constant}", float(f"{value:.6g}")) for p, value in sorted(fold.values.items())
            ],
            "runs": sorted(runs.get((fold.source, fold.model), [])),
        }
        for fold in folds
    ]
    kinds = pa.schema(
        [
            ("source", pa.string()),
            ("model", pa.string()),
            ("constants", pa.map_(pa.string(), pa.float64())),
            ("runs", pa.list_(pa.string())),
        ]
    )
    parquet.write_table(pa.Table.from_pylist(records, kinds), path, compression="zstd")


def read_folds(path: Path) -> Folds:
    """What `write_folds` kept; nothing where there is no such file.

    Raises:
        ConfigError: it is another file.
    """
    if not path.is_file():
        return Folds((), {})
    with _folds_of(path):
        records = parquet.read_table(path).to_pylist()
        values = tuple(_constants(record) for record in records)
        return Folds(values, {run: i for i, record in enumerate(records) for run in record["runs"]})


def named_folds(path: Path) -> dict[tuple[str, str], Values]:
    """The constants of each fold by the source and the model that it leaves out; nothing where there is no file.

    Raises:
        ConfigError: it is another file.
    """
    if not path.is_file():
        return {}
    with _folds_of(path):
        records = parquet.read_table(path, columns=["source", "model", "constants"]).to_pylist()
        return {(each["source"], each["model"]): _constants(each) for each in records}


def _constants(record: Mapping[str, Any]) -> Values:
    return {Parameter(*name.split(".")): value for name, value in record["constants"]}


@contextmanager
def _folds_of(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError("folds", path, f"a table of folds that task=calibrate wrote ({shown(error)})") from error

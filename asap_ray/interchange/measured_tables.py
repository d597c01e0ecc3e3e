"""Tables of public measurements as a user names them: read whole, or refused in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from asap_ray.errors import ConfigError, printable
from asap_ray.interchange.measured_words import cell, number

COLUMNS = ("hardware", "framework", "chips")
"""What makes a table one of training runs; every other column may be missing, and rows then say what they lack."""
VTRAIN = ("hardware", "gpus", "step_time_ms")
VTRAIN_COLUMNS = {
    "gpus": "chips",
    "micro_batch": "micro_batch_per_dp_rank",
    "workload": "rank_group",
}
VTRAIN_NODE = 8
"""GPUs in a node of vTrain's cluster."""
PARQUET = b"PAR1"
LARGEST_TABLE_BYTES = 64 * 2**20
"""Of a file; the largest public table has half a MB."""
MOST_CELLS = 2_000_000
MOST_TEXT_BYTES = 256 * 2**20
"""Of all cells of a table, which a compressed file can hold in a few KB."""
ALLOWED = (
    "allowed: Parquet or CSV tables of runs in the columns of knowledge/measured/README.md "
    f"({', '.join(COLUMNS)}, … or {', '.join(VTRAIN)}, …)"
)


def read_tables(key: str, paths: Iterable[str | Path]) -> list[dict[str, Any]]:
    """The rows of some tables, one after the other.

    Raises:
        ConfigError: a file is missing, given twice, cannot be read, is no table of runs, or holds no rows.
    """
    rows: list[dict[str, Any]] = []
    seen: set[Path] = set()
    for path in paths:
        where = _file(key, path)
        if where in seen:
            raise ConfigError(key, path, "allowed: each table once")
        seen.add(where)
        rows += _rows(key, path, where)
    return rows


def _file(key: str, path: str | Path) -> Path:
    try:
        where = Path(path).expanduser().resolve()
        if not where.exists():
            raise ConfigError(key, path, f"does not exist; {ALLOWED}")
        if not where.is_file():
            raise ConfigError(key, path, f"is no file; {ALLOWED}")
        size = where.stat().st_size
    except (OSError, RuntimeError, ValueError) as error:  # a name no file system takes, a loop of links, no such ~user
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(key, path, f"cannot be read; {ALLOWED}") from error
    if size == 0 or size > LARGEST_TABLE_BYTES:
        why = f"is larger than the {LARGEST_TABLE_BYTES:,} bytes that are read" if size else "is empty"
        raise ConfigError(key, path, f"{why}; {ALLOWED}")
    return where


def _rows(key: str, path: str | Path, where: Path) -> Sequence[dict[str, Any]]:
    try:
        rows = read_table(where)
    except OSError as error:
        why = error.strerror or "not a Parquet file"
        raise ConfigError(key, path, f"cannot be read ({why}); {ALLOWED}") from error
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise ConfigError(key, path, f"is no table ({_first_line(error)}); {ALLOWED}") from error
    if not rows:
        raise ConfigError(key, path, f"holds no rows; {ALLOWED}")
    names = {back: name for name, back in VTRAIN_COLUMNS.items()}
    if not _is_runs(rows[0]):
        held = ", ".join(names.get(str(name), str(name)) for name in rows[0] if name not in ("id", "table"))
        raise ConfigError(key, path, f"holds other columns ({printable(held[:120])}); {ALLOWED}")
    return rows


def _is_runs(row: Mapping[str, Any]) -> bool:
    # vTrain's tables arrive under the columns of the others, with what their source says of all its runs.
    return all(name in row for name in COLUMNS)


def _first_line(error: Exception) -> str:
    return printable((str(error).splitlines() or [type(error).__name__])[0][:120])  # a binary file is quoted in it


def read_table(path: Path) -> list[dict[str, Any]]:
    """Rows of a table (Parquet, or CSV of the same columns), cells as None where they are empty; with `table`.

    Raises:
        OSError, ValueError: it cannot be read, or is no such table.
    """
    with path.open("rb") as file:
        is_parquet = file.read(len(PARQUET)) == PARQUET
    if is_parquet:
        data = _parquet(path)
    else:
        data = csv.read_csv(
            path,
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(strings_can_be_null=True),
        )
    if data.num_rows * data.num_columns > MOST_CELLS:
        raise ValueError(f"{data.num_rows * data.num_columns:,} cells, {MOST_CELLS:,} at most are read")
    if len(set(data.column_names)) < data.num_columns:
        raise ValueError("a column is there twice")
    return [_standard(row, path.stem, i + 1) for i, row in enumerate(data.to_pylist())]


def _parquet(path: Path) -> pa.Table:
    """A table that is read only if all that it unpacks to fits well in memory.

    Raises:
        OSError, ValueError: it cannot be read, or is too large.
    """
    with parquet.ParquetFile(path) as file:
        seen = file.metadata
        chunks = [seen.row_group(i).column(k) for i in range(seen.num_row_groups) for k in range(seen.num_columns)]
        cells, unpacked = sum(each.num_values for each in chunks), sum(each.total_uncompressed_size for each in chunks)
        if max(cells, seen.num_rows * seen.num_columns) > MOST_CELLS or unpacked > MOST_TEXT_BYTES:
            raise ValueError(f"{cells:,} cells of {unpacked:,} bytes; at most {MOST_CELLS:,} are read")
        texts = [each.path for each in file.schema if each.physical_type == "BYTE_ARRAY"]
    data = parquet.read_table(path, read_dictionary=[name for name in texts if "." not in name])
    if sum(map(_text_bytes, data.columns)) > MOST_TEXT_BYTES:
        raise ValueError(f"more than {MOST_TEXT_BYTES:,} bytes of text")
    return data


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Bytes of the texts of a column, each as often as it is there."""
    lengths = 0
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            each = compute.call_function("binary_length", [chunk.dictionary])
            lengths += compute.call_function("sum", [each.take(chunk.indices)]).as_py() or 0
    return lengths


def _standard(row: dict[str, Any], table: str, line: int) -> dict[str, Any]:
    """One row under the columns of `training`; vTrain's tables have a few of their own."""
    row = {VTRAIN_COLUMNS.get(k, k): cell(k, v) for k, v in row.items()}
    if "step_time_ms" in row:
        width, time_ms = number(row, "d_model"), number(row, "step_time_ms")
        del row["step_time_ms"]
        row |= {
            "source_name": "vTrain, " + ("many nodes" if (number(row, "chips") or 0) > VTRAIN_NODE else "one node"),
            "framework": "vTrain",
            "model": f"GPT {row.get('d_model')}x{row.get('layers')}",
            "metric_step_time_s": time_ms / 1e3 if time_ms else None,
            "status": "ok",
            "quality": "A",
            "d_ff": 4 * width if width else None,
            "n_kv_heads": row.get("n_heads"),
        }
    return {**row, "id": row.get("id") or f"{table}-{line:03d}", "table": table}

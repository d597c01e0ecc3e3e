"""Carried runs for the tests of fits."""

from __future__ import annotations

from functools import lru_cache

from asap_ray.chip import chip_from_mapping
from asap_ray.interchange.measured import MeasuredRow
from asap_ray.interchange.measured_tables import read_table
from asap_ray.settings import data_dir, load_group
from asap_ray.tasks.predictions import load_mapper, map_rows

CHIPS = {name: chip_from_mapping(given) for name, given in load_group("hardware").items()}


@lru_cache(maxsize=8)
def rows_of(source: str) -> tuple[MeasuredRow, ...]:
    """Timed runs whose source's name holds some words."""
    table = read_table(data_dir("knowledge") / "measured" / "training.parquet")
    mapped = map_rows([row for row in table if source in str(row["source_name"])], load_mapper())
    return tuple(row for row in mapped.rows if row.step_time_s)

"""Step times that follow from TFLOP/s and MFU, against the sources' own formulas and their rows that print both."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asap_ray.interchange.measured import MeasuredRow
from asap_ray.interchange.measured_flops import timed
from asap_ray.interchange.measured_tables import read_table
from asap_ray.settings import data_dir
from asap_ray.tasks.predictions import load_mapper

TABLES = data_dir("knowledge") / "measured"
MAPPER = load_mapper()
CONVENTIONS = MAPPER.defaults["flops"]


@pytest.fixture(scope="module")
def rows() -> list[MeasuredRow]:
    mapped = [MAPPER.map(row) for row in read_table(TABLES / "training.parquet")]
    return [row for row in mapped if isinstance(row, MeasuredRow) and row.status == "ok"]


def test_megatron_2021_by_its_own_formula(rows: list[MeasuredRow]) -> None:
    # arXiv 2104.04473, equation 3: 96 B s l h^2 (1 + s/6h + V/16lh); its row of 1 T parameters by hand.
    row = next(row for row in rows if row.id == "megatron21-010")
    batch, s, layers, h, vocab = 3072, 2048, 128, 25600, 51200
    flops = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    found = timed(row, CONVENTIONS)
    assert found.time_basis == "tflops"
    assert found.step_time_s == pytest.approx(flops / (163e12 * 3072), rel=1e-3)


def test_times_agree_with_those_that_the_tables_imply(rows: list[MeasuredRow]) -> None:
    implied = {row.id: re.search(r"implied step time ([\d.]+)", row.notes) for row in rows}
    chosen = [row for row in rows if implied[row.id] and row.step_time_s is None]
    assert len(chosen) == 19
    for row in chosen:
        found = implied[row.id]
        assert found
        assert timed(row, CONVENTIONS).step_time_s == pytest.approx(float(found[1]), rel=0.003), row.id


@pytest.mark.parametrize(
    ("source", "metric", "within"),
    [
        ("BigScience", "tflops_per_chip", 0.005),
        ("^NVIDIA NeMo", "tflops_per_chip", 0.005),
        ("Megatron-Bridge", "tflops_per_chip", 0.005),
        ("MaxText", "tflops_per_chip", 0.005),
        ("tpu-recipes", "tflops_per_chip", 0.005),
        ("llm-foundry", "tflops_per_chip", 0.005),
        ("llm-foundry", "mfu_percent", 0.01),
        ("dgxc", "mfu_percent", 0.01),
        ("torchtitan", "mfu_percent", 0.05),
    ],
)
def test_conventions_agree_with_rows_that_print_both(
    rows: list[MeasuredRow], source: str, metric: str, within: float
) -> None:
    ratios: dict[str, float] = {}
    for row in rows:
        value = getattr(row, metric)
        if re.search(source, row.source) and row.step_time_s and value:
            rates: dict[str, Any] = {"tflops_per_chip": None, "mfu_percent": None, metric: value}
            alone = timed(replace(row, step_time_s=None, **rates), CONVENTIONS)
            assert alone.time_basis == {"tflops_per_chip": "tflops", "mfu_percent": "mfu"}[metric]
            ratios[row.id] = (alone.step_time_s or 0.0) / row.step_time_s
    assert len(ratios) >= 10
    assert np.median(list(ratios.values())) == pytest.approx(1.0, abs=within)


def test_conventions_change_with_the_date(rows: list[MeasuredRow]) -> None:
    row = next(row for row in rows if row.id == "maxtext-006")
    given = replace(row, step_time_s=None)
    times = defaultdict(float)
    for date in ("2023-04", "2023-12", "2024-06", "2025-08"):
        times[date] = timed(replace(given, date=date), CONVENTIONS).step_time_s or 0.0
    assert times["2023-12"] == times["2025-08"] < times["2024-06"]
    assert timed(replace(given, source="elsewhere"), CONVENTIONS).step_time_s is None


def test_a_stated_time_is_kept_and_no_rate_gives_none(rows: list[MeasuredRow]) -> None:
    row = next(row for row in rows if row.id == "maxtext-006")
    assert timed(row, CONVENTIONS) is row
    assert timed(replace(row, step_time_s=None, tflops_per_chip=0.0, mfu_percent=None), CONVENTIONS).step_time_s is None
    assert timed(replace(row, step_time_s=None, status="oom"), CONVENTIONS).step_time_s is None

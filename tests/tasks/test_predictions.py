"""Which constants a measured run is predicted with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from asap_ray.fitting.store import FOLDS, read_folds
from asap_ray.settings import data_dir
from asap_ray.tasks.predictions import load_constants
from tests.fitting.measured import rows_of


def test_a_run_that_was_fitted_to_is_predicted_from_the_others() -> None:
    row = rows_of("BigScience")[0]
    constants, folds = load_constants(), read_folds(data_dir("knowledge") / FOLDS)
    assert constants.left_out(row)
    without = folds.values_for(row)
    assert without
    found = constants(row)
    for parameter, value in without.items():
        assert getattr(found, parameter.constant) == value
    # Another time makes another run, which no fit has seen: it takes what conf/calibration holds.
    unseen = replace(row, step_time_s=(row.step_time_s or 0.0) * 1.5)
    assert not constants.left_out(unseen)
    assert constants(unseen).matmul_fraction != found.matmul_fraction
    assert constants(unseen) == constants(replace(unseen, source="mine"))


def test_constants_of_a_users_own_have_no_folds(tmp_path: Path) -> None:
    row = rows_of("BigScience")[0]
    own = tmp_path / "calibration"
    own.mkdir()
    (own / "a100.yaml").write_text(
        "base: gpu\nmatmul_fraction: 0.5\nsources: {matmul_fraction: 'measured on our own cluster'}\n"
    )
    constants = load_constants(str(tmp_path))
    assert not constants.left_out(row)
    assert constants(row).matmul_fraction == pytest.approx(0.5)

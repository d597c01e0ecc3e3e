"""Calibration files with and without a fit, and folds, written and read again."""

from __future__ import annotations

import pytest
import yaml

from asap_ray.errors import ConfigError
from asap_ray.fitting.folds import Fold
from asap_ray.fitting.parameters import Parameter, Scale, beliefs_of
from asap_ray.fitting.store import MARK, fitted_text, read_folds, write_folds
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.settings import load_group
from tests.fitting.measured import CHIPS, rows_of

BY_HAND = "base: gpu  # a remark\nmatmul_fraction: 0.7\nsources:\n  matmul_fraction: 'a table of one page'\n"


def test_a_new_fit_replaces_the_old_one_and_nothing_else() -> None:
    once = fitted_text(BY_HAND, {"matmul_fraction": (0.654321, 0.01)}, {"a source: with marks": 3})
    assert once.startswith(BY_HAND + MARK)
    assert yaml.safe_load(once)["fitted"] == {"matmul_fraction": [0.6543, 0.01]}
    again = fitted_text(once, {"hbm_fraction": (0.9, 0.02)}, {"other": 1})
    assert again == fitted_text(BY_HAND, {"hbm_fraction": (0.9, 0.02)}, {"other": 1})
    assert fitted_text(once, {}, {}) == BY_HAND


def test_what_was_fitted_goes_before_what_is_stated() -> None:
    files = {name: given for name, given in load_group("calibration").items() if name in ("gpu", "tpu")}
    files["a100"] = {"base": "gpu", "fitted": {"matmul_fraction": [0.61, 0.01], "hbm_fraction": [0.9, 0.1]}}
    files["a100_40"] = {"base": "a100", "hbm_fraction": 0.8}
    files["stack_ours"] = {"stack": "ours", "overlap_fsdp": 0.5, "fitted": {"overlap_tensor": [0.3, 0.1]}}
    found = calibrations_from_mappings(files)
    assert (found["a100"].matmul_fraction, found["a100"].hbm_fraction) == (0.61, 0.9)
    assert (found["a100_40"].matmul_fraction, found["a100_40"].hbm_fraction) == (0.61, 0.8), "its own goes first"
    both = calibration_of(CHIPS["a100_40"], "ours", found)
    assert (both.overlap_fsdp, both.overlap_tensor, both.matmul_fraction) == (0.5, 0.3, 0.61)
    stated = beliefs_of(files, keeps_fits=False)
    assert stated.stated["a100"].matmul_fraction == files["gpu"]["matmul_fraction"]


@pytest.mark.parametrize(
    ("fitted", "told"),
    [
        ({"matmul_fraction": [1.2, 0.1]}, "from 0.001 to 1"),
        ({"matmul_fraction": 0.7}, "allowed: [value, standard error]"),
        ({"matmul": [0.7, 0.1]}, "did you mean matmul_fraction"),
        ([0.7], "a mapping of constants"),
    ],
)
def test_a_fit_that_cannot_be_is_refused_in_one_line(fitted: object, told: str) -> None:
    files = {**load_group("calibration"), "mine": {"base": "gpu", "fitted": fitted}}
    with pytest.raises(ConfigError) as error:
        calibrations_from_mappings(files)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_bases_that_lead_nowhere_are_refused() -> None:
    files = {**load_group("calibration"), "one": {"base": "two"}, "two": {"base": "one"}}
    with pytest.raises(ConfigError, match="base"):
        calibrations_from_mappings(files)


def test_chips_of_the_same_silicon_are_fitted_together_but_for_what_they_state() -> None:
    files = {name: given for name, given in load_group("calibration").items() if name in ("gpu", "tpu")}
    files |= {"h100": {"base": "gpu"}, "h100_efa": {"base": "h100", "dcn_fraction": 0.5}}
    beliefs = beliefs_of(files, keeps_fits=True)
    owners = beliefs.owners(CHIPS["h100_efa"], "ours")
    assert (owners["matmul_fraction"], owners["dcn_fraction"]) == ("h100", "h100_efa")
    assert owners["overlap_fsdp"] == "stack_ours"
    assert beliefs.owners(CHIPS["a100"], "ours")["hbm_fraction"] == "a100", "a chip without a file gets one of its own"
    values = {Parameter("h100", "matmul_fraction"): 0.5, Parameter("h100", "dcn_fraction"): 0.9}
    found = beliefs.calibration(CHIPS["h100_efa"], owners, "ours", values)
    assert (found.matmul_fraction, found.dcn_fraction) == (0.5, 0.5)


def test_parameters_are_counted_in_widths_of_their_belief() -> None:
    scale = Scale.of([Parameter("a100", "hbm_fraction"), Parameter("stack_ours", "overlap_fsdp")], [0.8, 0.5])
    values = scale.values([1.0, 1.0])  # type: ignore[arg-type]
    assert values[Parameter("a100", "hbm_fraction")] == pytest.approx(0.8 * 2.718281828**0.08)
    assert values[Parameter("stack_ours", "overlap_fsdp")] == pytest.approx(0.8)
    low, high = scale.bounds
    assert scale.values(high)[Parameter("a100", "hbm_fraction")] == pytest.approx(1.0)  # type: ignore[arg-type]
    assert scale.values(low)[Parameter("stack_ours", "overlap_fsdp")] == pytest.approx(0.0)  # type: ignore[arg-type]


def test_folds_are_found_by_the_runs_they_have_not_seen(tmp_path) -> None:
    rows = rows_of("MaxText README")[:6]
    fold = Fold(rows[0].source, rows[0].model, {Parameter("v5e", "hbm_fraction"): 0.83})
    write_folds(tmp_path / "folds.parquet", [fold], rows)
    found = read_folds(tmp_path / "folds.parquet")
    assert found.values_for(rows[0]) == fold.values
    other = next(row for row in rows_of("trillium") if row.step_time_s)
    assert found.values_for(other) is None
    assert read_folds(tmp_path / "none.parquet").values_for(rows[0]) is None

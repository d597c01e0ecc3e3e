"""The micro-benchmark runs on this machine's CPU, and asks of a description what the physics would."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from asap_ray.chip import Chip, chip_from_mapping
from asap_ray.errors import AsapError, ConfigError
from asap_ray.fitting.described import full_rate_s, gather_groups, whole_slice
from asap_ray.fitting.microbenchmark import Effort, check_devices, measure, measured_here
from asap_ray.physics.calibration import CONSTANTS

CONF = Path(__file__).parents[2] / "conf" / "hardware"
CHIPS = {path.stem: chip_from_mapping(yaml.safe_load(path.read_text())) for path in CONF.glob("*.yaml")}
SHORT = Effort(run_s=1e-3, repetitions=2, operation_s=1e-4, kernels=(4, 8), first_matmul=128)


def cpu(**changes: object) -> Chip:
    """A description of a CPU, such as a user may write to try things out."""
    given = {
        "name": "local",
        "vendor": "host",
        "kind": "gpu",
        "peak_flops": {"bf16": 1e12},
        "hbm_bytes": 1e9,
        "usable_hbm_bytes": 1e9,
        "hbm_bytes_per_s": 1e11,
        "clock_hz": 2e9,
        "matrix_tile": 16,
        "matrix_units": 1,
        "on_chip_bytes": 1e6,
        "fabric": "switch",
        "link_bytes_per_s": 1e11,
        "max_domain": 3,
        "nic_bytes_per_s": 1e9,
        "pcie_bytes_per_s": 1e10,
        "chips_per_host": 3,
        "sources": ["assumed"],
    }
    return chip_from_mapping(given | changes)


def test_it_measures_this_machine() -> None:
    # Nothing multiplies or streams as slowly as this description says, so two of its figures are in doubt.
    chip = cpu(peak_flops={"bf16": 1e3}, hbm_bytes_per_s=1e3)
    found = measured_here(chip, 2, SHORT)
    here = {"hbm_fraction", "matmul_fraction", "kernel_launch_s", "hop_latency_s", "ici_start_s"}
    assert here <= set(found.constants)
    for name, (value, error) in found.constants.items():
        assert CONSTANTS[name]["least"] <= value <= CONSTANTS[name]["most"]
        assert error > 0
        assert math.isfinite(error)
    assert found.constants["hbm_fraction"][0] == found.constants["matmul_fraction"][0] == 1.0
    keys = [line.partition("=")[0] for line in found.doubts]
    assert keys[:2] == ["hardware.local.peak_flops.bf16", "hardware.local.hbm_bytes_per_s"]
    assert set(found.constants) | set(found.missing) == {
        name for name, about in CONSTANTS.items() if about["owner"] == "chip"
    }
    assert set(found.constants).isdisjoint(found.missing)
    assert found.missing["pcie_fraction"] == "CPU devices share the host's memory"
    assert found.devices == "2 x cpu"
    assert set(found.versions) == {"jax", "jaxlib", "cpu"}


def test_what_there_is_no_time_for_is_left_out() -> None:
    found = measured_here(cpu(), 1, replace(SHORT, budget_s=-1.0))
    assert found.constants == {}
    assert found.missing["hbm_fraction"] == "no time was left of -1 s"


def test_a_deadline_ends_it() -> None:
    with pytest.raises(AsapError, match="micro-benchmark of hardware=local timeout: not done after"):
        measured_here(cpu(), 1, SHORT, deadline_s=0.01)


def test_a_chip_that_is_not_here_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"JAX finds no gpu here, only \d x cpu; .*asap-ray\[cuda\]"):
        measured_here(replace(CHIPS["h100"], name="local"), 1, SHORT)


def test_more_devices_than_there_are_cannot_be_measured() -> None:
    with pytest.raises(ConfigError, match=r"hardware.h100.max_domain=8: allowed: up to 4, the gpu devices"):
        check_devices(CHIPS["h100"], 8, "gpu", 4)
    with pytest.raises(ConfigError, match="JAX finds no tpu here"):
        check_devices(CHIPS["v5e"], 1, "gpu", 1)
    check_devices(CHIPS["h100"], 4, "gpu", 4)


def test_without_jax_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "asap_ray.fitting.timed_kernels", raising=False)
    monkeypatch.delattr("asap_ray.fitting.timed_kernels", raising=False)
    with pytest.raises(ConfigError, match=r"hardware=local: the micro-benchmark needs JAX .*pip install"):
        measure(cpu(), 1)


def test_the_driver_does_not_load_jax() -> None:
    code = "import sys, asap_ray.fitting.microbenchmark; print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_matmul_is_held_against_the_peak_of_its_full_tiles() -> None:
    # H200: 64 x 64 tiles of 128 go to 132 SMs in 32 waves, the last of them not full.
    waves = 64 * 64 / (32 * 132)
    expected = 2 * 8192**3 / 989.5e12 / waves
    assert full_rate_s(CHIPS["h200"], 8192, 8192, 8192) == pytest.approx(expected)
    # TPU v5e: a contraction of 192 fills a tile and a half of 128.
    assert full_rate_s(CHIPS["v5e"], 1024, 192, 1024) == pytest.approx(2 * 1024 * 256 * 1024 / 197e12)
    # MI250X: two devices share what the description says of the chip.
    two = CHIPS["mi250x"]
    one = replace(two, devices_per_chip=1, matrix_units=two.matrix_units // 2, peak_flops={"bf16": 191.5e12})
    assert full_rate_s(two, 4096, 4096, 4096) == pytest.approx(full_rate_s(one, 4096, 4096, 4096))


def test_behind_a_switch_a_pair_is_timed_besides_all() -> None:
    groups = gather_groups(CHIPS["h100"], 8)
    assert {size: int(group.hops[0]) for size, group in groups.items()} == {8: 7, 2: 1}
    assert all(group.gather_bytes_per_s[0] == 450e9 for group in groups.values())
    assert list(gather_groups(CHIPS["h100"], 2)) == [2]
    assert gather_groups(CHIPS["h100"], 1) == {}


def test_on_a_torus_all_devices_of_a_sold_slice_are_timed() -> None:
    # v5e 2x4 has no ring: a pass takes one hop along the axis of 2 and three along that of 4.
    slice_ = whole_slice(CHIPS["v5e"], 8)
    assert slice_ is not None
    assert slice_.topology == (2, 4)
    (group,) = gather_groups(CHIPS["v5e"], 8).values()
    assert int(group.hops[0]) == 1 + 3
    assert whole_slice(CHIPS["v5e"], 7) is None
    assert whole_slice(CHIPS["mi250x"], 3) is None

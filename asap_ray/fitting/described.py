"""What a chip's description promises of the programs that a micro-benchmark times."""

from __future__ import annotations

import numpy as np

from asap_ray.chip import Chip
from asap_ray.hardware import Slice, make_slice
from asap_ray.physics.calibration import CONSTANTS, Calibration, Machine
from asap_ray.physics.matmul import utilisation
from asap_ray.rates import GroupRates, group_rates

IDEAL = Calibration(
    **{name: about["most" if name.endswith("_fraction") else "least"] for name, about in CONSTANTS.items()}
)
"""A chip that does as described: every fraction is 1, every latency and ramp 0."""


def described_figures(chip: Chip) -> dict[str, tuple[str, float]]:
    """For each fraction, the key and the figure of a chip's description that it is a fraction of."""
    return {
        "matmul_fraction": ("peak_flops.bf16", chip.peak_flops["bf16"]),
        "hbm_fraction": ("hbm_bytes_per_s", chip.hbm_bytes_per_s),
        "ici_fraction": ("link_bytes_per_s", chip.link_bytes_per_s),
        "pcie_fraction": ("pcie_bytes_per_s", chip.pcie_bytes_per_s),
    }


def full_rate_s(chip: Chip, m: int, k: int, n: int) -> float:
    """Seconds of a bf16 matmul at the described peak: tiles that it leaves partly empty count, a ramp does not."""
    machine = Machine.achieved(chip, IDEAL)
    return float(2.0 * m * k * n / (chip.peak_flops["bf16"] / chip.devices_per_chip * utilisation(m, k, n, machine)))


def whole_slice(chip: Chip, devices: int) -> Slice | None:
    """The slice that so many devices make, or None where the chip is in no slice of that size."""
    chips, rest = divmod(devices, chip.devices_per_chip)
    if rest or not chips:
        return None
    shapes = chip.shapes if chip.fabric == "torus" else ((chips,),)
    shape = next((each for each in shapes if np.prod(each) == chips), None)
    return make_slice(chip, shape) if shape else None


def gather_groups(chip: Chip, devices: int) -> dict[int, GroupRates]:
    """Groups to time all-gathers over, by size: all devices, and behind a switch two, which tell start from hops."""
    slice_ = whole_slice(chip, devices)
    if slice_ is None or devices == 1:
        return {}
    pair = devices > 2 and chip.fabric == "switch" and chip.devices_per_chip == 1
    steps = {devices: [axis.size for axis in slice_.axes]} | ({2: [2]} if pair else {})
    return {size: group_rates(slice_.axes, np.array([[each]]), (True,)) for size, each in steps.items()}

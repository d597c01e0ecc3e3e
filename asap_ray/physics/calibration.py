"""What a chip achieves of its datasheet: named, bounded constants that estimates use and floors never do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from asap_ray.chip import KIN, Chip
from asap_ray.errors import ConfigError
from asap_ray.plan import PRECISIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Achieved fractions (0 to 1], latencies (s) and sizes (bytes) of one kind of chip.

    `matmul_fraction` is what a large, well-shaped matmul reaches of the peak, `contraction_ramp` the contraction length
    at which a matmul reaches half of that. `attention_fraction` is the same for a fused attention kernel.
    `kernel_launch_s` is paid by every kernel, `step_overhead_s` once a step. `workspace_bytes` and `fragmentation` (of
    all other bytes) are memory that no tensor of the plan accounts for. `uncertainty` is the relative half-width of a
    90% interval of a step time.
    """

    matmul_fraction: float
    contraction_ramp: float
    attention_fraction: float
    hbm_fraction: float
    ici_fraction: float
    dcn_fraction: float
    pcie_fraction: float
    hop_latency_s: float
    dcn_latency_s: float
    kernel_launch_s: float
    step_overhead_s: float
    workspace_bytes: float
    fragmentation: float
    uncertainty: float
    source: str = ""


_FRACTIONS = ("matmul_fraction", "attention_fraction", "hbm_fraction", "ici_fraction", "dcn_fraction", "pcie_fraction")


def calibration_from_mapping(name: str, given: Mapping[str, object]) -> Calibration:
    """Build a calibration from a `conf/calibration/*.yaml`.

    Raises:
        ConfigError: a constant is missing, unknown, or outside of what the physics allows.
    """
    names = [field.name for field in fields(Calibration)]
    for key in given:
        if key not in names:
            raise ConfigError(f"calibration.{name}.{key}", given[key], f"allowed: {', '.join(names)}", names)
    values: dict[str, float | str] = {}
    for key in names:
        if key == "source":
            values[key] = str(given.get(key, ""))
            continue
        value = given.get(key)
        number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
        most = 1.0 if key in _FRACTIONS else math.inf
        if not (0 <= number <= most and math.isfinite(number)) or (key in _FRACTIONS and number == 0):
            raise ConfigError(f"calibration.{name}.{key}", value, f"allowed: a number from 0 to {most:g}")
        values[key] = number
    return Calibration(**values)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """One device as the cost formulas see it: what it achieves of its datasheet.

    `peaks` are FLOP/s by precision code [precisions]; `tile` and `units` describe its matrix units, `streams` is true
    where rows stream through a systolic array (TPU) and false where tiles are handed to processors in waves (GPU).
    """

    peaks: np.ndarray
    attention_peaks: np.ndarray
    contraction_ramp: float
    tile: int
    units: float
    streams: bool
    hbm_bytes_per_s: float
    pcie_bytes_per_s: float
    kernel_launch_s: float

    @classmethod
    def achieved(cls, chip: Chip, calibration: Calibration) -> Machine:
        """The device as calibrated."""
        peaks = peak_flops(chip)
        attention = np.minimum(peaks, peak_flops(chip, ("bf16",))[0])
        return cls(
            peaks=peaks * calibration.matmul_fraction,
            attention_peaks=attention * calibration.attention_fraction,
            contraction_ramp=calibration.contraction_ramp,
            tile=chip.matrix_tile,
            units=chip.device_matrix_units,
            streams=chip.kind == "tpu",
            hbm_bytes_per_s=chip.device_hbm_bytes_per_s * calibration.hbm_fraction,
            pcie_bytes_per_s=chip.device_pcie_bytes_per_s * calibration.pcie_fraction,
            kernel_launch_s=calibration.kernel_launch_s,
        )


def peak_flops(chip: Chip, precisions: tuple[str, ...] = PRECISIONS) -> np.ndarray:
    """Datasheet FLOP/s of one device by precision code; a format the chip lacks, in no legal plan, counts as bf16.

    Block-scaled formats share the units of others.
    """
    known = chip.peak_flops
    peaks = [known.get(name, known.get(KIN.get(name, name), known["bf16"])) for name in precisions]
    return np.array(peaks) / chip.devices_per_chip

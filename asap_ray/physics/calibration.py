"""What a chip achieves of its datasheet: named, bounded constants that estimates use and floors never do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

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
    all other bytes) are memory that no tensor of the plan accounts for. `interval_low`, `interval_high` are the 5% and
    95% quantiles of measured over estimated step times, of `interval_rows` public runs above 30% MFU. `sources` says
    where each figure is from, or that it is assumed and why.
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
    interval_low: float
    interval_high: float
    interval_rows: float
    sources: Mapping[str, str] = field(default_factory=dict)


_FRACTIONS = ("matmul_fraction", "attention_fraction", "hbm_fraction", "ici_fraction", "dcn_fraction", "pcie_fraction")


def calibration_from_mapping(name: str, given: Mapping[str, object]) -> Calibration:
    """Build a calibration from a whole `conf/calibration/*.yaml`.

    Raises:
        ConfigError: a constant is missing, unknown, or outside of what the physics allows.
    """
    names = [entry.name for entry in fields(Calibration)]
    for key in given:
        if key not in names:
            raise ConfigError(f"calibration.{name}.{key}", given[key], f"allowed: {', '.join(names)}", names)
    numbers = {key: _number(name, key, given.get(key)) for key in names if key != "sources"}
    if not numbers["interval_low"] <= numbers["interval_high"]:
        raise ConfigError(f"calibration.{name}.interval_low", numbers["interval_low"], "allowed: up to interval_high")
    sources = given.get("sources", {})
    if not isinstance(sources, Mapping) or not all(isinstance(text, str) and text.strip() for text in sources.values()):
        raise ConfigError(f"calibration.{name}.sources", sources, "allowed: a mapping of constants to text")
    if unknown := [key for key in sources if key not in numbers]:
        raise ConfigError(f"calibration.{name}.sources", unknown[0], "allowed: names of constants", list(numbers))
    return Calibration(**numbers, sources={str(key): str(text) for key, text in sources.items()})


def calibrations_from_mappings(given: Mapping[str, Mapping[str, object]]) -> dict[str, Calibration]:
    """All of `conf/calibration/` by name; a file with a `base` changes a few constants, and their sources, of another.

    Raises:
        ConfigError: as `calibration_from_mapping`, or a `base` is not a whole calibration.
    """
    whole = [name for name, mapping in given.items() if "base" not in mapping]
    found = {}
    for name, mapping in given.items():
        base = mapping.get("base", name)
        if base not in whole:
            raise ConfigError(f"calibration.{name}.base", base, f"allowed: {', '.join(whole)}", whole)
        merged = {**given[str(base)], **{key: value for key, value in mapping.items() if key != "base"}}
        sources = [each["sources"] for each in (given[str(base)], mapping) if isinstance(each.get("sources"), Mapping)]
        merged["sources"] = {key: text for each in sources for key, text in each.items()}  # type: ignore[attr-defined]
        found[name] = calibration_from_mapping(name, merged)
    return found


def calibration_of(chip: Chip, calibrations: Mapping[str, Calibration]) -> Calibration:
    """The chip's own calibration, or its class's."""
    return calibrations.get(chip.name.replace("-", "_"), calibrations[chip.kind])


def _number(name: str, key: str, value: object) -> float:
    number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    most = 1.0 if key in _FRACTIONS else math.inf
    if not (0 <= number <= most and math.isfinite(number)) or (key in _FRACTIONS and number == 0):
        raise ConfigError(f"calibration.{name}.{key}", value, f"allowed: a number from 0 to {most:g}")
    return number


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

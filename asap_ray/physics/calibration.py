"""What a chip, its links and a trainer achieve: named, bounded constants that estimates use and floors never do.

A class file (`gpu`, `tpu`) states every constant; a file with a `base` changes a few for one chip, a file with a
`stack` those that a trainer decides, on any chip. What stands in a file itself has a source or is assumed; what
`task=calibrate` fitted to measured runs stands under `fitted`, each as its value and its standard error, with the
`rows` of each source that it rests on, and goes before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from asap_ray.chip import KIN, Chip
from asap_ray.errors import ConfigError
from asap_ray.plan import PRECISIONS
from asap_ray.workload import DTYPE_BYTES

PLAIN_BYTES = DTYPE_BYTES["bf16"]
LARGEST_ERROR = 1e300
"""Standard errors beyond are no floats any more."""
CAST_COPIES = 2.0
"""Copies that a cast writes: rows and columns, since narrow matmuls contract along contiguous numbers only."""


def _of(owner: str, least: float, most: float) -> Any:
    """A constant that a chip (its links included) or a stack decides, from `least` to `most`."""
    return field(metadata={"owner": owner, "least": least, "most": most})


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Achieved fractions (0 to 1], latencies (s) and sizes (bytes), as one kind of chip and one stack have them.

    Of a chip: `matmul_fraction` is what a large, well-shaped matmul reaches of the peak, `contraction_ramp` the
    contraction length at which a matmul reaches half of that, `narrow_fraction` what formats of 8 bits and less reach
    besides, and `four_bit_fraction` what those of 4 bits reach besides that. `attention_fraction` is the share of
    the peak of a fused attention kernel written for the chip, `portable_fraction` that of one written for any chip
    of its kind (FlashAttention-2); either skips masked keys by blocks of `attention_block`. `hop_latency_s`,
    `dcn_latency_s` are paid by each step of a collective, `ici_start_s`, `dcn_start_s` once by each,
    `dcn_message_s` by each message of a ring that crosses the network.
    `kernel_launch_s` is the time between two kernels on the device. `workspace_bytes` and `fragmentation` (of what
    comes and goes) are memory that no tensor of the plan accounts for.

    Of a stack: `host_launch_s` is what the host needs for each kernel (a device that computes faster waits for it),
    `batch_overhead_s` what each micro-batch costs a stage besides, `step_overhead_s` is paid once a step.
    `handoff_s` is what the host of a stage waits for each tensor that it hands to a neighbour or takes from it,
    `sync_s` is how late the second of two ranks comes to an exchange of the tensor axis that both wait for, and
    `stall_s` what a rank's host loses at each layer of a micro-batch while a pipeline's messages cross the network.
    `crowding` is what each host of a group beyond two adds to the time of its gradients and weights on the network.
    `elementwise_passes`, `expert_passes` and `optimizer_passes` are the HBM traffic of what stands around matmuls, of
    what stands around those of routed experts (permutation, padding), and of the optimizer, over that of fully fused
    kernels; `cast_passes` is that of casts to narrow formats over casts in kernels of their own. `expert_launches` is
    how many kernels each expert of a rank needs for what a grouped matmul does in one. `expert_merge` is the share of a
    token's copies, for experts of one rank, or of one host, that are sent as one. `portable_attention` is the share of
    attention that runs in portable kernels. `overlap_*` are the fractions of each kind of traffic that the trainer
    issues asynchronously.

    `spread_compute`, `spread_network`, `spread_host` are how far estimates of these kinds of time are off: half-widths
    of the logarithm that hold 90%. `sources` says where each figure is from, or that it is assumed and why.
    """

    matmul_fraction: float = _of("chip", 0.001, 1.0)
    contraction_ramp: float = _of("chip", 0.0, 4096.0)
    narrow_fraction: float = _of("chip", 0.05, 1.0)
    four_bit_fraction: float = _of("chip", 0.05, 1.0)
    attention_fraction: float = _of("chip", 0.0005, 1.0)
    portable_fraction: float = _of("chip", 0.0005, 1.0)
    attention_block: float = _of("chip", 0.0, 4096.0)
    hbm_fraction: float = _of("chip", 0.0005, 1.0)
    ici_fraction: float = _of("chip", 0.0005, 1.0)
    dcn_fraction: float = _of("chip", 0.02, 1.0)
    pcie_fraction: float = _of("chip", 0.02, 1.0)
    hop_latency_s: float = _of("chip", 0.0, 1e-3)
    ici_start_s: float = _of("chip", 0.0, 1e-2)
    dcn_latency_s: float = _of("chip", 0.0, 1e-2)
    dcn_start_s: float = _of("chip", 0.0, 1e-1)
    dcn_message_s: float = _of("chip", 0.0, 1e-3)
    kernel_launch_s: float = _of("chip", 0.0, 1e-3)
    workspace_bytes: float = _of("chip", 0.0, 32e9)
    fragmentation: float = _of("chip", 0.0, 1.0)
    host_launch_s: float = _of("stack", 0.0, 1e-2)
    batch_overhead_s: float = _of("stack", 0.0, 1.0)
    handoff_s: float = _of("stack", 0.0, 10.0)
    stall_s: float = _of("stack", 0.0, 1e-1)
    crowding: float = _of("stack", 0.0, 10.0)
    sync_s: float = _of("stack", 0.0, 1e-2)
    step_overhead_s: float = _of("stack", 0.0, 10.0)
    elementwise_passes: float = _of("stack", 0.2, 10.0)
    optimizer_passes: float = _of("stack", 0.2, 10.0)
    expert_passes: float = _of("stack", 0.2, 20.0)
    expert_launches: float = _of("stack", 0.0, 100.0)
    expert_merge: float = _of("stack", 0.0, 1.0)
    cast_passes: float = _of("stack", 0.0, 5.0)
    portable_attention: float = _of("stack", 0.0, 1.0)
    overlap_fsdp: float = _of("stack", 0.0, 1.0)
    overlap_gradient: float = _of("stack", 0.0, 1.0)
    overlap_tensor: float = _of("stack", 0.0, 1.0)
    overlap_context: float = _of("stack", 0.0, 1.0)
    overlap_expert: float = _of("stack", 0.0, 1.0)
    overlap_pipeline: float = _of("stack", 0.0, 1.0)
    overlap_offload: float = _of("stack", 0.0, 1.0)
    spread_compute: float = _of("stack", 0.0, 5.0)
    spread_network: float = _of("stack", 0.0, 5.0)
    spread_host: float = _of("stack", 0.0, 5.0)
    sources: Mapping[str, str] = field(default_factory=dict)


CONSTANTS = {entry.name: entry.metadata for entry in fields(Calibration) if entry.name != "sources"}
"""Owner and bounds of each constant."""
_FITTED = ("fitted", "rows")
SPREADS = ("spread_compute", "spread_network", "spread_host")
"""How far estimates are off: of a stack, unless a chip's own file says so of the chip."""


class Calibrations(dict[str, Calibration]):
    """Calibrations of classes and chips by name; `stacks` holds, by stack, the constants that it changes, `spreads`, by
    chip, how far off estimates are where its own file says so."""

    stacks: dict[str, Mapping[str, float]]
    spreads: dict[str, Mapping[str, float]]


def calibration_from_mapping(name: str, given: Mapping[str, object]) -> Calibration:
    """Build a calibration from a whole `conf/calibration/*.yaml`.

    Raises:
        ConfigError: a constant is missing, unknown, or outside of what the physics allows.
    """
    names = [*CONSTANTS, "sources"]
    for key in given:
        if key not in (*names, *_FITTED):
            raise ConfigError(f"calibration.{name}.{key}", given[key], f"allowed: {', '.join(names)}", names)
    numbers = {key: _number(name, key, given.get(key)) for key in CONSTANTS} | _fitted(name, given, CONSTANTS)
    return Calibration(**numbers, sources=_sources(name, given))


def calibrations_from_mappings(given: Mapping[str, Mapping[str, object]]) -> Calibrations:
    """All of `conf/calibration/` by name; a file with a `base` changes a few constants, and their sources, of another.

    Raises:
        ConfigError: as `calibration_from_mapping`, or bases do not lead to a whole calibration.
    """
    found = Calibrations()
    found.stacks, found.spreads = {}, {}
    for name, mapping in given.items():
        if "stack" in mapping:
            found.stacks[str(mapping["stack"])] = _stack_constants(name, mapping)
        else:
            found[name] = calibration_from_mapping(name, _whole(name, given))
            if "base" in mapping:
                found.spreads[name] = {key: getattr(found[name], key) for key in SPREADS if key in mapping}
    return found


def _whole(name: str, given: Mapping[str, Mapping[str, object]], seen: tuple[str, ...] = ()) -> dict[str, object]:
    """A file with what it changes laid over its base."""
    own = dict(given[name])
    if "base" not in own:
        return own
    base = own.pop("base")
    known = [other for other in given if other not in (*seen, name) and "stack" not in given[other]]
    if base not in known:
        raise ConfigError(f"calibration.{name}.base", base, f"allowed: {', '.join(known)}", known)
    under = _whole(str(base), given, (*seen, name))
    # A figure of the file's own goes before one that was fitted to its base.
    kept = {key: pair for key, pair in _fits(str(base), under).items() if key not in own}
    whole = {**under, **own, "fitted": {**kept, **_fits(name, own)}}
    return {**whole, "sources": {**_sources(name, under), **_sources(name, own)}}


def _fits(name: str, given: Mapping[str, object]) -> Mapping[object, object]:
    found = given.get("fitted", {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"calibration.{name}.fitted", found, "allowed: a mapping of constants to [value, error]")
    rows = given.get("rows", {})
    if not isinstance(rows, Mapping):
        raise ConfigError(f"calibration.{name}.rows", rows, "allowed: a mapping of sources to numbers of runs")
    for source, count in rows.items():
        if type(count) is not int or count < 0:
            raise ConfigError(f"calibration.{name}.rows.{source}", count, "allowed: a whole number from 0")
    return found


def calibration_of(chip: Chip, stack: str, calibrations: Calibrations) -> Calibration:
    """The chip's own calibration, or its class's, with what the stack changes.

    Where a chip's own file says how far estimates are off, they are off so on that chip with any stack.
    """
    name = chip.name.replace("-", "_")
    own = calibrations.get(name, calibrations[chip.kind])
    return replace(own, **{**calibrations.stacks.get(stack, {}), **calibrations.spreads.get(name, {})})


def _stack_constants(name: str, given: Mapping[str, object]) -> Mapping[str, float]:
    own = [key for key, about in CONSTANTS.items() if about["owner"] == "stack"]
    _sources(name, given)
    for key in given:
        if key not in (*own, *_FITTED, "stack", "sources"):
            raise ConfigError(f"calibration.{name}.{key}", given[key], f"allowed: {', '.join(own)}", own)
    assumed = {key: _number(name, key, value) for key, value in given.items() if key in own}
    return assumed | _fitted(name, given, own)


def _fitted(name: str, given: Mapping[str, object], allowed: Iterable[str]) -> dict[str, float]:
    names, found = list(allowed), {}
    for key, pair in _fits(name, given).items():
        if key not in names:
            raise ConfigError(f"calibration.{name}.fitted", key, f"allowed: {', '.join(names)}", names)
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ConfigError(f"calibration.{name}.fitted.{key}", pair, "allowed: [value, standard error]")
        if type(pair[1]) not in (int, float) or not 0 <= pair[1] <= LARGEST_ERROR:
            raise ConfigError(f"calibration.{name}.fitted.{key}", pair[1], "allowed: a standard error from 0")
        found[str(key)] = _number(name, str(key), pair[0])
    return found


def _sources(name: str, given: Mapping[str, object]) -> dict[str, str]:
    sources = given.get("sources", {})
    if not isinstance(sources, Mapping) or not all(isinstance(text, str) and text.strip() for text in sources.values()):
        raise ConfigError(f"calibration.{name}.sources", sources, "allowed: a mapping of constants to text")
    if unknown := [key for key in sources if key not in CONSTANTS]:
        raise ConfigError(f"calibration.{name}.sources", unknown[0], "allowed: names of constants", list(CONSTANTS))
    return {str(key): str(text) for key, text in sources.items()}


def _number(name: str, key: str, value: object) -> float:
    least, most = CONSTANTS[key]["least"], CONSTANTS[key]["most"]
    # Compared as it is: a whole number can be too large for a float.
    if isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most and value < math.inf:
        return float(value)
    raise ConfigError(f"calibration.{name}.{key}", value, f"allowed: a number from {least:g} to {most:g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """One device as the cost formulas see it: what it achieves of its datasheet, under the kernels of a stack.

    `peaks` are FLOP/s by precision code [precisions], `plain_peaks` those of a matmul that is kept out of narrow
    formats, `cast_bytes` the HBM traffic of casting a number; `tile` and `units` describe its matrix units, `streams`
    is true where rows stream through a systolic array (TPU) and false where tiles are handed to processors in waves
    (GPU).
    """

    peaks: np.ndarray
    plain_peaks: np.ndarray
    attention_peaks: np.ndarray
    attention_block: float
    cast_bytes: np.ndarray
    contraction_ramp: float
    tile: int
    units: float
    streams: bool
    hbm_bytes_per_s: float
    pcie_bytes_per_s: float
    kernel_launch_s: float
    expert_passes: float
    expert_launches: float
    expert_merge: float
    sync_s: float

    @classmethod
    def achieved(cls, chip: Chip, calibration: Calibration) -> Machine:
        """The device as calibrated."""
        peaks = peak_flops(chip)
        plain = peak_flops(chip, ("bf16",))[0]
        wide = np.minimum(peaks, plain)
        widths = np.array([DTYPE_BYTES[name] for name in PRECISIONS])
        narrow = np.where(peaks > plain, calibration.narrow_fraction, 1.0)
        narrow = np.where((peaks > plain) & (widths < 1), narrow * calibration.four_bit_fraction, narrow)
        portable = calibration.portable_attention
        attention = 1.0 / ((1.0 - portable) / calibration.attention_fraction + portable / calibration.portable_fraction)
        casts = np.where(widths < PLAIN_BYTES, PLAIN_BYTES + CAST_COPIES * widths, 0.0)
        return cls(
            peaks=peaks * narrow * calibration.matmul_fraction,
            plain_peaks=wide * calibration.matmul_fraction,
            attention_peaks=wide * attention,
            attention_block=calibration.attention_block,
            cast_bytes=casts * calibration.cast_passes,
            contraction_ramp=calibration.contraction_ramp,
            tile=chip.matrix_tile,
            units=chip.device_matrix_units,
            streams=chip.kind == "tpu",
            hbm_bytes_per_s=chip.device_hbm_bytes_per_s * calibration.hbm_fraction,
            pcie_bytes_per_s=chip.device_pcie_bytes_per_s * calibration.pcie_fraction,
            kernel_launch_s=calibration.kernel_launch_s,
            expert_passes=calibration.expert_passes,
            expert_launches=calibration.expert_launches,
            expert_merge=calibration.expert_merge,
            sync_s=calibration.sync_s,
        )


def peak_flops(chip: Chip, precisions: tuple[str, ...] = PRECISIONS) -> np.ndarray:
    """Datasheet FLOP/s of one device by precision code; a format the chip lacks, in no legal plan, counts as bf16.

    Block-scaled formats share the units of others.
    """
    known = chip.peak_flops
    peaks = [known.get(name, known.get(KIN.get(name, name), known["bf16"])) for name in precisions]
    return np.array(peaks) / chip.devices_per_chip

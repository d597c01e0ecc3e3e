"""What the chip of this machine and its links achieve, measured in a minute: the constants of `hardware=local`.

The chip's description says what they should; each constant is the share of it that small programs reach, on all devices
at once, as in training. `timed_kernels` has the programs, `timings` how their times become constants. JAX starts only
in the job, a fresh process: its settings are per process, and the driver stays light.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from asap_ray.chip import Chip
from asap_ray.errors import AsapError, ConfigError
from asap_ray.executor import local
from asap_ray.fitting.described import described_figures, full_rate_s, gather_groups
from asap_ray.fitting.timings import (
    Estimated,
    Gather,
    Timing,
    bounded,
    copy_fraction,
    doubts,
    each_costs,
    link_constants,
    matmul_constants,
    stream_fraction,
)
from asap_ray.physics.calibration import CONSTANTS
from asap_ray.tiers.protocol import Job

if TYPE_CHECKING:
    from asap_ray.fitting.timed_kernels import Stopwatch

DEADLINE_S = 300.0
INSTALL = "install what JAX needs of it: pip install 'asap-ray[cuda]' or 'asap-ray[tpu]'"
ELSEWHERE: Mapping[str, str] = {
    "narrow_fraction": "formats of 8 bits are not timed",
    "attention_fraction": "the attention kernel is the trainer's own: fit it to runs",
    "dcn_fraction": "one machine has no data-centre network",
    "dcn_latency_s": "one machine has no data-centre network",
    "dcn_start_s": "one machine has no data-centre network",
    "workspace_bytes": "memory is not timed: fit it to measured peaks",
    "fragmentation": "memory is not timed: fit it to measured peaks",
}
"""Constants of a chip that no micro-benchmark of one machine can find, and why."""
BYTES, BF16_BYTES = 4, 2  # of a number: matmuls take bf16, everything else fp32
CACHES = 4
"""How many times the on-chip memory an array must be so that it streams from HBM."""
MEMORY_SHARE = 1 / 8
"""Share of a device's memory that the largest array may take."""
WAITS = 2.0
"""A matmul counts where it takes so many times what its bytes need: HBM then has no say in its time."""
OPERATION_S = 1e-3
"""Programs grow until one step takes that long: hundreds of times a launch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """How hard to measure: each run takes `run_s` or more, `repetitions` count; nothing starts after `budget_s`."""

    run_s: float = 0.05
    repetitions: int = 7
    budget_s: float = 120.0
    operation_s: float = OPERATION_S
    kernels: tuple[int, ...] = (16, 64, 128)
    first_matmul: int = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a micro-benchmark found.

    Attributes:
        constants: by name, the value, within the bounds of the physics, and its standard error.
        missing: why each other constant of a chip was not measured.
        doubts: one line for each figure of the chip's description that cannot be right.
        devices: what it ran on, such as `8 x NVIDIA H200`.
        versions: of JAX and of its platform.
    """

    constants: Mapping[str, tuple[float, float]]
    missing: Mapping[str, str]
    doubts: tuple[str, ...]
    devices: str
    versions: Mapping[str, str]


def measured_here(chip: Chip, devices: int, effort: Effort | None = None, deadline_s: float = DEADLINE_S) -> Measured:
    """Measure this machine in a fresh process.

    Raises:
        ConfigError: JAX has no such devices here.
        AsapError: the process did not end well, or not by the deadline.
    """
    job = Job(name="micro-benchmark", work=measure, arguments=(chip, devices, effort or Effort()), timeout_s=deadline_s)
    (outcome,) = local.run([job], workers=1)
    if outcome.error:
        raise outcome.error
    if outcome.status != "complete":
        raise AsapError(f"{job.name} of hardware={chip.name} {outcome.status}: {outcome.reason}")
    return outcome.value


def measure(chip: Chip, devices: int, effort: Effort | None = None) -> Measured:
    """Measure the devices of this process, which must not have started JAX.

    Args:
        chip: the description that the constants are fractions of.
        devices: how many to use; a machine without accelerators makes that many of its CPU.
        effort: how long to measure.

    Raises:
        ConfigError: JAX is missing, starts no device, or has too few or other ones than the chip's.
    """
    effort = effort or Effort()
    try:
        from asap_ray.fitting import timed_kernels
    except ImportError as error:
        raise ConfigError("hardware", chip.name, f"the micro-benchmark needs JAX ({error}); {INSTALL}") from error
    try:
        found = timed_kernels.devices_here(devices, os.environ.get("XLA_FLAGS", ""))
    except RuntimeError as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise ConfigError("hardware", chip.name, f"JAX starts no device here ({reason}); {INSTALL}") from error
    check_devices(chip, devices, found[0].platform, len(found))
    used = tuple(found[:devices])
    watch = timed_kernels.Stopwatch(devices=used, run_s=effort.run_s, repetitions=effort.repetitions)
    estimated, missing = _Bench(chip=chip, watch=watch, effort=effort, platform=used[0].platform).all()
    constants, untold = bounded(estimated)
    why = {**ELSEWHERE, **missing, **untold}
    chips = [name for name, about in CONSTANTS.items() if about["owner"] == "chip"]
    name, versions = timed_kernels.described(used)
    return Measured(
        constants=constants,
        missing={name: why.get(name, "no program times it") for name in chips if name not in constants},
        doubts=doubts(f"hardware.{chip.name}", described_figures(chip), estimated),
        devices=name,
        versions=versions,
    )


def check_devices(chip: Chip, wanted: int, platform: str, found: int) -> None:
    """Check that what JAX found is what the description is of; a GPU that it does not name may also stand for a CPU.

    Raises:
        ConfigError: there are too few devices, or none of that kind.
    """
    if (chip.kind == "tpu" or chip.vendor == "nvidia") and platform != chip.kind:
        raise ConfigError("hardware", chip.name, f"JAX finds no {chip.kind} here, only {found} x {platform}; {INSTALL}")
    if not 1 <= wanted <= found:
        allowed = f"allowed: up to {found}, the {platform} devices that JAX finds here"
        raise ConfigError(f"hardware.{chip.name}.max_domain", wanted, allowed)


@dataclass(frozen=True, kw_only=True)  # no slots: the clock starts once
class _Bench:
    """One pass over all programs; each finds some constants, or says why not."""

    chip: Chip
    watch: Stopwatch
    effort: Effort
    platform: str
    start_s: float = field(default_factory=time.monotonic)

    def all(self) -> tuple[Estimated, dict[str, str]]:
        """The constants, and why others are missing."""
        estimated: Estimated = {}
        missing: dict[str, str] = {}
        parts: dict[tuple[str, ...], Callable[[], Estimated | str]] = {
            ("hbm_fraction",): lambda: {"hbm_fraction": self._hbm_fraction},
            ("matmul_fraction", "contraction_ramp"): self._matmuls,
            ("kernel_launch_s",): self._launches,
            ("ici_fraction", "hop_latency_s", "ici_start_s"): self._links,
            ("pcie_fraction",): self._copies,
        }
        for names, part in parts.items():
            try:
                found = f"no time was left of {self.effort.budget_s:g} s" if self._late else part()
            except RuntimeError as error:  # what JAX raises where a program cannot be compiled or run
                found = f"it did not run: {' '.join(str(error).split())[:160]}"
            if isinstance(found, str):
                missing |= dict.fromkeys(names, found)
            else:
                estimated |= found
                missing |= {name: "no two matmuls ran without waiting for HBM" for name in names if name not in found}
        return estimated, missing

    @property
    def _late(self) -> bool:
        return time.monotonic() - self.start_s > self.effort.budget_s

    @property
    def _most_numbers(self) -> int:
        return int(self.chip.usable_hbm_bytes * MEMORY_SHARE / BYTES)

    def _grown(self, size: int, most: int, timed: Callable[[int], Timing], factor: int = 2) -> int:
        """A size that takes long enough, or the last one before there is too little memory or time for more."""
        while size * factor <= most and not self._late and timed(size).seconds < self.effort.operation_s:
            size *= factor
        return size

    @cached_property
    def _hbm_fraction(self) -> tuple[float, float]:
        first = max(int(CACHES * self.chip.on_chip_bytes / BYTES), 1)
        numbers = self._grown(first, self._most_numbers, self.watch.quick().triad)
        described = 3 * numbers * BYTES / self.chip.device_hbm_bytes_per_s
        return stream_fraction(described, self.watch.triad(numbers))

    def _matmuls(self) -> Estimated | str:
        quick = self.watch.quick()
        side = self._grown(
            self.effort.first_matmul, int(self._most_numbers**0.5), lambda size: quick.matmul(size, size, size)
        )
        hbm = self.chip.device_hbm_bytes_per_s * self._hbm_fraction[0]
        contractions, timings = [], []
        for k in (2 * side, side, side // 2, side // 4, side // 8, side // 16):
            timing = self.watch.matmul(side, k, side)
            moved = (2 * side * k + side * side) * BF16_BYTES
            if timing.seconds >= WAITS * moved / hbm:
                contractions.append(k)
                timings.append(timing)
        if not timings:
            return "no matmul ran without waiting for HBM"
        full = [full_rate_s(self.chip, side, k, side) for k in contractions]
        return matmul_constants(contractions, full, timings)

    def _launches(self) -> Estimated:
        timings = [self.watch.launches(count) for count in self.effort.kernels]
        return {"kernel_launch_s": each_costs(self.effort.kernels, timings)}

    def _links(self) -> Estimated | str:
        count = len(self.watch.devices)
        if count == 1:
            return "there is one device only"
        groups = gather_groups(self.chip, count)
        if not groups:
            return f"hardware.{self.chip.name} has no slice of {count} devices"
        gathers, timings = [], []
        for size, figures in groups.items():
            watch = self.watch.of(size)
            rate, hops = float(figures.gather_bytes_per_s[0]), int(figures.hops[0])
            first, most = 2**10 * size, self._most_numbers
            last = self._grown(first, most, watch.quick().gather, factor=8)
            for numbers in [n for power in range(20) if (n := first * 8**power) <= last]:
                described = numbers * BYTES * (size - 1) / size / rate
                gathers.append(Gather(hops=hops, described_s=described))
                timings.append(watch.gather(numbers))
        return link_constants(gathers, timings)

    def _copies(self) -> Estimated | str:
        if self.platform == "cpu":
            return "CPU devices share the host's memory"
        numbers = self._grown(2**20, self._most_numbers, self.watch.quick().copy_in)
        sizes = [numbers, 2 * numbers, 4 * numbers]
        described = [size * BYTES / self.chip.device_pcie_bytes_per_s for size in sizes]
        return {"pcie_fraction": copy_fraction(described, [self.watch.copy_in(size) for size in sizes])}

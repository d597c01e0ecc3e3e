"""Which constants are fitted, and what is believed of each before any run is seen.

A parameter is one constant of one calibration file. The belief is a normal distribution around what the file (or its
base, or its class) states, of the logarithm, or of the value itself for fractions of overlap. In units of its standard
deviation a parameter is 0 where it is as stated; so the penalty of a fit is the sum of squares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from asap_ray.chip import Chip
from asap_ray.physics.calibration import (
    CONSTANTS,
    Calibration,
    Calibrations,
    calibration_of,
    calibrations_from_mappings,
)

BELIEF = {
    "matmul_fraction": 0.25,
    "contraction_ramp": 0.8,
    "narrow_fraction": 0.15,
    "attention_fraction": 0.35,
    "hbm_fraction": 0.08,
    "ici_fraction": 0.25,
    "dcn_fraction": 0.5,
    "pcie_fraction": 0.25,
    "hop_latency_s": 0.5,
    "ici_start_s": 0.5,
    "dcn_latency_s": 1.0,
    "dcn_start_s": 1.0,
    "dcn_message_s": 1.0,
    "kernel_launch_s": 0.4,
    "four_bit_fraction": 0.2,
    "portable_fraction": 0.3,
    "attention_block": 0.5,
    "host_launch_s": 0.7,
    "handoff_s": 1.0,
    "stall_s": 1.0,
    "sync_s": 1.0,
    "crowding": 1.0,
    "expert_passes": 0.5,
    "expert_launches": 0.7,
    "cast_passes": 0.4,
    "batch_overhead_s": 1.0,
    "step_overhead_s": 1.0,
    "elementwise_passes": 0.5,
    "optimizer_passes": 0.5,
}
"""Standard deviation of the logarithm: HBM is known to about a tenth, matmuls in long steps (which power limits) and
links to a quarter, kernels of a trainer to a half, latencies and what its host needs to a factor of two or more."""
OVERLAP_BELIEF = 0.3
"""Standard deviation of a fraction of overlap."""


@dataclass(frozen=True, order=True, slots=True)
class Parameter:
    """One constant of one file of `conf/calibration/`."""

    file: str
    constant: str

    @property
    def linear(self) -> bool:
        """Whether the belief is of the value itself, not of its logarithm."""
        return self.constant.startswith("overlap_")


Values = Mapping[Parameter, float]


def stack_file(stack: str) -> str:
    """The file of a stack."""
    return f"stack_{stack}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Beliefs:
    """What the files state without their fits; `bases` are the bases of chips' files, `own` the constants that each
    file states itself."""

    stated: Calibrations
    bases: Mapping[str, str]
    own: Mapping[str, frozenset[str]]

    def owners(self, chip: Chip, stack: str) -> dict[str, str]:
        """The file in which each constant is fitted for a chip and stack.

        Of a chip's bases it is the nearest that states the constant itself, or the last before the class: chips of the
        same silicon share what their files do not tell apart.
        """
        chain = [chip.name.replace("-", "_")]
        while self.bases.get(chain[-1], chip.kind) != chip.kind:
            chain.append(self.bases[chain[-1]])
        found = {}
        for name, about in CONSTANTS.items():
            stating = (file for file in chain if name in self.own.get(file, ()))
            found[name] = stack_file(stack) if about["owner"] == "stack" else next(stating, chain[-1])
        return found

    def parameters(self, pairs: Iterable[tuple[Chip, str]]) -> list[Parameter]:
        """All that may be fitted to runs of some chips and stacks; what is stated as 0 does not exist there."""
        found, none = set[Parameter](), set[Parameter]()
        for chip, stack in pairs:
            known, owners = calibration_of(chip, stack, self.stated), self.owners(chip, stack)
            for name in CONSTANTS:
                parameter = Parameter(owners[name], name)
                if parameter.linear or name in BELIEF:
                    (found if parameter.linear or getattr(known, name) > 0 else none).add(parameter)
        return sorted(found - none)

    def calibration(self, chip: Chip, owners: Mapping[str, str], stack: str, values: Values) -> Calibration:
        """The constants of a chip and stack with fitted ones in their place; `owners` are theirs."""
        own = {p.constant: value for p, value in values.items() if owners[p.constant] == p.file}
        return replace(calibration_of(chip, stack, self.stated), **own)


def beliefs_of(files: Mapping[str, Mapping[str, Any]], keeps_fits: bool) -> Beliefs:
    """What the files of `conf/calibration/` say, with what was fitted before or without it.

    Raises:
        ConfigError: a file cannot be used.
    """
    dropped = () if keeps_fits else ("fitted", "rows")
    stated = {name: {k: v for k, v in given.items() if k not in dropped} for name, given in files.items()}
    bases = {name: str(given["base"]) for name, given in files.items() if "base" in given}
    own = {name: frozenset(given) & CONSTANTS.keys() for name, given in stated.items()}
    return Beliefs(stated=calibrations_from_mappings(stated), bases=bases, own=own)


@dataclass(frozen=True, slots=True)
class Scale:
    """Parameters as numbers in units of their beliefs' standard deviations [parameters]."""

    parameters: tuple[Parameter, ...]
    stated: np.ndarray
    spread: np.ndarray
    linear: np.ndarray

    @classmethod
    def of(cls, parameters: Iterable[Parameter], stated: Iterable[float]) -> Scale:
        """The scale of some parameters that files state so."""
        known = tuple(parameters)
        spread = [OVERLAP_BELIEF if p.linear else BELIEF[p.constant] for p in known]
        return cls(known, np.array(list(stated)), np.array(spread), np.array([p.linear for p in known], bool))

    def values(self, x: np.ndarray) -> dict[Parameter, float]:
        """The constants themselves."""
        found = np.where(self.linear, self.stated + x * self.spread, self.stated * np.exp(x * self.spread))
        pairs = zip(self.parameters, found.tolist(), strict=True)
        return {p: min(max(v, CONSTANTS[p.constant]["least"]), CONSTANTS[p.constant]["most"]) for p, v in pairs}

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """What the physics allows."""
        ends = []
        for end in ("least", "most"):
            limit = np.array([CONSTANTS[p.constant][end] for p in self.parameters])
            with np.errstate(divide="ignore", invalid="ignore"):
                ends.append(np.where(self.linear, limit - self.stated, np.log(limit / self.stated)) / self.spread)
        return ends[0], ends[1]

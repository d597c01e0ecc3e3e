"""Problems for the tests of physics, and the price of plans that are given as lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest

from asap_ray.architecture import Architecture, architecture_from_mapping
from asap_ray.chip import Chip, chip_from_mapping
from asap_ray.hardware import parse_slice
from asap_ray.physics.calibration import Calibration, calibrations_from_mappings
from asap_ray.physics.estimate import Estimate
from asap_ray.physics.roofline import Pricer
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.rules import broken
from asap_ray.settings import load_group
from asap_ray.space import Space
from asap_ray.stack import Stack, stack_from_mapping
from asap_ray.workload import Workload

CHIPS: dict[str, Chip] = {name: chip_from_mapping(given) for name, given in load_group("hardware").items()}
STACKS: dict[str, Stack] = {name: stack_from_mapping(given) for name, given in load_group("stack").items()}
CALIBRATIONS: dict[str, Calibration] = calibrations_from_mappings(load_group("calibration"))
PERFECT = Calibration(
    matmul_fraction=1.0,
    contraction_ramp=0.0,
    attention_fraction=1.0,
    hbm_fraction=1.0,
    ici_fraction=1.0,
    dcn_fraction=1.0,
    pcie_fraction=1.0,
    hop_latency_s=0.0,
    dcn_latency_s=0.0,
    kernel_launch_s=0.0,
    step_overhead_s=0.0,
    workspace_bytes=0.0,
    fragmentation=0.0,
    interval_low=1.0,
    interval_high=1.0,
    interval_rows=0.0,
)
"""A device that reaches its datasheet, so that figures can be checked by hand."""


@lru_cache(maxsize=64)
def architecture(name: str) -> Architecture:
    return architecture_from_mapping(load_group("model")[name])


def make_problem(model: str | Architecture, slice_: str, stack: str | Stack, batch: int, seq_len: int) -> Problem:
    return Problem(
        workload=Workload(
            architecture=architecture(model) if isinstance(model, str) else model,
            global_batch=batch,
            seq_len=seq_len,
        ),
        slice=parse_slice(slice_, CHIPS),
        stack=STACKS[stack] if isinstance(stack, str) else stack,
    )


def estimates(problem: Problem, calibration: Calibration, *lines: str) -> list[Estimate]:
    """Estimates of legal plans; a plan that breaks a rule fails the test."""
    plans = [Plan.parse(line) for line in lines]
    for plan in plans:
        assert broken(problem, plan) is None, broken(problem, plan)
    return Pricer(problem, calibration).estimates(Space(problem=problem).columns(plans), plans)


@pytest.fixture
def physics() -> Physics:
    return Physics()


class Physics:
    """What the tests need, in one place (a conftest cannot be imported under importlib)."""

    chips, stacks, calibrations, perfect = CHIPS, STACKS, CALIBRATIONS, PERFECT
    architecture: Callable[[str], Architecture] = staticmethod(architecture)
    problem = staticmethod(make_problem)
    estimates = staticmethod(estimates)

    @staticmethod
    def estimate(problem: Problem, line: str, calibration: Calibration = PERFECT, **changes: float) -> Estimate:
        return estimates(problem, replace(calibration, **changes), line)[0]

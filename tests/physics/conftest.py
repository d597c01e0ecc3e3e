"""Problems for the tests of physics, and the price of plans that are given as lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest

from asap_ray.architecture import Architecture, architecture_from_mapping
from asap_ray.chip import Chip, chip_from_mapping
from asap_ray.hardware import parse_slice
from asap_ray.physics.calibration import Calibration
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
PERFECT = Calibration(
    matmul_fraction=1.0,
    contraction_ramp=0.0,
    attention_fraction=1.0,
    attention_block=0.0,
    hbm_fraction=1.0,
    ici_fraction=1.0,
    dcn_fraction=1.0,
    pcie_fraction=1.0,
    hop_latency_s=0.0,
    dcn_latency_s=0.0,
    kernel_launch_s=0.0,
    ici_start_s=0.0,
    dcn_start_s=0.0,
    dcn_message_s=0.0,
    narrow_fraction=1.0,
    four_bit_fraction=1.0,
    portable_fraction=1.0,
    host_launch_s=0.0,
    batch_overhead_s=0.0,
    sync_s=0.0,
    handoff_s=0.0,
    stall_s=0.0,
    crowding=0.0,
    step_overhead_s=0.0,
    elementwise_passes=1.0,
    optimizer_passes=1.0,
    expert_passes=1.0,
    expert_launches=0.0,
    expert_merge=0.0,
    cast_passes=0.0,
    portable_attention=0.0,
    overlap_fsdp=0.0,
    overlap_gradient=0.0,
    overlap_tensor=0.0,
    overlap_context=0.0,
    overlap_expert=0.0,
    overlap_pipeline=0.0,
    overlap_offload=0.0,
    workspace_bytes=0.0,
    fragmentation=0.0,
    spread_compute=0.0,
    spread_network=0.0,
    spread_host=0.0,
)
"""A device that reaches its datasheet, so that figures can be checked by hand."""
USUAL: dict[str, Calibration] = {
    "gpu": replace(
        PERFECT,
        matmul_fraction=0.78,
        contraction_ramp=96.0,
        attention_fraction=0.55,
        hbm_fraction=0.85,
        ici_fraction=0.8,
        dcn_fraction=0.8,
        pcie_fraction=0.7,
        hop_latency_s=3e-06,
        dcn_latency_s=1.5e-05,
        kernel_launch_s=4e-06,
        step_overhead_s=0.01,
        workspace_bytes=2000000000.0,
        fragmentation=0.08,
        spread_compute=0.2,
        spread_network=0.5,
        spread_host=0.5,
        overlap_gradient=0.8,
        overlap_tensor=0.2,
        overlap_context=0.7,
        overlap_pipeline=0.5,
    ),
    "tpu": replace(
        PERFECT,
        matmul_fraction=0.9,
        contraction_ramp=32.0,
        attention_fraction=0.55,
        hbm_fraction=0.85,
        ici_fraction=0.6,
        dcn_fraction=0.33,
        pcie_fraction=0.7,
        hop_latency_s=1e-06,
        dcn_latency_s=3e-05,
        kernel_launch_s=1e-06,
        step_overhead_s=0.005,
        workspace_bytes=300000000.0,
        fragmentation=0.02,
        spread_compute=0.2,
        spread_network=0.5,
        spread_host=0.5,
        overlap_fsdp=0.9,
        overlap_gradient=0.8,
        overlap_tensor=0.4,
        overlap_context=0.7,
        overlap_pipeline=0.8,
        overlap_offload=0.9,
    ),
}
"""Plausible constants of each class that no calibration changes, with the overlaps of Megatron and of MaxText."""


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

    chips, stacks, calibrations, perfect = CHIPS, STACKS, USUAL, PERFECT
    architecture: Callable[[str], Architecture] = staticmethod(architecture)
    problem = staticmethod(make_problem)
    estimates = staticmethod(estimates)

    @staticmethod
    def estimate(problem: Problem, line: str, calibration: Calibration = PERFECT, **changes: float) -> Estimate:
        return estimates(problem, replace(calibration, **changes), line)[0]

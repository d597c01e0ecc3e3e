"""Profiles of the programs that are kept in `dumps/`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from asap_ray.compiler.hlo import Module, parse
from asap_ray.compiler.timeline import profile_of
from asap_ray.meshes import laid_out
from asap_ray.physics.calibration import Calibration, calibration_of, calibrations_from_mappings
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.profile.table import Profile
from asap_ray.settings import load_group
from tests.compiler.programs import dump
from tests.problems import make_problem

Read = Callable[[str], Module]
Profiled = Callable[[str], Profile]

# Slice and plan of each dump, as `programs.PROGRAMS` has them.
PLANS = {
    "layers": ("v5e-16", "data=2 fsdp=2 tensor=4"),
    "layers_v5p": ("v5p:2x2x4", "fsdp=4 tensor=4"),
    "layers_two_slices": ("2xv5e-16", "data=2 fsdp=4x2 tensor=2"),
    "layers_h100": ("h100x8", "fsdp=2 tensor=4"),
    "layers_two_nodes": ("h100x16", "data=1x2 fsdp=2 tensor=4"),
    "ring": ("v5e-16", "fsdp=2 context=4 expert=2"),
    "collective_matmul": ("v5p:2x2x4", "fsdp=2 tensor=8"),
    "splash": ("v5e-16", "fsdp=16"),
    "grouped": ("v5e-16", "fsdp=16"),
    "batched": ("v5e-16", "fsdp=16"),
    "across": ("2xv5e-16", "fsdp=2 context=2x2 expert=2 tensor=2"),
    "sparsecore": ("tpu7x:2x2x4", "fsdp=16 tensor=2"),
}


def planned(slice_: str, line: str) -> tuple[Problem, Plan]:
    """A problem on a slice, and a plan of it with its first layout."""
    problem = make_problem(slice_, "ours", batch=64, seq_len=2048)
    plan = Plan.parse(line)
    return problem, replace(plan, layout=laid_out(problem, plan).plan_layout(0))


def calibrated(problem: Problem) -> Calibration:
    """What the problem's chip achieves under our stack."""
    return calibration_of(problem.slice.chip, "ours", calibrations_from_mappings(load_group("calibration")))


@pytest.fixture(scope="session")
def module() -> Read:
    """Reads a kept program once."""
    found: dict[str, Module] = {}
    return lambda name: found.setdefault(name, parse(dump(name)))


@pytest.fixture(scope="session")
def profiled(module: Read) -> Profiled:
    """The profile of a kept program."""

    def profile(name: str) -> Profile:
        problem, plan = planned(*PLANS[name])
        return profile_of(module(name), problem, plan, calibrated(problem))

    return profile

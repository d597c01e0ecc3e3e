"""The trainer's programs for real plans do what the plans say: no FLOPs and no bytes on wires that nobody predicted.

The texts are those that the compilers made (`clean`), cut down to what FLOPs, collectives and loops are read from.
"""

from __future__ import annotations

import pytest

from asap_ray.compiler.hlo import parse
from asap_ray.compiler.timeline import profile_of
from asap_ray.physics.wire import predicted_collectives
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.tiers.roofline import Roofline
from tests.compiler.clean import PROGRAMS
from tests.compiler.conftest import calibrated
from tests.compiler.programs import dump

FLOPS_OFF = 0.03
"""Of the FLOPs that a plan is due, what a program may do more or less."""


def due_flops(problem: Problem, plan: Plan) -> float:
    """FLOPs of a device: the workload's own and the policy's, and of a pipeline's layers also the idle ticks."""
    workload = problem.workload
    (priced,) = Roofline(problem=problem, calibration=calibrated(problem)).estimates([plan])
    head = 3.0 * workload.flops_by_part().get("head", 0.0)  # spread over the stages: it has no idle ticks
    busy = plan.accumulation * plan.virtual
    ticks = (busy + plan.axes["pipeline"] - 1) / busy
    layers = workload.model_flops * (1.0 + priced.redundant) - head
    return (layers * ticks + head) / problem.slice.devices


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_what_its_plan_says(name: str) -> None:
    problem, plan = PROGRAMS[name].problem, PROGRAMS[name].plan
    profile = profile_of(parse(dump(f"clean_{name}")), problem, plan, calibrated(problem))
    assert profile.total("flops") == pytest.approx(due_flops(problem, plan), rel=FLOPS_OFF)
    assert profile.unexpected(predicted_collectives(problem, plan)) == {}
    assert profile.flags == ()

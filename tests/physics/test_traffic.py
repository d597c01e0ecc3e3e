"""Traffic of a step that hangs on how a stack shards its optimizer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asap_ray.architecture import architecture_from_mapping
from asap_ray.hardware import parse_slice
from asap_ray.physics.roofline import Pricer
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.settings import load_group
from asap_ray.space import Space
from asap_ray.workload import Workload
from tests.physics.conftest import CHIPS, PERFECT, STACKS


@pytest.mark.parametrize(("scatters", "numbers"), [(True, 4 + 2), (False, 8 + 2)])
def test_a_sharded_optimizer_sums_gradients_for_itself_or_for_all(scatters, numbers):
    # Weights of 2 bytes are gathered, gradients of 4 scattered (4 bytes a weight) or summed everywhere (twice 4).
    model = architecture_from_mapping(load_group("model")["llama3_2_1b"])
    workload = Workload(architecture=model, global_batch=64, seq_len=4096)
    stack = replace(STACKS["nanotron"], zero_scatters=scatters)
    problem = Problem(workload=workload, slice=parse_slice("h100x8", CHIPS), stack=stack)
    ones = (1, 1, 1, 1, 1, 1)
    plans = [Plan(ici=(8, *ones[1:]), dcn=ones, micro_batch=1, accumulation=8, zero=zero) for zero in (0, 1)]
    columns = Space(problem=problem).columns(plans)
    plain, zero = Pricer(problem, PERFECT).price(columns).time_parts["gradient"]
    one_byte = 7 / 8 * (model.parameters - model.norm_parameters) / 450e9  # the last norm is left out
    assert plain == pytest.approx(8 * one_byte, rel=1e-9)
    assert zero == pytest.approx(numbers * one_byte, rel=1e-9)
    # Sums of each gradient as it comes hide under the backward pass; one sum of all that waits for it does not.
    plain, hidden = Pricer(problem, replace(PERFECT, overlap_gradient=1.0)).price(columns).time_parts["gradient"]
    assert plain == 0.0
    assert hidden == (0.0 if scatters else zero)


def test_each_host_beyond_two_crowds_the_network_of_gradients(physics):
    # Replicas on 4 hosts: 3/4 of an eighth of all gradients, then of all weights, cross each NIC of 25 GB/s; of the two
    # hosts beyond the first two, each adds a tenth.
    problem = physics.problem("llama2_7b", "a100x32", "megatron", 64, 2048)
    columns = Space(problem=problem).columns(
        [Plan(ici=(8, 1, 1, 1, 1, 1), dcn=(4, 1, 1, 1, 1, 1), micro_batch=1, accumulation=2, zero=1)]
    )
    base, crowded = (
        Pricer(problem, replace(PERFECT, crowding=crowding)).price(columns).time_parts["gradient"]
        for crowding in (0.0, 0.1)
    )
    model, width = problem.workload.architecture, 2 + STACKS["megatron"].state.gradient_wire
    across = width * (model.parameters - model.norm_parameters) / 8 * 3 / 4 / 25e9
    assert crowded - base == pytest.approx(2 * 0.1 * across, rel=1e-9)

"""Traffic of a step that hangs on how a stack shards its optimizer, hands tensors on, and keeps its ranks in time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asap_ray.architecture import architecture_from_mapping
from asap_ray.hardware import parse_slice
from asap_ray.physics.roofline import Pricer
from asap_ray.physics.traffic import axes_link
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


@pytest.mark.parametrize(
    ("knobs", "waits"),
    [
        # Without a split sequence a block is summed forward and backward; there are 32 x 2 blocks, and the edges.
        ("remat=none", 2 * (2 * 32 + 1)),
        # With one it gathers and scatters each way, and gathers once more for the gradients of weights.
        ("remat=none sequence_parallel=true", 5 * (2 * 32 + 1)),
        # Megatron's full recomputation runs the forward exchanges of all layers again.
        ("remat=full", 2 * (2 * 32 + 1) + 2 * 32),
        ("remat=full sequence_parallel=true", 5 * (2 * 32 + 1) + 2 * (2 * 32)),
    ],
)
def test_ranks_wait_for_the_last_at_each_exchange(physics, knobs, waits):
    # Of 8 ranks the last is log2(8) = 3 times as late as the second of two; 2 micro-batches.
    problem = physics.problem("llama2_7b", "h100x8", "megatron", 4, 4096)
    prompt, late = (
        physics.estimate(problem, f"tensor=8 micro_batch=2 accumulation=2 {knobs}", sync_s=sync_s).time_parts["tensor"]
        for sync_s in (0.0, 1e-5)
    )
    assert late - prompt == pytest.approx(2 * waits * 3 * 1e-5, rel=1e-9)


@pytest.mark.parametrize(
    ("splits", "sequence_parallel", "parts", "gathers"),
    [(True, False, 8, 1), (True, True, 8, 0), (False, False, 1, 0), (False, True, 8, 0)],
)
def test_a_pipeline_sends_whole_tensors_unless_stack_or_sequence_splits_them(
    physics, splits, sequence_parallel, parts, gathers
):
    # 4,096 tokens of 4,096 16-bit numbers cross NICs of 50 GB/s, forward and backward of 4 micro-batches; parts that
    # were split for the way alone are gathered by 8 ranks over NVLink.
    stack = replace(STACKS["megatron"], splits_sends=splits)
    problem = physics.problem("llama2_7b", "h100x16", stack, 4, 4096)
    knobs = f"schedule=1f1b remat=none sequence_parallel={str(sequence_parallel).lower()}"
    found = physics.estimate(problem, f"pipeline=1x2 tensor=8 micro_batch=1 accumulation=4 {knobs}")
    block = 4096 * 4096 * 2
    expected = 4 * 2 * (block / parts / 50e9 + gathers * 7 / 8 * block / 450e9)
    assert found.time_parts["pipeline"] == pytest.approx(expected, rel=1e-9)


def test_part_of_an_axis_has_the_links_that_it_lies_on(physics):
    # 64 devices of v5p as 4x4x4, each axis a ring: a gather within 4 of them on one axis gets two links of 100 GB/s,
    # within 16 on two axes four, within all six.
    problem = physics.problem("llama2_7b", "v5p:4x4x4", "ours", 64, 2048)
    meshes = Space(problem=problem).columns([Plan.parse("fsdp=64@4.4.4 micro_batch=1 remat=full")]).meshes
    for links, ranks in (((2,), 4), ((0, 1), 16), ((0, 1, 2), 64)):
        link = axes_link(problem, meshes, ["fsdp"], PERFECT, links)
        assert link.n_ici.tolist() == [ranks]
        assert link.gather_bytes_per_s.tolist() == [pytest.approx(2 * len(links) * 100e9)]
    whole = axes_link(problem, meshes, ["fsdp"], PERFECT)
    assert whole.gather_bytes_per_s.tolist() == [pytest.approx(600e9)]

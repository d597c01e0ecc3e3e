"""Layers of the stages of a pipeline, counted block by block by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asap_ray.architecture import Architecture, architecture_from_mapping
from asap_ray.hardware import parse_slice
from asap_ray.physics.roofline import Pricer
from asap_ray.physics.stages import stage_layers, weighed_layers
from asap_ray.plan import Plan
from asap_ray.problem import Problem, columns_of
from asap_ray.space import Space
from asap_ray.workload import Workload
from tests.physics.conftest import CHIPS, PERFECT, STACKS


def model(layers: int, vocab: int) -> Architecture:
    # A layer multiplies by 4 d^2 weights in attention and 12 d^2 in its MLP: 32 d^2 FLOPs a token, d = 1024.
    given = {"name": "small", "layers": layers, "d_model": 1024, "vocab": vocab}
    attention = {"heads": 8, "kv_heads": 8, "head_dim": 128}
    return architecture_from_mapping(given | {"attention": attention, "ffn": {"d_ff": 4096, "gated": True}})


def workload(batch: int = 64) -> Workload:
    return Workload(architecture=model(16, 70 * 1024), global_batch=batch, seq_len=1024)


# Attention to 512.5 keys on average takes 4 d FLOPs each, 2 d^2 in all: a layer has 34.002 d^2 FLOPs a token, the head
# of 70 d columns 140 d^2, which is 4.12 layers; the whole is 20.12.
@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        (1, (16, 16)),
        (2, (11, 5)),  # a stage is full above 10.06: the eleventh layer is still its own
        (4, (6, 0)),  # above 5.03, 10.06, 15.09: 6, 5, 5 layers, then the head alone
        (8, (3, 0)),  # above 2.5, 5.0, 7.5, 10.1, 12.6, 15.1: 3, 3, 2, 3, 2, 3 layers
    ],
)
def test_stages_are_cut_by_flops_with_the_head(stages, expected):
    assert weighed_layers(workload(), stages) == expected


def problem(stack: str) -> Problem:
    return Problem(workload=workload(), slice=parse_slice("h100x8", CHIPS), stack=STACKS[stack])


def pipelined(stages: int, batch: int = 64) -> Plan:
    axes = (1, 1, stages, 1, 1, 8 // stages)
    return Plan(
        ici=axes, dcn=(1, 1, 1, 1, 1, 1), micro_batch=1, accumulation=batch, schedule="1f1b", sequence_parallel=True
    )


def test_other_stacks_deal_layers_out_evenly():
    plans = [pipelined(stages) for stages in (2, 4, 8)]
    given = problem("scaling")
    for layers in stage_layers(given, columns_of(given, plans)):
        assert layers.tolist() == [8, 4, 2]


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_step_is_its_slowest_stage_and_one_pass_through_the_others(stages):
    # With free links a micro-batch passes through all 16 layers and the head once; all but the first of them wait for
    # the slowest stage alone.
    given = problem("nanotron")
    fast = replace(PERFECT, ici_fraction=1.0, kernel_launch_s=0.0)
    parts = Pricer(given, fast).price(Space(problem=given).columns([pipelined(stages)])).time_parts
    plain = replace(given.stack, stages_by_cost=False)
    even = Pricer(replace(given, stack=plain), fast).price(Space(problem=given).columns([pipelined(stages)])).time_parts
    names = ("matmul", "attention", "elementwise")
    layer = sum(float(even[name][0]) for name in names) / 64 / (16 / stages)
    head = float(even["head"][0]) / 64
    first, last = weighed_layers(given.workload, stages)
    slowest = max(first * layer, last * layer + head)
    held, headed = (first, 0.0) if first * layer > last * layer + head else (last, 1.0)
    assert sum(float(parts[name][0]) for name in names) == pytest.approx(64 * held * layer, rel=1e-9)
    assert float(parts["head"][0]) == pytest.approx(64 * headed * head, rel=1e-9)
    assert np.isclose(64 * (held * layer + headed * head), 64 * slowest)
    exposed = float(parts["tensor"][0] + parts["pipeline"][0])
    rest = (16 - held) * layer + (1.0 - headed) * head
    assert float(parts["bubble"][0]) >= rest * (1 - 1e-9)
    assert float(parts["bubble"][0]) <= rest + exposed


def test_a_stage_of_the_head_can_lack_no_more_than_all_its_layers():
    # Nine layers on eight stages are two on the fullest; half of the seven that lack would be more than a stage has, so
    # the last stage is left with the head alone, which takes longer than two layers.
    given = replace(problem("megatron"), workload=replace(workload(), architecture=model(9, 70 * 1024)))
    even = replace(given, stack=replace(given.stack, uneven_layers=False))
    parts, full = (
        Pricer(each, PERFECT).price(Space(problem=each).columns([pipelined(8)])).time_parts for each in (given, even)
    )
    names = ("matmul", "attention", "elementwise")
    two_layers, head = sum(float(full[name][0]) for name in names), float(full["head"][0])
    assert head > two_layers
    assert sum(float(parts[name][0]) for name in (*names, "head")) == pytest.approx(head, rel=1e-12)


def test_a_stage_waits_for_each_tensor_that_it_hands_on():
    # The stages of two have one neighbour, those in the middle of four have two: two or four tensors a micro-batch.
    given = problem("scaling")
    for stages, tensors in ((2, 2), (4, 4), (8, 4)):
        columns = Space(problem=given).columns([pipelined(stages)])
        free, slow = (Pricer(given, replace(PERFECT, handoff_s=s)).price(columns) for s in (0.0, 0.01))
        grown = float(slow.step_time_s[0] - free.step_time_s[0])
        assert grown == pytest.approx((64 + stages - 1) * tensors * 0.01, rel=1e-9)


@pytest.mark.parametrize(("across", "tensor", "stalls"), [(2, 4, True), (1, 4, False), (2, 1, False)])
def test_hosts_stall_where_a_pipeline_crosses_the_network(across, tensor, stalls):
    given = problem("scaling")
    wide = replace(given, slice=parse_slice("h100:2x8", CHIPS))
    ici = (8 // tensor if across == 2 else 4 // tensor, 1, 2 // across, 1, 1, tensor)
    data = 1 if across == 2 else 2
    plan = Plan(
        ici=ici, dcn=(data, 1, across, 1, 1, 1), micro_batch=1, accumulation=64 // (ici[0] * data), schedule="1f1b"
    )
    columns = Space(problem=wide).columns([plan])
    base, slow = (Pricer(wide, replace(PERFECT, stall_s=s)).price(columns) for s in (0.0, 1.0))
    grown = float(slow.step_time_s[0] - base.step_time_s[0])
    assert (grown > 0) == stalls
    if stalls:
        # 8 layers and 4 tensor ranks for each micro-batch, and one more to fill; the device works meanwhile.
        passes = plan.accumulation + 1
        assert passes * 32.0 - float(base.step_time_s[0]) < grown < passes * 32.0

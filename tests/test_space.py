"""The space is exact: it holds every legal plan once and no other, by brute force both ways."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter

import numpy as np
import pytest

from asap_ray import space as space_module
from asap_ray.architecture import Architecture
from asap_ray.layers import Attention, FeedForward
from asap_ray.plan import Plan
from asap_ray.problem import Problem, columns_of
from asap_ray.space import Space, divisors
from asap_ray.stack import Stack
from tests.brute_force import is_legal, legal_plans
from tests.brute_layouts import figures
from tests.problems import DENSE, MIXED, MOE, STACKS, all_plans, make_problem

# A torus of two and of three dimensions, slices and domains across a network, and counts that are no power of two;
# with a batch that all devices can share.
SLICES = {"v5e-8": 8, "2xv5e-4": 8, "v5p-16": 8, "h100:3x4": 12, "h100:6x2": 12, "h100x6": 12}


def identity(problem: Problem, plan: Plan) -> tuple[Plan, object]:
    """A plan with what its layout costs in place of the layout: of layouts alike in all figures any one may stand."""
    layout = plan.layout or tuple((size if i != 4 else 1,) for i, size in enumerate(plan.ici))
    if problem.stack.expert_multiplies:
        layout = plan.layout or tuple((size,) for size in plan.ici)
    return dataclasses.replace(plan, layout=()), figures(problem, layout)


def compare(problem: Problem) -> int:
    """Hold the space of a problem against brute force; gives the number of its plans."""
    space = Space(problem=problem)
    enumerated = Counter(identity(problem, plan) for plan in all_plans(space))
    expected = {identity(problem, plan) for plan in legal_plans(problem)}
    assert [plan for plan, count in enumerated.items() if count > 1] == []
    assert enumerated.keys() - expected == set()
    assert expected - enumerated.keys() == set()
    survey = space.survey()
    assert survey.legal == len(expected)
    assert survey.total == space.total == survey.legal + sum(survey.removed.values())
    return survey.legal


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("slice_", SLICES)
def test_every_legal_plan_of_a_dense_model_is_enumerated_once_and_no_other(slice_: str, stack: str) -> None:
    assert compare(make_problem(slice_, stack, DENSE, batch=SLICES[slice_])) > 0


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("slice_", SLICES)
def test_every_legal_plan_of_a_mixture_is_enumerated_once_and_no_other(slice_: str, stack: str) -> None:
    assert compare(make_problem(slice_, stack, MOE, batch=SLICES[slice_])) > 0


@pytest.mark.parametrize("stack", ["megatron", "torchtitan", "maxtext"])
def test_shared_experts_and_dense_first_layers_keep_the_policies_of_both(stack: str) -> None:
    assert compare(make_problem("h100:2x4", stack, MIXED, batch=8, seq_len=16)) > 0


@pytest.mark.parametrize("stack", ["ours", "megatron"])
def test_opted_in_numerics_open_the_precisions_of_the_stack(stack: str) -> None:
    own = make_problem("h100x4", stack, batch=4)
    more = make_problem("h100x4", stack, batch=4, numerics=("precision",))
    assert compare(more) == 3 * compare(own)  # bf16 and two others


def test_uneven_stages_are_legal_where_the_stack_can_build_them() -> None:
    five = dataclasses.replace(DENSE, layers=5)
    assert compare(make_problem("h100x4", "torchtitan", five, batch=4)) > 0
    plans = all_plans(Space(problem=make_problem("h100x4", "torchtitan", five, batch=4)))
    assert {plan.axes["pipeline"] for plan in plans} == {1, 2, 4}  # 5 layers on 4 stages: 2, 1, 1, 1
    plans = all_plans(Space(problem=make_problem("h100x4", "maxtext", five, batch=4)))
    assert {plan.axes["pipeline"] for plan in plans} == {1}


def test_layouts_differ_where_they_matter() -> None:
    """On a torus the same sizes come more than once, each time with something better."""
    problem = make_problem("v5e-8", "ours")
    sizes = Counter((plan.ici, plan.dcn) for plan in set(all_plans(Space(problem=problem))))
    lines = {
        plan.line.partition(" micro_batch")[0]
        for plan in all_plans(Space(problem=problem))
        if plan.ici == (1, 4, 1, 1, 1, 2)
    }
    assert len(sizes) > 10
    # 2x4: fsdp may take the long side alone, or share both sides with tensor.
    assert lines == {"fsdp=4@1.4 tensor=2@2.1", "fsdp=4@2.2 tensor=2@1.2"}


# --- counts ----------------------------------------------------------------------------------------------------------


def test_total_is_the_raw_product() -> None:
    # 3 domains of 4 GPUs, five axes but for a dense model's expert: data, pipeline, context, tensor.
    inside, across = math.comb(2 + 3, 3), 4  # 2·2 over four axes, one prime 3 over four axes
    micro_batches = 6  # 1 2 3 4 6 12
    schedules = 2 + 5  # none, 1f1b, interleaved with 2 to 6 chunks of 6 layers, which need not be even
    knobs = 2 * 2 * 3 * 1 * 2  # zero, sequence parallelism, policies, precision, attention kernels
    space = Space(problem=make_problem("h100:3x4", "megatron"))
    assert space.total == inside * across * micro_batches * schedules * knobs


def test_removed_counts_of_the_smallest_space_by_hand() -> None:
    """Two GPUs, sharded or replicated: 2 meshes × 2 micro-batches × 1 schedule × 2 (ZeRO, sequence, remat, kernel)."""
    survey = Space(problem=make_problem("h100x2", "foundry", batch=2)).survey()
    assert survey.total == 2 * 2 * 16
    # Micro-batch 2 on two shards asks for 4 sequences; sequence parallelism needs a tensor axis; of the 8 plans with
    # fsdp that are left, half say ZeRO with one data rank.
    assert survey.removed == {"batch": 32, "sequence_parallel": 16, "same_zero": 4}
    assert survey.legal == 12


def test_removed_counts_of_every_kind_by_hand() -> None:
    """Megatron on four GPUs: 10 meshes × 3 micro-batches × 3 schedules × 24 knobs, followed rule by rule.

    Axes are d, p, c, t. Meshes: d4 p4 c4 t4 d2p2 d2c2 d2t2 p2c2 p2t2 c2t2.
    """
    model = Architecture(
        name="two",
        layers=2,
        d_model=8,
        vocab=8,
        attention=Attention(heads=2, kv_heads=1, head_dim=4),
        ffn=FeedForward(d_ff=8),
    )
    survey = Space(problem=make_problem("h100x4", "megatron", model, batch=4, seq_len=12)).survey()
    assert survey.total == 10 * 3 * 3 * 24
    assert survey.removed == {
        "heads": 1 * 216,  # t4 on two heads
        "sequence": 1 * 216,  # c4 × 2 chunks on 12 tokens
        "batch": 5 * 72,  # d4 with micro-batches 2 and 4, d2·· with 4: 19 of 24 meshes with micro-batch are left
        "schedule": 27 * 24,  # 8 of them without pipeline lose two schedules each, 11 with lose one
        "stages": 14 * 24,  # p4 on two layers: 3 × 2; p2 × 2 chunks on two layers: 8
        "sequence_parallel": 96,  # half of d4, d2c2, d2p2 and p2c2 (8 × 24)
        "attention": 66,  # half of d2c2 (24), p2c2 (36) and c2t2 (72): context needs flash
        "same_zero": 63,  # half of c2t2 (36), p2c2 (18) and p2t2 (72), which have nothing to shard over
        "same_remat": 33,  # with flash there are no scores: `selective` saves what `none` does, a third of 99
    }
    assert survey.legal == 126


# --- the same space, however it is read ------------------------------------------------------------------------------


@pytest.mark.parametrize(("chunk", "block"), [(1, 1), (7, 3), (1 << 20, 1 << 20)])
def test_chunk_sizes_change_nothing(monkeypatch: pytest.MonkeyPatch, chunk: int, block: int) -> None:
    space = Space(problem=make_problem("2xv5e-4", "torchtitan", MOE, batch=4))
    plans, survey = all_plans(space), space.survey()
    monkeypatch.setattr(space_module, "CHUNK", chunk)
    monkeypatch.setattr(space_module, "MESH_BLOCK", block)
    assert all_plans(space) == plans
    assert space.survey() == survey


def test_the_order_is_the_same_every_time() -> None:
    first, second = (all_plans(Space(problem=make_problem("v5e-8", "ours"))) for _ in range(2))
    assert first == second


def test_chunks_are_bounded() -> None:
    space = Space(problem=make_problem("v5p-128", "maxtext", "llama2_70b", batch=1024, seq_len=4096))
    assert all(0 < len(rows) <= space_module.CHUNK for rows in space.chunks())


def test_meshes_of_thousands_of_devices_are_never_all_in_memory_at_once() -> None:
    """Four slices of 16x16x16 have millions of meshes for a mixture whose experts subdivide; a chunk holds few."""
    problem = make_problem("4xv5p:16x16x16", "torchtitan", "deepseek_v3", batch=15360, seq_len=4096)
    space = Space(problem=problem)
    assert len(space.meshes) == len(space.meshes.table) * math.comb(2 + 4, 4) * 9  # 2·2 on 5 axes, divisors of 256
    assert len(space.meshes) > 2_000_000
    rows = next(space.chunks())
    assert len(rows.meshes) <= space_module.MESH_BLOCK
    assert all(is_legal(problem, space.plan(rows, i)) for i in range(0, len(rows), 997))


@pytest.mark.parametrize("stack", STACKS)
def test_columns_of_plans_read_as_the_rows_they_came_from(stack: str) -> None:
    problem = make_problem("v5p-16", stack, MOE)
    space = Space(problem=problem)
    for rows in space.chunks():
        take = np.arange(0, len(rows), 1 + len(rows) // 50)
        plans = [space.plan(rows, int(i)) for i in take]
        again, named = space.columns(plans), columns_of(problem, plans)
        for name in rows:
            np.testing.assert_array_equal(again[name], rows[name][take], err_msg=name)
            np.testing.assert_array_equal(named[name], rows[name][take], err_msg=name)
        assert [space.plan(again, i) for i in range(len(plans))] == plans


# --- samples ---------------------------------------------------------------------------------------------------------


def test_a_sample_is_distinct_legal_and_repeatable() -> None:
    problem = make_problem("v5p-16", "ours", MOE)
    space = Space(problem=problem)
    plans = space.sample(200, seed=3)
    assert len(set(plans)) == len(plans) == 200
    assert all(is_legal(problem, plan) for plan in plans)
    assert space.sample(200, seed=3) == plans
    assert space.sample(200, seed=4) != plans


def test_a_sample_as_large_as_the_space_is_the_space() -> None:
    space = Space(problem=make_problem("h100x4", "nanotron", batch=4))
    everything = all_plans(space)
    assert space.sample(len(everything) + 5, seed=0) == everything
    assert space.sample(0, seed=0) == []


def test_samples_are_uniform() -> None:
    """Every plan is drawn about as often: chi-square within five standard deviations of its mean."""
    space = Space(problem=make_problem("h100x2", "megatron", batch=2))
    everything = all_plans(space)
    size, draws, each = len(everything), 400, len(everything) // 3
    drawn = Counter(itertools.chain.from_iterable(space.sample(each, seed) for seed in range(draws)))
    assert set(drawn) == set(everything)
    expected = draws * each / size
    spread = expected * (1 - each / size)  # variance of one count, drawn without repetition
    chi_square = sum((drawn[plan] - expected) ** 2 for plan in everything) / spread
    assert abs(chi_square - size) < 5 * math.sqrt(2 * size)


def test_an_empty_space_has_no_sample_and_says_why() -> None:
    space = Space(problem=make_problem("h100x8", "foundry", batch=3))
    assert all_plans(space) == space.sample(5, seed=0) == []
    assert set(space.survey().removed) == {"batch"}


@pytest.mark.parametrize("n", [1, 2, 12, 97, 360, 1024, 44100])
def test_divisors(n: int) -> None:
    assert divisors(n) == tuple(d for d in range(1, n + 1) if n % d == 0)


def test_a_stack_of_two_stages_of_zero_offers_both() -> None:
    stack: Stack = dataclasses.replace(STACKS["megatron"], zero=(0, 1, 2))
    plans = all_plans(Space(problem=make_problem("h100x2", stack, batch=2)))
    assert {plan.zero for plan in plans if plan.axes["data"] == 2} == {0, 1, 2}
    assert {plan.zero for plan in plans if plan.axes["data"] == 1} == {0}

"""Laws that hold for every legal plan: bounds, more hardware is never slower, more shards are never larger.

Each law is checked on whole spaces at once; hypothesis chooses the space and what is made better, and by how much.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache, lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asap_ray.architecture import architecture_from_mapping
from asap_ray.chip import chip_from_mapping
from asap_ray.hardware import make_slice, parse_slice
from asap_ray.physics import calibration
from asap_ray.physics.calibration import Calibration, calibrations_from_mappings
from asap_ray.physics.estimate import TIME_PARTS, Prices
from asap_ray.physics.memory import MEMORY_PARTS, ActivationBytes, activation_bytes, memory_parts
from asap_ray.physics.network import Link
from asap_ray.physics.roofline import Pricer
from asap_ray.physics.state import state_shards
from asap_ray.physics.units import Units
from asap_ray.problem import GPIPE, NONE, ONE_F_ONE_B, Problem
from asap_ray.settings import load_group
from asap_ray.space import PlanColumns, Space
from asap_ray.stack import stack_from_mapping
from asap_ray.workload import Workload

CHIPS = {name: chip_from_mapping(given) for name, given in load_group("hardware").items()}
MODELS = load_group("model")
STACKS = {name: stack_from_mapping(given) for name, given in load_group("stack").items()}
CALIBRATIONS = calibrations_from_mappings(load_group("calibration"))
SPACES = [
    ("llama3_8b", "v5e-16", "maxtext", 32, 8192),
    ("gemma2_9b", "2xv5e-16", "maxtext", 32, 4096),
    ("deepseek_v2_lite", "v5p-32", "ours", 32, 4096),
    ("mixtral8x7b", "tpu7x-32", "maxtext", 32, 4096),
    ("mixtral8x7b", "h100x16", "torchtitan", 32, 4096),
    ("gpt_22b", "a100x16", "megatron", 16, 2048),
    ("qwen3_30b_a3b", "h100x16", "megatron", 16, 4096),
    ("llama2_13b", "h100:3x4", "nanotron", 24, 4096),
    ("llama2_7b", "h100x32", "nanotron", 32, 4096),
    ("llama2_7b", "a100x8", "foundry", 16, 2048),
    ("llama2_7b", "a100x16", "scaling_eager", 16, 2048),
    ("llama3_8b", "h100-96x16", "torchtitan_eager", 16, 4096),
    ("deepseek_v2_lite", "gb200x16", "bridge", 16, 4096),
    ("deepseek_v2_lite", "h800x16", "hai", 16, 4096),
]
MANY = 20_000  # plans of a space that a law looks at, spread evenly
TINY = 1e-9

spaces = st.sampled_from(SPACES)
models = st.sampled_from(["llama3_8b", "gpt_22b", "mixtral8x7b", "deepseek_v3", "gemma2_9b"])
stacks = st.sampled_from(sorted(STACKS))
powers = st.integers(0, 3).map(lambda exponent: 2**exponent)


@cache
def problem_of(model: str, slice_: str, stack: str, batch: int, seq_len: int) -> Problem:
    architecture = architecture_from_mapping(MODELS[model])
    return Problem(
        workload=Workload(architecture=architecture, global_batch=batch, seq_len=seq_len),
        slice=parse_slice(slice_, CHIPS),
        stack=STACKS[stack],
    )


def legal(problem: Problem) -> list[PlanColumns]:
    """Legal plans of a space in chunks, at most about `MANY` of them, spread evenly."""
    chunks = list(Space(problem=problem).chunks())
    stride = -(-sum(map(len, chunks)) // MANY)
    return [chunk.take(np.arange(0, len(chunk), stride)) for chunk in chunks]


@lru_cache(maxsize=16)
def plans(space: tuple) -> list[PlanColumns]:
    return legal(problem_of(*space))


def calibration_of(space: tuple) -> Calibration:
    problem = problem_of(*space)
    return calibration.calibration_of(problem.slice.chip, problem.stack.name, CALIBRATIONS)


def price(pricer: Pricer, chunks: list[PlanColumns]) -> tuple[Prices, np.ndarray]:
    """Prices and floors of all chunks together."""
    found = [pricer.price(chunk) for chunk in chunks]
    joined = {}
    for field in fields(Prices):
        values = [getattr(prices, field.name) for prices in found]
        if isinstance(values[0], np.ndarray):
            joined[field.name] = np.concatenate(values)
        else:
            joined[field.name] = {part: np.concatenate([value[part] for value in values]) for part in values[0]}
    return Prices(**joined), np.concatenate([pricer.floor(chunk) for chunk in chunks])


@lru_cache(maxsize=16)
def priced(space: tuple) -> tuple[Prices, np.ndarray]:
    return price(Pricer(problem_of(*space), calibration_of(space)), plans(space))


@pytest.mark.parametrize("space", SPACES, ids=lambda space: "-".join(map(str, space[:3])))
def test_floor_below_estimate_below_serial_and_parts_are_whole(space):
    prices, floors = priced(space)
    assert len(floors) >= 32
    assert np.all(floors > 0)
    assert np.all(floors <= prices.step_time_s * (1 + TINY))
    assert np.all(prices.step_time_s <= prices.serial_s * (1 + TINY))
    for parts, names, total in (
        (prices.time_parts, TIME_PARTS, prices.step_time_s),
        (prices.memory_parts, MEMORY_PARTS, prices.hbm_bytes),
    ):
        assert tuple(parts) == names
        columns = np.array(list(parts.values()))
        assert np.all(np.isfinite(columns))
        assert np.all(columns >= -TINY * total)
        np.testing.assert_allclose(columns.sum(axis=0), total, rtol=1e-12)
    for name, seconds in prices.busy.items():
        assert np.all(np.isfinite(seconds) & (seconds >= 0)), name


BETTER = {
    "matmul_fraction": 1, "attention_fraction": 1, "hbm_fraction": 1, "ici_fraction": 1, "dcn_fraction": 1,
    "pcie_fraction": 1, "contraction_ramp": -1, "hop_latency_s": -1, "dcn_latency_s": -1, "kernel_launch_s": -1,
    "step_overhead_s": -1, "narrow_fraction": 1, "portable_fraction": 1, "ici_start_s": -1, "dcn_start_s": -1,
    "dcn_message_s": -1, "host_launch_s": -1, "batch_overhead_s": -1, "handoff_s": -1, "stall_s": -1, "crowding": -1,
    "elementwise_passes": -1, "optimizer_passes": -1, "expert_passes": -1, "expert_launches": -1, "cast_passes": -1,
}  # fmt: skip


@settings(max_examples=60)
@given(space=spaces, name=st.sampled_from(sorted(BETTER)), factor=st.floats(1.01, 50))
def test_a_device_that_achieves_more_never_makes_a_plan_slower(space, name, factor):
    usual = calibration_of(space)
    better = replace(usual, **{name: getattr(usual, name) * factor ** BETTER[name]})
    found, _ = price(Pricer(problem_of(*space), better), plans(space))
    before, _ = priced(space)
    assert np.all(found.step_time_s <= before.step_time_s * (1 + TINY)), name
    assert np.all(found.serial_s <= before.serial_s * (1 + TINY)), name
    assert np.array_equal(found.hbm_bytes, before.hbm_bytes)


@settings(max_examples=60)
@given(
    space=spaces,
    name=st.sampled_from(["peak_flops", "hbm_bytes_per_s", "nic_bytes_per_s", "link_bytes_per_s", "on_chip_bytes"]),
    factor=st.sampled_from([1.1, 2.0, 16.0]),
)
def test_a_better_datasheet_never_makes_a_plan_or_its_floor_slower(space, name, factor):
    problem = problem_of(*space)
    old = problem.slice.chip
    value = getattr(old, name)
    chip = replace(old, **{name: {k: v * factor for k, v in value.items()} if name == "peak_flops" else value * factor})
    if name == "link_bytes_per_s":
        chip = replace(chip, die_bytes_per_s=old.die_bytes_per_s * factor)
    better = replace(problem, slice=make_slice(chip, problem.slice.topology, problem.slice.slices))
    chunks, (prices, floors) = legal(better), priced(space)
    for new, old_ in zip(chunks, plans(space), strict=True):
        assert np.array_equal(new.meshes.table.factors, old_.meshes.table.factors)
        assert np.array_equal(new.mesh, old_.mesh)
    found, lower = price(Pricer(better, calibration_of(space)), chunks)
    assert np.all(lower <= floors * (1 + TINY)), name
    assert np.all(found.step_time_s <= prices.step_time_s * (1 + TINY)), name


def state_bytes(problem: Problem, sizes: dict[str, int], zero: int) -> float:
    """Weights, gradients and optimizer state of one device, with no activations at all."""
    c = {name: np.array([size]) for name, size in sizes.items()}
    schedule = NONE if sizes["pipeline"] == 1 else GPIPE if problem.stack.holds_all else ONE_F_ONE_B
    knobs = {"virtual": 1, "accumulation": 8, "schedule": schedule, "zero": zero, "precision": 0}
    c |= {name: np.array([value]) for name, value in knobs.items()}
    none = np.zeros(1)
    usual = CALIBRATIONS[problem.slice.chip.kind]
    nothing = ActivationBytes(kept=none, host=none, running=none, passing=none, logits=none)
    parts = memory_parts(problem, usual, state_shards(problem, c), nothing, c)
    return float(sum(parts[name][0] for name in ("weights", "gradients", "optimizer")))


@settings(max_examples=300)
@given(
    model=models,
    stack=stacks,
    sizes=st.fixed_dictionaries(dict.fromkeys(("data", "fsdp", "context", "expert", "tensor"), powers)),
    odd=st.sampled_from([1, 3, 6]),
    pipeline=powers,
    grown=st.sampled_from(["fsdp", "expert", "tensor", "pipeline", "zero", "context", "data"]),
)
def test_state_never_grows_with_more_shards(model, stack, sizes, odd, pipeline, grown):
    problem = problem_of(model, "h100x8", stack, 64, 2048)
    sizes = sizes | {"pipeline": pipeline, "fsdp": sizes["fsdp"] * odd}
    if problem.workload.architecture.experts is None:
        sizes["expert"] = 1
    before = state_bytes(problem, sizes, 0)
    if grown == "zero":
        assert state_bytes(problem, sizes, 1) <= before * (1 + TINY)
        assert state_bytes(problem, sizes, 2) <= state_bytes(problem, sizes, 1) * (1 + TINY)
    elif grown != "expert" or problem.workload.architecture.experts is not None:
        assert state_bytes(problem, sizes | {grown: 2 * sizes[grown]}, 0) <= before * (1 + TINY)


def units(batch: int, seq_len: int, heads: int, tensor: int, context: int, expert: int, unfused: bool) -> Units:
    one = np.ones(1)
    link = Link(
        n_ici=one.astype(int),
        n_dcn=one.astype(int),
        gather_bytes_per_s=one,
        all_to_all_bytes_per_s=one,
        permute_bytes_per_s=one,
        hops=one.astype(int),
        dcn_bytes_per_s=1.0,
    )
    return Units(
        tokens=one * batch * seq_len / context,
        tensor=one * tensor,
        kv_shards=one * min(tensor, heads),
        context=one * context,
        expert=one * expert,
        sequence_shards=one * tensor,
        precision=np.zeros(1, int),
        unfused=np.array([unfused]),
        links=dict.fromkeys(("tensor", "context", "expert", "pipeline"), link),
    )


@settings(max_examples=200)
@given(
    model=models,
    stack=stacks,
    batch=st.integers(1, 4),
    tensor=powers,
    context=powers,
    expert=powers,
    unfused=st.booleans(),
    grown=st.sampled_from(["tensor", "context", "expert"]),
)
def test_activations_never_grow_along_tensor_context_or_expert(
    model, stack, batch, tensor, context, expert, unfused, grown
):
    problem = problem_of(model, "h100x8", stack, 64, 2048)
    sizes = {"tensor": tensor, "context": context, "expert": expert}
    heads = problem.workload.architecture.attention.kv_heads
    before, after = (
        activation_bytes(problem, units(batch, 2048, heads, **given, unfused=unfused))
        for given in (sizes, sizes | {grown: 2 * sizes[grown]})
    )
    # Gathering logits over a tensor axis takes room that a device on its own does not need.
    gathered = grown == "tensor" and problem.stack.gathering_bytes > 0
    for name in ("kept", "host", "running", *(() if gathered else ("logits",))):
        assert np.all(getattr(after, name) <= getattr(before, name) * (1 + TINY)), name


@settings(max_examples=60)
@given(model=models, stack=stacks, unfused=st.booleans())
def test_a_policy_that_keeps_more_stores_more_and_computes_less(model, stack, unfused):
    problem = problem_of(model, "h100x8", stack, 64, 2048)
    kept = activation_bytes(problem, units(1, 2048, 8, 1, 1, 1, unfused)).kept[0]
    pricer = Pricer(problem, CALIBRATIONS["gpu"])
    again = pricer.layers.price(units(1, 2048, 8, 1, 1, 1, unfused)).again.total_s[0]
    for i, one in enumerate(problem.stack.remat):
        for j, other in enumerate(problem.stack.remat):
            if one.saved <= other.saved and one.offload_input == other.offload_input and not one.offloaded:
                assert kept[i] <= kept[j] * (1 + TINY)
                assert again[i] >= again[j] * (1 - TINY) - TINY

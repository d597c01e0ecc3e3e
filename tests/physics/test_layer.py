"""What layers cost, counted by hand on devices that reach their datasheet, with no overlap."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from asap_ray.meshes import meshes_of
from asap_ray.physics.calibration import Machine
from asap_ray.physics.floor import FloorPricer
from asap_ray.physics.layer import LayerPricer
from asap_ray.physics.state import state_shards
from asap_ray.physics.units import attention_flops, attention_waste, sharded_matmul
from asap_ray.plan import Plan
from tests.units import lone_unit

A100_NVLINK, H100_NVLINK, V5E_LINK = 300e9, 450e9, 50e9


@pytest.mark.parametrize(
    ("knobs", "passes"),
    [
        # One all-reduce after attention and one after the feed-forward, forward and backward (1909.08053): 4, each two
        # passes over the array; a full recomputation runs the forward pass's two once more.
        ("remat=none", 8),
        ("remat=selective attention=unfused", 8),
        ("remat=full", 12),
        # With sequence parallelism (2205.05198, 4.2.2): two gathers and two scatters forward, the same backward, and
        # two gathers for the weight gradients, since only a rank's own part of each input is kept.
        ("remat=none sequence_parallel=true", 10),
        ("remat=selective attention=unfused sequence_parallel=true", 10),
        ("remat=full sequence_parallel=true", 14),
    ],
)
def test_tensor_traffic_of_megatron(physics, knobs, passes):
    problem = physics.problem("gpt_22b", "a100x8", "megatron", 4, 2048)
    estimate = physics.estimate(problem, f"tensor=8 micro_batch=2 accumulation=2 {knobs}")
    array = 2048 * 2 * 6144 * 2  # s b h numbers of two bytes
    edges = 10 if "parallel=true" in knobs else 8  # embedding and head: one block for each micro-batch
    expected = 2 * (48 * passes + edges / 2) * 7 / 8 * array / A100_NVLINK
    assert estimate.time_parts["tensor"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("remat", "passes"), [("full", 11), ("save_out_proj", 10), ("minimal", 10)])
def test_tensor_traffic_where_only_what_is_needed_runs_again(physics, remat, passes):
    # JAX drops the last matmul of a layer from a recomputation, and with it the scatter of its output; the gathers of
    # a recomputation are those that the weight gradients need anyway.
    problem = physics.problem("llama2_7b", "v5e-16", "maxtext", 16, 2048)
    line = f"fsdp=4@4.1 tensor=4@1.4 micro_batch=2 accumulation=2 sequence_parallel=true remat={remat}"
    estimate = physics.estimate(problem, line)
    array = 2 * 2048 * 4096 * 2
    expected = 2 * (32 * passes + 5) * 3 / 4 * array / V5E_LINK  # a line of four: its ends take in w
    assert estimate.time_parts["tensor"] == pytest.approx(expected, rel=1e-12)


def test_context_gathers_keys_twice_and_scatters_their_gradients(physics):
    problem = physics.problem("llama3_8b", "h100x8", "torchtitan", 4, 8192)
    none, full = (
        physics.estimate(problem, f"context=8 micro_batch=1 accumulation=4 remat={remat}") for remat in ("none", "full")
    )
    array = 8192 * 2 * 8 * 128 * 2  # keys and values of 8 heads for the whole sequence
    once = 4 * 32 * 7 / 8 * array / H100_NVLINK
    assert none.time_parts["context"] == pytest.approx(3 * once, rel=1e-12)
    assert full.time_parts["context"] == pytest.approx(4 * once, rel=1e-12)


@pytest.mark.parametrize(("remat", "weighs", "exchanges"), [("none", True, 4), ("full", True, 6), ("full", False, 5)])
def test_experts_exchange_each_token_topk_times_there_and_back(physics, remat, weighs, exchanges):
    # Again: there, and back only where a gradient needs what comes back, as the router's does that weighs it.
    problem = physics.problem("mixtral8x7b", "h100x8", "torchtitan", 8, 4096)
    problem = replace(problem, stack=replace(problem.stack, weighs_outputs=weighs))
    estimate = physics.estimate(problem, f"fsdp=8 expert=8 micro_batch=1 accumulation=1 remat={remat}")
    payload = 4096 * 2 * 4096 * 2  # tokens x topk x d_model x bytes
    assert estimate.time_parts["expert"] == pytest.approx(32 * exchanges * 7 / 8 * payload / H100_NVLINK, rel=1e-12)


def test_experts_split_by_tensor_gather_every_copy_of_a_token(physics):
    # The exchange moves each rank's part of the sequence; then all copies must meet before a split expert.
    problem = physics.problem("mixtral8x7b", "h100x8", "torchtitan", 8, 4096)
    apart, within = (
        physics.estimate(problem, f"{mesh} tensor=4 micro_batch=4 accumulation=1 sequence_parallel=true remat=none")
        for mesh in ("fsdp=2 expert=2", "fsdp=2")
    )
    array = 4 * 4096 * 4096 * 2
    once = 5 * 3 / 4 * array / H100_NVLINK  # three gathers, two scatters
    assert apart.time_parts["tensor"] == pytest.approx(
        once * (32 * (1 + 2) + 1), rel=1e-12
    )  # attention, topk 2 copies; edges
    assert within.time_parts["tensor"] == pytest.approx(once * (32 * (1 + 1) + 1), rel=1e-12)
    assert apart.time_parts["expert"] == pytest.approx(32 * 4 / 2 * array * 2 / 4 / H100_NVLINK, rel=1e-12)


@pytest.mark.parametrize(
    ("model", "stack", "skipped"),
    [
        ("llama2_7b", "maxtext", {"down"}),
        ("llama2_7b", "megatron", {"down"}),  # by the floor: no gradient needs it, whatever the trainer does
        ("gpt_22b", "torchtitan", {"down"}),
        ("mixtral8x7b", "maxtext", set()),  # the router's gradient needs the experts' outputs
        ("mixtral8x7b", "ours", {"expert_down"}),  # it weighs what enters their last matmul
        ("deepseek_v3", "torchtitan", {"down", "shared_down", "expert_down"}),
    ],
)
def test_full_recomputation_is_the_forward_pass_without_the_last_matmul(physics, model, stack, skipped):
    slice_ = {"maxtext": "v5p-8", "ours": "v5p-8"}.get(stack, "h100x8")
    problem = physics.problem(model, slice_, stack, 8, 2048)
    meshes = meshes_of(problem, [Plan(ici=(1, 1, 1, 1, 1, problem.slice.ici_devices))])
    pricer = FloorPricer(problem, meshes, state_shards(problem, meshes.columns))
    forward = problem.workload.flops_by_part()
    full = problem.stack.remat_names.index("full")
    expected = sum(flops for part, flops in forward.items() if part not in skipped | {"head"})
    assert pricer.again_flops[full] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("stack", "again"), [("maxtext", False), ("megatron", True)])
def test_recomputation_takes_the_time_of_the_forward_pass(physics, stack, again):
    problem = physics.problem("llama2_7b", "v5p-8", stack, 8, 2048)
    machine = Machine.achieved(problem.slice.chip, physics.perfect)
    pricer = LayerPricer(problem.workload, machine, problem.stack)
    cost = pricer.price(lone_unit())
    full = problem.stack.remat_names.index("full")
    down = 32 * 2 * 4096 * 11008 * 4096 / 459e12  # 11008 = 86 x 128: full tiles
    forward = float(sum(part.total_s[0] for part in cost.forward.values()))
    assert cost.again.total_s[0, full] == pytest.approx(forward - (0 if again else down), rel=1e-9)


def test_selective_recomputation_is_attention_alone(physics):
    problem = physics.problem("gpt_22b", "a100x8", "megatron", 4, 2048)
    line = "tensor=8 micro_batch=1 accumulation=4 attention=unfused remat="
    none, selective = (physics.estimate(problem, line + remat) for remat in ("none", "selective"))
    assert none.time_parts["recompute"] == 0
    # A forward pass of attention: scores and values without the causal half, and the score matrix moved 5.5 times.
    heads = 64 / 8
    flops = 2 * 2048 * 2048 * heads * (96 + 96)
    moved = 2048 * 2048 * heads * 5.5 * 2
    assert selective.time_parts["recompute"] == pytest.approx(4 * 48 * (flops / 312e12 + moved / 2.039e12), rel=1e-12)
    assert selective.time_parts["attention"] == pytest.approx(3 * selective.time_parts["recompute"], rel=1e-12)


def test_launches_of_a_llama_layer(physics):
    # Five matmuls with two gradients each, attention once each way, five launches each way for the two norms and the
    # gate; a full recomputation adds four matmuls, one attention and 15.
    problem = physics.problem("llama2_7b", "v5p-8", "maxtext", 4, 2048)
    line = "fsdp=4@2.2.1 micro_batch=1 accumulation=1 remat=full"
    host = physics.estimate(problem, line, kernel_launch_s=1.0).time_parts["host"]
    layer = 5 * 3 + 2 + 3 * 10 + (4 + 1 + 15)
    assert host == pytest.approx(32 * layer + 8)


def test_latent_attention_is_sharded_where_it_is_wide(physics):
    # DeepSeek-V3 on tensor 8 with a split sequence: latents are made from a rank's own tokens, heads are divided.
    deepseek = physics.architecture("deepseek_v3")
    split = lone_unit(tensor=8.0, kv_shards=8.0, sequence_shards=8.0)
    shapes = {m.name: m for m in deepseek.matmuls(deepseek.groups[-1])}
    found = {
        name: [float(np.squeeze(x)) for x in sharded_matmul(deepseek, shapes[name], split)]
        for name in ("q_down", "q_up", "kv_down", "kv_up", "out", "router", "shared_down")
    }
    assert found == {
        "q_down": [512, 7168, 1536, 1],
        "q_up": [4096, 1536, 128 * 192 / 8, 1],
        "kv_down": [512, 7168, 512 + 64, 1],
        "kv_up": [4096, 512, 128 * 256 / 8, 1],
        "out": [4096, 128 * 128 / 8, 7168, 1],
        "router": [512, 7168, 256, 1],
        "shared_down": [4096, 2048 / 8, 7168, 1],
    }


def test_keys_are_split_no_further_than_there_are_heads(physics):
    llama = physics.architecture("llama3_8b")
    query, key_value, *_ = llama.matmuls(llama.groups[0])
    split = lone_unit(tensor=16.0, kv_shards=8.0)
    assert [float(np.squeeze(x)) for x in sharded_matmul(llama, query, split)] == [4096, 4096, 256, 1]
    assert [float(np.squeeze(x)) for x in sharded_matmul(llama, key_value, split)] == [4096, 4096, 256, 1]


@pytest.mark.parametrize(("expert", "tensor"), [(1, 1), (4, 1), (8, 2)])
def test_a_device_computes_its_share_of_all_expert_tokens(physics, expert, tensor):
    mixtral = physics.architecture("mixtral8x7b")
    matmul = next(m for m in mixtral.matmuls(mixtral.groups[0]) if m.name == "expert_down")
    shape = sharded_matmul(mixtral, matmul, lone_unit(expert=float(expert), tensor=float(tensor)))
    m, k, n, groups = (float(np.squeeze(x)) for x in shape)
    assert (groups, n) == (8 / expert, 4096)
    # Every device sends and receives topk copies of its 4,096 tokens, wherever the experts are.
    assert m * groups == 4096 * 2
    assert m * k * n * groups == 4096 * 2 * 14336 * 4096 / tensor


@pytest.mark.parametrize("model", ["gemma2_9b", "gemma3_27b", "mistral7b", "llama3_8b"])
def test_attention_sees_its_window_only(physics, model):
    seq_len = 8192
    problem = physics.problem(model, "v5e-16", "maxtext", 16, seq_len)
    attention = problem.workload.architecture.attention
    for group in problem.workload.architecture.groups:
        window = group.window or seq_len
        pairs = sum(min(position + 1, window) for position in range(seq_len))
        flops = attention_flops(problem.workload, group, lone_unit(tokens=float(seq_len), tensor=4.0))
        expected = 2 * pairs * attention.heads / 4 * (attention.qk_head_dim + attention.v_head_dim)
        assert float(flops[0]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("window", "block"), [(0, 512), (0, 1024), (1024, 512), (1024, 1024)])
def test_blocks_that_a_mask_cuts_are_computed_whole(physics, window, block):
    # Counted square by square: query rows and key columns in blocks, each done that holds a pair which is not masked.
    seq_len = 4096
    problem = physics.problem("llama3_8b", "h100x8", "torchtitan", 8, seq_len)
    group = replace(problem.workload.architecture.groups[0], window=window)
    machine = replace(Machine.achieved(problem.slice.chip, physics.perfect), attention_block=float(block))
    blocks = seq_len // block
    done = 0
    for row in range(blocks):
        first = max(row * block - window + 1, 0) // block if window else 0
        done += (row + 1 - first) * block * block
    pairs = sum(min(position + 1, window or seq_len) for position in range(seq_len))
    assert attention_waste(problem.workload, group, machine) == pytest.approx(
        done / pairs, rel=0.12 if window else 1e-3
    )


@pytest.mark.parametrize(
    ("model", "slice_", "waste"),
    [
        ("llama3_8b", "v5p-8", 1.0),  # heads of 128 on arrays of 128
        ("llama3_8b", "v6e-8", 2.0),  # heads of 128 on arrays of 256
        ("gemma3_12b", "v6e-8", 1.0),  # heads of 256
        ("deepseek_v3", "v6e-8", 512 / 320),  # keys of 192 and values of 128, both padded to 256
        ("llama3_8b", "h100x8", 1.0),
    ],
)
def test_a_narrow_head_leaves_a_part_of_the_array_empty(physics, model, slice_, waste):
    problem = physics.problem(model, slice_, "ours", 8, 2048)
    machine = Machine.achieved(problem.slice.chip, physics.perfect)
    for group in problem.workload.architecture.groups:
        assert attention_waste(problem.workload, group, machine) == pytest.approx(waste, rel=1e-12)


def test_experts_of_limited_capacity_are_padded_and_reached_by_matmuls(physics):
    problem = physics.problem("mixtral8x7b", "v5p-8", "maxtext", 8, 2048)
    machine = replace(Machine.achieved(problem.slice.chip, physics.perfect), hbm_bytes_per_s=np.inf)
    full = tuple(remat for remat in problem.stack.remat if remat.name == "full")

    def seconds(capacity: float, by_matmul: bool) -> tuple[float, float, float]:
        workload = replace(problem.workload, expert_capacity=capacity)
        stack = replace(problem.stack, remat=full, routes_by_matmul=by_matmul)
        cost = LayerPricer(workload, machine, stack).price(lone_unit())
        matmul = cost.forward["matmul"].total_s[0], cost.backward["matmul"].total_s[0]
        return *matmul, cost.again.total_s[0, 0]

    # 4,096 tokens, two sequences: each token to two experts with room for 1.25 of that, 14336 wide, gated.
    experts = 32 * 4096 * 2 * 2 * 3 * 4096 * 14336 / 459e12
    one_hot = 32 * 2 * 2 * (2048 * 2 * 1.25) * 2048 * 4096 / 459e12
    even, padded, routed = seconds(0.0, True), seconds(1.25, False), seconds(1.25, True)
    assert padded[0] - even[0] == pytest.approx(0.25 * experts, rel=1e-9)
    assert padded[1] - even[1] == pytest.approx(2 * 0.25 * experts, rel=1e-9)
    # There and back forward; of the way there one gradient, of the way back two; what the experts read is made again.
    assert routed[0] - padded[0] == pytest.approx(2 * one_hot, rel=1e-9)
    assert routed[1] - padded[1] == pytest.approx(3 * one_hot, rel=1e-9)
    assert routed[2] - padded[2] == pytest.approx(one_hot, rel=1e-9)


def test_norms_and_gates_move_their_bytes(physics):
    problem = physics.problem("llama2_7b", "v5p-8", "maxtext", 8, 2048)
    machine = Machine.achieved(problem.slice.chip, physics.perfect)
    cost = LayerPricer(problem.workload, machine, problem.stack).price(lone_unit())
    norms, gate = 2 * 4 * 4096 * 2, 3 * 11008 * 2  # bytes a token
    forward = 32 * 4096 * (norms + gate) / 2.765e12
    assert cost.forward["elementwise"].total_s[0] == pytest.approx(forward, rel=1e-12)
    assert cost.backward["elementwise"].total_s[0] == pytest.approx(2 * forward, rel=1e-12)


def test_a_tensor_parallel_matmul_on_a_gpu_by_hand(physics):
    # gate_up of Llama 2 7B at tensor 8 and 4,096 tokens: [4096, 4096] x [4096, 2752] forward and two gradients.
    problem = physics.problem("llama2_7b", "h100x8", "torchtitan", 8, 4096)
    pricer = LayerPricer(problem.workload, Machine.achieved(problem.slice.chip, physics.perfect), problem.stack)
    llama = problem.workload.architecture
    gate_up = next(m for m in llama.matmuls(llama.groups[0]) if m.name == "gate_up")
    forward, backward = pricer._matmul(lone_unit(tensor=8.0), gate_up, np.array([989.5e12]))

    def waves(m: int, k: int, n: int) -> float:
        tiles, small = ceil(m / 128) * ceil(n / 128), ceil(m / 64) * ceil(n / 64)
        area = min(ceil(tiles / 132) * 132 * 128**2, ceil(small / 528) * 528 * 64**2 / 0.75)
        return 2 * k * area / 989.5e12

    assert forward.total_s[0] == pytest.approx(waves(4096, 4096, 2752), rel=1e-12)
    assert backward.total_s[0] == pytest.approx(waves(4096, 2752, 4096) + waves(4096, 4096, 2752), rel=1e-12)


def test_a_norm_of_operators_moves_more_by_hand(physics):
    # In float32 with 2-byte inputs, bytes read and written: cast 2 + 4, square 4 + 4, mean 4, scaling 4 + 4, cast back
    # 4 + 2, weight 2 + 2, residual 4 + 2: 42, where a kernel of its own moves 8. Llama 2 13B: 40 layers of two norms.
    problem = physics.problem("llama2_13b", "a100x8", "scaling_eager", 16, 2048)
    machine = Machine.achieved(problem.slice.chip, physics.perfect)
    fused, chain = (
        LayerPricer(problem.workload, machine, replace(problem.stack, norm_bytes=more)).price(lone_unit())
        for more in (0.0, problem.stack.norm_bytes)
    )
    more = 40 * 2 * lone_unit().tokens[0] * 5120 * (42 - 8) / 2.039e12
    for ways, times in (("forward", 1), ("backward", 2)):
        seconds = [getattr(cost, ways)["elementwise"].total_s[0] for cost in (chain, fused)]
        assert seconds[0] - seconds[1] == pytest.approx(times * more, rel=1e-9)


def test_a_softmax_of_operators_moves_more_by_hand(physics):
    # Bytes a score, forward: written 2, cast 2 + 4, mask 4 + 1 + 4, softmax 4 + 4, cast 4 + 2, read 2: 33, where a
    # fused softmax has 2 + 2 + 2 + 2. Backward: written 2, casts 6 and 6, softmax 12, mask 11 (a copy, of
    # which half is filled), read by three matmuls 6: 43, where the fused one has twice its forward 8.
    problem = physics.problem("llama2_13b", "a100x8", "scaling_eager", 16, 2048)
    machine, unit = Machine.achieved(problem.slice.chip, physics.perfect), lone_unit(unfused=True)
    fused, chain = (
        LayerPricer(problem.workload, machine, replace(problem.stack, score_bytes=more)).price(unit)
        for more in (0.0, problem.stack.score_bytes)
    )
    scores = 40 * unit.tokens[0] * 2048 * 40
    for ways, more in (("forward", 33 - 8), ("backward", 43 - 16)):
        seconds = [getattr(cost, ways)["attention"].total_s[0] for cost in (chain, fused)]
        assert seconds[0] - seconds[1] == pytest.approx(scores * more / 2.039e12, rel=1e-9)

"""Memory by hand: who holds which weight, gradient and moment, what is gathered, logits, offloading, latents."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asap_ray.physics.activations import kept_tensors
from asap_ray.physics.state import state_shards
from asap_ray.plan import Plan
from asap_ray.problem import columns_of


def shards(problem, line: str):
    return state_shards(problem, columns_of(problem, [Plan.parse(line)]))


@pytest.mark.parametrize(
    ("mesh", "weights", "optimizer"),
    [
        ("data=8 zero=0", 1, 1),
        ("data=8 zero=1", 1, 1 / 8),  # ZeRO-1 (1910.02054): moments only
        ("data=2 fsdp=4 zero=1", 1 / 4, 1 / 8),
        ("fsdp=8", 1 / 8, 1 / 8),
    ],
)
def test_state_of_llama_2_7b(physics, mesh, weights, optimizer):
    problem = physics.problem("llama2_7b", "h100x8", "maxtext", 8, 2048)
    problem = replace(problem, stack=replace(problem.stack, zero_beside_fsdp=True))  # which MaxText has no word for
    parts = physics.estimate(problem, f"{mesh} micro_batch=1 accumulation=1 remat=full").memory_parts
    held = 6738415616 - 4096  # the published total without the last norm, which no part of ours counts
    assert parts["weights"] == pytest.approx(4 * held * weights, rel=1e-12)
    assert parts["gradients"] == pytest.approx(4 * held * weights, rel=1e-12)
    assert parts["optimizer"] == pytest.approx(8 * held * optimizer, rel=1e-12)


def test_experts_of_mixtral_take_ranks_of_the_sharding_group_first(physics):
    # torchtitan, fsdp 8 and experts 4 within it: two ranks share each expert, and shard it.
    titan = physics.problem("mixtral8x7b", "h100x8", "torchtitan", 8, 2048)
    state = shards(titan, "fsdp=8 expert=4 remat=full")
    assert (state.routed_shards[0], state.routed_replicas[0]) == (2, 1)
    assert (state.dense_shards[0], state.dense_replicas[0]) == (8, 1)
    # Megatron, data 8 and experts 4: two replicas of each expert, eight of the rest.
    megatron = physics.problem("mixtral8x7b", "h100x8", "megatron", 8, 2048)
    state = shards(megatron, "data=8 expert=4 remat=full")
    assert (state.routed_shards[0], state.routed_replicas[0]) == (1, 2)
    assert (state.dense_shards[0], state.dense_replicas[0]) == (1, 8)
    parts = physics.estimate(megatron, "data=8 expert=4 zero=1 micro_batch=1 accumulation=1 remat=full").memory_parts
    routed = 32 * 8 * 3 * 4096 * 14336
    dense = 46702792704 - 4096 - routed
    assert parts["weights"] == pytest.approx(2 * (dense + routed / 4), rel=1e-12)
    assert parts["optimizer"] == pytest.approx(12 * (dense / 8 + routed / 8), rel=1e-12)


@pytest.mark.parametrize(
    ("fsdp", "data", "expert", "ways", "replicas"),
    [(6, 2, 4, 3, 1), (8, 2, 16, 1, 1), (8, 2, 2, 4, 2), (3, 4, 2, 3, 2)],
)
def test_every_rank_that_an_expert_has_is_a_shard_or_a_replica(physics, fsdp, data, expert, ways, replicas):
    problem = physics.problem("mixtral8x7b", "h100x8", "torchtitan", 16, 2048)
    c = {"data": data, "fsdp": fsdp, "expert": expert, "context": 1, "tensor": 1, "pipeline": 1}
    state = state_shards(problem, {name: np.array([size]) for name, size in c.items()})
    assert (state.routed_shards[0], state.routed_replicas[0]) == (ways, replicas)
    assert ways * replicas * expert == fsdp * data


def test_an_expert_axis_of_its_own_shards_dense_weights_too(physics):
    # MaxText: dense weights over fsdp x expert, each expert on its expert rank, over fsdp.
    problem = physics.problem("mixtral8x7b", "h100x8", "maxtext", 8, 2048)
    state = shards(problem, "fsdp=2 expert=4 remat=full")
    assert (state.dense_shards[0], state.dense_replicas[0]) == (8, 1)
    assert (state.routed_shards[0], state.routed_replicas[0]) == (2, 1)
    assert state.routed[0] == 32 * 8 / 4 * 3 * 4096 * 14336


def test_only_sharded_weights_are_gathered(physics):
    problem = physics.problem("mixtral8x7b", "h100x8", "maxtext", 8, 2048)
    within, apart = (
        physics.estimate(problem, f"{mesh} micro_batch=1 accumulation=1 remat=full").memory_parts["gathered"]
        for mesh in ("fsdp=8", "expert=8")
    )
    dense = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 8 + 2 * 4096
    experts = 8 * 3 * 4096 * 14336
    # A layer in 16 bits and half a layer's gradients; or an eighth of the experts, merely cast to 16 bits.
    assert within == pytest.approx((2 + 1) * (dense + experts), rel=1e-12)
    assert apart == pytest.approx((2 + 1) * dense + 2 * experts / 8, rel=1e-12)


@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_logits_are_split_over_the_vocabulary(physics, tensor):
    problem = physics.problem("llama3_8b", "h100x8", "torchtitan", 32, 4096)
    sequence = "sequence_parallel=true " if tensor > 1 else ""
    mesh = f"fsdp={8 // tensor} tensor={tensor} {sequence}" if tensor < 8 else f"tensor=8 {sequence}"
    line = f"{mesh} micro_batch=2 accumulation={2 * tensor} remat=full"
    logits = physics.estimate(problem, line).memory_parts["logits"]
    # Fourteen bytes a logit, and the head's input and the embedding's output.
    assert logits == pytest.approx((2 * 4096 * 128256 * 14 + 2 * 2 * 4096 * 4096 * 2) / tensor, rel=1e-12)


def test_only_the_stages_at_the_ends_hold_embedding_or_head(physics):
    # Untied Llama: with four stages no device has both; the first is the fuller one.
    problem = physics.problem("llama2_7b", "h100x4", "torchtitan", 8, 2048)
    line = "pipeline=4 schedule=1f1b micro_batch=1 accumulation=8 remat=none"
    parts = physics.estimate(problem, line).memory_parts
    layer = 2 * 4096 + 4 * 4096 * 4096 + 3 * 4096 * 11008
    assert parts["weights"] == pytest.approx(4 * (8 * layer + 32000 * 4096), rel=1e-12)
    assert parts["logits"] == 0


def test_the_stage_with_the_logits_is_reported_where_it_is_the_fuller_one(physics):
    problem = physics.problem("llama3_8b", "h100x2", "torchtitan", 4, 8192)
    parts = physics.estimate(problem, "pipeline=2 schedule=1f1b micro_batch=2 accumulation=2 remat=full").memory_parts
    assert parts["logits"] > 8 * 2 * 8192 * 128256
    # One micro-batch's inputs, not two; no layer runs backward while the loss is computed.
    assert parts["activations"] == pytest.approx(16 * 2 * 8192 * 4096 * 2, rel=1e-12)


def test_offloaded_tensors_leave_the_device(physics):
    problem = physics.problem("llama2_7b", "v5p-8", "maxtext", 16, 2048)
    # Without logits the fullest moment is the backward pass of a layer.
    problem = replace(problem, stack=replace(problem.stack, logit_bytes=0.0))
    line = "fsdp=4@2.2.1 micro_batch=1 accumulation=4 remat="
    saved, offloaded, none, no_input = (
        physics.estimate(problem, line + remat).memory_parts["activations"]
        for remat in ("save_qkv_proj", "qkv_proj_offloaded", "full", "offload_input")
    )
    qkv = 2048 * 3 * 4096 * 2
    assert saved - none == pytest.approx(31 * qkv, rel=1e-12)  # of the running layer they exist either way
    assert offloaded == pytest.approx(none, rel=1e-12)
    assert none - no_input == pytest.approx(31 * qkv / 3, rel=1e-12)


def test_latents_are_split_with_the_sequence(physics):
    # DeepSeek-V3: a token's latents have 1,536 + 512 + 64 numbers, and are made before heads are divided.
    problem = physics.problem("deepseek_v3", "h100x8", "megatron", 8, 4096)
    latents = [
        tensor
        for tensor in kept_tensors(problem.workload, problem.workload.architecture.groups[-1])
        if tensor.name in ("query", "key_value") and tensor.shard == "sequence"
    ]
    assert sum(tensor.token_bytes(2.0) for tensor in latents) == 2 * (1536 + 512 + 64)


def test_what_no_tensor_explains_is_a_share_of_what_comes_and_goes(physics):
    problem = physics.problem("llama2_7b", "h100x8", "maxtext", 8, 2048)
    line = "fsdp=8 micro_batch=1 accumulation=1 remat=full"
    plain, real = (
        physics.estimate(problem, line, workspace_bytes=space, fragmentation=share)
        for space, share in ((0.0, 0.0), (1e9, 0.04))
    )
    state = 16 * (6738415616 - 4096) / 8
    assert real.hbm_bytes == pytest.approx(state + 1.04 * (plain.hbm_bytes - state) + 1e9, rel=1e-12)
    assert real.memory_parts["workspace"] == 1e9


# --- the two moments -------------------------------------------------------------------------------------------------


def test_logits_and_a_running_layer_do_not_meet(physics):
    # Llama 3 8B on one H100 each: a micro-batch of 2 x 8192 tokens in full recomputation, as torchtitan runs it.
    problem = physics.problem("llama3_8b", "h100x8", "torchtitan", 32, 8192)
    parts = physics.estimate(problem, "fsdp=8 micro_batch=2 accumulation=2 remat=full").memory_parts
    tokens, d = 2 * 8192, 4096
    assert parts["logits"] == pytest.approx(tokens * (14 * 128256 + 2 * 2 * d), rel=1e-12)
    assert parts["activations"] == pytest.approx(32 * tokens * d * 2, rel=1e-12)
    assert parts["gathered"] == pytest.approx(2 * 2 * 128256 * d, rel=1e-12)  # embedding and head
    # With logits of two bytes the backward pass of a layer is the fuller moment: two layers and a gradient, gathered.
    narrow = replace(problem, stack=replace(problem.stack, logit_bytes=0.5))
    parts = physics.estimate(narrow, "fsdp=8 micro_batch=2 accumulation=2 remat=full").memory_parts
    layer = 2 * d * d + 2 * d * 1024 + 3 * d * 14336 + 2 * d
    running = sum(
        t.token_bytes(2.0)
        for t in kept_tensors(problem.workload, problem.workload.architecture.groups[0])
        if t.kernel != "unfused"
    )
    assert parts["logits"] == 0
    assert parts["activations"] == pytest.approx(tokens * (31 * d * 2 + running), rel=1e-12)
    assert parts["gathered"] == pytest.approx((2 * 2 + 4) * layer, rel=1e-12)


@pytest.mark.parametrize(("stack", "early"), [("torchtitan", True), ("megatron", False)])
def test_the_only_micro_batch_has_its_loss_before_there_are_gradients(physics, stack, early):
    problem = physics.problem("llama3_8b", "h100x8", stack, 16, 4096)
    mesh = "fsdp=8" if stack == "torchtitan" else "data=8"
    one, two = (
        physics.estimate(problem, f"{mesh} micro_batch={m} accumulation={a} remat=full").memory_parts
        for m, a in ((2, 1), (1, 2))
    )
    logits = 2 * 4096 * (problem.stack.logit_bytes * 128256 + 2 * 2 * 4096)
    room = one["gradients"] if early else 0.0
    assert one["logits"] == pytest.approx(logits - room, rel=1e-12)
    assert two["logits"] == pytest.approx(logits / 2, rel=1e-12)


def test_kernels_that_are_not_fused_keep_more(physics):
    # Aleph Alpha's Scaling without its norm kernel: two norms of 8 bytes a number more, and silu(x) of the gate.
    line = "data=8 micro_batch=1 accumulation=2 remat=none"
    kept = {
        stack: physics.estimate(physics.problem("llama2_13b", "a100x8", stack, 16, 2048), line).memory_parts
        for stack in ("megatron", "scaling", "scaling_eager")
    }
    gate, norms = 40 * 2048 * 2 * 13824, 40 * 2048 * 2 * 8 * 5120
    assert kept["scaling"]["activations"] - kept["megatron"]["activations"] == pytest.approx(gate, rel=1e-12)
    assert kept["scaling_eager"]["activations"] - kept["scaling"]["activations"] == pytest.approx(norms, rel=1e-12)


def test_logits_that_are_gathered_are_whole_on_each_tensor_rank(physics):
    line = "tensor=8 micro_batch=2 accumulation=8 remat=full sequence_parallel=true"
    whole, split = (
        physics.estimate(physics.problem("llama3_8b", "a100x8", stack, 16, 2048), line).memory_parts["logits"]
        for stack in ("scaling", "megatron")
    )
    edges = 2 * 2 * 2048 * 4096 * 2 / 8
    assert whole == pytest.approx(2 * 2048 * 128256 * (14 + 6) + edges, rel=1e-12)
    assert split == pytest.approx(2 * 2048 * 128256 * 6 / 8 + edges, rel=1e-12)

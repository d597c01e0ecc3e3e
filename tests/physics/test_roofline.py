"""Whole steps by hand: one plan on a TPU and one on GPUs in plain numbers, and the bubbles of each schedule."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest

from asap_ray.meshes import meshes_of
from asap_ray.physics.traffic import group_links
from asap_ray.plan import Plan
from asap_ray.space import Space


def up(size: float, tile: int) -> int:
    return ceil(size / tile) * tile


class V5e:
    """One v5e as calibrated for TPUs: 90% of 197 TFLOP/s, a ramp of 32, 85% of 820 GB/s."""

    hbm = 0.85 * 820e9

    def matmul(self, m: float, k: float, n: float) -> float:
        padded = 2 * up(m, 8) * up(k, 128) * up(n, 128) * (k + 32) / k / (0.9 * 197e12)
        return max(padded, 2 * (m * k + k * n + m * n) / self.hbm)


class A100:
    """One A100 as calibrated for GPUs: 78% of 312 TFLOP/s on 108 SMs, a ramp of 96, 85% of 2,039 GB/s."""

    hbm = 0.85 * 2.039e12

    def matmul(self, m: float, k: float, n: float) -> float:
        large = up(ceil(m / 128) * ceil(n / 128), 108) * 128**2
        small = up(ceil(m / 64) * ceil(n / 64), 432) * 64**2 / 0.75
        compute = 2 * k * min(large, small) * (k + 96) / k / (0.78 * 312e12)
        return max(compute, 2 * (m * k + k * n + m * n) / self.hbm)


def both_ways(chip, m: float, k: float, n: float) -> tuple[float, float]:
    """A matmul, and its two gradients."""
    return chip.matmul(m, k, n), chip.matmul(m, n, k) + chip.matmul(k, m, n)


def test_a_tpu_step_by_hand(physics):
    # Llama 2 7B in MaxText on 4 x 4 v5e chips, whose axes are lines: fsdp and tensor 4 each, 2 sequences a micro-batch.
    problem = physics.problem("llama2_7b", "v5e-16", "maxtext", 16, 2048)
    line = "fsdp=4@4.1 tensor=4@1.4 micro_batch=2 accumulation=2 sequence_parallel=true remat=full"
    estimate = physics.estimate(problem, line, physics.calibrations["tpu"])
    chip, layers, t, d, ff, vocab = V5e(), 32, 2 * 2048, 4096, 11008, 32000
    shapes = {
        "query": (t, d, d / 4),
        "key_value": (t, d, 2 * d / 4),
        "out": (t, d / 4, d),
        "gate_up": (t, d, 2 * ff / 4),
        "down": (t, ff / 4, d),
    }
    forward = {name: both_ways(chip, *shape)[0] for name, shape in shapes.items()}
    matmul = sum(sum(both_ways(chip, *shape)) for shape in shapes.values())
    attention = 2 * t * 1024.5 * 32 * (128 + 128) / 4 / (0.55 * 197e12)
    elementwise = (2 * 4 * d * 2 / 4 + 3 * ff * 2 / 4) * t / chip.hbm
    again = sum(forward.values()) - forward["down"] + attention + elementwise
    head = sum(both_ways(chip, t, d, vocab / 4)) + t * vocab / 4 * 14 / chip.hbm
    work = layers * (matmul + 3.5 * attention + 3 * elementwise + again) + head

    def line_of_four(bytes_: float) -> float:
        return bytes_ * 3 / 4 / (0.6 * 50e9) + 3 * 1e-6

    tensor = (layers * 11 + 5) * line_of_four(t * d * 2)  # embedding and head are one more block
    layer = (2 * d * d + 2 * d * d + 3 * d * ff) / 4 + 2 * d  # of one tensor rank; norms are whole
    edges = 2 * vocab * d / 4
    fsdp = 3 * (layers * line_of_four(2 * layer) + line_of_four(2 * edges))
    asynchronous = 0.9 * fsdp + 0.4 * tensor
    assert asynchronous > work  # it hides under all of the work, which is not enough
    hidden = work / asynchronous
    held = (layers * layer + edges) / 4
    expected = {
        "matmul": 2 * layers * matmul,
        "attention": 2 * layers * 3.5 * attention,
        "elementwise": 2 * layers * 3 * elementwise,
        "recompute": 2 * layers * again,
        "head": 2 * head,
        "tensor": 2 * (1 - 0.4 * hidden) * tensor,
        "fsdp": 2 * (1 - 0.9 * hidden) * fsdp,
        # Float32 weights and two moments, read and written, and gradients read.
        "optimizer": (2 * 4 + 4 + 2 * 8) * held / chip.hbm,
        "host": 2 * (layers * 67 + 8) * 1e-6 + 5e-3,  # 67 launches a layer: see test_layer
    }
    found = {part: seconds for part, seconds in estimate.time_parts.items() if seconds}
    assert found == pytest.approx(expected, rel=1e-9)
    assert estimate.step_time_s == pytest.approx(sum(expected.values()), rel=1e-9)
    fed = 2 * t * 8 / (0.7 * 15e9)  # two 32-bit ids a token from the host, hidden under the step
    shown = 2 * hidden * asynchronous + fed
    assert estimate.serial_s == pytest.approx(sum(expected.values()) + shown, rel=1e-9)
    flops = 3 * 16 * 2048 * (2 * (layers * 4 * layer - layers * 8 * d + vocab * d) + layers * 4 * 1024.5 * d)
    assert estimate.mfu == pytest.approx(flops / (16 * 197e12) / estimate.step_time_s, rel=1e-9)


def test_a_gpu_step_by_hand(physics):
    # GPT 22B in Megatron on four nodes of A100s: tensor 8 inside, two stages and two replicas across, all recomputed.
    problem = physics.problem("gpt_22b", "a100x32", "megatron", 16, 2048)
    line = (
        "data=1x2 pipeline=1x2 tensor=8 micro_batch=1 accumulation=8 zero=1 schedule=1f1b sequence_parallel=true "
        "remat=full"
    )
    estimate = physics.estimate(problem, line, physics.calibrations["gpu"])
    chip, layers, t, h, vocab = A100(), 24, 2048, 6144, 51200
    shapes = [(t, h, h / 8), (t, h, 2 * h / 8), (t, h / 8, h), (t, h, 4 * h / 8), (t, 4 * h / 8, h)]
    forward = sum(chip.matmul(*shape) for shape in shapes)
    backward = sum(both_ways(chip, *shape)[1] for shape in shapes)
    attention = 2 * t * 1024.5 * 64 * (96 + 96) / 8 / (0.55 * 312e12)
    # Two norms, the activation, and the dropout mask behind it.
    elementwise = (2 * 4 * h * 2 + 3 * 4 * h * 2 + 3 * h) / 8 * t / chip.hbm
    again = forward + attention + elementwise
    head = sum(both_ways(chip, t, h, vocab / 8)) + t * vocab / 8 * 14 / chip.hbm
    work = layers * (forward + backward + 3.5 * attention + 3 * elementwise + again)

    nvlink, dcn, message = 0.8 * 300e9, 0.8 * 25e9, 15e-6
    tensor = (layers * 14 + 5 / 2) * (7 / 8 * t * h * 2 / nvlink + 7 * 3e-6)  # half of what both edges gather and sum
    sent = 2 * (t * h * 2 / 8 / dcn + message)
    hidden = 0.2 * tensor + 0.5 * sent
    assert hidden < work
    # 18 bytes a parameter; gradients are summed in float32, weights gathered in 16 bits, each half crossing once.
    layer, embedding = 12 * h * h / 8 + 13 * h, vocab * h / 8 + 2048 * h
    gradient = 6 * (layers * layer + embedding) / 2 / dcn + 2 * (0.5 + 1) * message
    # The last backward pass and, for the weights that ZeRO gathers, the first forward pass; but for what hides already.
    behind = min(work, work + head - hidden)
    assert behind < 0.8 * gradient
    launches = layers * (57 + 26) * 4e-6
    held = layers * layer + embedding  # of the first stage, which is the fuller one
    expected = {
        "matmul": 8 * layers * (forward + backward),
        "attention": 8 * layers * 3.5 * attention,
        "elementwise": 8 * layers * 3 * elementwise,
        "recompute": 8 * layers * again,
        "head": 8 * head,
        "tensor": 8 * 0.8 * tensor,
        "pipeline": 8 * 0.5 * sent,
        "gradient": gradient - behind,
        "bubble": work + tensor + sent - hidden + launches,  # one micro-batch more, without the head
        "optimizer": (2 * 2 + 4 + 2 * 12 / 2) * held / chip.hbm,
        "host": 8 * (launches + 8 * 4e-6) + 10e-3,
    }
    found = {part: seconds for part, seconds in estimate.time_parts.items() if seconds}
    assert found == pytest.approx(expected, rel=1e-9)
    assert estimate.step_time_s == pytest.approx(sum(expected.values()), rel=1e-9)


@pytest.mark.parametrize(
    ("schedule", "stages", "batches", "share"),
    [
        ("gpipe", 4, 16, 3 / 16),
        ("1f1b", 4, 16, 3 / 16),  # (p - 1) / m, arXiv 2104.04473, section 2.2.1
        ("1f1b", 8, 8, 7 / 8),
        ("interleaved virtual=2", 4, 16, 3 / 32),  # (p - 1) / (v m), section 2.2.2
        ("interleaved virtual=4", 8, 32, 7 / 128),
        ("zero_bubble", 4, 16, 3 / 48),  # ZB-H1: a third, arXiv 2401.10241, table 2
    ],
)
def test_bubbles_of_each_schedule(physics, schedule, stages, batches, share):
    problem = physics.problem("llama2_7b", f"h100x{stages}" if stages < 8 else "h100x8", "torchtitan", batches, 2048)
    line = f"pipeline={stages} schedule={schedule} micro_batch=1 accumulation={batches} remat=full"
    parts = physics.estimate(problem, line).time_parts
    inside = sum(seconds for part, seconds in parts.items() if part not in ("bubble", "head", "optimizer"))
    assert parts["bubble"] / inside == pytest.approx(share, rel=1e-12)


def test_uneven_stages_wait_for_the_fullest(physics):
    # 32 layers on 6 stages: six hold 6, 6, 6, 6, 6 and 2 at worst; the fullest sets the pace.
    problem = physics.problem("llama2_7b", "h100:1x6", "torchtitan", 12, 2048)
    even = physics.problem("llama2_7b", "h100:1x4", "torchtitan", 12, 2048)
    line = "pipeline={} schedule=1f1b micro_batch=1 accumulation=12 remat=full"
    six, four = physics.estimate(problem, line.format(6)), physics.estimate(even, line.format(4))
    assert six.time_parts["matmul"] / four.time_parts["matmul"] == pytest.approx(6 / 8, rel=1e-12)


def test_a_looped_pipeline_spreads_the_head_and_a_real_one_does_not(physics):
    # MaxText's pipeline is a loop over the layers; logits of all micro-batches stand outside, split over the stages.
    maxtext = physics.problem("llama2_7b", "v5p-8", "maxtext", 16, 2048)
    # So wide that the loss is the fullest moment with one micro-batch, too.
    maxtext = replace(maxtext, stack=replace(maxtext.stack, logit_bytes=80.0))
    alone, looped = physics.estimates(
        maxtext,
        physics.perfect,
        "fsdp=4@2.2.1 micro_batch=1 accumulation=4 remat=full",
        "fsdp=2@2.1.1 pipeline=2@1.2.1 schedule=gpipe micro_batch=1 accumulation=8 remat=full",
    )
    assert looped.time_parts["head"] == pytest.approx(alone.time_parts["head"], rel=1e-12)
    assert looped.memory_parts["logits"] == pytest.approx(8 / 2 * alone.memory_parts["logits"], rel=1e-12)
    titan = physics.problem("llama2_7b", "h100x4", "torchtitan", 16, 2048)
    one, two = physics.estimates(
        titan,
        physics.perfect,
        "fsdp=4 micro_batch=1 accumulation=4 remat=full",
        "fsdp=2 pipeline=2 schedule=1f1b micro_batch=1 accumulation=8 remat=full",
    )
    assert two.time_parts["head"] == pytest.approx(2 * one.time_parts["head"], rel=1e-12)


def test_gradients_of_replicas_move_twice_their_bytes(physics):
    # 2 (n - 1) / n of the bytes (Patarasuk and Yuan 2009), once a step whatever the accumulation; ZeRO-1 moves as much
    # where weights are as wide as gradients.
    problem = physics.problem("llama2_7b", "h100x64", "maxtext", 128, 2048)
    problem = replace(problem, stack=replace(problem.stack, zero_beside_fsdp=True))  # which MaxText has no word for
    lines = ("accumulation=2 zero=0", "accumulation=2 zero=1", "accumulation=1 zero=0")
    plain, zero, once = physics.estimates(
        problem,
        physics.perfect,
        *(f"data=1x8 fsdp=8 micro_batch={2 if 'n=1' in knobs else 1} {knobs} remat=full" for knobs in lines),
    )
    llama = problem.workload.architecture
    shard = 2 * (llama.parameters - llama.norm_parameters) / 8
    assert plain.time_parts["gradient"] == pytest.approx(2 * 7 / 8 * shard / 50e9, rel=1e-12)
    assert zero.time_parts["gradient"] == pytest.approx(plain.time_parts["gradient"], rel=1e-12)
    assert once.time_parts["gradient"] == plain.time_parts["gradient"]
    # Inside the node each micro-batch gathers twice and scatters once.
    inside = 3 * 7 / 8 * 8 * shard / 450e9
    assert plain.time_parts["fsdp"] == pytest.approx(2 * inside, rel=1e-12)
    assert once.time_parts["fsdp"] == pytest.approx(inside, rel=1e-12)


def test_gradients_hide_while_the_device_waits_for_its_host(physics):
    # The host launches one micro-batch for seconds. A backward pass takes 5/7 of it at most (attention's,
    # 2.5 forward passes); what ZeRO gathers under the next forward pass can hide under all but the head.
    problem = physics.problem("llama2_7b", "h100x8", "megatron", 8, 4096)
    slow = {"host_launch_s": 5e-3, "ici_fraction": 0.002}
    for line, share, head in (("data=8", 5 / 7, 0.0), ("data=8 zero=1", 1.0, 1.0)):
        line = f"{line} micro_batch=1 accumulation=1"
        whole = physics.estimate(problem, line, **slow).time_parts
        parts = physics.estimate(problem, line, overlap_gradient=1.0, **slow).time_parts
        kernels = sum(parts[name] for name in ("matmul", "attention", "elementwise", "head"))
        assert parts["host"] > 5 * kernels
        room = share * (kernels + parts["host"]) - head * parts["head"]
        assert whole["gradient"] > room
        assert parts["gradient"] == pytest.approx(whole["gradient"] - room, rel=1e-9)


def test_a_head_that_gets_faster_never_slows_the_step(physics):
    # Traffic hides under the last stage's head too, but a bubble is a stage without it.
    problem = physics.problem("gpt_530b", "a100x280", "megatron", 280, 2048)
    line = "pipeline=1x35 tensor=8 schedule=1f1b micro_batch=1 accumulation=280 sequence_parallel=true remat=full"
    steps = [
        physics.estimate(problem, line, hbm_fraction=fraction, ici_fraction=0.01, overlap_tensor=1.0).step_time_s
        for fraction in (0.1, 0.2, 0.5, 1.0)
    ]
    assert steps == sorted(steps, reverse=True)


def test_offloaded_tensors_cross_pcie_both_ways(physics):
    problem = physics.problem("llama2_7b", "v5p-8", "maxtext", 16, 2048)
    line = "fsdp=4@2.2.1 micro_batch=1 accumulation=4 remat=qkv_proj_offloaded"
    parts = physics.estimate(problem, line).time_parts
    qkv = 32 * 2048 * 3 * 4096 * 2
    assert parts["offload"] == pytest.approx(4 * 2 * qkv / 15e9, rel=1e-12)


def test_a_group_that_fills_a_ring_of_two_axes_is_the_ring(physics):
    # fsdp 4 over context 4 on one wrapped axis of 16 v5e chips: together the whole ring, two links a chip.
    problem = physics.problem("llama2_7b", "v5e-256", "maxtext", 64, 4096)
    meshes = meshes_of(problem, [Plan.parse("data=16@16.1 fsdp=4@1.4 context=4@1.4")])
    for calibration in (None, physics.perfect):
        link = group_links(problem, meshes, calibration)["shards"]
        assert link.gather_bytes_per_s.tolist() == [2 * 50e9]
        assert link.hops.tolist() == [8]


def test_a_group_is_as_fast_however_it_is_written(physics):
    # The same 128 dies as one axis, and as chips times dies: a chip's links take in each byte once for both dies.
    problem = physics.problem("llama2_70b", "tpu7x-128", "maxtext", 1024, 4096)
    meshes = meshes_of(problem, [Plan.parse(f"fsdp={f}") for f in ("128@4.4.4.2", "64@4.4.4.1 context=2@1.1.1.2")])
    for calibration in (None, physics.perfect):
        one, two = group_links(problem, meshes, calibration)["shards"].gather_bytes_per_s
        assert one == two == pytest.approx(600e9 * (127 / 128) / (126 / 128))


def test_an_expert_group_takes_the_nearest_ranks_of_what_it_subdivides(physics):
    # Llama-like experts on a ring of 16 v5e chips, fsdp 4 over context 4: eight experts lie on context and on every
    # second half of fsdp, a line of 8 neighbours; two such lines are left, whose ranks are 8 apart.
    problem = physics.problem("mixtral8x7b", "v5e-256", "torchtitan", 256, 4096)
    meshes = meshes_of(problem, [Plan.parse("tensor=16@1.16 fsdp=4@4.1 context=4@4.1 expert=8")])
    links = group_links(problem, meshes, physics.perfect)
    line = 50e9 * (8 - 1) / 8 / (4 * 4 / 8)  # four chips send to four over the middle link, an eighth of their bytes
    assert links["expert"].all_to_all_bytes_per_s[0] == pytest.approx(line)
    assert links["routed_shards"].n_ici[0] == 2
    assert links["routed_shards"].gather_bytes_per_s[0] == pytest.approx(2 * 50e9 / 8)
    assert links["routed_replicas"].n_ici[0] == 1


def test_the_slowest_boundary_sets_the_pace_of_a_pipeline(physics):
    # Eight stages over two nodes: each hands on either inside its node or across, never both.
    problem = physics.problem("llama2_7b", "h100:2x4", "torchtitan", 16, 2048)
    line = "pipeline=4x2 schedule=1f1b micro_batch=1 accumulation=16 remat=full"
    parts = physics.estimate(problem, line).time_parts
    assert parts["pipeline"] == pytest.approx(16 * 2 * 2048 * 4096 * 2 / 50e9, rel=1e-12)


def test_parts_sum_to_the_whole(physics):
    problem = physics.problem("mixtral8x7b", "v5p-32", "maxtext", 64, 4096)
    space = Space(problem=problem)
    found = physics.estimates(problem, physics.calibrations["tpu"], *(plan.line for plan in space.sample(50, 3)))
    for estimate in found:
        assert sum(estimate.time_parts.values()) == pytest.approx(estimate.step_time_s, rel=1e-12)
        assert sum(estimate.memory_parts.values()) == pytest.approx(estimate.hbm_bytes, rel=1e-12)
        assert max(estimate.floor_parts.values()) == estimate.floor_s


@pytest.mark.parametrize(("schedule", "third"), [("1f1b", 1), ("zero_bubble", 3)])
def test_the_floor_of_a_pipeline_waits_for_no_recomputation(physics, schedule, third):
    # What is computed again can be done while a stage waits for its gradient, so only the model's own FLOPs fill and
    # drain: 3 forward passes of the layers a micro-batch and stage, or the forward one where weight gradients fill in.
    problem = physics.problem("llama2_7b", "h100x4", "torchtitan", 8, 4096)
    line = f"pipeline=4 micro_batch=1 accumulation=8 schedule={schedule} remat=full"
    found = physics.estimate(problem, line).floor_parts["compute"]
    tokens, d, ff, layers, vocab = 8 * 4096, 4096, 11008, 32, 32000
    down = 2 * d * ff
    forward = layers * (2 * (4 * d * d + 3 * d * ff) + 4 * 2048.5 * d)
    again = forward - layers * down  # the next layer's input is kept
    flops = 3 * forward + again + 3 * forward / third * (4 - 1) / 8 + 3 * 2 * d * vocab
    assert found == pytest.approx(tokens * flops / (4 * 989.5e12), rel=1e-9)

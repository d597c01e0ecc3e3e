"""Worked problems of "How to scale your model" (Austin et al. 2025, jax-ml.github.io/scaling-book) by our functions.

The book counts 90 GB/s each way and axis of a v5p torus (45 on v5e and v4), and bytes over bandwidth where a ring of n
really moves (n - 1) / n of them; both are put in where its numbers are compared with ours.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asap_ray.hardware import make_slice
from asap_ray.meshes import meshes_of
from asap_ray.physics import network
from asap_ray.physics.calibration import Machine
from asap_ray.physics.matmul import matmul_work
from asap_ray.physics.memory import activation_bytes
from asap_ray.physics.roofline import Pricer
from asap_ray.physics.traffic import group_links
from asap_ray.plan import Plan
from asap_ray.space import Space
from asap_ray.stack import Remat

DAY = 86_400.0


def matmul_s(*shape):
    """Seconds of a matmul."""
    return matmul_work(*shape).total_s


def links(
    physics, chip: str, link_bytes_per_s: float, topology: tuple[int, ...], line: str, hop_s: float = 0.0, n: int = 1
):
    """The links of a mesh on a torus with the book's bandwidth."""
    torus = make_slice(replace(physics.chips[chip], link_bytes_per_s=link_bytes_per_s), topology, n)
    problem = replace(physics.problem("llama3_70b", "v5p-8", "maxtext", 1024, 4096), slice=torus)
    meshes = meshes_of(problem, [Plan.parse(line)])
    return group_links(problem, meshes, replace(physics.perfect, hop_latency_s=hop_s))


def seconds(found) -> float:
    ici, dcn = found
    return float(ici[0] + dcn[0])


def critical(compute_bound) -> int:
    """The smallest number for which a monotone test holds."""
    low, high = 1, 1 << 20
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if compute_bound(middle) else (middle + 1, high)
    return low


@pytest.mark.parametrize(("dtype", "bytes_"), [("bf16", 2.0), ("int8", 1.0)])
def test_a_matmul_on_v5e_is_compute_bound_above_240_tokens(physics, dtype, bytes_):
    # Chapter 1: B > 1.97e14 / 8.2e11 = 240 in bf16, and 243 in int8 with everything in int8 (question 1).
    chip = physics.chips["v5e"]
    machine = replace(Machine.achieved(chip, physics.perfect), peaks=np.array([chip.peak_flops[dtype]]))
    wide = 1 << 20

    def compute_bound(tokens: int) -> bool:
        rows = 8 * tokens  # whole sublanes
        math = 2 * rows * wide * wide / chip.peak_flops[dtype]
        return bool(matmul_s(rows, wide, wide, machine.peaks[0], machine, 1, bytes_) <= math * (1 + 1e-12))

    assert 8 * critical(compute_bound) == pytest.approx(240, abs=8)


def test_with_8k_weights_the_activations_raise_that_to_255(physics):
    # The exact intensity is BDF / (BD + DF + BF): 240 = B / (1 + 2 B / 8192) gives B = 255.
    machine = Machine.achieved(physics.chips["v5e"], physics.perfect)
    d, exact = 8192, 240.24 / (1 - 2 * 240.24 / 8192)
    assert exact == pytest.approx(255, abs=0.5)

    def compute_bound(eighths: int) -> bool:
        rows = 8 * eighths
        return bool(matmul_s(rows, d, d, machine.peaks[0], machine) <= 2 * rows * d * d / 197e12 * (1 + 1e-12))

    assert 8 * critical(compute_bound) == 8 * np.ceil(exact / 8)


def test_all_gather_over_a_line_of_four_on_v5e(physics):
    # Chapter 3, pop quiz 2: E = 2048, F = 8192 over Y = 4 of an 8 x 4 mesh without wraparound: 560 us; a small array
    # of 256 x 256 waits for three hops: 3 us.
    found = links(physics, "v5e", 45e9, (4, 8), "fsdp=8@1.8 tensor=4@4.1 sequence_parallel=true", hop_s=1e-6)["tensor"]
    bandwidth = seconds(network.all_gather(found, 2048 * 8192 * 2)) - 3e-6
    assert bandwidth == pytest.approx(560e-6, rel=0.005)
    assert seconds(network.all_gather(found, 256 * 256 * 2)) == pytest.approx(3e-6 + 3 * 32e3 / 45e9, rel=0.02)


@pytest.mark.parametrize(
    ("line", "bytes_", "book_s", "ranks"),
    [
        ("data=4@4.1.1 fsdp=4@1.4.1 tensor=4@1.1.4", 2 * 1024 * 4096 / 4, 23e-6, 4),  # AllGather_X([B_X, D_Y])
        ("data=4@4.1.1 tensor=16@1.4.4", 2 * 1024 * 4096, 46e-6, 16),  # AllGather_XY([B_X, D_Y])
        ("fsdp=16@4.4.1 tensor=4@1.1.4", 2 * 1024 * 4096 / 16, 5.8e-6, 4),  # one Z of [B_X, D_Y]
    ],
)
def test_all_gathers_on_a_v4_cube(physics, line, bytes_, book_s, ranks):
    # Chapter 3, question 2; an all-reduce takes twice as long, a reduce-scatter the same.
    found = links(physics, "v4", 45e9, (4, 4, 4), line)["tensor"]
    gather = seconds(network.all_gather(found, bytes_))
    assert gather * ranks / (ranks - 1) == pytest.approx(book_s, rel=0.02)
    assert seconds(network.all_reduce(found, bytes_)) == pytest.approx(2 * gather, rel=1e-12)
    assert seconds(network.reduce_scatter(found, bytes_)) == gather


def test_a_small_gather_on_v4_waits_for_two_hops(physics):
    # Chapter 3, question 3: 256 bytes over a wrapped axis of 4.
    found = links(physics, "v4", 45e9, (4, 4, 4), "fsdp=16@4.4.1 tensor=4@1.1.4", hop_s=1e-6)["tensor"]
    assert seconds(network.all_gather(found, 256)) == pytest.approx(2e-6, rel=0.01)


def test_an_all_to_all_costs_a_quarter_of_a_gather(physics):
    # Chapter 3: on a bidirectional ring; (n - 1) / n again is the difference to exactly a quarter.
    found = links(physics, "v5e", 45e9, (16, 16), "fsdp=16@16.1 expert=16@1.16")["expert"]
    array = 1e9
    ratio = seconds(network.all_to_all(found, array / 16)) / seconds(network.all_gather(found, array))
    assert ratio * 15 / 16 == pytest.approx(0.25, rel=1e-12)


@pytest.mark.parametrize(
    ("topology", "line", "ranks", "book"),
    [((4, 4, 16), "data=16@4.4.1 fsdp=16@1.1.16", 16, 2550), ((8, 8, 8), "fsdp=512@8.8.8", 512, 850)],
)
def test_fsdp_is_bound_by_links_below_2550_tokens_an_axis(physics, topology, line, ranks, book):
    # Chapter 5: B / X > C / (W n_axes). Forward: two weights of [D, F] gathered, two matmuls.
    found = links(physics, "v5p", 90e9, topology, line)["shards"]
    machine = Machine.achieved(physics.chips["v5p"], physics.perfect)
    d, f = 8192, 32768
    gather = seconds(network.all_gather(found, 2 * 2 * d * f))

    def compute_bound(eighths: int) -> bool:
        math = matmul_s(8 * eighths, d, f, machine.peaks[0], machine) + matmul_s(
            8 * eighths, f, d, machine.peaks[0], machine
        )
        return bool(math >= gather)

    assert 8 * critical(compute_bound) * ranks / (ranks - 1) == pytest.approx(book, rel=0.01)


def test_tensor_parallelism_is_bound_beyond_f_over_2550(physics):
    # Chapter 5: Y < F / 2550 = 11 for Llama 3 70B on one axis: 8 ways hide, 16 do not. Exactly, a ring of Y moves
    # (Y - 1) / Y, so that math / traffic = F W / (C (Y - 1)).
    machine = Machine.achieved(physics.chips["v5p"], physics.perfect)
    d, f, tokens = 8192, 28672, 65536
    ratios = {}
    for ways in (8, 16):
        line = f"data=16@4.4.1 tensor={ways}@1.1.{ways} sequence_parallel=true"
        found = links(physics, "v5p", 90e9, (4, 4, ways), line)["tensor"]
        block = tokens * d * 2
        traffic = seconds(network.all_gather(found, block)) + seconds(network.reduce_scatter(found, block))
        math = matmul_s(tokens, d, f / ways, machine.peaks[0], machine) + matmul_s(
            tokens, f / ways, d, machine.peaks[0], machine
        )
        ratios[ways] = float(math) / traffic
        assert ratios[ways] == pytest.approx(f / 2550 / (ways - 1), rel=0.005)
    assert ratios[8] > 1 > ratios[16]


def test_mixing_fsdp_with_tensor_needs_the_books_smallest_batch(physics):
    # Chapter 5: with alpha = C / W the traffic of X fsdp by Y tensor ways exceeds the math for every mix once
    # B / N < 4 alpha^2 / (F M_X M_Y). For F = 32,768 on N = 4 x 4 x 8 with two axes and one: 396 tokens a chip.
    f, d, alpha, ways = 32768, 8192, 4.59e14 / 1.8e11, 8
    smallest = 4 * alpha**2 / (f * 2 * 1)
    assert smallest == pytest.approx(396, rel=0.01)
    found = links(physics, "v5p", 90e9, (4, 4, ways), f"fsdp=16@4.4.1 tensor={ways}@1.1.{ways} sequence_parallel=true")

    def ratio(tokens_a_chip: float) -> float:
        rows = tokens_a_chip * ways
        weights = seconds(network.all_gather(found["shards"], 2 * 2 * d * f / ways)) * 16 / 15
        moved = 2 * seconds(network.all_gather(found["tensor"], 2 * rows * d)) * 8 / 7
        return (weights + moved) / (2 * 2 * tokens_a_chip * d * f / 4.59e14)

    # The book's sum, (alpha / (B / X M_X) + alpha Y / (F M_Y)), from our links.
    for tokens in (smallest / 2, smallest, 2 * smallest):
        assert ratio(tokens) == pytest.approx(alpha / (tokens * ways * 2) + alpha * ways / f, rel=1e-9)
    # Eight ways are near the best mix, sqrt(F / 2 / 396) = 6.4, which reaches exactly 1 there.
    assert 1 < ratio(smallest) < 1.05
    assert ratio(2 * smallest) < 1 < ratio(smallest / 2)


def test_data_parallelism_between_pods_needs_73_thousand_tokens_a_pod(physics):
    # Chapter 5: C / W of the data-centre network, 4.59e14 / 6.25e9 = 73,440 (the book rounds to 76,000), whatever the
    # size of the pod. Backward: two gradients of [D, F] summed, four matmuls.
    d, f, chips, pods = 8192, 32768, 512, 8
    found = links(physics, "v5p", 90e9, (8, 8, 8), f"data=1x{pods} fsdp=512@8.8.8", n=pods)
    # Each chip of a pod holds 1 / 512 of a gradient.
    reduce = seconds(network.all_reduce(found["replicas"], 2 * 2 * d * f / chips)) * pods / (pods - 1)
    math_per_token = 2 * 2 * 2 * d * f / (chips * 4.59e14)
    assert reduce / math_per_token == pytest.approx(76_000, rel=0.04)


def test_llama_3_70b_on_a_pod_takes_44_days(physics):
    # Chapter 6: 6 x 70e9 x 15e12 = 6.3e24 FLOPs on 8,960 chips at 40% MFU. The book counts the embedding as if it
    # multiplied and leaves attention out.
    workload = physics.problem("llama3_70b", "v5p-8", "maxtext", 1024, 4096).workload
    assert workload.architecture.parameters == pytest.approx(70.4e9, rel=0.005)
    attention = 3 * workload.flops_by_part()["attention"]
    embedding = 6 * workload.architecture.embedding_parameters * workload.tokens_per_step
    per_token = (workload.model_flops - attention + embedding) / workload.tokens_per_step
    assert per_token == pytest.approx(4.2e11, rel=0.01)
    assert per_token / 4.59e14 == pytest.approx(1e-3, rel=0.1)
    days = per_token * 15e12 / (8960 * physics.chips["v5p"].peak_flops["bf16"] * 0.4) / DAY
    assert days == pytest.approx(44, rel=0.02)


def test_llama_2_13b_state_and_checkpoints(physics):
    # Chapter 5, questions 1 and 2: 13.1e9 parameters; 130 GB of bf16 weights and two float32 moments; checkpoints after
    # the three big matmuls of each layer, for 16e6 tokens: 42 TB.
    model = physics.architecture("llama2_13b")
    assert model.parameters == pytest.approx(13.1e9, rel=0.01)
    assert 10 * model.parameters == pytest.approx(130e9, rel=0.01)
    saved = Remat(name="three", saved=frozenset({"gate_up"}))  # the third is the next layer's input, always kept
    base = physics.problem("llama2_13b", "v5p-8", "maxtext", 4, 4096)
    problem = replace(base, stack=replace(base.stack, remat=(saved,)))
    space = Space(problem=problem)
    pricer = Pricer(problem, physics.perfect)
    rows = space.columns([Plan.parse("fsdp=4@2.2.1 micro_batch=1 accumulation=1 remat=three")])
    stage, *_ = pricer._stages(rows, pricer._tables(rows.meshes))
    one_sequence = activation_bytes(problem, stage.units).kept[0, 0] * 40
    assert one_sequence / 4096 * 16e6 == pytest.approx(42e12, rel=0.02)


def test_llama_2_13b_state_on_a_slice_is_spread_evenly(physics):
    # Every weight, gradient and moment of 13B over 64 chips: 16 bytes a parameter in MaxText's float32.
    problem = physics.problem("llama2_13b", "v5p-128", "maxtext", 64, 4096)
    parts = physics.estimate(problem, "fsdp=64@4.4.4 micro_batch=1 accumulation=1 remat=full").memory_parts
    state = parts["weights"] + parts["gradients"] + parts["optimizer"]
    assert state * 64 / 16 == pytest.approx(problem.workload.architecture.parameters, rel=1e-6)

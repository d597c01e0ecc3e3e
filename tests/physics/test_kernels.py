"""What the kernels of a stack cost besides: casts, portable attention, experts one by one, copies sent once."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from asap_ray.physics.calibration import Machine
from asap_ray.physics.layer import LayerPricer, _sent
from asap_ray.plan import PRECISIONS
from tests.units import lone_unit

LINE = "tensor=8 sequence_parallel=true micro_batch=1 accumulation=8"


def in_format(physics, slice_: str, precision: str):
    problem = physics.problem("llama2_7b", slice_, "ours", 8, 4096)
    return replace(problem, workload=replace(problem.workload, precision=precision))


def part(physics, precision: str, name: str, slice_: str = "h100x8", **changes: float) -> float:
    line = f"{LINE} precision={precision}"
    return physics.estimate(in_format(physics, slice_, precision), line, **changes).time_parts[name]


def test_the_head_stays_out_of_narrow_formats(physics):
    assert part(physics, "fp8", "head") == part(physics, "bf16", "head")
    assert part(physics, "fp8", "matmul") < part(physics, "bf16", "matmul")


@pytest.mark.parametrize(("precision", "slice_", "width"), [("fp8", "h100x8", 1), ("nvfp4", "b200x8", 0.5625)])
def test_casts_read_a_number_and_write_it_twice(physics, precision, slice_, width):
    # nvfp4 has a scale of one byte for each 16 numbers (arXiv 2509.25149).
    problem = in_format(physics, slice_, precision)
    chip, unit = problem.slice.chip, lone_unit(precision=PRECISIONS.index(precision))
    fused, alone = (
        LayerPricer(
            problem.workload,
            Machine.achieved(chip, replace(physics.perfect, cast_passes=passes)),
            problem.stack,
        ).price(unit)
        for passes in (0.0, 1.0)
    )
    d, ff, tokens = 4096, 11008, 4096
    inputs, outputs = 4 * d + ff, 2 * d + 2 * d + 2 * ff + d  # query, key and value, out, gate and up, down
    cast = 32 * tokens * (2 + 2 * width) / chip.device_hbm_bytes_per_s
    none = {name: fused.forward[name].total_s[0] for name in fused.forward}
    for name in none:
        more = cast * inputs if name == "matmul" else 0.0
        assert alone.forward[name].total_s[0] == pytest.approx(none[name] + more)
    more = alone.backward["matmul"].total_s[0] - fused.backward["matmul"].total_s[0]
    assert more == pytest.approx(cast * outputs)


def test_four_bits_have_a_fraction_of_their_own(physics):
    calibration = replace(physics.perfect, matmul_fraction=0.5, narrow_fraction=0.8, four_bit_fraction=0.5)
    peaks = Machine.achieved(physics.chips["b200"], calibration).peaks
    for precision, achieved in (
        ("nvfp4", 9e15 * 0.5 * 0.8 * 0.5),
        ("fp8", 4.5e15 * 0.5 * 0.8),
        ("bf16", 2.25e15 * 0.5),
    ):
        assert peaks[PRECISIONS.index(precision)] == pytest.approx(achieved), precision


@pytest.mark.parametrize(("share", "seconds"), [(0.0, 1 / 0.6), (1.0, 1 / 0.3), (0.5, 0.5 / 0.6 + 0.5 / 0.3)])
def test_attention_takes_the_kernels_that_the_stack_has(physics, share, seconds):
    fractions = {"attention_fraction": 0.6, "portable_fraction": 0.3, "portable_attention": share}
    found = part(physics, "bf16", "attention", **fractions)
    assert found == pytest.approx(seconds * part(physics, "bf16", "attention"))


@pytest.mark.parametrize("topk", [1, 2, 4])
def test_copies_for_one_rank_are_sent_once(topk):
    ranks, hosts = 2, 3  # a rank is (host, place); a token starts on rank (0, 0)
    every = list(product(product(range(hosts), range(ranks)), repeat=topk))
    across = sum(len({host for host, _ in chosen} - {0}) for chosen in every) / len(every)
    inside = sum(len({rank for rank in chosen if rank[1] != 0}) for chosen in every) / len(every)
    link = replace(lone_unit().links["expert"], n_ici=np.array([ranks]), n_dcn=np.array([hosts]))
    over_ici, over_dcn = _sent(link, topk)
    # An all-to-all sends 1 / (ranks * hosts) of all copies to each rank.
    assert over_ici[0] * topk * (1 - 1 / ranks) / hosts == pytest.approx(inside)
    assert over_dcn[0] * topk * (1 - 1 / hosts) == pytest.approx(across)


def test_experts_that_are_launched_alone_cost_a_launch_each(physics):
    problem = physics.problem("mixtral8x7b", "h100x8", "megatron", 8, 4096)
    line = "data=8 expert=4 micro_batch=1 accumulation=1"
    grouped, alone = (
        physics.estimate(problem, line, kernel_launch_s=1e-6, expert_launches=n).time_parts["host"] for n in (0.0, 5.0)
    )
    # 32 layers, two matmuls forward and their four gradients, two of eight experts on a rank.
    assert alone - grouped == pytest.approx(32 * 6 * 2 * 5 * 1e-6)


@pytest.mark.parametrize(("layers", "held", "spared"), [(28, 7, 0), (30, 8, 1), (31, 8, 1), (29, 8, 2)])
def test_layers_that_do_not_divide_leave_room_for_the_head(physics, layers, held, spared):
    # Four stages of eight layers hold 29 of them as 7 + 8 + 8 + 6, with embedding and head at the ends.
    problem = physics.problem("llama3_8b", "a100x8", "megatron", 8, 4096)
    line = "pipeline=4 tensor=2 micro_batch=1 accumulation=8 schedule=1f1b"

    def parts(layers: int) -> dict[str, float]:
        model = replace(problem.workload.architecture, layers=layers)
        changed = replace(problem, workload=replace(problem.workload, architecture=model))
        return dict(physics.estimate(changed, line).time_parts)

    whole, d, vocab = parts(32)["head"], 4096, 128256
    assert whole == pytest.approx(
        8 * 4096 * vocab / 2 * (3 * 2 * d / 312e12 + 14 / 2.039e12), rel=0.03
    )  # waves that are not full
    found = parts(layers)
    stage = sum(found[name] for name in ("matmul", "attention", "elementwise"))
    assert found["head"] == pytest.approx(whole - spared * stage / held)

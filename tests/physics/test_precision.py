"""What a number format changes: bytes of a number everywhere, floors of its own plans only, and no measure of MFU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asap_ray.physics.activations import kept_tensors
from asap_ray.physics.calibration import Machine
from asap_ray.physics.layer import LayerPricer
from asap_ray.physics.memory import activation_bytes
from asap_ray.physics.roofline import Pricer
from asap_ray.physics.units import Units
from asap_ray.plan import PRECISIONS, Plan
from asap_ray.problem import Problem
from asap_ray.rules import broken
from asap_ray.space import Space
from tests.units import lone_unit

LINE = "fsdp=2 tensor=4 micro_batch=1 accumulation=4 sequence_parallel=true remat=none"


def ours(physics, slice_: str, precision: str = "bf16", numerics: tuple[str, ...] = ()) -> Problem:
    """Llama 2 7B in a format."""
    problem = physics.problem("llama2_7b", slice_, "ours", 8, 2048)
    return replace(problem, workload=replace(problem.workload, precision=precision), numerics=numerics)


def units(precision: str) -> Units:
    return lone_unit(tokens=128.0, precision=PRECISIONS.index(precision))


@pytest.mark.parametrize(("precision", "width"), [("bf16", 2), ("fp32", 4), ("fp8", 2), ("fp16", 2)])
def test_activations_are_as_wide_as_the_format_between_matmuls(physics, precision, width):
    problem = ours(physics, "h100x8", precision)
    llama = problem.workload.architecture
    tensors = [t for t in kept_tensors(problem.workload, llama.groups[0]) if t.kernel != "unfused"]
    # input, two norms, query, key, value, context and output; gate and up, and their product; a statistic a head
    numbers, statistics = 8 * 4096 + 3 * 11008, 4 * 32
    assert sum(t.token_bytes(float(width)) for t in tensors) == width * numbers + statistics
    none = problem.stack.remat_names.index("none")
    kept, plain = (activation_bytes(problem, units(name)).kept[0, none] for name in (precision, "bf16"))
    assert kept / plain == pytest.approx(width / 2, rel=1e-2)


@pytest.mark.parametrize(("precision", "width"), [("bf16", 2), ("fp32", 4), ("fp8", 2)])
def test_matmuls_norms_and_gates_move_numbers_of_that_width(physics, precision, width):
    problem = ours(physics, "h100x8", precision)
    machine = Machine.achieved(problem.slice.chip, physics.perfect)
    cost = LayerPricer(problem.workload, machine, problem.stack).price(units(precision))
    t, d, ff = 128, 4096, 11008
    shapes = [(d, d), (d, 2 * d), (d, d), (d, 2 * ff), (ff, d)]
    numbers = 32 * sum(t * k + k * n + t * n for k, n in shapes)
    matmul = cost.forward["matmul"] + cost.backward["matmul"]
    assert matmul.hbm_s[0] == pytest.approx(3 * width * numbers / 3.35e12)
    assert cost.forward["elementwise"].hbm_s[0] == pytest.approx(32 * t * width * (2 * 4 * d + 3 * ff) / 3.35e12)


def test_the_head_stays_in_sixteen_bits(physics):
    plain, narrow = (physics.estimate(ours(physics, "h100x8", p), f"{LINE} precision={p}") for p in ("bf16", "fp8"))
    assert narrow.time_parts["head"] == pytest.approx(plain.time_parts["head"])
    assert narrow.time_parts["matmul"] < plain.time_parts["matmul"]


def test_wide_numbers_take_twice_the_wire_and_narrow_ones_no_less(physics):
    wide, plain, narrow = (
        physics.estimate(ours(physics, "h100x8", name), f"{LINE} precision={name}") for name in ("fp32", "bf16", "fp8")
    )
    for part in ("tensor", "fsdp"):
        assert plain.time_parts[part] > 0
        assert wide.time_parts[part] == pytest.approx(2 * plain.time_parts[part])
        assert narrow.time_parts[part] == plain.time_parts[part]


def test_formats_of_one_space_keep_their_own_widths(physics):
    # bf16 is the workload's, fp32 is opted in: each plan moves what it would move alone.
    both = ours(physics, "h100x8", numerics=("precision",))
    for precision in ("bf16", "fp32", "fp8"):
        mixed = physics.estimate(both, f"{LINE} precision={precision}")
        alone = physics.estimate(ours(physics, "h100x8", precision), f"{LINE} precision={precision}")
        assert mixed.time_parts == pytest.approx(alone.time_parts)
        assert mixed.floor_parts == pytest.approx(alone.floor_parts)


def test_a_floor_does_not_depend_on_what_else_is_opted_in(physics):
    plan = Plan.parse(LINE)
    floors = []
    for numerics in ((), ("precision",)):
        problem = ours(physics, "h100x8", numerics=numerics)
        rows = Space(problem=problem).columns([plan])
        floors.append(Pricer(problem, physics.perfect).estimates(rows, [plan])[0].floor_parts)
    assert floors[0] == floors[1]
    # Behind a switch each of 32 layers moves its 8,192 tokens four times at least, in two bytes a number.
    tokens = 2048 * 4
    assert floors[0]["ici"] >= 32 * 4 * 3 / 4 * tokens * 4096 * 2 / 450e9 * (1 - 1e-12)


def test_mfu_is_of_the_bf16_peak_in_every_format(physics):
    problem = ours(physics, "h100x8", "fp8")
    estimate = physics.estimate(problem, f"{LINE} precision=fp8")
    flops = problem.workload.model_flops
    assert estimate.mfu == pytest.approx(flops / (estimate.step_time_s * 8 * 989.5e12))


@pytest.mark.parametrize(
    ("slice_", "precision", "legal"),
    [("a100x8", "fp8", False), ("h100x8", "fp8", True), ("v5e-8", "fp8", False), ("v5p-16", "fp8", True)],
)
def test_a_format_that_the_chip_does_not_multiply_is_in_no_plan(physics, slice_, precision, legal):
    problem = ours(physics, slice_, numerics=("precision",))
    found = {PRECISIONS[code] for rows in Space(problem=problem).chunks() for code in np.unique(rows["precision"])}
    assert found == ({"bf16", "fp32", precision} if legal else {"bf16", "fp32"})
    plan = next(iter(Space(problem=problem).sample(1, 0)))
    fault = broken(problem, replace(plan, precision=precision))
    assert (fault is None) == legal
    if fault:
        assert fault[0] == "precision"
        assert "does not multiply fp8" in fault[1]


def test_block_scaled_formats_run_on_the_units_of_plain_ones(physics):
    assert physics.chips["h100"].multiplies("mxfp8")
    assert physics.chips["b200"].multiplies("mxfp4")
    assert not physics.chips["h100"].multiplies("nvfp4")
    assert not physics.chips["a100"].multiplies("mxfp8")

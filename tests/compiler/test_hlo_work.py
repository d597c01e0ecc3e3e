"""FLOPs and bytes, against hand calculations and a convolution that is counted out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from asap_ray.compiler import work
from asap_ray.compiler.hlo import Module, parse
from asap_ray.compiler.kernels import kernel_work
from tests.compiler.conftest import PLANS, Profiled, Read
from tests.compiler.programs import BATCH, HIDDEN, LAYERS, LENGTH, WIDTH
from tests.problems import CHIPS


def of_entry(program: Module, opcode: str) -> list[tuple[float, list[tuple[float, ...]]]]:
    entry = program.computations[program.entry]
    return [
        (work.flops(program, entry, each), work.matmul_sizes(program, entry, each))
        for each in entry.instructions
        if each.opcode == opcode and work.flops(program, entry, each)
    ]


def test_batched_matmuls_that_print_as_dilated_convolutions(module: Read) -> None:
    # Scores of 1024 x 1024 over a width of 128, and as much for the values, for each of 8 heads.
    one = 2.0 * 8 * 1024 * 1024 * 128
    assert of_entry(module("batched"), "fusion") == [
        (one, [(1024.0, 128.0, 1024.0, 8.0)]),
        (one, [(128.0, 1024.0, 1024.0, 8.0)]),
    ]


@pytest.mark.parametrize(
    ("name", "tokens", "hidden"),
    [
        ("layers", BATCH * LENGTH / 4, HIDDEN / 4),
        ("layers_v5p", BATCH * LENGTH / 4, HIDDEN / 4),
        ("layers_two_slices", BATCH * LENGTH / 16, HIDDEN / 2),
        ("layers_h100", BATCH * LENGTH / 2, HIDDEN / 4),
        ("layers_two_nodes", BATCH * LENGTH / 4, HIDDEN / 4),
    ],
)
def test_flops_of_a_step_through_its_loops(name: str, tokens: float, hidden: float, profiled: Profiled) -> None:
    # Each layer: two matmuls forward, the first once more, and four backward. The second is not done again: nothing
    # backward needs its result.
    assert profiled(name).total("flops") == 7 * LAYERS * 2.0 * tokens * WIDTH * hidden


def test_flops_of_loops_in_loops(profiled: Profiled) -> None:
    # A device has 2 sequences of 1024 tokens. Each of 4 hops multiplies twice forward, as often again, and four times
    # backward. Around them stand two matmuls with weights: each forward, once more (relu needs it), and two backward.
    tokens, hops = 2 * 1024, 4
    hop = 2.0 * tokens * 1024 * 1024
    weights = 2.0 * tokens * 1024 * 1024
    assert profiled("ring").total("flops") == 4 * (hops * (2 + 2 + 4) * hop + (2 + 2 + 4) * weights)


def test_collective_matmul_is_the_whole_matmul(profiled: Profiled) -> None:
    # 8 sequences of 4096 over fsdp = 2; 4096 x 16384 and back over tensor = 8.
    tokens = 8 * 4096 / 2
    assert profiled("collective_matmul").total("flops") == 2 * 2.0 * tokens * 4096 * 16384 / 8


def test_splash_does_the_causal_half_and_the_scores_again(profiled: Profiled) -> None:
    profile = profiled("splash")
    pairs, heads, width = 2048 * 2049 / 2, 2 * 8, 128
    matmul = 2.0 * pairs * heads * width
    flops = {op.name.split("_residuals")[0]: (op.flops, op.redone_flops) for op in profile.ops if op.flops}
    assert flops == {
        "splash_mha_fwd": (2 * matmul, 0.0),
        "splash_mha_dq_no": (matmul, 2 * matmul),  # scores and their gradients once more
        "splash_mha_dkv_no": (3 * matmul, matmul),
    }
    assert {op.category for op in profile.ops if op.flops} == {"attention"}


def test_grouped_matmuls(profiled: Profiled) -> None:
    flops = {op.name: op.flops for op in profiled("grouped").ops if op.flops}
    assert flops == {"gmm.1": 2.0 * 4096 * 1024 * 2048, "ragged-dot-none": 2.0 * 4096 * 1024 * 2048}


@pytest.mark.parametrize("name", [name for name, (slice_, _) in PLANS.items() if "h100" not in slice_])
def test_cycles_are_of_a_whole_device(name: str, module: Read) -> None:
    """On a chip with two cores that work as one, cycles are of both together: no matmul is faster than the peak."""
    program, chip = module(name), CHIPS[PLANS[name][0].split(":")[0].split("-")[0].removeprefix("2x")]
    peak = chip.peak_flops["bf16"] / chip.devices_per_chip / chip.clock_hz
    rates = [
        work.flops(program, c, each) / each.cycles / peak
        for c in program.computations.values()
        for each in c.instructions
        if each.cycles and work.flops(program, c, each) > 1e9
    ]
    assert all(rate < 1.0 for rate in rates)
    if name in ("layers", "layers_v5p", "collective_matmul"):
        assert min(rates) > 0.7


def met(size: int, window: int, outputs: int, stride: int, pad: int, dilate: int, spread: int) -> int:
    """Pairs of output and window positions that meet an input, on a dilated input that is written out."""
    row = np.zeros(10_000, bool)
    row[1000 : 1000 + size * dilate : dilate] = True
    places = itertools.product(range(outputs), range(window))
    return sum(bool(row[1000 - pad + o * stride + k * spread]) for o, k in places)


@pytest.mark.parametrize(
    "window",
    [
        (8, 8, 8, 7, 0, 8, 1),  # a batched matmul
        (2, 2, 2, 1, 0, 2, 1),
        (4, 3, 4, 1, 1, 1, 1),  # an ordinary convolution with padding
        (9, 3, 3, 2, 0, 1, 2),
        (1, 1, 1, 1, 0, 1, 1),
        (5, 5, 9, 1, 4, 1, 1),
    ],
)
def test_windows_meet_inputs_as_counted_out(window: tuple[int, ...]) -> None:
    assert work._met(*window) == met(*window)


def test_slices_and_updates_in_place_move_their_part_alone() -> None:
    program = parse(
        """HloModule m

%sliced (p: f32[64,1024], i: s32[]) -> f32[1,1024] {
  %p = f32[64,1024] parameter(0)
  %i = s32[] parameter(1)
  %z = s32[] constant(0)
  ROOT %s = f32[1,1024] dynamic-slice(%p, %i, %z), dynamic_slice_sizes={1,1024}
}

%updated (p: f32[64,1024], x: f32[1,1024], i: s32[]) -> f32[64,1024] {
  %p = f32[64,1024] parameter(0)
  %x = f32[1,1024] parameter(1)
  %i = s32[] parameter(2)
  %z = s32[] constant(0)
  %y = f32[1,1024] add(%x, %x)
  ROOT %u = f32[64,1024] dynamic-update-slice(%p, %y, %i, %z)
}

ENTRY %main (p: f32[64,1024], i: s32[]) -> f32[64,1024] {
  %p = f32[64,1024] parameter(0)
  %i = s32[]{:S(6)} parameter(1)
  %a = f32[1,1024] fusion(%p, %i), kind=kLoop, calls=%sliced
  %b = f32[64,1024] fusion(%p, %a, %i), kind=kLoop, calls=%updated
  %v = f32[64,1024]{1,0:S(1)} copy(%b)
  ROOT %c = f32[64,1024] add(%v, %v)
}
"""
    )
    entry = program.computations["main"]
    row, whole = 4 * 1024, 4 * 64 * 1024
    moved = {each.name: work.hbm_bytes(program, entry, each) for each in entry.instructions}
    assert moved == {"p": 0, "i": 0, "a": 2 * row, "b": 2 * row, "v": whole, "c": whole}


def test_a_trainer_may_say_what_its_attention_does() -> None:
    program = parse(
        """HloModule m

ENTRY %main (q: bf16[2,8,1024,64]) -> bf16[2,8,1024,64] {
  %q = bf16[2,8,1024,64] parameter(0)
  %f = bf16[2,8,1024,64] custom-call(%q, %q, %q)
, custom_call_target="tpu_custom_call"
, metadata={op_name="jvp(layers)/pairs=1000/vmap(splash_mha_fwd)/pallas_call"}
, backend_config={"custom_call_config":{"body":"x","cost_estimate":{"flops":"5000000","transcendentals":"1"}}}
  %splash_mha_dkv.1 = (bf16[2,8,1024,64], bf16[2,8,1024,64], bf16[2,8,1024,64]) custom-call(%q, %q, %q, %f)
, custom_call_target="tpu_custom_call"
, metadata={op_name="transpose(jvp(layers))/pairs=1000/vmap(splash_mha_dkv)/pallas_call"}
  ROOT %r = bf16[2,8,1024,64] get-tuple-element(%splash_mha_dkv.1), index=0
}
"""
    )
    entry = program.computations["main"]
    forward, backward = (kernel_work(entry, each) for each in entry.instructions if each.opcode == "custom-call")
    one = 2.0 * 16 * 1000 * 64  # a matmul over the pairs that 2 x 8 heads see
    assert (forward.flops, forward.flops + forward.redone_flops) == (2 * one, 5e6)
    assert (forward.masked, forward.widths) == (True, (64, 64))
    # Of five matmuls of one width the scores are done again.
    assert (backward.flops, backward.redone_flops, backward.masked) == (4 * one, one, False)


def test_matmuls_of_a_library() -> None:
    program = parse(
        """HloModule m

ENTRY %main (a: bf16[4,128,256], b: bf16[4,256,64]) -> bf16[4,128,64] {
  %a = bf16[4,128,256] parameter(0)
  %b = bf16[4,256,64] parameter(1)
  %g = (bf16[4,128,64], s8[1024]) custom-call(%a, %b)
, custom_call_target="__cublas$gemm"
, backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["2"],
"rhs_contracting_dimensions":["1"],"lhs_batch_dimensions":["0"]}}}
  ROOT %r = bf16[4,128,64] get-tuple-element(%g), index=0
}
"""
    )
    entry = program.computations["main"]
    done = kernel_work(entry, entry.by_name["g"])
    assert (done.flops, done.sizes) == (2.0 * 4 * 128 * 256 * 64, (128.0, 256.0, 64.0, 4.0))

"""What an op is by its name, its printed instruction, or what XProf says of it."""

from __future__ import annotations

import pytest

from asap_ray.profile.kinds import category_of, kind_of, phase_of, short_name, started_by
from asap_ray.profile.sweep import CONTROL, COPY, CORE, INPUT, WIRE
from asap_ray.profile.table import CATEGORIES, Op

NAMES = {
    "dot.10": "matmul",
    "gemm_fusion_dot.4": "matmul",
    "nvjet_hsh_128x128_64x4_1x2_h_bz_NNT": "matmul",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": "matmul",
    "loop_add_fusion": "elementwise",
    "wrapped_tanh.1": "elementwise",
    "copy_subtract_fusion.3": "elementwise",
    "copy.3": "copy",
    "transpose_fusion.2": "copy",
    "dynamic-update-slice.4": "copy",
    "MemcpyD2D": "copy",
    "all-reduce.8": "all_reduce",
    "all-gather-start.2": "all_gather",
    "reduce-scatter.1": "reduce_scatter",
    "ragged-all-to-all.1": "all_to_all",
    "collective-permute-done.5": "permute",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",
    "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL": "reduce_scatter",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "permute",
    "splash_mha_fwd_residuals.1": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma": "attention",
    "custom-call.7": "custom",
    "infeed.2": "input",
    "fusion.12": "elementwise",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_category_by_the_name_alone(name: str) -> None:
    assert kind_of(name).op.category == NAMES[name]
    assert NAMES[name] in CATEGORIES


@pytest.mark.parametrize(
    ("said", "category"),
    [
        ("convolution fusion", "matmul"),
        ("loop fusion", "elementwise"),
        ("data formatting", "copy"),
        ("all-reduce-scatter fusion", "reduce_scatter"),
        ("host send-done", "permute"),
        ("sort", "copy"),
        ("while", "other"),
        ("infeed", "input"),
    ],
)
def test_what_xprof_says_goes_before_the_name(said: str, category: str) -> None:
    assert category_of("fusion.3", said) == category


def test_ranks_on_the_critical_path() -> None:
    ranks = {"dot.1": CORE, "all-gather.1": WIRE, "copy-start.2": COPY, "infeed.1": INPUT, "while.2": CONTROL}
    assert {name: kind_of(name).rank for name in ranks} == ranks
    assert kind_of("copy.2").rank == CORE  # the core itself moves data


def test_a_done_counts_for_the_start_that_it_names() -> None:
    done = "%all-gather-done.9 = bf16[8]{0} all-gather-done((bf16[4]{0}, bf16[8]{0}) %all-gather-start.1)"
    assert (short_name(done), started_by(done)) == ("all-gather-done.9", "all-gather-start.1")
    assert started_by("all-gather-done.9") == "all-gather-start.9"
    assert started_by("%fusion.3 = f32[] fusion(f32[] %all-gather-start.1)") == "fusion.3"
    assert not kind_of(done).counts
    assert kind_of("all-gather-start.1").counts


def test_what_the_program_says_goes_before_all() -> None:
    known = Op(name="ynn_fusion.2", category="matmul", phase="backward", flops=8.0, seconds=3.0, exposed_s=2.0)
    kind = kind_of("ynn_fusion.2", known=known, module="jit_step(3)")
    assert (kind.op.category, kind.op.phase, kind.op.flops, kind.op.seconds) == ("matmul", "backward", 8.0, 0.0)
    assert kind.module == "jit_step(3)"


def test_phases_by_scope() -> None:
    assert phase_of("jit(step)/jvp(layer)/dot_general") == "forward"
    assert phase_of("jit(step)/transpose(jvp(layer))/rematted_computation/dot") == "recompute"
    assert phase_of("jit(step)/transpose(jvp(layer))/dot") == "backward"
    assert phase_of("jit(step)/optimizer/mul") == "optimizer"
    assert phase_of("jit(step)/add") == ""

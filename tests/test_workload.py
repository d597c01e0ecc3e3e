"""FLOPs against formulas and sums worked out another way; every model trains in its own shape."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from asap_ray.architecture import Architecture, architecture_from_mapping
from asap_ray.errors import ConfigError
from asap_ray.workload import DTYPE_BYTES, Workload, train_shape_from_mapping

CONF = Path(__file__).parents[1] / "conf"
MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))


def mapping_of(model: str, *overrides: str) -> dict:
    with initialize_config_dir(str(CONF), version_base=None):
        return OmegaConf.to_container(compose(overrides=[f"+model={model}", *overrides]).model)


@functools.cache
def architecture_of(model: str) -> Architecture:
    return architecture_from_mapping(mapping_of(model))


def workload_of(model: str, **shape: object) -> Workload:
    return Workload(architecture=architecture_of(model), **{"global_batch": 1, "seq_len": 2048, **shape})


@pytest.mark.parametrize("model", MODELS)
def test_every_model_loads_and_trains_in_its_own_shape(model):
    mapping = mapping_of(model)
    architecture, shape = architecture_from_mapping(mapping), train_shape_from_mapping(mapping)
    assert architecture.name == model
    assert shape is not None
    workload = Workload(architecture=architecture, global_batch=shape[0], seq_len=shape[1])
    assert workload.tokens_per_step == shape[0] * shape[1]
    assert sum(group.count for group in architecture.groups) == architecture.layers


@pytest.mark.parametrize("model", ["gpt_22b", "gpt_175b", "gpt_530b", "gpt_1t"])
def test_gpt_flops_follow_megatrons_formula(model):
    """arXiv 2104.04473, appendix: 96BsLh²(1 + s/6h + V/16Lh) with recomputation counts the layers' forward pass four
    times (24BsLh² + 4Bs²Lh each) and the head's three times (2BshV): once each, V/16Lh becomes V/12Lh.
    """
    work = workload_of(model, global_batch=3, causal=False)
    L, h, V, s = work.architecture.layers, work.architecture.d_model, 51_200, 2048
    forward = 24 * 3 * s * L * h**2 * (1 + s / (6 * h) + V / (12 * L * h))
    assert work.forward_flops == pytest.approx(forward, rel=1e-12)
    assert work.model_flops == pytest.approx(3 * forward, rel=1e-12)
    recomputed = 96 * 3 * s * L * h**2 * (1 + s / (6 * h) + V / (16 * L * h))
    head = 2 * 3 * s * h * V
    assert 4 * (work.forward_flops - head) + 3 * head == pytest.approx(recomputed, rel=1e-12)


def test_llama2_70b_flops_by_hand():
    """A token of 4,096 sees (4,096 + 1)/2 keys on average."""
    layer = 8192 * 8192 * 2 + 8192 * 2048 + 3 * 8192 * 28672
    scores = 2 * 64 * 128 * 4097 / 2
    per_token = 2 * (80 * (layer + scores) + 8192 * 32000)
    work = workload_of("llama2_70b", global_batch=1024, seq_len=4096)
    assert work.tokens_per_step == 4_194_304
    assert work.forward_flops == pytest.approx(per_token * 4_194_304, rel=1e-12)


def test_mixtral_flops_count_two_experts_and_the_router():
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 8 + 2 * 3 * 4096 * 14336
    scores = 2 * 32 * 128 * 8193 / 2
    work = workload_of("mixtral8x7b", seq_len=8192)
    assert work.forward_flops == pytest.approx(2 * 8192 * (32 * (layer + scores) + 4096 * 32000), rel=1e-12)


def test_deepseek_v3_flops_by_hand():
    """MLA's five projections; 3 dense layers, 58 of a router, 8 routed and 1 shared expert; keys 192, values 128."""
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * (512 + 64) + 512 * 128 * 256 + 128 * 128 * 7168
    scores = 128 * (192 + 128) * 4097 / 2
    dense, sparse = 3 * 7168 * 18432, 7168 * 256 + 9 * 3 * 7168 * 2048
    per_token = 2 * (61 * (attention + scores) + 3 * dense + 58 * sparse + 7168 * 129_280)
    work = workload_of("deepseek_v3", seq_len=4096)
    assert work.forward_flops == pytest.approx(per_token * 4096, rel=1e-12)


def test_parts_sum_to_the_forward_pass():
    work = workload_of("deepseek_v3")
    parts = work.flops_by_part()
    assert sum(parts.values()) == work.forward_flops
    assert parts["head"] == 2 * 2048 * 7168 * 129_280
    assert {"attention", "q_up", "gate_up", "expert_gate_up", "shared_down", "router"} <= set(parts)


@given(seq_len=st.integers(1, 80), window=st.integers(0, 100), causal=st.booleans())
def test_attended_keys_equal_a_sum_over_positions(seq_len, window, causal):
    work = workload_of_tiny(seq_len=seq_len, causal=causal)
    reach = window or seq_len
    seen = sum(
        1
        for query in range(seq_len)
        for key in range(seq_len)
        if (0 <= query - key < reach) or (not causal and 0 <= key - query < reach)
    )
    assert work.attended(window) == pytest.approx(seen / seq_len, rel=1e-12)


def test_windows_make_attention_cheaper_by_their_mean():
    gemma = workload_of("gemma2_2b", seq_len=8192)
    full = (8192 + 1) / 2
    local = (4096 * 4097 / 2 + (8192 - 4096) * 4096) / 8192
    expected = 8192 * 2 * 8 * 512 * 13 * (full + local)
    assert gemma.flops_by_part()["attention"] == pytest.approx(expected, rel=1e-12)


def workload_of_tiny(**shape: object) -> Workload:
    return Workload(architecture=architecture_of("tiny"), **{"global_batch": 8, "seq_len": 16, **shape})


@given(scale=st.integers(1, 8))
def test_flops_grow_with_the_batch_alone_in_proportion(scale):
    one, many = workload_of_tiny(global_batch=1), workload_of_tiny(global_batch=scale)
    assert many.model_flops == pytest.approx(scale * one.model_flops, rel=1e-12)


def test_dtypes_have_bytes_with_their_scales():
    assert (DTYPE_BYTES["bf16"], DTYPE_BYTES["fp32"], DTYPE_BYTES["fp8"]) == (2, 4, 1)
    # 16 numbers of 4 bits and a scale of 8; 32 numbers of 4 bits and a scale of 8.
    assert DTYPE_BYTES["nvfp4"] == (16 * 4 + 8) / 8 / 16
    assert DTYPE_BYTES["mxfp4"] == (32 * 4 + 8) / 8 / 32


BAD_SIZES = [0, -1, math.nan, math.inf, "64", 1.5, True, None, 2**40, [8]]


@pytest.mark.parametrize("size", BAD_SIZES)
@pytest.mark.parametrize("key", ["global_batch", "seq_len"])
def test_bad_shapes_of_a_workload_name_their_key(key, size):
    with pytest.raises(ConfigError, match=rf"^workload\.{key}="):
        workload_of_tiny(**{key: size})


@pytest.mark.parametrize("train", [3, {"global_batch": 8}, {"global_batch": 8, "seq_len": 0}])
def test_a_bad_training_shape_is_refused(train):
    with pytest.raises(ConfigError, match=r"^model\.train"):
        train_shape_from_mapping({"train": train})


def test_no_training_shape_is_none():
    assert train_shape_from_mapping({}) is None


def test_what_cannot_be_trained_is_refused_with_its_key():
    with pytest.raises(ConfigError, match=r"^workload\.precision=fp7: .*did you mean fp8"):
        workload_of_tiny(precision="fp7")
    with pytest.raises(ConfigError, match=r"^workload\.seq_len=4096: allowed: at most 2048"):
        workload_of("gpt_22b", seq_len=4096)
    with pytest.raises(
        ConfigError, match=r"^workload\.expert_capacity=1\.25: allowed: a number from 0 to 0, the experts"
    ):
        workload_of_tiny(expert_capacity=1.25)
    for capacity in (-1.0, float("nan"), 8.5):
        with pytest.raises(ConfigError, match=r"^workload\.expert_capacity=.*allowed: a number from 0 to 8"):
            workload_of("mixtral8x7b", expert_capacity=capacity)

"""Parameters against published totals; what cannot be a model is refused."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from asap_ray.architecture import Architecture, LayerGroup, architecture_from_mapping
from asap_ray.errors import ConfigError
from asap_ray.layers import Attention, Experts, FeedForward, LatentAttention, check_fields

CONF = Path(__file__).parents[1] / "conf"


def mapping_of(model: str, *overrides: str) -> dict:
    with initialize_config_dir(str(CONF), version_base=None):
        return OmegaConf.to_container(compose(overrides=[f"+model={model}", *overrides]).model)


@functools.cache
def architecture_of(model: str) -> Architecture:
    return architecture_from_mapping(mapping_of(model))


# Totals of the published safetensors files, unless a comment says otherwise.
PUBLISHED = {
    "llama7b": 6_738_415_616,
    "llama13b": 13_015_864_320,
    "llama33b": 32_528_943_616,
    "llama65b": 65_285_660_672,
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "llama70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama3_1_8b": 8_030_261_248,
    "llama3_1_70b": 70_553_706_496,
    "llama3_1_405b": 405_853_388_800,
    "llama405b": 405_853_388_800,
    "llama3_2_1b": 1_235_814_400,
    "llama3_2_3b": 3_212_749_824,
    "mistral7b": 7_241_732_096,
    "mistral_nemo_12b": 12_247_782_400,
    "mistral_large_123b": 122_610_069_504,
    "mixtral8x7b": 46_702_792_704,
    "mixtral8x22b": 140_620_634_112,
    # These three tie their heads; the files of 0.6B and 1.7B hold the tied matrix twice and say 751,632,384 and
    # 2,031,739,904, so the second copy (151,936 rows) is taken off.
    "qwen3_0_6b": 751_632_384 - 151_936 * 1024,
    "qwen3_1_7b": 2_031_739_904 - 151_936 * 2048,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_14b": 14_768_307_200,
    "qwen3_32b": 32_762_123_264,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_235b_a22b": 235_093_634_560,
    "gemma_2b": 2_506_172_416,
    "gemma_7b": 8_537_680_896,
    "gemma2_2b": 2_614_341_888,
    "gemma2_9b": 9_241_705_984,
    "gemma2_27b": 27_227_128_320,
    "gemma3_1b": 999_885_952,
    "deepseek_v2_lite": 15_706_484_224,
    "deepseek_v3": 671_026_419_200,
}


@pytest.mark.parametrize(("model", "total"), PUBLISHED.items())
def test_parameters_equal_the_published_total(model, total):
    assert architecture_of(model).parameters == total


@pytest.mark.parametrize(
    ("model", "total"), [("gemma3_4b", 4_300_079_472), ("gemma3_12b", 12_187_325_040), ("gemma3_27b", 27_432_406_640)]
)
def test_gemma3_text_tower_is_the_published_total_without_vision(model, total):
    """SigLIP-400M at 896 pixels (27 layers of 1,152, patches of 14) and a normed projection onto the text's width."""
    width, wide, patches = 1152, 4304, (896 // 14) ** 2
    embedding = (3 * 14 * 14 + 1) * width + patches * width
    layer = 4 * (width + 1) * width + (width + 1) * wide + (wide + 1) * width + 2 * 2 * width
    vision = embedding + 27 * layer + 2 * width
    text = architecture_of(model)
    assert text.parameters == total - vision - (width * text.d_model + width)


@pytest.mark.parametrize(
    ("model", "layers", "width", "billions"),
    [
        # Names of arXiv 2205.05198, table 3; 529.6 and 1008.0 are the sizes of arXiv 2104.04473, table 1.
        ("gpt_22b", 48, 6144, 22),
        ("gpt_175b", 96, 12288, 175),
        ("gpt_530b", 105, 20480, 529.6),
        ("gpt_1t", 128, 25600, 1008.0),
    ],
)
def test_megatron_models_follow_its_formula(model, layers, width, billions):
    """arXiv 2104.04473, equation 2, which leaves out the last norm (2h); no exact count is published."""
    model = architecture_of(model)
    formula = 12 * layers * width**2 * (1 + 13 / (12 * width) + (51_200 + 2048) / (12 * layers * width))
    assert model.parameters - 2 * width == pytest.approx(formula, rel=1e-12)
    digits = 1 if isinstance(billions, float) else 0
    assert round(model.parameters / 1e9, digits) == billions


def test_gpt3_equals_the_papers_table():
    """arXiv 2005.14165, table D.1, in millions; no exact count is published."""
    assert round(architecture_of("gpt3_175b").parameters / 1e6, -2) == 174_600


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        # Rounded in the papers: arXiv 2401.04088 (13B), 2505.09388 (table 2), 2412.19437 (37B).
        ("mixtral8x7b", 13),
        ("qwen3_30b_a3b", 3),
        ("qwen3_235b_a22b", 22),
    ],
)
def test_active_parameters_round_to_the_published_ones(model, billions):
    assert round(architecture_of(model).active_parameters / 1e9) == billions


def test_active_parameters_of_deepseek_are_published_without_the_embedding():
    """37B (arXiv 2412.19437) and 2.4B (arXiv 2405.04434, B.1: cut, not rounded); no exact count is published."""
    v3, lite = architecture_of("deepseek_v3"), architecture_of("deepseek_v2_lite")
    assert round((v3.active_parameters - v3.embedding_parameters) / 1e9) == 37
    assert math.floor((lite.active_parameters - lite.embedding_parameters) / 1e8) == 24


def test_tiny_has_a_million_parameters_and_divides_by_eight():
    tiny = architecture_of("tiny")
    assert 0.8e6 < tiny.parameters < 1.3e6
    assert isinstance(tiny.attention, Attention)
    sizes = tiny.layers, tiny.d_model, tiny.vocab, tiny.attention.heads, tiny.attention.kv_heads, tiny.ffn.d_ff
    assert all(size % 8 == 0 for size in sizes)


def test_a_user_can_change_one_size_of_a_model():
    assert architecture_from_mapping(mapping_of("llama70b", "model.layers=12")).layers == 12


def test_parts_of_a_layer_sum_to_the_whole():
    model = architecture_of("deepseek_v3")
    dense, sparse = model.groups
    assert (dense, sparse) == (LayerGroup(3, 0, False), LayerGroup(58, 0, True))
    # One routed expert is three matrices of 7,168 by 2,048.
    assert model.expert_parameters(sparse) == 256 * 3 * 7168 * 2048
    assert model.expert_parameters(dense) == 0
    ends = 2 * 129_280 * 7168 + 7168
    layers = 3 * model.layer_parameters(dense) + 58 * model.layer_parameters(sparse)
    assert model.parameters == ends + layers


def test_groups_follow_windows():
    assert architecture_of("gemma2_2b").groups == (LayerGroup(13, 4096, False), LayerGroup(13, 0, False))
    # Layers 6, 12, 18 and 24 of 26 attend fully.
    assert architecture_of("gemma3_1b").groups == (LayerGroup(22, 512, False), LayerGroup(4, 0, False))
    assert architecture_of("mistral7b").groups == (LayerGroup(32, 4096, False),)


def test_matmuls_are_named_and_shaped():
    mixtral = architecture_of("mixtral8x7b")
    shapes = {m.name: (m.k, m.n, m.tensor, m.kind) for m in mixtral.matmuls(mixtral.groups[0])}
    assert shapes == {
        "query": (4096, 4096, "column", "dense"),
        "key_value": (4096, 2048, "column", "dense"),
        "out": (4096, 4096, "row", "dense"),
        "router": (4096, 8, "none", "dense"),
        "expert_gate_up": (4096, 28672, "column", "expert"),
        "expert_down": (14336, 4096, "row", "expert"),
    }
    v3 = architecture_of("deepseek_v3")
    names = [m.name for m in v3.matmuls(v3.groups[1])]
    latent = ["q_down", "q_up", "kv_down", "kv_up", "out"]
    assert names == [*latent, "router", "expert_gate_up", "expert_down", "shared_gate_up", "shared_down"]
    assert (v3.head.k, v3.head.n, v3.head.tensor) == (7168, 129_280, "column")


def small(**fields: object) -> Architecture:
    attention = Attention(heads=8, kv_heads=4, head_dim=8)
    given = {"name": "small", "layers": 4, "d_model": 64, "vocab": 96, "attention": attention}
    return Architecture(**{**given, "ffn": FeedForward(d_ff=128), **fields})


BAD_SIZES = [0, -1, math.nan, math.inf, "64", 1.5, True, None, 2**40, [8]]


@pytest.mark.parametrize("size", BAD_SIZES)
@pytest.mark.parametrize("key", ["layers", "d_model", "vocab", "norms_per_layer"])
def test_bad_sizes_of_a_model_name_their_key(key, size):
    with pytest.raises(ConfigError, match=rf"^model\.{key}=") as caught:
        small(**{key: size})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Attention(heads=8, kv_heads=3, head_dim=8), "model.attention.kv_heads=3"),
        (lambda: Attention(heads=8, kv_heads=0, head_dim=8), "model.attention.kv_heads=0"),
        (lambda: Attention(heads=8, kv_heads=8, head_dim=8, window=-1), "model.attention.window=-1"),
        (lambda: Attention(heads=8, kv_heads=8, head_dim=8, full_every=2), "model.attention.full_every=2"),
        (lambda: Attention(heads=8, kv_heads=8, head_dim=8, qkv_bias=1), "model.attention.qkv_bias=1"),
        (lambda: LatentAttention(heads=8, kv_lora_rank=0, nope_head_dim=8, rope_head_dim=8, v_head_dim=8), "kv_lora"),
        (lambda: FeedForward(d_ff=math.nan), "model.ffn.d_ff=nan"),
        (lambda: Experts(experts=4, topk=5, d_ff=8), "model.experts.topk=5"),
        (lambda: small(ffn=None), "model.ffn=none"),
        (lambda: small(experts=Experts(experts=4, topk=2, d_ff=8)), "model.ffn=given"),
        (lambda: small(dense_layers=1), "model.dense_layers=1"),
        (lambda: small(ffn=None, experts=Experts(experts=4, topk=2, d_ff=8), dense_layers=4), "model.dense_layers=4"),
        (lambda: small(norm="batch"), "model.norm=batch"),
        (lambda: small(attention=FeedForward(d_ff=8)), "model.attention="),
        (lambda: small(name=""), "model.name="),
        (lambda: small(name="a\x1b[31m"), "model.name="),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(make, key):
    with pytest.raises(ConfigError) as caught:
        make()
    assert key in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"layer": 3}, "did you mean layers?"),
        ({"attention": {"heads": 8, "kv_head": 8, "head_dim": 8}}, "did you mean kv_heads?"),
        ({"attention": {"heads": 8, "head_dim": 8}}, "model.attention.kv_heads=null: allowed: a value; it is missing"),
        ({"attention": {"kind": "mlaa"}}, "did you mean mla?"),
        ({"attention": 5}, "model.attention=5: allowed: a mapping"),
        ({"experts": [1, 2]}, "model.experts=[1,2]: allowed: a mapping"),
    ],
)
def test_a_mapping_is_refused_with_the_nearest_name(change, text):
    tiny = mapping_of("tiny")
    with pytest.raises(ConfigError) as caught:
        architecture_from_mapping({**tiny, **change})
    assert text in str(caught.value)


@pytest.mark.parametrize("missing", ["name", "layers", "attention"])
def test_a_missing_key_is_named(missing):
    tiny = {key: value for key, value in mapping_of("tiny").items() if key != missing}
    with pytest.raises(ConfigError, match=rf"^model\.{missing}=null: allowed: a value; it is missing"):
        architecture_from_mapping(tiny)


class Odd:
    """Of no type that a field could have."""


@pytest.mark.parametrize("part", [small(), small().attention, FeedForward(d_ff=8), Experts(experts=4, topk=2, d_ff=8)])
def test_every_field_is_checked(part):
    for field in dataclasses.fields(part):
        with pytest.raises(ConfigError, match=rf"\.{field.name}="):
            dataclasses.replace(part, **{field.name: Odd()})


Width = int


@dataclasses.dataclass(frozen=True)
class Part:
    width: Width
    wide: bool = False


def test_a_check_goes_by_the_type_and_not_by_what_it_is_called():
    check_fields(Part(3), "part")
    with pytest.raises(ConfigError, match=r"part\.width=0"):
        check_fields(Part(0), "part")
    with pytest.raises(ConfigError, match=r"part\.wide=1"):
        check_fields(Part(1, 1), "part")


def test_models_are_values():
    assert small() == small()
    assert hash(small()) == hash(small())
    with pytest.raises(dataclasses.FrozenInstanceError):
        small().layers = 3  # pyright: ignore[reportAttributeAccessIssue]

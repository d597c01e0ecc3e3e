"""Published config.json files give published totals; whatever else a file holds gives one ConfigError."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asap_ray.architecture import Architecture, LayerGroup
from asap_ray.errors import ConfigError
from asap_ray.interchange.huggingface import FAMILIES, read_config
from asap_ray.layers import Attention


def sizes(hidden: int, layers: int, heads: int, vocab: int, **more: object) -> dict:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    return {**dict(zip(names, (hidden, layers, heads, vocab), strict=True)), **more}


LLAMA2_7B = {"model_type": "llama", **sizes(4096, 32, 32, 32000, intermediate_size=11008)}
MIXTRAL = {
    "model_type": "mixtral",
    **sizes(4096, 32, 32, 32000, intermediate_size=14336, num_key_value_heads=8, sliding_window=None),
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
GEMMA3_4B_TEXT = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    **sizes(7168, 61, 128, 129_280, intermediate_size=18432, num_key_value_heads=128, q_lora_rank=1536),
    **{"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    **{"n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048},
    **{"first_k_dense_replace": 3, "moe_layer_freq": 1, "num_nextn_predict_layers": 1, "attention_bias": False},
    **{"tie_word_embeddings": False},
}
GPT_OSS_20B = {
    "model_type": "gpt_oss",
    **sizes(2880, 24, 64, 201_088, intermediate_size=2880, num_key_value_heads=8, head_dim=64, sliding_window=128),
    **{"num_local_experts": 32, "num_experts_per_tok": 4, "attention_bias": True},
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}

# The keys that matter of each model's published config.json, and its safetensors total (a tied head counted once).
PUBLISHED = {
    "llama2-7b": (LLAMA2_7B, 6_738_415_616),
    "llama3.2-1b": (
        {
            "model_type": "llama",
            **sizes(2048, 16, 32, 128_256, intermediate_size=8192, num_key_value_heads=8, head_dim=64),
            "tie_word_embeddings": True,
        },
        1_235_814_400,
    ),
    "mistral-nemo": (
        {
            "model_type": "mistral",
            **sizes(5120, 40, 32, 131_072, intermediate_size=14336, num_key_value_heads=8, head_dim=128),
        },
        12_247_782_400,
    ),
    "mixtral-8x7b": (MIXTRAL, 46_702_792_704),
    "qwen2.5-7b": (
        {
            "model_type": "qwen2",
            **sizes(3584, 28, 28, 152_064, intermediate_size=18944, num_key_value_heads=4, sliding_window=131_072),
            **{"use_sliding_window": False, "max_window_layers": 28, "tie_word_embeddings": False},
        },
        7_615_616_512,
    ),
    "qwen1.5-moe-a2.7b": (
        {
            "model_type": "qwen2_moe",
            **sizes(2048, 24, 16, 151_936, intermediate_size=5632, num_key_value_heads=16, num_experts=60),
            **{"num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632},
            **{"decoder_sparse_step": 1, "use_sliding_window": False, "max_window_layers": 21},
        },
        14_315_784_192,
    ),
    "qwen3-8b": (
        {
            "model_type": "qwen3",
            **sizes(4096, 36, 32, 151_936, intermediate_size=12288, num_key_value_heads=8, head_dim=128),
        },
        8_190_735_360,
    ),
    "qwen3-30b-a3b": (
        {
            "model_type": "qwen3_moe",
            **sizes(2048, 48, 32, 151_936, intermediate_size=6144, num_key_value_heads=4, head_dim=128),
            **{"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "mlp_only_layers": []},
        },
        30_532_122_624,
    ),
    "gemma-2b": (
        {"model_type": "gemma", **sizes(2048, 18, 8, 256_000, intermediate_size=16384, num_key_value_heads=1)},
        2_506_172_416,
    ),
    "gemma2-9b": (
        {"model_type": "gemma2", **sizes(3584, 42, 16, 256_000, intermediate_size=14336, num_key_value_heads=8)},
        9_241_705_984,
    ),
    "gemma3-1b": (
        {
            "model_type": "gemma3_text",
            **sizes(1152, 26, 4, 262_144, intermediate_size=6912, num_key_value_heads=1, head_dim=256),
            **{"sliding_window": 512, "sliding_window_pattern": 6},
        },
        999_885_952,
    ),
    # The published total less the vision tower and the projection: see the test of gemma3_4b's description.
    "gemma3-4b": ({"model_type": "gemma3", "text_config": GEMMA3_4B_TEXT, "vision_config": {}}, 3_880_263_168),
    "gpt2": ({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}, 124_439_808),
    "pythia-6.9b": (
        {
            "model_type": "gpt_neox",
            **sizes(4096, 32, 32, 50_432, intermediate_size=16384, tie_word_embeddings=False),
        },
        6_857_302_016,
    ),
    "phi3-mini-4k": (
        {
            "model_type": "phi3",
            **sizes(3072, 32, 32, 32_064, intermediate_size=8192, num_key_value_heads=32, sliding_window=2047),
        },
        3_821_079_552,
    ),
    "olmo2-7b": ({"model_type": "olmo2", **sizes(4096, 32, 32, 100_352, intermediate_size=11008)}, 7_298_617_344),
    # The file holds the tied matrix twice: 7,217,189,760.
    "falcon-7b": (
        {"model_type": "falcon", **sizes(4544, 32, 71, 65_024, multi_query=True, parallel_attn=True, bias=False)},
        7_217_189_760 - 65_024 * 4544,
    ),
    "gpt-oss-20b": (GPT_OSS_20B, 20_914_757_184),
    "gpt-oss-120b": (
        {**GPT_OSS_20B, "num_hidden_layers": 36, "num_local_experts": 128, "layer_types": None},
        116_829_156_672,
    ),
    "deepseek-v2": (
        {
            **DEEPSEEK_V3,
            "model_type": "deepseek_v2",
            **sizes(5120, 60, 128, 102_400, intermediate_size=12288, n_routed_experts=160, n_shared_experts=2),
            **{"num_experts_per_tok": 6, "moe_intermediate_size": 1536, "first_k_dense_replace": 1},
        },
        235_741_434_880,
    ),
    "deepseek-v3": (DEEPSEEK_V3, 671_026_419_200),
    "kimi-k2": (
        {
            **DEEPSEEK_V3,
            "model_type": "kimi_k2",
            **sizes(7168, 61, 64, 163_840, n_routed_experts=384, first_k_dense_replace=1),
        },
        1_026_408_232_448,
    ),
}


def write(folder: Path, values: object, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_published_config_gives_the_published_total(model, tmp_path):
    config, total = PUBLISHED[model]
    assert read_config(write(tmp_path, config)).parameters == total


def test_every_family_is_tested():
    assert {config["model_type"] for config, _ in PUBLISHED.values()} == set(FAMILIES)


def test_the_model_is_named_after_its_folder_or_file(tmp_path):
    folder = tmp_path / "My model\x1b[31m"
    folder.mkdir()
    assert read_config(write(folder, LLAMA2_7B)).name == "My-model-31m"
    assert read_config(write(folder, LLAMA2_7B, "llama2.json")).name == "llama2"
    assert read_config(str(write(tmp_path, LLAMA2_7B, "....json"))).name == "llama"


@pytest.mark.parametrize(
    ("config", "groups"),
    [
        (PUBLISHED["gemma2-9b"][0], (LayerGroup(21, 4096, False), LayerGroup(21, 0, False))),
        # Layers 6, 12, 18, 24 and 30 of 34.
        (PUBLISHED["gemma3-4b"][0], (LayerGroup(29, 1024, False), LayerGroup(5, 0, False))),
        (PUBLISHED["phi3-mini-4k"][0], (LayerGroup(32, 2047, False),)),
        (PUBLISHED["qwen2.5-7b"][0], (LayerGroup(28, 0, False),)),
        (GPT_OSS_20B, (LayerGroup(12, 128, True), LayerGroup(12, 0, True))),
        ({**GPT_OSS_20B, "layer_types": ["full_attention"] * 24}, (LayerGroup(24, 0, True),)),
        (DEEPSEEK_V3, (LayerGroup(3, 0, False), LayerGroup(58, 0, True))),
    ],
)
def test_windows_and_dense_layers_are_read(config, groups, tmp_path):
    assert read_config(write(tmp_path, config)).groups == groups


def test_what_a_config_leaves_out_is_its_familys_default(tmp_path):
    llama = read_config(write(tmp_path, LLAMA2_7B))
    assert isinstance(llama.attention, Attention)
    assert (llama.attention.kv_heads, llama.attention.head_dim, llama.tied) == (32, 128, False)
    gemma = read_config(write(tmp_path, PUBLISHED["gemma-2b"][0]))
    assert isinstance(gemma.attention, Attention)
    assert (gemma.attention.head_dim, gemma.tied) == (256, True)
    gpt2 = read_config(write(tmp_path, PUBLISHED["gpt2"][0]))
    assert (gpt2.tied, gpt2.learned_positions) == (True, 1024)


def test_a_nested_language_model_keeps_its_own_family(tmp_path):
    text = {**PUBLISHED["mistral-nemo"][0], "tie_word_embeddings": False}
    config = {"model_type": "mistral3", "tie_word_embeddings": True, "text_config": text}
    assert read_config(write(tmp_path, config)).parameters == 12_247_782_400


def refusal(path: Path | str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    text = str(caught.value)
    assert caught.value.key == "model.hf_config"
    assert text.startswith("model.hf_config=")
    assert text.isprintable()
    assert len(text) < 800
    return text


@pytest.mark.parametrize("family", ["bert", "LLAMA", "\x1b[31mred\x07", "x" * 9999, None, 3, [], {}, "line\nline"])
def test_an_unknown_architecture_lists_what_is_known(family, tmp_path):
    text = refusal(write(tmp_path, {**LLAMA2_7B, "model_type": family}))
    assert "model_type" in text
    if isinstance(family, str):
        assert "deepseek_v2, deepseek_v3, falcon, gemma" in text


@pytest.mark.parametrize(
    "size", [0, -4096, 1.5, 4096.0, float("nan"), float("inf"), "4096", "\x1b[2J", True, [], {}, 2**80]
)
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "head_dim"])
def test_a_size_that_is_none_is_named(key, size, tmp_path):
    text = refusal(write(tmp_path, {**LLAMA2_7B, key: size}))
    assert f"{key}=" in text
    assert "allowed: a whole number from 1" in text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_key_value_heads": 5}, "model.attention.kv_heads=5: allowed: a divisor of heads=32"),
        ({"num_hidden_layers": 10**6}, "model.layers=1000000: allowed: "),
        ({"hidden_size": 4097}, "head_dim is missing"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings='yes'; allowed: true or false"),
    ],
)
def test_sizes_that_do_not_agree_are_refused(change, text, tmp_path):
    assert text in refusal(write(tmp_path, {**LLAMA2_7B, **change}))


@pytest.mark.parametrize(
    ("model", "change", "text"),
    [
        ("qwen3-30b-a3b", {"decoder_sparse_step": 2}, "decoder_sparse_step=2 is not supported"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [0]}, "mlp_only_layers=a list is not supported"),
        ("qwen1.5-moe-a2.7b", {"shared_expert_intermediate_size": 5000}, "allowed: a multiple"),
        ("qwen2.5-7b", {"use_sliding_window": True, "max_window_layers": 20}, "max_window_layers=20"),
        ("deepseek-v3", {"attention_bias": True}, "attention_bias=true is not supported"),
        ("deepseek-v3", {"first_k_dense_replace": 61}, "model.dense_layers=61"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "model.experts.topk=9"),
        ("gpt-oss-20b", {"layer_types": ["sliding_attention"] * 23}, "layer_types; allowed: a list"),
        ("gpt-oss-20b", {"layer_types": ["linear_attention"] * 24}, "layer_types; allowed: each"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"] + ["sliding_attention"] * 23}, "every n-th layer"),
    ],
)
def test_what_would_be_read_wrongly_is_refused(model, change, text, tmp_path):
    assert text in refusal(write(tmp_path, {**PUBLISHED[model][0], **change}))


KEYS = sorted({key for config, _ in PUBLISHED.values() for key in config} | {"layer_types", "n_inner", "text_config"})
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.integers(0, 9) | st.integers(64, 4096)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=4
)
CONFIGS = st.dictionaries(st.sampled_from(KEYS) | st.text(), VALUES, max_size=20)
CHANGES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4)  # few: one wrong entry hides all that come later


def outcome(path: Path) -> Architecture | ConfigError:
    try:
        return read_config(path)
    except ConfigError as error:
        return error


def check_that_only_config_errors_are_raised(path: Path) -> None:
    found = outcome(path)
    if isinstance(found, Architecture):
        assert found.parameters >= found.active_parameters > 0
    else:
        assert found.key == "model.hf_config"
        assert str(found).isprintable()
        assert len(str(found)) < 800


@pytest.fixture(scope="module")
def config_path(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("hf") / "config.json"


@settings(max_examples=200)
@given(values=VALUES | CONFIGS)
def test_no_json_raises_anything_else(values, config_path):
    config_path.write_text(json.dumps(values))
    check_that_only_config_errors_are_raised(config_path)


@settings(max_examples=400)
@given(model=st.sampled_from(sorted(PUBLISHED)), change=CHANGES, family=st.sampled_from(sorted(FAMILIES)) | st.none())
def test_no_change_to_a_published_config_raises_anything_else(model, change, family, config_path):
    config = {**PUBLISHED[model][0], **change}
    config_path.write_text(json.dumps({**config, "model_type": family} if family else config))
    check_that_only_config_errors_are_raised(config_path)


def test_an_unknown_family_comes_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "lama"}')
    with pytest.raises(ConfigError, match=r"model_type='lama' is not known; did you mean llama\? allowed: one of"):
        read_config(tmp_path / "config.json")

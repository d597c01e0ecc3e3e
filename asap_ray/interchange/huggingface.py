"""Read a Hugging Face `config.json` as an architecture.

A config names its family (`model_type`) and may leave out whatever equals that family's default, so each family is a
function that knows its defaults: those of the configuration classes of the `transformers` library. Vision and audio
towers are left aside: a config with a `text_config` is read as its language model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from asap_ray.architecture import Architecture
from asap_ray.errors import ConfigError, nearest
from asap_ray.interchange.foreign import LONGEST_SHOWN, ForeignConfig, told
from asap_ray.layers import Attention, Experts, FeedForward, LatentAttention

KEY = "model.hf_config"


def read_config(path: str | Path) -> Architecture:
    """Read the architecture that a config.json describes.

    The model is named after its file, or its folder where the file is `config.json`.

    Raises:
        ConfigError: the file cannot be read, is no JSON object, or describes no architecture that is known; its key
            is `model.hf_config`, its text one line.
    """
    config = _language_model(ForeignConfig.load(KEY, path, "the config.json of a model"))
    family = config.name("model_type")
    if family not in FAMILIES:
        hint = nearest(family, FAMILIES)
        names = ", ".join(sorted(FAMILIES))
        raise config.error(f"model_type={told(family)} is not known; {hint}allowed: one of {names}")
    try:
        fields = FAMILIES[family](config)
        return Architecture(name=_model_name(Path(path), family), source=f"config.json of {family}", **fields)
    except ConfigError as error:
        if error.key == KEY:
            raise
        raise config.error(str(error)) from error


def _model_name(path: Path, family: str) -> str:
    name = path.stem if path.stem != "config" else path.absolute().parent.name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:LONGEST_SHOWN] or family


def _language_model(config: ForeignConfig) -> ForeignConfig:
    """The part that describes the language model: all of it, unless there is a `text_config`."""
    text = config.values.get("text_config")
    if not isinstance(text, Mapping):
        return config
    # The outer object says whether the head is tied, and the family where the inner one does not.
    outer = {name: config.values.get(name) for name in ("model_type", "tie_word_embeddings")}
    return ForeignConfig(KEY, config.path, {**outer, **text})


Fields = dict[str, Any]  # of Architecture, without name and source


def _attention(config: ForeignConfig, head_dim: int = 0, **settings: Any) -> Attention:
    heads, d_model = config.size("num_attention_heads"), config.size("hidden_size")
    if not head_dim and not config.has("head_dim") and d_model % heads:
        raise config.error(f"head_dim is missing, and num_attention_heads={heads} do not divide hidden_size={d_model}")
    return Attention(
        heads=heads,
        kv_heads=config.size("num_key_value_heads", heads),
        head_dim=config.size("head_dim", head_dim or max(1, d_model // heads)),
        **settings,
    )


def _window(config: ForeignConfig, default: int = 0, full_every: int = 0) -> dict[str, int]:
    """Which layers see a window: `layer_types` where it is given, else every layer but each `full_every`-th."""
    window = config.size("sliding_window", default, least=0)
    if not window:
        return {}
    kinds = config.values.get("layer_types")
    if kinds is None:
        return {"window": window, "full_every": full_every}
    layers = config.size("num_hidden_layers")
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise config.error(f"layer_types; allowed: a list of num_hidden_layers={layers} names")
    full = [kind == "full_attention" for kind in kinds]
    if not all(isinstance(kind, str) and kind in ("full_attention", "sliding_attention") for kind in kinds):
        raise config.error("layer_types; allowed: each full_attention or sliding_attention")
    if all(full):
        return {}
    every = full.index(True) + 1 if any(full) else 0
    if full != [every > 0 and (layer + 1) % every == 0 for layer in range(layers)]:
        raise config.error("layer_types must attend fully every n-th layer; other patterns are not supported")
    return {"window": window, "full_every": every}


def _qwen_window(config: ForeignConfig) -> dict[str, int]:
    if not config.flag("use_sliding_window"):
        return {}
    layers = config.size("num_hidden_layers")
    first = config.size("max_window_layers", layers, least=0)  # layers from here on see a window
    if config.values.get("layer_types") is None and 0 < first < layers:
        raise config.error(f"max_window_layers={first} is not supported; allowed: 0, or num_hidden_layers={layers}")
    return {} if first >= layers else _window(config)


def _trunk(config: ForeignConfig, attention: Attention | LatentAttention, tied: bool = False, **fields: Any) -> Fields:
    """What all families since Llama spell alike."""
    return {
        "layers": config.size("num_hidden_layers"),
        "d_model": config.size("hidden_size"),
        "vocab": config.size("vocab_size"),
        "attention": attention,
        "tied": config.flag("tie_word_embeddings", tied),
        "dropout": config.any_above_zero("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop"),
        **fields,
    }


def _gated(config: ForeignConfig, bias: bool = False) -> FeedForward:
    return FeedForward(d_ff=config.size("intermediate_size"), bias=bias)


def _llama(config: ForeignConfig) -> Fields:
    bias = config.flag("attention_bias")
    attention = _attention(config, qkv_bias=bias, out_bias=bias)
    return _trunk(config, attention, ffn=_gated(config, config.flag("mlp_bias")))


def _mistral(config: ForeignConfig) -> Fields:
    return _trunk(config, _attention(config, **_window(config)), ffn=_gated(config))


def _mixtral(config: ForeignConfig) -> Fields:
    experts = Experts(
        experts=config.size("num_local_experts", 8),
        topk=config.size("num_experts_per_tok", 2),
        d_ff=config.size("intermediate_size"),
    )
    return _trunk(config, _attention(config, **_window(config)), experts=experts)


def _qwen2(config: ForeignConfig) -> Fields:
    return _trunk(config, _attention(config, qkv_bias=True, **_qwen_window(config)), ffn=_gated(config))


def _qwen3_attention(config: ForeignConfig) -> Attention:
    bias = config.flag("attention_bias")
    return _attention(config, 128, qkv_bias=bias, out_bias=bias, qk_norm=True, **_qwen_window(config))


def _qwen3(config: ForeignConfig) -> Fields:
    return _trunk(config, _qwen3_attention(config), ffn=_gated(config))


def _qwen_experts(config: ForeignConfig, shared_width: int = 0) -> Experts:
    config.only("decoder_sparse_step", 1)
    config.only("mlp_only_layers", [])
    width = config.size("moe_intermediate_size")
    if shared_width % width:
        raise config.error(f"shared_expert_intermediate_size; allowed: a multiple of moe_intermediate_size={width}")
    return Experts(
        experts=config.size("num_experts"),
        topk=config.size("num_experts_per_tok"),
        d_ff=width,
        shared=shared_width // width,
        shared_gate=shared_width > 0,
    )


def _qwen2_moe(config: ForeignConfig) -> Fields:
    experts = _qwen_experts(config, config.size("shared_expert_intermediate_size"))
    return _trunk(config, _attention(config, qkv_bias=True, **_qwen_window(config)), experts=experts)


def _qwen3_moe(config: ForeignConfig) -> Fields:
    return _trunk(config, _qwen3_attention(config), experts=_qwen_experts(config))


def _gemma(config: ForeignConfig) -> Fields:
    bias = config.flag("attention_bias")
    return _trunk(config, _attention(config, 256, qkv_bias=bias, out_bias=bias), tied=True, ffn=_gated(config))


def _gemma2(config: ForeignConfig) -> Fields:
    bias, window = config.flag("attention_bias"), _window(config, 4096, full_every=2)
    attention = _attention(config, 256, qkv_bias=bias, out_bias=bias, **window)
    return _trunk(config, attention, tied=True, norms_per_layer=4, ffn=_gated(config))


def _gemma3(config: ForeignConfig) -> Fields:
    # Published configs of the multimodal sizes leave out what equals the defaults of the text tower's class.
    defaults = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208}
    config = config.having({**defaults, **config.values})
    window = _window(config, 4096, config.size("sliding_window_pattern", 6))
    bias = config.flag("attention_bias")
    attention = _attention(config, 256, qkv_bias=bias, out_bias=bias, qk_norm=True, **window)
    return _trunk(config, attention, tied=True, norms_per_layer=4, ffn=_gated(config))


def _gpt2(config: ForeignConfig) -> Fields:
    names = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
    config = config.having({name: config.values.get(alias) for name, alias in names.items() if config.has(alias)})
    width = config.size("n_inner", 4 * config.size("hidden_size"))
    return _trunk(
        config,
        _attention(config, qkv_bias=True, out_bias=True),
        tied=True,
        ffn=FeedForward(d_ff=width, gated=False, bias=True),
        norm="layer",
        learned_positions=config.size("n_positions", 1024),
    )


def _gpt_neox(config: ForeignConfig) -> Fields:
    bias = config.flag("attention_bias", True)
    ffn = FeedForward(d_ff=config.size("intermediate_size"), gated=False, bias=True)
    return _trunk(config, _attention(config, qkv_bias=bias, out_bias=bias), ffn=ffn, norm="layer")


def _falcon(config: ForeignConfig) -> Fields:
    new, bias = config.flag("new_decoder_architecture"), config.flag("bias")
    heads = config.size("num_attention_heads")
    kv_heads = config.size("num_kv_heads", heads) if new else 1 if config.flag("multi_query", True) else heads
    config = config.having({"num_key_value_heads": kv_heads})
    norms = config.size("num_ln_in_parallel_attn", 2) if new else 1 if config.flag("parallel_attn", True) else 2
    ffn = FeedForward(d_ff=config.size("ffn_hidden_size", 4 * config.size("hidden_size")), gated=False, bias=bias)
    attention = _attention(config, qkv_bias=bias, out_bias=bias)
    return _trunk(config, attention, tied=True, ffn=ffn, norm="layer", norms_per_layer=norms)


def _olmo2(config: ForeignConfig) -> Fields:
    bias = config.flag("attention_bias")
    attention = _attention(config, qkv_bias=bias, out_bias=bias, qk_norm=True, qk_norm_span="all")
    return _trunk(config, attention, ffn=_gated(config))


def _gpt_oss(config: ForeignConfig) -> Fields:
    bias = config.flag("attention_bias", True)
    window = _window(config, 128, full_every=2)
    experts = Experts(
        experts=config.size("num_local_experts"),
        topk=config.size("num_experts_per_tok", 4),
        d_ff=config.size("intermediate_size"),
        bias=True,
        router_bias=True,
    )
    attention = _attention(config, 64, qkv_bias=bias, out_bias=bias, sinks=True, **window)
    return _trunk(config, attention, experts=experts)


def _deepseek(config: ForeignConfig, router_bias: bool, dense_layers: int) -> Fields:
    # num_nextn_predict_layers is left aside, as published totals leave it.
    config.only("attention_bias", False)
    config.only("moe_layer_freq", 1)
    attention = LatentAttention(
        heads=config.size("num_attention_heads"),
        q_lora_rank=config.size("q_lora_rank", 0),
        kv_lora_rank=config.size("kv_lora_rank"),
        nope_head_dim=config.size("qk_nope_head_dim"),
        rope_head_dim=config.size("qk_rope_head_dim"),
        v_head_dim=config.size("v_head_dim"),
    )
    if not config.has("n_routed_experts"):
        return _trunk(config, attention, ffn=_gated(config))
    experts = Experts(
        experts=config.size("n_routed_experts"),
        topk=config.size("num_experts_per_tok"),
        d_ff=config.size("moe_intermediate_size"),
        shared=config.size("n_shared_experts", 0, least=0),
        router_bias=router_bias,
    )
    dense = config.size("first_k_dense_replace", dense_layers, least=0)
    ffn = _gated(config) if dense else None
    return _trunk(config, attention, ffn=ffn, experts=experts, dense_layers=dense)


FAMILIES: Mapping[str, Callable[[ForeignConfig], Fields]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,  # its text_config may leave out its own model_type
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "phi3": _mistral,  # fused projections, the same shapes
    "olmo2": _olmo2,
    "falcon": _falcon,
    "deepseek_v2": partial(_deepseek, router_bias=False, dense_layers=0),
    "deepseek_v3": partial(_deepseek, router_bias=True, dense_layers=3),
    "kimi_k2": partial(_deepseek, router_bias=True, dense_layers=3),
}

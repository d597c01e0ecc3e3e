"""The model of a MaxText config: its own fields and MaxText's defaults for them (configs/base.yml, configs/models/)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asap_ray.architecture import Architecture
from asap_ray.interchange.foreign import ForeignConfig, told
from asap_ray.layers import Attention, LatentAttention

MODELS: Mapping[str, str] = {
    **{f"llama2-{size}": f"llama2_{size}" for size in ("7b", "13b", "70b")},
    **{f"llama3-{size}": f"llama3_{size}" for size in ("8b", "70b")},
    **{f"llama3.1-{size}": f"llama3_1_{size}" for size in ("8b", "70b", "405b")},
    "llama3-405b": "llama3_1_405b",
    "llama3.3-70b": "llama3_1_70b",
    "mistral-7b": "mistral7b",
    "mixtral-8x7b": "mixtral8x7b",
    "mixtral-8x22b": "mixtral8x22b",
    **{f"gemma-{size}": f"gemma_{size}" for size in ("2b", "7b")},
    **{f"gemma2-{size}": f"gemma2_{size}" for size in ("2b", "9b", "27b")},
    **{f"gemma3-{size}": f"gemma3_{size}" for size in ("4b", "12b", "27b")},
    **{f"qwen3-{size}": f"qwen3_{size.replace('.', '_')}" for size in ("0.6b", "4b", "8b", "14b", "32b")},
    "qwen3-30b-a3b": "qwen3_30b_a3b",
    "qwen3-235b-a22b": "qwen3_235b_a22b",
    "deepseek2-16b": "deepseek_v2_lite",
    "deepseek3-671b": "deepseek_v3",
    "gpt3-175b": "gpt3_175b",
}
"""MaxText's `model_name` -> the same model of conf/model; of those with the same sizes the first is written."""

BLOCKS = (
    *("default", "llama2", "mistral", "mixtral", "deepseek", "gemma", "gemma2", "gemma3"),
    *("qwen3", "qwen3_moe", "gpt3"),
)
"""The decoder blocks whose layers an architecture can say; `default` is written like `llama2`."""
FIELDS = (
    *("decoder_block", "global_parameter_scale", "base_emb_dim", "base_num_query_heads", "base_num_kv_heads"),
    *("base_mlp_dim", "base_moe_mlp_dim", "base_num_decoder_layers", "head_dim", "vocab_size", "mlp_activations"),
    *("logits_via_embedding", "num_experts", "num_experts_per_tok", "shared_experts", "first_num_dense_layers"),
    *("routed_bias", "attention_type", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"),
    *("v_head_dim", "use_qk_norm", "attention_bias", "sliding_window_size", "trainable_position_size", "dropout_rate"),
)
"""The names that are read here."""


def claims(config: ForeignConfig) -> dict[str, tuple[str, object]]:
    """What the file itself says of the model: field of an architecture -> its own name for it, and the value.

    Raises:
        ConfigError: a value is of the wrong kind.
    """
    given = model(config)
    if given is None:
        return {}
    moe = given.get("experts")
    stated = {
        "d_model": "base_emb_dim",
        "layers": "base_num_decoder_layers",
        "vocab": "vocab_size",
        "tied": "logits_via_embedding",
        "attention.heads": "base_num_query_heads",
        **({"experts.experts": "num_experts", "experts.topk": "num_experts_per_tok"} if moe else {}),
        **({"experts.shared": "shared_experts", "dense_layers": "first_num_dense_layers"} if moe else {}),
        **({"ffn.d_ff": "base_mlp_dim"} if "ffn" in given else {}),
        **({"experts.d_ff": "base_moe_mlp_dim"} if moe and config.values.get("base_moe_mlp_dim") != -1 else {}),
    }
    if given["attention"].get("kind") != "mla":
        stated |= {"attention.kv_heads": "base_num_kv_heads", "attention.head_dim": "head_dim"}
    return {ours: (theirs, _at(given, ours)) for ours, theirs in stated.items() if config.has(theirs)}


def _at(given: Mapping[str, Any], name: str) -> object:
    part, _, rest = name.partition(".")
    return given[part][rest] if rest else given.get(part, 0)


def model(config: ForeignConfig) -> dict[str, Any] | None:
    """The architecture as a file of conf/model says it; None where its decoder block has no such words.

    Raises:
        ConfigError: a value is of the wrong kind.
    """
    block = config.values.get("decoder_block", "llama2")
    if block not in BLOCKS:
        return None
    width, heads, layers = _scales(config)
    given: dict[str, Any] = {
        "layers": layers * config.size("base_num_decoder_layers", 16) * (2 if block == "gemma2" else 1),
        "d_model": width * config.size("base_emb_dim", 2048),
        "vocab": config.size("vocab_size", 32_000),
        "attention": _attention(config, str(block), heads),
        "tied": config.flag("logits_via_embedding"),
        "norms_per_layer": 4 if block in ("gemma2", "gemma3") else 2,
        "dropout": config.number("dropout_rate", 0.0) > 0,
    }
    if block == "gpt3":
        positions = config.values.get("trainable_position_size", -1)
        learned = config.size("trainable_position_size") if positions != -1 else 0
        given |= {"norm": "layer", "learned_positions": learned}
    d_ff = heads * config.size("base_mlp_dim", 7168)
    gated = _gated(config)
    if config.size("num_experts", 1) == 1:
        return {**given, "ffn": {"d_ff": d_ff, "gated": gated, "bias": block == "gpt3"}}
    dense = config.size("first_num_dense_layers", 0, least=0) if block == "deepseek" else 0
    narrow = config.values.get("base_moe_mlp_dim", -1)
    given["experts"] = {
        "experts": config.size("num_experts"),
        "topk": config.size("num_experts_per_tok", 1),
        "d_ff": d_ff if narrow == -1 else heads * config.size("base_moe_mlp_dim"),
        "shared": config.size("shared_experts", 0, least=0),
        "gated": gated,
        "router_bias": config.flag("routed_bias"),
    }
    return {**given, "dense_layers": dense, **({"ffn": {"d_ff": d_ff, "gated": gated}} if dense else {})}


def _scales(config: ForeignConfig) -> tuple[int, int, int]:
    """Factors of width, of heads and feed-forward widths, and of layers: MaxText's `global_parameter_scale`.

    A third of its powers of two goes to each; what is left goes to heads and feed-forward first, then to the width.
    """
    scale = config.size("global_parameter_scale", 1)
    thirds, rest = divmod(scale.bit_length() - 1, 3)
    if scale != 2 ** (scale.bit_length() - 1):
        raise config.error(f"global_parameter_scale={scale}; allowed: a power of 2")
    return 2 ** (thirds + (rest > 1)), 2 ** (thirds + (rest > 0)), 2**thirds


def _attention(config: ForeignConfig, block: str, scale: int) -> dict[str, Any]:
    heads = scale * config.size("base_num_query_heads", 16)
    if config.values.get("attention_type") == "mla":
        return {
            "kind": "mla",
            "heads": heads,
            "q_lora_rank": config.size("q_lora_rank", 0, least=0),
            "kv_lora_rank": config.size("kv_lora_rank", 512),
            "nope_head_dim": config.size("qk_nope_head_dim", 128),
            "rope_head_dim": config.size("qk_rope_head_dim", 64),
            "v_head_dim": config.size("v_head_dim", 128),
        }
    bias = config.flag("attention_bias") or block == "gpt3"
    given: dict[str, Any] = {
        "heads": heads,
        "kv_heads": scale * config.size("base_num_kv_heads", 16),
        "head_dim": config.size("head_dim", 128),
        "qkv_bias": bias,
        "out_bias": block == "gpt3",
        "qk_norm": config.flag("use_qk_norm") or block == "gemma3",
    }
    window = config.size("sliding_window_size", 0, least=0)
    every = {"gemma2": 2, "gemma3": 6}.get(block, 0)
    return {**given, **({"window": window, "full_every": every} if window and every else {})}


def _gated(config: ForeignConfig) -> bool:
    kinds = config.values.get("mlp_activations", ["silu", "linear"])
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds) or not 0 < len(kinds) < 3:
        raise config.error(f"mlp_activations={told(kinds)}; allowed: a list such as [silu, linear]")
    return len(kinds) == 2


def written(architecture: Architecture, preset: str) -> tuple[dict[str, Any], str]:
    """The fields of MaxText that say a model, and what they leave unsaid (empty where nothing).

    `preset` is the file of conf/model with these very sizes, empty where there is none.
    """
    for theirs, ours in MODELS.items():
        if ours == preset:
            return {"model_name": theirs}, ""
    attention, experts, ffn = architecture.attention, architecture.experts, architecture.ffn
    gated = ffn.gated if ffn else experts is None or experts.gated
    fields: dict[str, Any] = {
        "model_name": "default",
        "base_emb_dim": architecture.d_model,
        "base_num_decoder_layers": architecture.layers,
        "base_num_query_heads": attention.heads,
        "base_num_kv_heads": attention.kv_heads,
        "base_mlp_dim": ffn.d_ff if ffn else experts.d_ff if experts else 0,
        "vocab_size": architecture.vocab,
        "mlp_activations": ["silu", "linear"] if gated else ["gelu"],
        "logits_via_embedding": architecture.tied,
        "decoder_block": "llama2",
    }
    if isinstance(attention, LatentAttention):
        fields |= {
            "decoder_block": "deepseek",
            "attention_type": "mla",
            "q_lora_rank": attention.q_lora_rank,
            "kv_lora_rank": attention.kv_lora_rank,
            "qk_nope_head_dim": attention.nope_head_dim,
            "qk_rope_head_dim": attention.rope_head_dim,
            "v_head_dim": attention.v_head_dim,
        }
    else:
        fields |= {"head_dim": attention.head_dim}
        fields |= {"use_qk_norm": True, "decoder_block": "qwen3"} if attention.qk_norm else {}
    if experts:
        fields |= {
            "decoder_block": _moe_block(architecture),
            "num_experts": experts.experts,
            "num_experts_per_tok": experts.topk,
            "base_moe_mlp_dim": experts.d_ff,
            "shared_experts": experts.shared,
            "first_num_dense_layers": architecture.dense_layers,
            "routed_bias": experts.router_bias,
        }
    return fields, _unsaid(architecture)


def _moe_block(architecture: Architecture) -> str:
    attention, experts = architecture.attention, architecture.experts
    if isinstance(attention, LatentAttention) or architecture.dense_layers or (experts and experts.shared):
        return "deepseek"
    return "qwen3_moe" if attention.qk_norm else "mixtral"


def _unsaid(architecture: Architecture) -> str:
    """What these fields do not say of an architecture."""
    attention = architecture.attention
    plain = {
        "norms": architecture.norm != "rms" or architecture.norms_per_layer != 2,
        "learned positions": architecture.learned_positions > 0,
        "dropout": architecture.dropout,
    }
    if isinstance(attention, Attention):
        plain |= {
            "biases": attention.qkv_bias or attention.out_bias or bool(architecture.ffn and architecture.ffn.bias),
            "windows": attention.window > 0,
            "sinks": attention.sinks,
            "query and key norms over all heads": attention.qk_norm and attention.qk_norm_span == "all",
        }
    return ", ".join(name for name, there in plain.items() if there)

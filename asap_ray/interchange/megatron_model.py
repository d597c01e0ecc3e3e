"""The model of a Megatron config, in the names of Megatron-Core; trainers' options are translated to these first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from asap_ray.architecture import Architecture
from asap_ray.interchange.foreign import ForeignConfig, told
from asap_ray.layers import Attention, LatentAttention

NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")
"""Without these no architecture can be made."""
FIELDS = (
    *NEEDED,
    *("ffn_hidden_size", "num_query_groups", "group_query_attention", "kv_channels", "gated_linear_unit"),
    *("squared_relu", "normalization", "add_bias_linear", "add_qkv_bias", "qk_layernorm", "window_size"),
    *("share_embeddings_and_output_weights", "position_embedding_type", "max_position_embeddings"),
    *("attention_dropout", "hidden_dropout", "num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size"),
    *("moe_shared_expert_intermediate_size", "moe_layer_freq", "moe_router_enable_expert_bias"),
    *("multi_latent_attention", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"),
)
"""The names that are read here."""
_PATTERN = re.compile(r"\(?\[0\]\*(\d{1,5})\+\[1\]\*(\d{1,5})\)?")


def model(config: ForeignConfig) -> dict[str, Any] | None:
    """The architecture as a file of conf/model says it; None where the config does not say its sizes.

    Raises:
        ConfigError: a value is of the wrong kind.
    """
    if not all(map(config.has, NEEDED)):
        return None
    learned = config.values.get("position_embedding_type", "learned_absolute") == "learned_absolute"
    gated, d_model = config.flag("gated_linear_unit"), config.size("hidden_size")
    bias = config.flag("add_bias_linear", True)
    # Four times the width, or two thirds of that where it is gated, down to a multiple of 64.
    width = config.size("ffn_hidden_size", int(4 * d_model * 2 / 3 / 64) * 64 if gated else 4 * d_model)
    given: dict[str, Any] = {
        "layers": config.size("num_layers"),
        "d_model": d_model,
        "vocab": config.size("vocab_size"),
        "attention": _attention(config, bias),
        "tied": config.flag("share_embeddings_and_output_weights", True),
        "norm": "rms" if config.values.get("normalization") == "RMSNorm" else "layer",
        "learned_positions": config.size("max_position_embeddings") if learned else 0,
        "dropout": config.number("attention_dropout", 0.1) + config.number("hidden_dropout", 0.1) > 0,
    }
    kind = {"activation": "relu2"} if config.flag("squared_relu") else {}
    ffn = {"d_ff": width, "gated": gated, "bias": bias, **kind}
    if not config.has("num_moe_experts"):
        return {**given, "ffn": ffn}
    dense = _dense_layers(config)
    narrow = config.size("moe_ffn_hidden_size", width)
    shared = config.size("moe_shared_expert_intermediate_size", 0, least=0)
    if shared % narrow:
        raise config.error(f"moe_shared_expert_intermediate_size={shared}; allowed: a multiple of {narrow}")
    experts = {
        "experts": config.size("num_moe_experts"),
        "topk": config.size("moe_router_topk", 2),
        "d_ff": narrow,
        "shared": shared // narrow,
        "gated": gated,
        "bias": bias,
        "router_bias": config.flag("moe_router_enable_expert_bias"),
    }
    return {**given, "experts": experts, "dense_layers": dense, **({"ffn": ffn} if dense else {})}


def _dense_layers(config: ForeignConfig) -> int:
    """Dense layers before the mixtures: `moe_layer_freq` is 1, or a pattern `([0]*3+[1]*58)`; it is never evaluated."""
    given = config.values.get("moe_layer_freq", 1)
    if given == 1:
        return 0
    if isinstance(given, list) and set(given) <= {0, 1} and given == sorted(given):
        return given.count(0)
    if isinstance(given, str) and (match := _PATTERN.fullmatch(given.replace(" ", ""))):
        return int(match[1])
    raise config.error(f"moe_layer_freq={told(given)}; allowed: 1, or dense layers first: ([0]*3+[1]*58)")


def _attention(config: ForeignConfig, bias: bool) -> dict[str, Any]:
    heads, d_model = config.size("num_attention_heads"), config.size("hidden_size")
    if config.flag("multi_latent_attention"):
        return {
            "kind": "mla",
            "heads": heads,
            "q_lora_rank": config.size("q_lora_rank", 0, least=0),
            "kv_lora_rank": config.size("kv_lora_rank", 32),
            "nope_head_dim": config.size("qk_head_dim", 128),
            "rope_head_dim": config.size("qk_pos_emb_head_dim", 64),
            "v_head_dim": config.size("v_head_dim", 128),
        }
    grouped = config.flag("group_query_attention", config.has("num_query_groups"))
    return {
        "heads": heads,
        "kv_heads": config.size("num_query_groups", 1) if grouped else heads,
        "head_dim": config.size("kv_channels", max(d_model // heads, 1)),
        "qkv_bias": config.flag("add_qkv_bias") or bias,
        "out_bias": bias,
        "qk_norm": config.flag("qk_layernorm"),
    }


def claims(config: ForeignConfig) -> dict[str, tuple[str, object]]:
    """What the file itself says of the model: field of an architecture -> its own name for it, and the value.

    Raises:
        ConfigError: a value is of the wrong kind.
    """
    moe, mla = config.has("num_moe_experts"), config.flag("multi_latent_attention")
    stated = {"layers": "num_layers", "d_model": "hidden_size", "vocab": "vocab_size"}
    stated |= {"attention.heads": "num_attention_heads"}
    if not mla:
        grouped = config.flag("group_query_attention", True)
        stated |= {"attention.kv_heads": "num_query_groups"} if grouped else {}
        stated |= {"attention.head_dim": "kv_channels"}
    if moe:
        stated |= {"experts.experts": "num_moe_experts", "experts.topk": "moe_router_topk"}
        stated |= {"experts.d_ff": "moe_ffn_hidden_size"}
    else:
        stated |= {"ffn.d_ff": "ffn_hidden_size"}
    return {ours: (theirs, config.size(theirs)) for ours, theirs in stated.items() if config.has(theirs)}


def written(architecture: Architecture) -> tuple[dict[str, Any], str]:
    """The options that say a model, in Megatron-Core's names, and what they leave unsaid (empty where nothing)."""
    attention, experts, ffn = architecture.attention, architecture.experts, architecture.ffn
    gated = ffn.gated if ffn else experts is None or experts.gated
    found: dict[str, Any] = {
        "num_layers": architecture.layers,
        "hidden_size": architecture.d_model,
        "num_attention_heads": attention.heads,
        "ffn_hidden_size": ffn.d_ff if ffn else experts.d_ff if experts else 0,
        "vocab_size": architecture.vocab,
        "normalization": "RMSNorm" if architecture.norm == "rms" else "LayerNorm",
        "gated_linear_unit": gated,
        "squared_relu": bool(ffn and ffn.activation == "relu2"),
        "share_embeddings_and_output_weights": architecture.tied,
        "add_bias_linear": bool(ffn and ffn.bias),
        "position_embedding_type": "learned_absolute" if architecture.learned_positions else "rope",
        "max_position_embeddings": architecture.learned_positions or None,
    }
    if not architecture.dropout:
        found |= {"attention_dropout": 0.0, "hidden_dropout": 0.0}
    if isinstance(attention, LatentAttention):
        found |= {
            "multi_latent_attention": True,
            "q_lora_rank": attention.q_lora_rank or None,
            "kv_lora_rank": attention.kv_lora_rank,
            "qk_head_dim": attention.nope_head_dim,
            "qk_pos_emb_head_dim": attention.rope_head_dim,
            "v_head_dim": attention.v_head_dim,
        }
    else:
        found |= {"group_query_attention": True, "num_query_groups": attention.kv_heads}
        found |= {"kv_channels": attention.head_dim, "qk_layernorm": attention.qk_norm}
        found |= {"add_qkv_bias": attention.qkv_bias and not found["add_bias_linear"]}
    if experts:
        found |= {
            "num_moe_experts": experts.experts,
            "moe_router_topk": experts.topk,
            "moe_ffn_hidden_size": experts.d_ff,
            "moe_shared_expert_intermediate_size": experts.shared * experts.d_ff or None,
            "moe_router_enable_expert_bias": experts.router_bias,
        }
        dense, sparse = architecture.dense_layers, architecture.layers - architecture.dense_layers
        found |= {"moe_layer_freq": f"([0]*{dense}+[1]*{sparse})"} if dense else {}
    return {name: value for name, value in found.items() if value is not None}, _unsaid(architecture)


def _unsaid(architecture: Architecture) -> str:
    attention = architecture.attention
    plain = {"more than two norms a layer": architecture.norms_per_layer != 2}
    if isinstance(attention, Attention):
        plain |= {
            "windows": attention.window > 0,
            "sinks": attention.sinks,
            "query and key norms over all heads": attention.qk_norm and attention.qk_norm_span == "all",
        }
    return ", ".join(name for name, there in plain.items() if there)


TRANSLATED: Mapping[str, str] = {"num_experts": "num_moe_experts", "swiglu": "gated_linear_unit"}
"""Trainers' options that mean what another name of Megatron-Core does."""
OPPOSITE: Mapping[str, str] = {
    "disable_bias_linear": "add_bias_linear",
    "untie_embeddings_and_output_weights": "share_embeddings_and_output_weights",
}
"""Trainers' options that mean the opposite of a name of Megatron-Core."""

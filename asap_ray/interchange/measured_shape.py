"""The model of a measured row: its own sizes, and what its family adds (gates, experts' widths, windows)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asap_ray.architecture import Architecture, architecture_from_mapping
from asap_ray.interchange.measured_words import Unmappable, first_match, number, text, whole

Row = Mapping[str, Any]


def architecture_of(
    row: Row, families: Sequence[Mapping[str, Any]], presets: Mapping[str, Mapping[str, Any]]
) -> tuple[Architecture, list[str]]:
    """The architecture of a row, and what of it is inferred.

    Raises:
        Unmappable: sizes are missing, differ from the preset's, or the family is not described.
    """
    family, _ = first_match(families, text(row, "model"), "model")
    if "unmapped" in family:
        raise Unmappable(f"model: {family['unmapped']}")
    if "preset" in family:
        return _from_preset(row, presets[family["preset"]]), []
    filled = {**family.get("fields", {}), **{k: v for k, v in row.items() if v is not None}}
    inferred = [f"{name}: {family['why']}" for name in family.get("fields", {}) if row.get(name) is None]
    mapping: dict[str, Any] = {
        "name": text(row, "model"),
        "layers": whole(row, "layers"),
        "d_model": whole(row, "d_model"),
        "vocab": whole(filled, "vocab"),
        "attention": _attention(row, family),
        "norm": family.get("norm", "rms"),
        "tied": family.get("tied", False),
        "learned_positions": whole(row, "seq_len") if family.get("positions") else 0,
    }
    gated, dense = family.get("gated", True), family.get("dense_layers", 0)
    if "experts" in family:
        given = {"d_ff": whole(row, "d_ff"), **family["experts"]}
        mapping["experts"] = {**given, "experts": whole(row, "moe_experts"), "topk": whole(row, "moe_topk")}
        mapping["dense_layers"] = dense
    if dense or "experts" not in family:
        told = {name: family[name] for name in ("bias", "activation") if name in family}
        mapping["ffn"] = {"d_ff": whole(row, "d_ff"), "gated": gated, **told}
    return architecture_from_mapping(mapping), inferred


def _attention(row: Row, family: Mapping[str, Any]) -> dict[str, Any]:
    heads, d_model = whole(row, "n_heads"), whole(row, "d_model")
    if "mla" in family:
        return {"kind": "mla", "heads": heads, **family["mla"]}
    head_dim = number(row, "head_dim") or d_model / heads
    if head_dim != int(head_dim):
        raise Unmappable("head_dim: not stated, and d_model is no multiple of the heads")
    kv_heads = whole(row, "n_kv_heads", heads)
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": int(head_dim)}
    biased = dict.fromkeys(("qkv_bias", "out_bias"), bool(family.get("bias")))
    return {**sizes, **biased, **family.get("attention", {})}


def _from_preset(row: Row, preset: Mapping[str, Any]) -> Architecture:
    layers, d_model = whole(row, "layers"), whole(row, "d_model")
    if d_model != preset["d_model"]:
        raise Unmappable(f"model: d_model {d_model} differs from the {preset['d_model']} of {preset['name']}")
    changed = {**preset, "layers": layers}
    if layers < preset["layers"] and preset.get("dense_layers"):
        changed["dense_layers"] = 1  # trimmed models keep one dense layer and otherwise sparse ones
    return architecture_from_mapping(changed)

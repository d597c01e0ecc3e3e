"""Recomputation in MaxText: its policies by name, and custom ones by what they keep on the device and on the host.

Names of policies and tensors are those of MaxText's configs/base.yml and nnx_decoders.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from asap_ray.interchange.foreign import ForeignConfig, told

POLICIES: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    name: (frozenset(device.split()), frozenset(host.split()))
    for name, device, host in (
        ("full", "", ""),
        ("save_out_proj", "out", ""),
        ("save_qkv_proj", "query key_value", ""),
        ("save_dot_except_mlp", "query key_value out", ""),
        ("save_dot_with_context_except_mlp", "query key_value context out", ""),
        ("save_dot_except_mlpwi", "query key_value out mlpwo", ""),
        ("minimal", "query key_value out gate_up mlpwo", ""),
        ("minimal_with_context", "query key_value context out gate_up mlpwo", ""),
        ("qkv_proj_offloaded", "", "query key_value"),
        ("minimal_offloaded", "", "query key_value out gate_up mlpwo"),
        ("offload_input", "", "input"),
        ("offload_input_qkv", "", "input query key_value"),
        ("offload_input_qkv_out", "", "input query key_value out"),
        ("offload_input_out", "", "input out"),
        ("offload_input_mlpwo", "", "input mlpwo"),
        ("save_qkv_context", "query key_value context", ""),
    )
}
"""Recomputation policies of the stack: what each keeps on the device and what on the host."""
CUSTOM = tuple(name for name in POLICIES if name.startswith("offload_input") or name == "save_qkv_context")
"""Those that MaxText has no name for: `remat_policy: custom`, with a place for each tensor."""
ALIASES = {"minimal_flash": "minimal_with_context"}  # its name until 2025
TENSORS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "input": (("decoder_layer_input",),),
    "query": (("query_proj",), ("qkv_proj",)),
    "key_value": (("key_proj", "value_proj"), ("kv_proj",), ("qkv_proj",)),
    "context": (("context",),),
    "out": (("out_proj",),),
    "gate_up": (("mlpwi_0", "mlpwi_1"), ("mlpwi",)),
    "mlpwo": (("mlpwo",),),
    "expert_gate_up": (("moe_mlpwi_0", "moe_mlpwi_1"),),
    "expert_out": (("moe_mlpwo",),),
}
"""What a tensor is called in a custom policy: one of these groups of names."""
PLACED = tuple(dict.fromkeys(name for groups in TENSORS.values() for group in groups for name in group))


def policy(config: ForeignConfig) -> str:
    """The recomputation policy by the stack's name; a custom one by what it keeps where.

    Raises:
        ConfigError: there is no such policy, or none that keeps the same.
    """
    name = config.values.get("remat_policy", "full")
    if name != "custom":
        name = config.name("remat_policy") if config.has("remat_policy") else "full"
        name = ALIASES.get(name, name)
        known = [each for each in POLICIES if each not in CUSTOM]
        if name not in known:
            raise config.error(f"remat_policy={told(name)}; allowed: {', '.join(known)}, custom")
        return name
    kept = {place: frozenset(_kept(config, place)) for place in ("device", "offload")}
    # A layer's input stays unless it is offloaded, and of experts mlpwi and mlpwo go by names of their own since 2025.
    device, host = kept["device"] - {"input"}, kept["offload"]
    for policy, (on_device, on_host) in POLICIES.items():
        same = {_generic(device) - {"mlpwo"}, _generic(on_device) - {"mlpwo"}}
        if len(same) == 1 and _generic(host) == on_host:
            return policy
    places = (("device", device), ("offload", host))
    told_places = "; ".join(f"{place} {', '.join(sorted(names))}" for place, names in places if names)
    raise config.error(f"remat_policy=custom with {told_places} is none of {', '.join(POLICIES)}")


def _generic(names: frozenset[str]) -> frozenset[str]:
    """Tensors with an expert's called like those of a dense layer."""
    return frozenset({"expert_gate_up": "gate_up", "expert_out": "mlpwo"}.get(name, name) for name in names)


def _kept(config: ForeignConfig, place: str) -> list[str]:
    default = {"decoder_layer_input": "device"}
    allowed = ("remat", "device", "offload")
    where = {name: config.choice(name, allowed, default.get(name, "remat")) for name in PLACED}
    found = [
        tensor
        for tensor, groups in TENSORS.items()
        if any(all(where[name] == place for name in group) for group in groups)
    ]
    covered = {name for tensor in found for group in TENSORS[tensor] for name in group}
    if alone := [name for name in PLACED if where[name] == place and name not in covered]:
        raise config.error(f"{alone[0]}={place} keeps a part of what a plan keeps or computes again as one")
    return found


def fields(remat: str, moe: bool) -> dict[str, str]:
    """The settings of MaxText for a policy of the stack; a mixture of experts has names of its own for some."""
    if remat not in CUSTOM:
        return {"remat_policy": remat}
    found = {"remat_policy": "custom"}
    for place, names in zip(("device", "offload"), POLICIES[remat], strict=True):
        for tensor in sorted(names):
            found |= dict.fromkeys(TENSORS[tensor][0], place)
            if moe and tensor == "mlpwo":
                found |= dict.fromkeys(TENSORS["expert_out"][0], place)
    return found

"""A stack: the trainer a plan is meant for, which knobs it has, how its axes nest, and which overlaps it really
does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from asap_ray.errors import ConfigError
from asap_ray.plan import ATTENTION_KERNELS, AXES, PRECISIONS, SCHEDULES

TENSORS = (
    "attn_in",
    "query",
    "key_value",
    "scores",
    "context",
    "out",
    "mlp_in",
    "gate_up",
    "act",
    "router",
    "expert_in",
    "expert_gate_up",
    "expert_act",
    "expert_out",
)
"""What a layer computes and its backward pass needs; its own input is always kept. A policy names what it saves."""

OVERLAPS = ("fsdp", "gradient", "tensor", "context", "expert", "pipeline", "offload")


@dataclass(frozen=True, kw_only=True, slots=True)
class Remat:
    """A recomputation policy: what stays on the device, what goes to the host, and all else is computed again."""

    name: str
    saved: frozenset[str]
    offloaded: frozenset[str] = frozenset()
    offload_input: bool = False

    @property
    def kept(self) -> frozenset[str]:
        """Tensors that need no second computation."""
        return self.saved | self.offloaded


@dataclass(frozen=True, kw_only=True, slots=True)
class StateBytes:
    """Bytes a parameter in each kind of state, as the stack keeps them between steps."""

    weights: float
    gradients: float
    optimizer: float
    gradient_wire: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """Knobs, nesting and overlaps of one trainer.

    `expert` says whether the expert axis multiplies with the others (MaxText) or subdivides data, fsdp and context
    (Megatron). `shards_weights` are the axes over which dense weights are sharded besides fsdp. `overlap` is, for each
    kind of traffic, the fraction that the trainer issues asynchronously, so that it can hide under compute.
    `holds_all` is true where a pipeline keeps every micro-batch's activations until the backward pass (autodiff over a
    loop), `fills_pipeline` where the micro-batches must be a multiple of the stages. `gathers_per_step` is true where
    fsdp weights, once gathered, stay for all micro-batches of a step. `logit_bytes` are bytes held for each logit.
    `reruns_output` is true where recomputation runs a layer's last matmul again, although no gradient needs it.
    """

    name: str
    axes: tuple[str, ...]
    expert: str
    shards_weights: tuple[str, ...]
    zero: tuple[int, ...]
    schedules: tuple[str, ...]
    max_virtual: int
    uneven_layers: bool
    fills_pipeline: bool
    holds_all: bool
    sequence_parallel: tuple[bool, ...]
    context_chunks: int
    fsdp_divides: bool
    replicates_kv: bool
    remat: tuple[Remat, ...]
    attention: tuple[str, ...]
    precisions: tuple[str, ...]
    state: StateBytes
    logit_bytes: float
    reruns_output: bool
    gathers_per_step: bool
    overlap: Mapping[str, float]
    source: str = ""

    @property
    def remat_names(self) -> tuple[str, ...]:
        """Names of the policies, in the order of their codes."""
        return tuple(policy.name for policy in self.remat)

    @property
    def expert_multiplies(self) -> bool:
        """Whether the expert axis counts in the product of the mesh."""
        return self.expert == "multiplies"


def stack_from_mapping(given: Mapping[str, Any]) -> Stack:
    """Build a stack from the plain mapping of a `conf/stack/*.yaml`.

    Raises:
        ConfigError: a field is missing, unknown, or holds a name or fraction that is not allowed.
    """
    names = [field.name for field in fields(Stack)]
    for name in given:
        if name not in names:
            raise ConfigError(f"stack.{name}", given[name], f"unknown field; allowed: {', '.join(names)}", names)
    missing = [name for name in names if name not in given and name != "source"]
    if missing:
        raise ConfigError("stack", given.get("name", "?"), f"missing: {', '.join(missing)}")
    plain = {**given, "remat": _remat(given["remat"]), "state": StateBytes(**given["state"])}
    for name in ("axes", "shards_weights", "zero", "schedules", "sequence_parallel", "attention", "precisions"):
        plain[name] = tuple(given[name])
    _check(plain)
    return Stack(**plain)


def _remat(given: Mapping[str, Any]) -> tuple[Remat, ...]:
    policies = []
    for name, rule in given.items():
        rule = rule or {}
        saved = TENSORS if rule.get("saved") == "all" else rule.get("saved", ())
        offloaded = rule.get("offloaded", ())
        for tensor in (*saved, *offloaded):
            _allowed(f"stack.remat.{name}", tensor, TENSORS)
        policies.append(
            Remat(
                name=name,
                saved=frozenset(saved),
                offloaded=frozenset(offloaded),
                offload_input=bool(rule.get("offload_input", False)),
            )
        )
    return tuple(policies)


def _check(plain: Mapping[str, Any]) -> None:
    _allowed("stack.expert", plain["expert"], ("multiplies", "subdivides"))
    allowed = {
        "axes": AXES,
        "shards_weights": ("context", "expert"),
        "zero": (0, 1, 2),
        "schedules": SCHEDULES,
        "attention": ATTENTION_KERNELS,
        "precisions": PRECISIONS,
    }
    for name, choices in allowed.items():
        for value in plain[name]:
            _allowed(f"stack.{name}", value, choices)
    for name, value in plain["overlap"].items():
        _allowed("stack.overlap", name, OVERLAPS)
        if not (math.isfinite(value) and 0 <= value <= 1):
            raise ConfigError(f"stack.overlap.{name}", value, "allowed: a fraction from 0 to 1")


def _allowed(key: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        names = [str(choice) for choice in choices]
        raise ConfigError(key, value, f"allowed: {', '.join(names)}", names)

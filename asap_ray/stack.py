"""A stack: the trainer a plan is meant for, which knobs it has, how its axes nest, and which overlaps it really
does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

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


_LISTS: Mapping[str, tuple[object, ...]] = {
    "axes": AXES,
    "shards_weights": ("context", "expert"),
    "zero": (0, 1, 2),
    "schedules": SCHEDULES,
    "sequence_parallel": (False, True),
    "attention": ATTENTION_KERNELS,
    "precisions": PRECISIONS,
}
_MAY_BE_EMPTY = ("shards_weights", "precisions")
_FLAGS = tuple(name for name, kind in get_type_hints(Stack).items() if kind is bool)


def stack_from_mapping(given: Mapping[str, Any]) -> Stack:
    """Build a stack from the plain mapping of a `conf/stack/*.yaml`.

    Raises:
        ConfigError: a field is missing, unknown, of the wrong type, or holds a name or number that is not allowed.
    """
    given = _mapping("stack", given, Stack, optional=("source",))
    _allowed("stack.expert", given["expert"], ("multiplies", "subdivides"))
    for name in ("name", "source"):
        if not isinstance(text := given.get(name, "-"), str) or not text.isprintable() or not text.strip():
            raise ConfigError(f"stack.{name}", text, "allowed: one line of text")
    for name in _FLAGS:
        _allowed(f"stack.{name}", given[name], (True, False))
    for name in ("max_virtual", "context_chunks"):
        if type(given[name]) is not int or given[name] < 1:
            raise ConfigError(f"stack.{name}", given[name], "allowed: a whole number from 1")
    plain = {
        **given,
        **{name: _list(f"stack.{name}", given[name], choices) for name, choices in _LISTS.items()},
        "remat": _remat(given["remat"]),
        "state": _state(given["state"]),
        "logit_bytes": _number("stack.logit_bytes", given["logit_bytes"]),
        "overlap": _overlap(given["overlap"]),
    }
    for name in _LISTS:
        if not plain[name] and name not in _MAY_BE_EMPTY:
            raise ConfigError(f"stack.{name}", [], "allowed: a list of at least one")
    if "none" not in plain["schedules"]:
        raise ConfigError("stack.schedules", given["schedules"], "none must be among them: it is for pipeline 1")
    return Stack(**plain)


def _remat(given: object) -> tuple[Remat, ...]:
    if not isinstance(given, Mapping) or not given:
        raise ConfigError("stack.remat", given, "allowed: a mapping of policy names to what they save")
    return tuple(_policy(name, {} if rule is None else rule) for name, rule in given.items())


def _policy(name: object, rule: object) -> Remat:
    key = f"stack.remat.{name}"
    if not isinstance(name, str) or not name.isprintable() or len(name.split()) != 1:
        raise ConfigError(key, name, "a policy's name is one word")
    rule = _mapping(key, rule, Remat, optional=("saved", "offloaded", "offload_input"), without=("name",))
    offload_input = rule.get("offload_input", False)
    _allowed(f"{key}.offload_input", offload_input, (True, False))
    saved = TENSORS if rule.get("saved") == "all" else _list(f"{key}.saved", rule.get("saved", ()), TENSORS)
    offloaded = _list(f"{key}.offloaded", rule.get("offloaded", ()), TENSORS)
    if twice := sorted(set(saved) & set(offloaded)):
        raise ConfigError(f"{key}.offloaded", ", ".join(twice), "allowed: what is not among saved")
    return Remat(name=name, saved=frozenset(saved), offloaded=frozenset(offloaded), offload_input=offload_input)


def _state(given: object) -> StateBytes:
    state = _mapping("stack.state", given, StateBytes)
    return StateBytes(**{name: _number(f"stack.state.{name}", value) for name, value in state.items()})


def _overlap(given: object) -> Mapping[str, float]:
    if not isinstance(given, Mapping):
        raise ConfigError("stack.overlap", given, "allowed: a mapping of kinds of traffic to fractions")
    for name in given:
        _allowed("stack.overlap", name, OVERLAPS)
    return {name: _number(f"stack.overlap.{name}", value, most=1.0) for name, value in given.items()}


def _mapping(
    key: str, given: object, kind: type, optional: Sequence[str] = (), without: Sequence[str] = ()
) -> Mapping[str, Any]:
    """A mapping with the fields of the dataclass `kind` and no others."""
    names = [field.name for field in fields(kind) if field.name not in without]
    if not isinstance(given, Mapping):
        raise ConfigError(key, given, f"allowed: a mapping of {', '.join(names)}")
    for name in given:
        if name not in names:
            raise ConfigError(key, name, f"unknown field; allowed: {', '.join(names)}", names)
    if missing := [name for name in names if name not in given and name not in optional]:
        raise ConfigError(key, given.get("name", dict(given)), f"missing: {', '.join(missing)}")
    return given


def _list(key: str, given: object, choices: tuple[object, ...]) -> tuple[Any, ...]:
    if not isinstance(given, (list, tuple)):
        raise ConfigError(key, given, f"allowed: a list of {', '.join(map(str, choices))}")
    for value in given:
        _allowed(key, value, choices)
    if len(set(given)) < len(given):
        raise ConfigError(key, given, "allowed: each one once")
    return tuple(given)


def _number(key: str, given: object, most: float = 1e9) -> float:
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not 0 <= given <= most:
        raise ConfigError(key, given, f"allowed: {'a fraction' if most == 1 else 'a number'} from 0 to {most:g}")
    return float(given)


def _allowed(key: str, value: object, choices: tuple[object, ...]) -> None:
    # By type as well: 1, 1.0 and true are equal in Python.
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        names = [str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in choices]
        raise ConfigError(key, value, f"allowed: {', '.join(names)}", names)

"""A stack: the trainer a plan is meant for, which knobs it has, how its axes nest, and what it keeps in memory.

How fast it is, and which traffic it hides, is in its calibration (`conf/calibration/stack_*.yaml`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
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
    """A recomputation policy: what stays on the device, what goes to the host, and all else is computed again.

    Of the tensors in `halves` only one half stays; they are among `saved`.
    """

    name: str
    saved: frozenset[str]
    halves: frozenset[str] = frozenset()
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
    """Knobs, nesting and memory habits of one trainer.

    `expert` says whether the expert axis multiplies with the others (MaxText) or subdivides data, fsdp and context
    (Megatron). `shards_weights` are the axes over which dense weights are sharded besides fsdp.
    `zero_beside_fsdp` is true where a ZeRO stage may go with an fsdp axis, `zero_scatters` where it sums each gradient
    on the rank that needs it, while the backward pass runs (elsewhere all ranks sum all of them after it).
    `splits_sends` is true where each rank of a tensor group hands its part alone to the next stage, which gathers them.
    `fills_pipeline` is true where the micro-batches must be a multiple of the stages. `holds_all` is true where a
    pipeline keeps every micro-batch's activations until the backward pass (autodiff over a loop), `routes_by_matmul`
    where tokens go to experts of limited capacity by one-hot matmuls, `reruns_output` where recomputation runs a
    layer's last matmul again, although no gradient needs it, `holds_gradients` where buffers of gradients exist from
    the start of a step and those of one layer beside them; elsewhere a step of one micro-batch has none yet while it
    computes the loss.

    `stages_by_cost` is true where a pipeline is cut by the FLOPs of layers and head, and a layer on a cut stays on the
    earlier stage; else each stage takes as many layers. `keeps_gathered` is true where sequence parallelism keeps the
    inputs of column-parallel matmuls whole, `keeps_narrow` where inputs of 8-bit matmuls are kept in 8 bits,
    `passes_gradients` where gradients of activations take room of their own (XLA lays them where these were),
    `weighs_outputs` where the router's weights multiply what experts put out, so that a gradient needs it: it is kept,
    or computed again.

    Bytes: `logit_bytes` are held for each logit while the loss is computed, over the tensor axis or, without
    `splits_logits`, on each of its ranks, where gathering them holds `gathering_bytes` a logit more. Where kernels are
    not fused, `score_bytes` are kept for each attention score besides its softmax, `norm_bytes` for each number of a
    norm besides its input and output, `gate_bytes` for each number of a gate's output besides its inputs and itself.
    `gathered_layers` are layers whose sharded weights are whole at once. `sums_bytes` are held a parameter beside the
    gradients of one micro-batch where several add up outside of a pipeline. `logit_chunk` is how many logits exist at
    once (0: all of a micro-batch), each chunk adding its part to a gradient of the head. `sources` says where each
    figure is from.
    """

    name: str
    axes: tuple[str, ...]
    expert: str
    shards_weights: tuple[str, ...]
    zero: tuple[int, ...]
    zero_beside_fsdp: bool
    zero_scatters: bool
    splits_sends: bool
    schedules: tuple[str, ...]
    max_virtual: int
    uneven_layers: bool
    fills_pipeline: bool
    holds_all: bool
    sequence_parallel: tuple[bool, ...]
    context_chunks: int
    fsdp_divides: bool
    replicates_kv: bool
    routes_by_matmul: bool
    remat: tuple[Remat, ...]
    attention: tuple[str, ...]
    precisions: tuple[str, ...]
    state: StateBytes
    logit_bytes: float
    splits_logits: bool
    norm_bytes: float
    sums_bytes: float
    logit_chunk: float
    gate_bytes: float
    gathered_layers: float
    reruns_output: bool
    holds_gradients: bool
    stages_by_cost: bool
    keeps_gathered: bool
    keeps_narrow: bool
    passes_gradients: bool
    weighs_outputs: bool
    gathering_bytes: float
    score_bytes: float
    source: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

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
_NUMBERS = (
    *("logit_bytes", "gathering_bytes", "score_bytes", "norm_bytes", "gate_bytes", "gathered_layers"),
    *("sums_bytes", "logit_chunk"),
)


def stack_from_mapping(given: Mapping[str, Any]) -> Stack:
    """Build a stack from the plain mapping of a `conf/stack/*.yaml`.

    Raises:
        ConfigError: a field is missing, unknown, of the wrong type, or holds a name or number that is not allowed.
    """
    given = _mapping("stack", given, Stack, optional=("source", "sources"))
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
        **{name: _number(f"stack.{name}", given[name]) for name in _NUMBERS},
        "sources": _sources(given.get("sources", {})),
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
    rule = _mapping(key, rule, Remat, optional=("saved", "halves", "offloaded", "offload_input"), without=("name",))
    offload_input = rule.get("offload_input", False)
    _allowed(f"{key}.offload_input", offload_input, (True, False))
    saved = TENSORS if rule.get("saved") == "all" else _list(f"{key}.saved", rule.get("saved", ()), TENSORS)
    offloaded = _list(f"{key}.offloaded", rule.get("offloaded", ()), TENSORS)
    if twice := sorted(set(saved) & set(offloaded)):
        raise ConfigError(f"{key}.offloaded", ", ".join(twice), "allowed: what is not among saved")
    halves = _list(f"{key}.halves", rule.get("halves", ()), tuple(saved))
    return Remat(
        name=name,
        saved=frozenset(saved),
        halves=frozenset(halves),
        offloaded=frozenset(offloaded),
        offload_input=offload_input,
    )


def _state(given: object) -> StateBytes:
    state = _mapping("stack.state", given, StateBytes)
    return StateBytes(**{name: _number(f"stack.state.{name}", value) for name, value in state.items()})


def _sources(given: object) -> Mapping[str, str]:
    if not isinstance(given, Mapping):
        raise ConfigError("stack.sources", given, "allowed: a mapping of fields to where their figures are from")
    known = (*_NUMBERS, "state", "remat")
    for name, text in given.items():
        _allowed("stack.sources", name, known)
        if not isinstance(text, str) or not text.isprintable() or not text.strip():
            raise ConfigError(f"stack.sources.{name}", text, "allowed: one line of text")
    return dict(given)


def _mapping(
    key: str, given: object, kind: type, optional: Sequence[str] = (), without: Sequence[str] = ()
) -> Mapping[str, Any]:
    """A mapping with the fields of the dataclass `kind` and no others."""
    names = [entry.name for entry in fields(kind) if entry.name not in without]
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

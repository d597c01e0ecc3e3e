"""What a decoder layer is made of: attention, feed-forward, experts; each knows its matmuls and its other parameters.

A block says the same three things of itself: `matmuls(d_model)`, the weights that FLOPs and sharding follow;
`vector_parameters(d_model, norm)`, what is left (biases, gains, scores' corrections), which no matmul reads; and
`parameters(d_model, norm)`, all of it. A block that cannot exist raises ConfigError when it is made, with the key
that a user would have to change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from asap_ray.errors import ConfigError

Norm = Literal["rms", "layer"]
Activation = Literal["", "silu", "gelu", "relu", "relu2"]

LARGEST = 2**31  # of any one size: keeps every product of a few sizes inside a float's range


@dataclass(frozen=True, slots=True)
class Matmul:
    """One weight matrix of shape [k, n], read by y[tokens, n] = x[tokens, k] @ w.

    `tensor` says which side the tensor axis shards: the outputs n ("column"), the inputs k ("row"), or neither.
    An "expert" matmul exists once per routed expert, and each token goes through topk of them.
    """

    name: str
    k: int
    n: int
    tensor: Literal["column", "row", "none"] = "none"
    kind: Literal["dense", "expert"] = "dense"

    @property
    def parameters(self) -> int:
        """Weights of one matrix (of one expert, where there are several)."""
        return self.k * self.n


def check_fields(part: Any, key: str) -> None:
    """Raise ConfigError for the first field of a dataclass whose value is not of the field's type.

    A size whose default is 0 may be 0 (the thing is absent); any other is at least 1.
    """
    kinds = field_types(type(part))
    for field in fields(part):
        value, kind, where = getattr(part, field.name), kinds[field.name], f"{key}.{field.name}"
        if kind is int:
            least = 0 if field.default == 0 else 1
            if type(value) is not int or not least <= value <= LARGEST:
                raise ConfigError(where, value, f"allowed: a whole number from {least} to {LARGEST}")
        elif kind is bool:
            if type(value) is not bool:
                raise ConfigError(where, value, "allowed: true or false")
        elif get_origin(kind) is Literal:
            check_choice(where, value, get_args(kind))
        elif not isinstance(value, kind):
            raise ConfigError(where, value, f"allowed: {'text' if kind is str else getattr(kind, '__name__', kind)}")


@cache
def field_types(kind: type[Any]) -> Mapping[str, Any]:
    """The type of each field of a dataclass, whatever its annotation is called."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def check_choice(key: str, given: object, names: Iterable[str]) -> None:
    """Raise ConfigError unless `given` is one of `names`."""
    names = tuple(names)
    if given not in names:
        raise ConfigError(key, given, f"allowed: {', '.join(names)}", names)


def norm_parameters(width: int, norm: Norm) -> int:
    """Parameters of one normalisation: a gain ("rms"), or a gain and a bias ("layer")."""
    return width if norm == "rms" else 2 * width


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Grouped-query attention: multi-head where kv_heads = heads, multi-query where kv_heads = 1.

    `window` is the number of keys a query sees, itself included (0: all); with a window, every `full_every`-th layer
    attends fully (0: none does). `qk_norm` normalises queries and keys, over each head or over all heads at once
    (`qk_norm_span`). `sinks` adds one learned logit a head.
    """

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    qk_norm_span: Literal["head", "all"] = "head"
    sinks: bool = False
    window: int = 0
    full_every: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that no layer can have."""
        check_fields(self, "model.attention")
        if self.heads % self.kv_heads:
            raise ConfigError("model.attention.kv_heads", self.kv_heads, f"allowed: a divisor of heads={self.heads}")
        if self.full_every and not self.window:
            raise ConfigError("model.attention.full_every", self.full_every, "needs a window; without one all is full")

    @property
    def qk_head_dim(self) -> int:
        """Width of a query and of a key, per head."""
        return self.head_dim

    @property
    def v_head_dim(self) -> int:
        """Width of a value, per head."""
        return self.head_dim

    def window_of(self, layer: int) -> int:
        """Window of layer 0, 1, …: 0 where it attends fully."""
        return 0 if self.full_every and (layer + 1) % self.full_every == 0 else self.window

    def matmuls(self, d_model: int) -> tuple[Matmul, ...]:
        """Query, key and value together, output."""
        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (
            Matmul("query", d_model, q_width, "column"),
            Matmul("key_value", d_model, 2 * kv_width, "column"),
            Matmul("out", q_width, d_model, "row"),
        )

    def vector_parameters(self, d_model: int, norm: Norm) -> int:
        """Biases, the gains of the query and key norms, sinks."""
        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        normed = 2 * self.head_dim if self.qk_norm_span == "head" else q_width + kv_width
        return (
            self.qkv_bias * (q_width + 2 * kv_width)
            + self.out_bias * d_model
            + self.qk_norm * norm_parameters(normed, norm)
            + self.sinks * self.heads
        )

    def parameters(self, d_model: int, norm: Norm = "rms") -> int:
        """All parameters of the block."""
        return sum(m.parameters for m in self.matmuls(d_model)) + self.vector_parameters(d_model, norm)


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Queries (unless q_lora_rank is 0), keys and values are projected through a narrow latent; `rope_head_dim` of each
    key is shared by all heads and does not pass through it.
    """

    heads: int
    q_lora_rank: int = 0
    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int

    def __post_init__(self) -> None:
        """Refuse sizes that no layer can have."""
        check_fields(self, "model.attention")

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values while training, where they are expanded: as many as of queries."""
        return self.heads

    @property
    def qk_head_dim(self) -> int:
        """Width of a query and of a key, per head."""
        return self.nope_head_dim + self.rope_head_dim

    def window_of(self, layer: int) -> int:
        """0: every layer attends fully."""
        return 0

    def matmuls(self, d_model: int) -> tuple[Matmul, ...]:
        """Down- and up-projections; the narrow latents are not sharded by the tensor axis."""
        q_down = (Matmul("q_down", d_model, self.q_lora_rank),) if self.q_lora_rank else ()
        return (
            *q_down,
            Matmul("q_up", self.q_lora_rank or d_model, self.heads * self.qk_head_dim, "column"),
            Matmul("kv_down", d_model, self.kv_lora_rank + self.rope_head_dim),
            Matmul("kv_up", self.kv_lora_rank, self.heads * (self.nope_head_dim + self.v_head_dim), "column"),
            Matmul("out", self.heads * self.v_head_dim, d_model, "row"),
        )

    def vector_parameters(self, d_model: int, norm: Norm) -> int:
        """The norms of the two latents."""
        return norm_parameters(self.q_lora_rank + self.kv_lora_rank, norm)

    def parameters(self, d_model: int, norm: Norm = "rms") -> int:
        """All parameters of the block."""
        return sum(m.parameters for m in self.matmuls(d_model)) + self.vector_parameters(d_model, norm)


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedForward:
    """A dense feed-forward block; gated (SwiGLU, GeGLU: arXiv 2002.05202), its first matmul is twice as wide.

    An empty `activation` is silu where gated, else gelu; `relu2` is the square of relu (arXiv 2109.08668).
    """

    d_ff: int
    gated: bool = True
    bias: bool = False
    activation: Activation = ""

    def __post_init__(self) -> None:
        """Refuse sizes that no layer can have."""
        check_fields(self, "model.ffn")

    def matmuls(self, d_model: int) -> tuple[Matmul, ...]:
        """Gate and up together, down."""
        wide = self.d_ff * (2 if self.gated else 1)
        return Matmul("gate_up", d_model, wide, "column"), Matmul("down", self.d_ff, d_model, "row")

    def vector_parameters(self, d_model: int, norm: Norm = "rms") -> int:
        """Biases."""
        return self.bias * (self.d_ff * (2 if self.gated else 1) + d_model)

    def parameters(self, d_model: int, norm: Norm = "rms") -> int:
        """All parameters of the block."""
        return sum(m.parameters for m in self.matmuls(d_model)) + self.vector_parameters(d_model, norm)


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """A mixture of experts: each token goes through `topk` of `experts`, and through all `shared` ones.

    All are d_ff wide. `router_bias` is one number an expert (a bias, or DeepSeek-V3's balancing correction);
    `shared_gate` weighs the shared experts by a dot product (Qwen2-MoE).
    """

    experts: int
    topk: int
    d_ff: int
    shared: int = 0
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False

    def __post_init__(self) -> None:
        """Refuse sizes that no layer can have."""
        check_fields(self, "model.experts")
        if self.topk > self.experts:
            raise ConfigError("model.experts.topk", self.topk, f"allowed: at most experts={self.experts}")

    def matmuls(self, d_model: int) -> tuple[Matmul, ...]:
        """Router, routed experts (each listed once), shared experts (side by side, as one wide block)."""
        wide = 2 if self.gated else 1
        routed = (
            Matmul("router", d_model, self.experts),
            Matmul("expert_gate_up", d_model, wide * self.d_ff, "column", "expert"),
            Matmul("expert_down", self.d_ff, d_model, "row", "expert"),
        )
        if not self.shared:
            return routed
        width = self.shared * self.d_ff
        return (
            *routed,
            Matmul("shared_gate_up", d_model, wide * width, "column"),
            Matmul("shared_down", width, d_model, "row"),
        )

    def biases_per_expert(self, d_model: int) -> int:
        """Biases of one routed expert."""
        return self.bias * (self.d_ff * (2 if self.gated else 1) + d_model)

    def vector_parameters(self, d_model: int, norm: Norm = "rms") -> int:
        """Biases of all experts, the router's, the gate of the shared ones."""
        return (
            (self.experts + self.shared) * self.biases_per_expert(d_model)
            + self.router_bias * self.experts
            + self.shared_gate * d_model
        )

    def routed_parameters(self, d_model: int) -> int:
        """Parameters of the routed experts alone: what an expert axis shards."""
        weights = sum(m.parameters for m in self.matmuls(d_model) if m.kind == "expert")
        return self.experts * (weights + self.biases_per_expert(d_model))

    def parameters(self, d_model: int, norm: Norm = "rms") -> int:
        """All parameters of the block, all experts counted."""
        copies = {"dense": 1, "expert": self.experts}
        weights = sum(copies[m.kind] * m.parameters for m in self.matmuls(d_model))
        return weights + self.vector_parameters(d_model, norm)

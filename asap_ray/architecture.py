"""A decoder-only transformer as numbers: exact parameters of the whole and of each kind of layer.

Parameters are counted as published: what a checkpoint holds, a tied head once. They follow from the blocks in
`layers.py`, so a model is described (conf/model/) and never tabulated; published totals are the tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from asap_ray.errors import ConfigError
from asap_ray.layers import (
    Attention,
    Experts,
    FeedForward,
    LatentAttention,
    Matmul,
    Norm,
    check_choice,
    check_fields,
    norm_parameters,
)

MOST_LAYERS = 65_536
LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` layers that are alike: the same window (0: full attention), all dense or all mixtures of experts."""

    count: int
    window: int
    moe: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A model. Of a mixture of experts the first `dense_layers` use `ffn`, the others `experts`.

    `norms_per_layer` counts those of width d_model (2; Gemma 2 and 3 have 4); one more follows the last layer.
    `learned_positions` is the length of a learned position table (0: rotary or none).
    """

    name: str
    layers: int
    d_model: int
    vocab: int
    attention: Attention | LatentAttention
    ffn: FeedForward | None = None
    experts: Experts | None = None
    dense_layers: int = 0
    norm: Norm = "rms"
    norms_per_layer: int = 2
    tied: bool = False
    learned_positions: int = 0
    dropout: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        """Raise ConfigError for what cannot be a model."""
        check_fields(self, "model")
        for key in ("name", "source"):
            _check_text(f"model.{key}", getattr(self, key))
        if self.layers > MOST_LAYERS:
            raise ConfigError("model.layers", self.layers, f"allowed: a whole number from 1 to {MOST_LAYERS}")
        if self.experts is None and self.dense_layers:
            raise ConfigError("model.dense_layers", self.dense_layers, "needs experts; without them all are dense")
        if self.dense_layers >= self.layers:
            raise ConfigError("model.dense_layers", self.dense_layers, f"allowed: fewer than layers={self.layers}")
        needs_ffn = self.experts is None or self.dense_layers > 0
        if needs_ffn != (self.ffn is not None):
            rule = "is needed by the dense layers" if needs_ffn else "is read by no layer: all have experts"
            raise ConfigError("model.ffn", "given" if self.ffn else "none", rule)

    @property
    def groups(self) -> tuple[LayerGroup, ...]:
        """The kinds of layers and how many of each, in order of first appearance; counts sum to `layers`."""
        sparse_from = self.layers if self.experts is None else self.dense_layers
        kinds = Counter((self.attention.window_of(layer), layer >= sparse_from) for layer in range(self.layers))
        return tuple(LayerGroup(count, window, moe) for (window, moe), count in kinds.items())

    def _mixer(self, group: LayerGroup) -> FeedForward | Experts:
        block = self.experts if group.moe else self.ffn
        if block is None:
            raise ConfigError("model.experts" if group.moe else "model.ffn", "none", "the model has no such layer")
        return block

    def matmuls(self, group: LayerGroup) -> tuple[Matmul, ...]:
        """Matmuls of one layer of the group, in order."""
        return self.attention.matmuls(self.d_model) + self._mixer(group).matmuls(self.d_model)

    def layer_parameters(self, group: LayerGroup) -> int:
        """Parameters of one layer of the group, all experts, biases and norms included."""
        return (
            self.attention.parameters(self.d_model, self.norm)
            + self._mixer(group).parameters(self.d_model, self.norm)
            + self.norms_per_layer * self.norm_parameters
        )

    def expert_parameters(self, group: LayerGroup) -> int:
        """Parameters of the routed experts of one layer of the group: the part that the expert axis shards."""
        return self.experts.routed_parameters(self.d_model) if group.moe and self.experts else 0

    @property
    def head(self) -> Matmul:
        """The projection onto the vocabulary; where it is tied its weights are the embedding's."""
        return Matmul("head", self.d_model, self.vocab, "column", "dense")

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm of width d_model; the model has one after its last layer."""
        return norm_parameters(self.d_model, self.norm)

    @property
    def embedding_parameters(self) -> int:
        """Token embeddings and learned positions."""
        return (self.vocab + self.learned_positions) * self.d_model

    @property
    def head_parameters(self) -> int:
        """Parameters the head has of its own: 0 where it is tied."""
        return 0 if self.tied else self.head.parameters

    @property
    def parameters(self) -> int:
        """All parameters, as published totals count them."""
        layers = sum(group.count * self.layer_parameters(group) for group in self.groups)
        return self.embedding_parameters + layers + self.norm_parameters + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all of a dense model; of routed experts topk."""
        if self.experts is None:
            return self.parameters
        routed = sum(group.count * self.expert_parameters(group) for group in self.groups)
        return self.parameters - routed + routed * self.experts.topk // self.experts.experts


def _check_text(key: str, text: object) -> None:
    if not isinstance(text, str) or not text.isprintable() or len(text) > LONGEST_NAME * 10:
        raise ConfigError(key, text, "allowed: one line of printable text")
    if key == "model.name" and not 0 < len(text) <= LONGEST_NAME:
        raise ConfigError(key, text, f"allowed: 1 to {LONGEST_NAME} characters")


ATTENTION_KINDS = {"gqa": Attention, "mla": LatentAttention}


def architecture_from_mapping(mapping: Mapping[str, Any]) -> Architecture:
    """Make an architecture from the plain mapping that a file of conf/model/ holds; its `train` is left alone.

    Raises:
        ConfigError: a key is unknown (the nearest is named), missing or of no use; its key starts with `model.`.
    """
    given = {key: value for key, value in _mapping("model", mapping).items() if key != "train"}
    blocks: dict[str, Any] = {}
    if "attention" in given:
        attention = dict(_mapping("model.attention", given["attention"]))
        kind = attention.pop("kind", "gqa")
        check_choice("model.attention.kind", kind, ATTENTION_KINDS)
        blocks["attention"] = _build(ATTENTION_KINDS[kind], "model.attention", attention)
    for key, block in (("ffn", FeedForward), ("experts", Experts)):
        if given.get(key) is not None:
            blocks[key] = _build(block, f"model.{key}", _mapping(f"model.{key}", given[key]))
    return _build(Architecture, "model", {**given, **blocks})


def _mapping(key: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(key, value, "allowed: a mapping of names to values")
    return value


def _build(kind: type[Any], key: str, given: Mapping[str, Any]) -> Any:
    known = {field.name: field.default is MISSING for field in fields(kind)}
    for name in given:
        if name not in known:
            raise ConfigError(f"{key}.{name}", name, f"no such field; allowed: {', '.join(known)}", known)
    for name, required in known.items():
        if required and name not in given:
            raise ConfigError(f"{key}.{name}", None, "allowed: a value; it is missing")
    return kind(**given)

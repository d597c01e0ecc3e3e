"""The decoder: embedding, layers in a scan, head; read it top to bottom.

Layers that are alike share their weights' arrays, stacked along a leading axis, and run in one scan. Where kinds of
layers alternate (a window, then none), the scan's body is one period of them. Every layer is rematerialised under the
policy of the plan: what it names is saved, what it offloads goes to the host, all else is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from asap_ray.architecture import Architecture
from asap_ray.layers import LatentAttention
from asap_ray.stack import Remat
from asap_ray.trainer.attention import positions
from asap_ray.trainer.groups import Part, Whole, parts_of, standing, taken, whole_of
from asap_ray.trainer.heads import MultiLatentAttention, SelfAttention
from asap_ray.trainer.layers import WHOLE, Block, FeedForward, Norm, Turns, gather_sequence, scatter_sequence, turns
from asap_ray.trainer.loss import cross_entropy
from asap_ray.trainer.mixture import Mixture
from asap_ray.trainer.spec import NotTrainedError, Spec

EMBEDDING_SCALE = 0.02


@dataclass(frozen=True, slots=True)
class Kind:
    """What tells layers apart: the window they see (0: all), and whether they are mixtures of experts."""

    window: int
    moe: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """`repeats` times the same few layers, one after the other."""

    repeats: int
    kinds: tuple[Kind, ...]


def segments(architecture: Architecture) -> tuple[Segment, ...]:
    """The layers as runs of a repeated period: the dense layers that lead, the rest, and what a period leaves over."""
    sparse_from = architecture.layers if architecture.experts is None else architecture.dense_layers
    kinds = [
        Kind(architecture.attention.window_of(layer), layer >= sparse_from) for layer in range(architecture.layers)
    ]
    found = []
    for part in (kinds[:sparse_from], kinds[sparse_from:]):
        if not part:
            continue
        period = next(p for p in range(1, len(part) + 1) if all(a == b for a, b in zip(part, part[p:], strict=False)))
        whole, rest = divmod(len(part), period)
        found.append(Segment(whole, tuple(part[:period])))
        if rest:
            found.append(Segment(1, tuple(part[-rest:])))
    return tuple(found)


def saving(policy: Remat, *also: str) -> Callable[..., Any]:
    """The checkpoint policy that keeps what a stack's policy names, and `also` what it does not offload."""
    offloaded = sorted(policy.offloaded | ({"input"} if policy.offload_input else set()))
    if not offloaded:
        return jax.checkpoint_policies.save_only_these_names(*sorted(policy.saved), *also)
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[*sorted(policy.saved), *(name for name in also if name not in offloaded)],
        names_which_can_be_offloaded=offloaded,
        offload_src="device",
        offload_dst="pinned_host",
    )


class Layer(Block):
    """Attention, then a feed-forward block or experts; norms before both and, where there are four, after both."""

    def __init__(self, spec: Spec, stacked: int, rngs: nnx.Rngs, kind: Kind) -> None:
        """`stacked` layers of a kind."""
        super().__init__(spec, stacked)
        model = spec.workload.architecture
        latent = isinstance(model.attention, LatentAttention)
        self.attention = (
            MultiLatentAttention(spec, stacked, rngs) if latent else SelfAttention(spec, stacked, rngs, kind.window)
        )
        if kind.moe:
            self.mixer = Mixture(spec, stacked, rngs)
        else:
            assert model.ffn is not None
            self.mixer = FeedForward(spec, stacked, rngs, model.ffn)
        if model.norms_per_layer not in (2, 4):
            raise NotTrainedError(f"the trainer has no layer with {model.norms_per_layer} norms, only with 2 or 4")
        norms = [Norm(spec, stacked, rngs, model.d_model) for _ in range(model.norms_per_layer)]
        self.norms = nnx.List(norms)

    def __call__(self, x: jax.Array, turn: Turns) -> tuple[jax.Array, jax.Array]:
        """x [b, s, d] after the layer, and the choices of experts that it dropped; `turn` are those of the positions of
        the context rank's tokens."""
        x = checkpoint_name(x, "input")
        before, after = self.norms[:2], self.norms[2:]
        with jax.named_scope("attention"):
            y = self.attention(checkpoint_name(before[0](x), "attn_in"), turn)
        x = x + (after[0](y) if after else y)
        y, dropped = self.mixer(checkpoint_name(before[1](x), "mlp_in"))
        return x + (after[1](y) if after else y), dropped


class Decoder(Block):
    """A decoder-only transformer. Its methods run inside `shard_map`, on one device's part of everything."""

    def __init__(self, spec: Spec, rngs: nnx.Rngs) -> None:
        """All weights, of global shape."""
        super().__init__(spec, 0)
        model = spec.workload.architecture
        split = spec.sizes["tensor"]
        self.vocab = -(-model.vocab // split) * split  # padded so that the tensor axis divides it
        shape, names = (self.vocab, model.d_model), ("vocab", "embed")
        self.embedding = self.weight(rngs, shape, names, _narrow_normal(rngs))
        self.learned = (
            self.weight(rngs, (model.learned_positions, model.d_model), (None, "embed"), _narrow_normal(rngs))
            if model.learned_positions
            else None
        )
        self.runs = nnx.List(
            [nnx.List([Layer(spec, part.repeats, rngs, kind) for kind in part.kinds]) for part in segments(model)]
        )
        self.norm = Norm(spec, 0, rngs, model.d_model)
        self.head = None if model.tied else self.weight(rngs, (self.vocab, model.d_model), ("vocab", "embed"))

    @property
    def at(self) -> jax.Array:
        """Positions of the tokens of this context rank [s]."""
        return positions(self.spec.workload.seq_len, self.spec.sizes["context"])

    @property
    def turns(self) -> Turns:
        """The rotary angles of the tokens of this context rank."""
        attention = self.spec.workload.architecture.attention
        latent = isinstance(attention, LatentAttention)
        return turns(self.at, attention.rope_head_dim if latent else attention.qk_head_dim)

    def embed(self, tokens: jax.Array) -> jax.Array:
        """Tokens [b, s] to embeddings [b, s / tensor, d]: each tensor rank looks up its part of the vocabulary."""
        with jax.named_scope("embed"):
            table, split = self.whole(self.embedding), self.spec.sizes["tensor"]
            if split > 1:
                here = tokens - jax.lax.axis_index("tensor") * table.shape[0]
                held = (here >= 0) & (here < table.shape[0])
                found = jnp.take(table, jnp.where(held, here, 0), axis=0)
                x = scatter_sequence(jnp.where(held[..., None], found, 0), self.spec)
            else:
                x = jnp.take(table, tokens, axis=0)
            if self.learned is not None:
                x = x + self._positions(x.shape[1])
            return x

    def _positions(self, length: int) -> jax.Array:
        assert self.learned is not None
        at = self.at
        if self.spec.sizes["tensor"] > 1:
            at = jax.lax.dynamic_slice_in_dim(at, jax.lax.axis_index("tensor") * length, length)
        return jnp.take(self.whole(self.learned), at, axis=0)

    def layers(self, x: jax.Array, whole: Sequence[Whole] = ()) -> tuple[jax.Array, jax.Array]:
        """x [b, s, d] after all layers that this device holds, and the choices of experts that they dropped.

        `whole` are weights that are held (`whole_layers`); without them each layer that is held gathers its own in the
        forward pass, and keeps them until the backward pass.
        """
        turn, dropped, kept = self.turns, jnp.zeros((), jnp.float32), iter(whole)
        for run, part in self._parts():
            held = next(kept, None) if part.held else None
            policy = saving(part.remat, WHOLE) if part.held and held is None else saving(part.remat)
            x, more = scanned(run, x, turn, policy, held)
            dropped += more
        return x, dropped

    def whole_layers(self) -> list[Whole]:
        """The weights of the layers that are held, part by part."""
        with jax.named_scope("hold"):
            return [whole_of(self.spec, run) for run, part in self._parts() if part.held]

    def _parts(self) -> list[tuple[nnx.List, Part]]:
        """The runs of layers, cut where a recipe treats layers otherwise."""
        cut = parts_of(self.spec, [(run[0].stacked, len(run)) for run in self.runs])
        return [
            (run if len(parts) == 1 else taken(run, part), part)
            for run, parts in zip(self.runs, cut, strict=True)
            for part in parts
        ]

    def loss(self, x: jax.Array, targets: jax.Array) -> jax.Array:
        """This device's share of the summed loss of targets [b, s], from x [b, s / tensor, d] after the layers."""
        model, split = self.spec.workload.architecture, self.spec.sizes["tensor"]
        with jax.named_scope("head"):
            x = gather_sequence(self.norm(x), self.spec)
            head = self.whole(self.embedding if self.head is None else self.head)
            return cross_entropy(x.reshape(-1, model.d_model), head, targets.reshape(-1), split, model.vocab)


def scanned(
    run: nnx.List, x: jax.Array, turn: Turns, policy: Callable[..., Any], whole: Whole | None = None
) -> tuple[jax.Array, jax.Array]:
    """x [b, s, d] after the layers of a run, whose weights' arrays have a leading axis of repeats, and so has what of
    them is held `whole`; and what of experts' choices they dropped."""
    graph, weights = nnx.split(run)

    def repeat(x: jax.Array, each: Any) -> tuple[jax.Array, jax.Array]:
        dropped = jnp.zeros((), jnp.float32)
        for i in range(len(run)):

            def layer(x: jax.Array, each: Any, i: int = i) -> tuple[jax.Array, jax.Array]:
                if whole is None:
                    return nnx.merge(graph, each)[i](x, turn)
                mine, there = each
                return standing(run[0].spec, nnx.merge(graph, mine), there)[i](x, turn)

            x, more = jax.checkpoint(layer, policy=policy, prevent_cse=False)(x, each)
            dropped += more
        return x, dropped

    with jax.named_scope("layers"):
        x, dropped = jax.lax.scan(repeat, x, weights if whole is None else (weights, whole))
        return x, dropped.sum()


def _narrow_normal(rngs: nnx.Rngs) -> Callable[..., jax.Array]:
    return lambda shape, dtype: EMBEDDING_SCALE * jax.random.normal(rngs.params(), shape, dtype)

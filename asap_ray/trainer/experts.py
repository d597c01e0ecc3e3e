"""A mixture of experts inside a manual shard_map: router, dispatch, expert feed-forward, combination.

Each rank holds its own tokens, split over every mesh axis (over tensor by sequence parallelism), and for its experts
(those of its place on the expert axis) the columns of its place on the tensor axis. How tokens and weights meet:

- expert axis 1: tokens are gathered over tensor once, whatever topk; each rank computes its columns of all experts, and
  the sum over topk is taken before one reduce-scatter.
- expert axis n: each token's copies go by all_to_all to the ranks of their experts while the sequence is split, and are
  gathered over tensor there; results are reduce-scattered and go back the same way.

With a capacity every expert has a fixed number of slots and its matmul is a batched one; without (dropless), rows are
sorted by expert for a grouped matmul. The router's weight multiplies what enters the down projection, which is linear:
the backward pass then needs no expert's output, so that neither it nor its way back is ever computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from asap_ray.trainer.grouped import Kernel, grouped_matmul
from asap_ray.trainer.row_moves import Moves, Sorted, by_owner, collect, of_tokens, permuted, spread, windows

ROOM = 1.25
"""Rows that a dropless rank has room for from each other rank, over the even share; shapes are static, so there has to
be a bound. 1.25 is the usual capacity factor (Switch Transformer, arXiv 2101.03961, section 2.2), here on the load of a
whole rank, which is more even than an expert's. What has no room is dropped and counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertShape:
    """What of a mixture of experts is static: its sizes, the axes it is spread over, and how rows meet their experts.

    `capacity` is how many tokens an expert has room for, over its even share (0: dropless). `room` bounds a dropless
    exchange over an expert axis (see ROOM); `room` = `expert` lets all rows go to one rank. `balance` asks for the
    load-balance loss. `kernel` computes dropless matmuls.
    """

    experts: int
    topk: int
    gated: bool = True
    capacity: float = 0.0
    expert: int = 1
    tensor: int = 1
    room: float = ROOM
    balance: bool = False
    kernel: Kernel = "ragged_dot"

    @property
    def held(self) -> int:
        """Experts of one rank."""
        return self.experts // self.expert

    def slots(self, tokens: int) -> int:
        """Slots of one expert for the tokens of one source, where there is a capacity."""
        return min(ceil(self.capacity * tokens * self.topk / self.experts), tokens)

    def bucket(self, tokens: int) -> int:
        """Rows that a rank can send to each rank of its expert axis, where there is no capacity."""
        most = tokens * min(self.topk, self.held)
        return min(ceil(self.room * tokens * self.topk / self.expert), most)


class ExpertWeights(NamedTuple):
    """Weights of one layer on one rank, gathered over fsdp and context; `wide` is 2 where gated.

    `gate_up` holds this rank's gate columns and then its up columns. (As [..., d, 2, d_ff / tensor] it works, too, but
    TPUs tile the two innermost dimensions, and then copy it for matmuls.) `router_bias` shifts scores for the choice
    of experts alone (DeepSeek-V3, arXiv 2412.19437, section 2.1.2), so that it has no gradient.
    """

    router: Array  # [d, experts]
    gate_up: Array  # [experts / expert, d, wide * d_ff / tensor]
    down: Array  # [experts / expert, d_ff / tensor, d]
    router_bias: Array | None = None  # [experts]


class ExpertMetrics(NamedTuple):
    """`dropped`: choices of experts that found no room, summed over all ranks they are those of the global batch.
    `balance`: the load-balance loss over this rank's own tokens (0 unless asked for)."""

    dropped: Array
    balance: Array


class Choice(NamedTuple):
    """Each token's experts `ids` [topk, tokens] and their weights `gates` [topk, tokens], float32, which sum to 1."""

    ids: Array
    gates: Array


def apply_experts(
    x: Array, weights: ExpertWeights, how: ExpertShape, shared: Callable[[Array], Array] | None = None
) -> tuple[Array, ExpertMetrics]:
    """x [b, s_local, d] through each token's experts -> y of the same shape, type and sharding, and metrics.

    `shared` computes the shared experts: tokens gathered over tensor [n, d] -> this rank's share of their output [n,
    d], not yet summed over tensor. On an expert axis of 1 they take part in the gather and the sum of the routed ones.
    """
    tokens = x.reshape(-1, x.shape[-1])
    choice, balance = route(tokens, weights, how)
    if how.expert == 1:
        whole = _gathered(tokens, how, 0)
        y, dropped = _beside(whole, Choice(*(_gathered(part, how, 1) for part in choice)), weights, how)
        y = _scattered(y if shared is None else y + shared(whole), how, 0)
        dropped = dropped / how.tensor  # every rank of the tensor axis has counted the same
    else:
        y, dropped = _across(tokens, choice, weights, how)
        if shared is not None:
            y = y + _scattered(shared(_gathered(tokens, how, 0)), how, 0)
    return y.reshape(x.shape), ExpertMetrics(dropped.astype(jnp.float32), balance)


def route(tokens: Array, weights: ExpertWeights, how: ExpertShape) -> tuple[Choice, Array]:
    """Choose topk experts for tokens [n, d]; their weights are those of a softmax over all, normalised to sum to 1 (as
    Mixtral, arXiv 2401.04088, section 2.1). Also the load-balance loss (Switch Transformer, section 2.2, equation 4):
    1 where all is even."""
    logits = jnp.dot(tokens, weights.router.astype(tokens.dtype), preferred_element_type=jnp.float32)
    scores = jax.nn.softmax(checkpoint_name(logits, "router"))
    ranked = scores if weights.router_bias is None else scores + weights.router_bias.astype(jnp.float32)
    ids = lax.top_k(lax.stop_gradient(ranked), how.topk)[1].T
    # Picked by comparison, not by a gather, whose gradient would be a scatter.
    chosen = ids[:, :, None] == jnp.arange(how.experts)
    gates = jnp.where(chosen, scores, 0.0).sum(-1)
    balance = jnp.zeros((), jnp.float32)
    if how.balance:
        share = chosen.mean((0, 1), dtype=jnp.float32)
        balance = how.experts * jnp.dot(share, scores.mean(0))
    return Choice(ids, gates / gates.sum(0)), balance


def _beside(tokens: Array, choice: Choice, weights: ExpertWeights, how: ExpertShape) -> tuple[Array, Array]:
    """All experts here: tokens [n, d] -> this tensor rank's share of their sums [n, d], and how many choices drop."""
    n, ids, gates = len(tokens), choice.ids.reshape(-1), choice.gates.reshape(-1, 1)
    rows = by_owner(ids, how.experts)
    if how.capacity:
        moves = windows(rows, ids, rows.counts, how.slots(n))
        slots, gate = _into_slots(tokens, gates, moves)
        shape = (how.experts, how.slots(n), -1)
        out = batched_ffn(slots.reshape(shape), gate.reshape(shape), weights, how).reshape(slots.shape)
        dropped = jnp.maximum(rows.counts - how.slots(n), 0).sum()
    else:
        moves = Moves(rows.order, rows.rank[:, None])
        slots, gate = _into_slots(tokens, gates, moves)
        out, dropped = grouped_ffn(slots, gate, rows.counts, weights, how), jnp.zeros((), jnp.int32)
    return collect(out, of_tokens(moves, n)), dropped


def _into_slots(tokens: Array, gates: Array, moves: Moves) -> tuple[Array, Array]:
    """Tokens [n, d] and gates [topk * n, 1] in their slots; an empty slot weighs nothing, whatever it holds."""
    filled = (moves.sources < len(gates))[:, None]
    return spread(tokens, of_tokens(moves, len(tokens))), jnp.where(filled, spread(gates, moves), 0.0)


def _across(tokens: Array, choice: Choice, weights: ExpertWeights, how: ExpertShape) -> tuple[Array, Array]:
    """Experts spread over the expert axis: tokens [n, d] -> their sums [n, d], and how many choices were dropped."""
    n, ids, gates = len(tokens), choice.ids.reshape(-1), choice.gates.reshape(-1, 1)
    rows = by_owner(ids, how.experts)
    if how.capacity:
        room = how.slots(n)
        moves = windows(rows, ids, rows.counts, room)
        slots, gate = _into_slots(tokens, gates, moves)
        out = _batched_across(slots, gate, weights, how)
        kept = jnp.minimum(rows.counts, room)
    else:
        moves, kept = _buckets(rows, ids, n, how)
        slots, gate = _into_slots(tokens, gates, moves)
        out = _grouped_across(slots, gate, kept, weights, how)
    return collect(out, of_tokens(moves, n)), len(ids) - kept.sum()


def _batched_across(slots: Array, gate: Array, weights: ExpertWeights, how: ExpertShape) -> Array:
    """Windows of slots [experts * room, d] through the experts of their ranks and back."""

    def there(part: Array) -> Array:
        return _exchanged(part.reshape(how.expert, how.held, -1, part.shape[-1]))

    slots, gate = checkpoint_name(there(slots), "expert_in"), there(gate)
    sources = how.tensor * how.expert
    # [expert, held, room, width] -> [tensor * expert, held, room, width] -> [held, tensor * expert * room, width]
    slots, gate = (
        _gathered(part, how, 0).swapaxes(0, 1).reshape(how.held, -1, part.shape[-1]) for part in (slots, gate)
    )
    out = batched_ffn(slots, gate, weights, how)
    out = out.reshape(how.held, sources, -1, out.shape[-1]).swapaxes(0, 1)
    return _exchanged(_scattered(out, how, 0)).reshape(-1, out.shape[-1])


def _buckets(rows: Sorted, ids: Array, tokens: int, how: ExpertShape) -> tuple[Moves, Array]:
    """A bucket of slots for each rank, filled by expert; and how many of each expert's choices found room [experts]."""
    room, counts = how.bucket(tokens), rows.counts.reshape(how.expert, how.held)
    before = jnp.cumsum(counts, axis=1) - counts
    kept = jnp.clip(room - before, 0, counts).reshape(-1)
    return windows(rows, ids // how.held, counts.sum(1), room), kept


def _grouped_across(slots: Array, gate: Array, kept: Array, weights: ExpertWeights, how: ExpertShape) -> Array:
    """Buckets [expert * room, d] through the experts of their ranks and back; `kept` [experts] are the rows of each."""
    room = len(slots) // how.expert
    slots, gate, kept = (
        _exchanged(part.reshape(how.expert, -1, part.shape[-1])) for part in (slots, gate, kept[:, None])
    )
    slots = checkpoint_name(slots, "expert_in")
    slots, gate, kept = (_gathered(part, how, 0) for part in (slots, gate, kept))  # [tensor * expert, ...]
    sources = len(slots)
    # A bucket's rows come by expert; after the last one's follow empty slots, which go to no expert: `held`.
    ends = jnp.cumsum(kept[:, :, 0], axis=1)  # [sources, held]
    ids = (jnp.arange(room) >= ends[:, :, None]).sum(1, dtype=jnp.int32)  # [sources, room]
    rows = by_owner(ids.reshape(-1), how.held)
    slots, gate = (permuted(part.reshape(sources * room, -1), rows.order, rows.rank) for part in (slots, gate))
    out = grouped_ffn(slots, gate, rows.counts, weights, how)
    out = _scattered(permuted(out, rows.rank, rows.order).reshape(sources, room, -1), how, 0)
    return _exchanged(out).reshape(how.expert * room, -1)


def batched_ffn(slots: Array, gate: Array, weights: ExpertWeights, how: ExpertShape) -> Array:
    """slots [held, rows, d] through their experts, weighed by `gate` [held, rows, 1] -> [held, rows, d]."""
    hidden = jnp.einsum("erd,edf->erf", slots, _flat(weights.gate_up))
    act = _activated(checkpoint_name(hidden, "expert_gate_up"), gate, how)
    return checkpoint_name(jnp.einsum("erf,efd->erd", act, weights.down), "expert_out")


def grouped_ffn(rows: Array, gate: Array, sizes: Array, weights: ExpertWeights, how: ExpertShape) -> Array:
    """rows [n, d], sorted by expert, through their experts, weighed by `gate` [n, 1] -> [n, d]; `sizes` [held] are the
    rows of each expert, and what comes after them is unspecified."""
    hidden = grouped_matmul(rows, _flat(weights.gate_up), sizes, how.kernel)
    act = _activated(checkpoint_name(hidden, "expert_gate_up"), gate, how)
    return checkpoint_name(grouped_matmul(act, weights.down, sizes, how.kernel), "expert_out")


def _flat(gate_up: Array) -> Array:
    return gate_up.reshape(*gate_up.shape[:2], -1)


def _activated(hidden: Array, gate: Array, how: ExpertShape) -> Array:
    """SwiGLU of hidden [..., 2 * d_ff] or GELU of [..., d_ff], times the router's weight [..., 1], in float32."""
    if how.gated:
        # Cast after the halves are cut: cast whole, hidden would lie in memory in float32, too.
        d_ff = hidden.shape[-1] // 2
        act = jax.nn.silu(hidden[..., :d_ff].astype(jnp.float32)) * hidden[..., d_ff:].astype(jnp.float32)
    else:
        act = jax.nn.gelu(hidden.astype(jnp.float32))
    return checkpoint_name((act * gate).astype(hidden.dtype), "expert_act")


def _gathered(part: Array, how: ExpertShape, axis: int) -> Array:
    return part if how.tensor == 1 else lax.all_gather(part, "tensor", axis=axis, tiled=True)


def _scattered(part: Array, how: ExpertShape, axis: int) -> Array:
    if how.tensor == 1:
        return part
    return lax.psum_scatter(part, "tensor", scatter_dimension=axis, tiled=True)


def _exchanged(part: Array) -> Array:
    """part [expert, ...]: what is for each rank of the expert axis -> what each rank has sent."""
    return lax.all_to_all(part, "expert", split_axis=0, concat_axis=0, tiled=True)

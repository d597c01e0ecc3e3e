"""Rows of tokens to the slots of their experts and back, by gathers alone.

A gather's own gradient is a scatter with additions, which a TPU runs row by row. Here both directions are known: which
row each slot holds, and in which slots each row lies. So each direction is a gather, and is the other's gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Moves(NamedTuple):
    """Where rows go. `sources` [slots]: the row that a slot holds, `rows` (one past the last) where it is empty;
    `places` [rows, copies]: the slots that hold a row's copies, `slots` for a copy that has no room."""

    sources: Array
    places: Array


@jax.custom_vjp
def spread(x: Array, moves: Moves) -> Array:
    """x [rows, width] -> [slots, width]: each slot's row; an empty slot holds the last one (and must
    weigh nothing in what follows, there and back: zeros would cost one more pass over all slots)."""
    return x.at[jnp.minimum(moves.sources, len(x) - 1)].get(mode="promise_in_bounds")


@jax.custom_vjp
def collect(slots: Array, moves: Moves) -> Array:
    """[slots, width] -> [rows, width]: the sum of each row's copies, added in float32."""
    places = moves.places.T[:, :, None]  # [copies, rows, 1]: summed over the outermost dimension
    copies = slots.at[jnp.minimum(places[:, :, 0], len(slots) - 1)].get(mode="promise_in_bounds")
    copies = jnp.where(places < len(slots), copies, 0)
    return copies[0] if len(copies) == 1 else copies.astype(jnp.float32).sum(0).astype(slots.dtype)


spread.defvjp(lambda x, moves: (spread(x, moves), moves), lambda moves, g: (collect(g, moves), None))
collect.defvjp(lambda slots, moves: (collect(slots, moves), moves), lambda moves, g: (spread(g, moves), None))


@jax.custom_vjp
def permuted(x: Array, order: Array, rank: Array) -> Array:
    """x [rows, width] with row order[i] in place i; `rank` is the inverse of `order`."""
    return x.at[order].get(mode="promise_in_bounds", unique_indices=True)


permuted.defvjp(
    lambda x, order, rank: (permuted(x, order, rank), (order, rank)),
    lambda kept, g: (permuted(g, kept[1], kept[0]), None, None),
)


class Sorted(NamedTuple):
    """Rows by owner: `order` [rows] is which row stands at each place, `rank` [rows] its inverse, `counts` [owners] how
    many each has."""

    order: Array
    rank: Array
    counts: Array


def by_owner(ids: Array, owners: int) -> Sorted:
    """Sort rows by the owner that `ids` [rows] name; of one owner the first come first. Ids of `owners` and beyond are
    nobody's: they come last and are not counted."""
    order = jnp.argsort(ids, stable=True)
    counts = (ids[None, :] == jnp.arange(owners, dtype=ids.dtype)[:, None]).sum(1, dtype=jnp.int32)
    return Sorted(order, jnp.argsort(order), counts)


def windows(rows: Sorted, owner: Array, counts: Array, room: int) -> Moves:
    """Give each of some owners a window of `room` slots, filled in sorted order; what is beyond has no slot.

    `owner` [rows] of each row and `counts` [owners] may be coarser than those of `rows`, in the same order.
    """
    n = len(rows.order)
    start = jnp.cumsum(counts) - counts
    slot = jnp.arange(room, dtype=jnp.int32)
    place = jnp.minimum(start[:, None] + slot, n - 1)
    sources = jnp.where(slot < counts[:, None], rows.order[place], n).reshape(-1)
    within = rows.rank - start[owner]
    places = jnp.where(within < room, owner * room + within, len(counts) * room)
    return Moves(sources, places[:, None])


def of_tokens(moves: Moves, tokens: int) -> Moves:
    """The moves of tokens, given those of their choices, numbered choice * tokens + token."""
    empty = moves.sources == len(moves.places)
    return Moves(jnp.where(empty, tokens, moves.sources % tokens), moves.places.reshape(-1, tokens).T)

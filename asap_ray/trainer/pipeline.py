"""A pipeline as one loop: every stage does the same thing in every tick, and hands what it made to the next.

Rank r of p holds v chunks of layers; chunk k of rank r is the (k p + r)-th part of the model. Micro-batches go around
the ring in rounds of p, v times each, right behind one another, so that the round after takes the place that one
leaves: a v p + p - 1 ticks for a micro-batches of a = rounds x p, of which the last p - 1 are the bubble (interleaved
schedule of arXiv 2104.04473, section 2.2; the circular pipeline of praxis and MaxText).

Rank r also keeps the r-th micro-batch of each round before the first layer and after the last, so that embedding and
head are spread over the stages. For that a second buffer, the stream, moves the other way: what reaches rank 0 enters
the pipeline, what leaves the last rank takes the place that is free.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp


def ticks(micro_batches: int, stages: int, chunks: int) -> int:
    """Ticks of a step, each of one chunk of layers on every rank."""
    return micro_batches * chunks + stages - 1


def pipelined(
    chunk_of: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]], held: jax.Array, stages: int, chunks: int
) -> tuple[jax.Array, jax.Array]:
    """What comes of a rank's own micro-batches held [rounds, ...] after all layers of all ranks, in the same places;
    and the sum of what its chunks counted.

    `chunk_of(x, k)` runs a rank's k-th chunk of layers on one micro-batch, and counts something.
    """
    rank = jax.lax.axis_index("pipeline")
    right = [(r, (r + 1) % stages) for r in range(stages)]
    left = [(r, (r - 1) % stages) for r in range(stages)]
    rounds, lap = held.shape[0], stages * chunks
    first, last = rank == 0, rank == stages - 1

    def step(carry: tuple[jax.Array, ...], t: jax.Array) -> tuple:
        x, stream, held, count = carry
        chunk = ((t - rank) // stages) % chunks
        with jax.named_scope("stage"):
            y, more = chunk_of(x, chunk)
        busy = (t >= rank) & (t - rank < rounds * lap)
        count += jnp.where(busy, more, 0.0)
        sent = jax.lax.ppermute(y, "pipeline", right)
        after = t + 1
        # A round begins where the lap of the one before ends: its micro-batches take the stream.
        begins = (after % lap == 0) & (after // lap < rounds)
        own = jax.lax.dynamic_index_in_dim(held, jnp.minimum(after // lap, rounds - 1), 0, keepdims=False)
        stream = jnp.where(begins, own, stream)
        enters = first & (after % lap < stages)
        x = jnp.where(enters, stream, sent)
        stream = jax.lax.ppermute(stream, "pipeline", left)
        stream = jnp.where(last & (chunk == chunks - 1), y, stream)
        # The last of a round has left when the lap after it is p - 1 ticks old.
        done = (after % lap == stages - 1) & (after >= lap)
        at = jnp.clip(after // lap - 1, 0, rounds - 1)
        kept = jnp.where(done, stream, jax.lax.dynamic_index_in_dim(held, at, 0, keepdims=False))
        held = jax.lax.dynamic_update_index_in_dim(held, kept, at, 0)
        return (x, stream, held, count), None

    start = (held[0], jax.lax.ppermute(held[0], "pipeline", left), held, jnp.zeros((), jnp.float32))
    (_, _, held, count), _ = jax.lax.scan(step, start, jnp.arange(ticks(rounds * stages, stages, chunks)))
    return held, count

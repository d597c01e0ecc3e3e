"""Cross-entropy over a vocabulary that is split over the tensor axis, a chunk of tokens at a time.

The logits of a whole micro-batch are the largest tensor of a step, and their gradient follows from them alone. So each
chunk's logits are made once and turned at once into their loss, the gradient of the chunk's tokens and their share of
the head's gradient (as Liger Kernel does on one device, arXiv 2410.10989, section 3.2): nothing is computed twice and
nothing of a chunk outlives it.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

CHUNK_LOGITS = 2**26
"""Logits that are held at once on a device: 256 MiB in float32."""


def chunks_of(tokens: int, vocab: int) -> int:
    """Into how many alike chunks so many tokens are cut, for a device's part of the vocabulary."""
    least = -(-tokens * vocab // CHUNK_LOGITS)
    return next(n for n in range(max(least, 1), tokens + 1) if tokens % n == 0)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def cross_entropy(x: jax.Array, head: jax.Array, targets: jax.Array, split: int, vocab: int) -> jax.Array:
    """This device's share of the summed loss: x [tokens, d], head [vocab / split, d], targets [tokens].

    The `split` ranks of the tensor axis hold the same tokens and each its part of the vocabulary; the sum of their
    shares is the loss of the tokens. `vocab` is the size without padding.
    """
    return _forward(x, head, targets, split, vocab)[0]


def _forward(
    x: jax.Array, head: jax.Array, targets: jax.Array, split: int, vocab: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    first = jax.lax.axis_index("tensor") * head.shape[0] if split > 1 else 0

    def chunk(carry: tuple[jax.Array, jax.Array], part: tuple[jax.Array, jax.Array]) -> tuple:
        (loss, dw), (rows, labels) = carry, part
        logits = jnp.einsum("td,vd->tv", rows, head, preferred_element_type=jnp.float32)
        columns = jnp.arange(head.shape[0]) + first
        logits = jnp.where(columns < vocab, logits, -jnp.inf)
        top = _over(jnp.max(logits, axis=1), split, jax.lax.pmax)
        exponents = jnp.exp(logits - top[:, None])
        total = _over(jnp.sum(exponents, axis=1), split, jax.lax.psum)
        hit = columns[None, :] == labels[:, None]
        right = jnp.sum(jnp.where(hit, logits, 0.0), axis=1)  # on one rank alone; 0 on the others
        loss += jnp.sum((jnp.log(total) + top) / split - right)
        dlogits = (exponents / total[:, None] - hit).astype(x.dtype)
        dx = jnp.einsum("tv,vd->td", dlogits, head)
        return (loss, dw + jnp.einsum("tv,td->vd", dlogits, rows)), dx

    with jax.named_scope("head"):
        n = chunks_of(x.shape[0], head.shape[0])
        parts = (x.reshape(n, -1, x.shape[1]), targets.reshape(n, -1))
        start = (jnp.zeros((), jnp.float32), jnp.zeros_like(head))
        if n == 1:
            (loss, dw), dx = chunk(start, (parts[0][0], parts[1][0]))
        else:
            (loss, dw), dx = jax.lax.scan(chunk, start, parts)
        return loss, (dx.reshape(x.shape), dw)


def _backward(split: int, vocab: int, saved: tuple[jax.Array, jax.Array], share: jax.Array) -> tuple:
    dx, dw = saved
    return (dx * share).astype(dx.dtype), (dw * share).astype(dw.dtype), None


def _over(values: jax.Array, split: int, reduce: object) -> jax.Array:
    return reduce(values, "tensor") if split > 1 else values  # type: ignore[operator]


cross_entropy.defvjp(_forward, _backward)

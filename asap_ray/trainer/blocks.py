"""One block of attention: queries of one chunk over keys of another, forward and backward, for every kernel.

All arrays are head-major, `[batch, heads, seq, width]`, so that the sequence is axis 2 of each. A block's backward pass
takes the row statistics of the *whole* softmax: with the log-sum-exp over all keys a query sees, the probabilities
`exp(score - lse)` of a block are those of the whole, and its gradients simply add up (FlashAttention-2, arXiv
2307.08691, section 3.1; over a ring: arXiv 2310.01889).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True, slots=True)
class Mask:
    """Which keys a query of a block sees; query i of S lies beside key i + (keys - S).

    `causal`: none to its right. `window`: only those nearer than this, itself included (0: all).
    """

    causal: bool = False
    window: int = 0

    def visible(self, queries: int, keys: int) -> jax.Array | None:
        """Boolean [queries, keys], or None where a query sees all."""
        if not self.causal and not self.window:
            return None
        ahead = jnp.arange(keys)[None, :] - (jnp.arange(queries)[:, None] + keys - queries)
        return near(ahead, self)

    def pairs(self, queries: int, keys: int) -> int:
        """How many (query, key) pairs are visible: the scores that a model's FLOPs count."""
        beside = np.arange(queries, dtype=np.int64) + keys - queries
        last = beside if self.causal else beside + self.window - 1 if self.window else np.full(queries, keys - 1)
        first = beside - self.window + 1 if self.window else np.zeros(queries, np.int64)
        return int(np.maximum(np.minimum(last, keys - 1) - np.maximum(first, 0) + 1, 0).sum())

    def scope(self, queries: int, keys: int) -> str:
        """A name for the scope of a kernel's call, by which a reader of the HLO knows what the mask leaves."""
        return f"pairs={self.pairs(queries, keys)}"


def near(ahead: jax.Array, mask: Mask) -> jax.Array:
    """Which keys are seen, by how far each lies ahead of its query."""
    seen = ahead <= 0 if mask.causal else jnp.ones_like(ahead, bool)
    return seen & (jnp.abs(ahead) < mask.window) if mask.window else seen


class Rows(NamedTuple):
    """What a backward pass knows of each query's row, over all keys that it sees.

    `out` and `gradient` [batch, heads, seq, v], `lse` and `delta` [batch, heads, seq] in float32; `delta` is the sum
    of out × gradient over v.
    """

    out: jax.Array
    gradient: jax.Array
    lse: jax.Array
    delta: jax.Array


@dataclass(frozen=True, slots=True)
class Kernel:
    """The two passes of a block. q [b, heads, s, qk], k [b, kv, t, qk], v [b, kv, t, v]; kv divides heads.

    `forward(q, k, v, mask, scale, first)` gives the output [b, heads, s, v] and the log-sum-exp of the scaled scores
    [b, heads, s] in float32; `backward(q, k, v, rows, mask, scale, first)` gives the gradients of q, k and v. Keys
    before `first`, a number known at run time only, are not seen (None: all are); each query sees at least one.
    """

    forward: Callable[..., tuple[jax.Array, jax.Array]]
    backward: Callable[..., tuple[jax.Array, jax.Array, jax.Array]]

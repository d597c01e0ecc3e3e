"""Ring attention over the `context` axis in the zigzag layout: keys and values go round, every step is as much work.

Rank i of n holds chunks i and 2n-1-i of a sequence's 2n (Striped/zigzag ring, arXiv 2311.09431). With keys of rank m:
its first chunk is always seen by this rank's second; besides, where m < i it is also seen by this rank's first, and
where m > i its second is seen by this rank's second. So each step is two half × half blocks without a mask, the second
one chosen by `where`, and no rank waits for another.

Forward, keys and values make n-1 hops; backward they make them again, and their gradients n-1 of their own (they start
one rank further and come home). The permute of the next step starts before the blocks of this one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from asap_ray.trainer.blocks import Kernel, Mask, Rows

AXIS = "context"
ALL = Mask()


class Ring(NamedTuple):
    """How a ring attends: its size, its kernel, whether queries see only what is behind them, the scores' scale."""

    size: int
    kernel: Kernel
    causal: bool
    scale: float


def forward(q: jax.Array, k: jax.Array, v: jax.Array, ring: Ring) -> tuple[jax.Array, jax.Array]:
    """This rank's output [b, heads, s, v] (in q's type) and log-sum-exp [b, heads, s] over the whole sequence."""
    kv = _pass_on((k, v), ring)
    out, lse = ring.kernel.forward(q, k, v, Mask(causal=ring.causal), ring.scale)
    step = _causal_step if ring.causal else _full_step

    def body(carry: Any, index: Any) -> Any:
        kv, sums = carry
        coming = _pass_on(kv, ring)
        return (coming, step(q, kv, sums, index, ring)), None

    sums = (out.astype(jnp.float32), lse)
    (kv, sums), _ = _repeat(body, (kv, sums), range(1, ring.size - 1))
    out, lse = step(q, kv, sums, ring.size - 1, ring)
    return out.astype(q.dtype), lse


def backward(q: jax.Array, k: jax.Array, v: jax.Array, rows: Rows, ring: Ring) -> tuple[jax.Array, ...]:
    """Gradients of this rank's q, k and v."""
    kv = _pass_on((k, v), ring)
    dq, dk, dv = ring.kernel.backward(q, k, v, rows, Mask(causal=ring.causal), ring.scale)
    step = _causal_gradients if ring.causal else _full_gradients

    def add(kv: Any, sums: Any, index: Any) -> Any:
        """Gradients of the keys at hand come from the rank before, while this one computes its own part of them."""
        dq, travelling = sums
        arrived = None if travelling is None else _pass_on(travelling, ring)
        more, own = step(q, kv, rows, index, ring)
        return dq + more, own if arrived is None else jax.tree.map(lambda a, b: a + b.astype(a.dtype), arrived, own)

    def body(carry: Any, index: Any) -> Any:
        kv, sums = carry
        coming = _pass_on(kv, ring)
        return (coming, add(kv, sums, index)), None

    sums = (dq.astype(jnp.float32), None)
    if ring.size > 2:
        (kv, sums), _ = body((kv, sums), 1)
        (kv, sums), _ = _repeat(body, (kv, sums), range(2, ring.size - 1))
    dq, travelled = add(kv, sums, ring.size - 1)
    home = _pass_on(travelled, ring)
    return dq.astype(q.dtype), dk + home[0], dv + home[1]


def _repeat(body: Any, carry: Any, steps: range) -> Any:
    return lax.scan(body, carry, jnp.arange(steps.start, steps.stop)) if len(steps) else (carry, None)


def _pass_on(tree: Any, ring: Ring) -> Any:
    neighbours = [(rank, (rank + 1) % ring.size) for rank in range(ring.size)]
    return jax.tree.map(lambda x: lax.ppermute(x, AXIS, neighbours), tree)


def merge(a: tuple[jax.Array, jax.Array], b: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Softmax over the keys of both from (output, log-sum-exp) over each; -inf says that a row saw none.

    The first of the two has seen some. Outputs [.., s, v], log-sum-exps [.., s].
    """
    (out_a, lse_a), (out_b, lse_b) = a, b
    lse = jnp.logaddexp(lse_a, lse_b)
    weigh = lambda out, part: out * jnp.exp(part - lse)[..., None]  # noqa: E731
    return weigh(out_a, lse_a) + weigh(out_b.astype(jnp.float32), lse_b), lse


def _halves(tree: Any) -> tuple[Any, Any]:
    """First and second chunk of arrays whose axis 2 is the sequence."""
    half = jax.tree.leaves(tree)[0].shape[2] // 2
    return jax.tree.map(lambda x: x[:, :, :half], tree), jax.tree.map(lambda x: x[:, :, half:], tree)


def _joined(first: Any, second: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=2), first, second)


def _either(condition: jax.Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def _from_earlier(index: Any) -> jax.Array:
    """Whether the keys of this step are of a rank below this one."""
    return lax.axis_index(AXIS) >= index


def _causal_step(q: jax.Array, kv: Any, sums: Any, index: Any, ring: Ring) -> Any:
    earlier = _from_earlier(index)
    (q1, q2), (kv1, kv2) = _halves(q), _halves(kv)
    always = ring.kernel.forward(q2, *kv1, ALL, ring.scale)
    out, lse = ring.kernel.forward(jnp.where(earlier, q1, q2), *_either(earlier, kv1, kv2), ALL, ring.scale)
    first, second = _halves(sums)
    first = merge(first, (out, jnp.where(earlier, lse, -jnp.inf)))
    second = merge(merge(second, always), (out, jnp.where(earlier, -jnp.inf, lse)))
    return _joined(first, second)


def _causal_gradients(q: jax.Array, kv: Any, rows: Rows, index: Any, ring: Ring) -> tuple[jax.Array, Any]:
    """Gradients of all of q, and of the keys and values that came by, from this step's two blocks."""
    earlier = _from_earlier(index)
    (q1, q2), (kv1, kv2), (rows1, rows2) = _halves(q), _halves(kv), _halves(rows)
    chosen = _either(earlier, (q1, *kv1, rows1), (q2, *kv2, rows2))
    dq2, *dkv1 = ring.kernel.backward(q2, *kv1, rows2, ALL, ring.scale)
    dq, *dkv = ring.kernel.backward(*chosen, ALL, ring.scale)
    nought = jax.tree.map(jnp.zeros_like, (dq, dkv))
    in_first, in_second = _either(earlier, (dq, dkv), nought), _either(earlier, nought, (dq, dkv))
    dq = _joined(in_first[0], in_second[0] + dq2)
    return dq, tuple(_joined(jax.tree.map(jnp.add, in_first[1], dkv1), in_second[1]))


def _full_step(q: jax.Array, kv: Any, sums: Any, index: Any, ring: Ring) -> Any:
    return merge(sums, ring.kernel.forward(q, *kv, ALL, ring.scale))


def _full_gradients(q: jax.Array, kv: Any, rows: Rows, index: Any, ring: Ring) -> tuple[jax.Array, Any]:
    dq, dk, dv = ring.kernel.backward(q, *kv, rows, ALL, ring.scale)
    return dq, (dk, dv)

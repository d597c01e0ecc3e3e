"""Attention equals an unsharded softmax in float64 NumPy: output and gradients, for every mask, size and head count."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from asap_ray.trainer.attention import AttentionShape, attend, order

SEQ = 32
TOLERANCE = 2e-5  # float32, of numbers around 1; sums over 32 keys


def softmax_attention(q, k, v, causal=True, window=0, scale=1.0, sinks=None):
    """Row by row in float64. q [b, s, h, d], k and v [b, s, kv, ·]; gives [b, s, h, v]."""
    b, s, heads, _ = q.shape
    out = np.zeros((b, s, heads, v.shape[-1]))
    for batch, i, head in np.ndindex(b, s, heads):
        shared = head * k.shape[2] // heads
        seen = [j for j in range(s) if (j <= i or not causal) and (not window or abs(i - j) < window)]
        logits = np.array([scale * q[batch, i, head] @ k[batch, j, shared] for j in seen])
        weights = np.exp(logits)
        weights /= weights.sum() + (0 if sinks is None else np.exp(sinks[head]))
        out[batch, i, head] = weights @ v[batch, seen, shared]
    return out


def inputs(heads=4, kv=2, qk=8, width=8, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(2, SEQ, heads, qk), (2, SEQ, kv, qk), (2, SEQ, kv, width), (2, SEQ, heads, width)]
    return [rng.normal(size=shape) for shape in shapes], rng.normal(size=heads)


def sharded(how: AttentionShape, arrays, sinks):
    """Output and gradients of sum(output × weights) by q, k, v and sinks, in natural order."""
    mesh = Mesh(np.array(jax.devices()[: how.context]), ("context",))
    places = order(SEQ, how.context)
    back = np.argsort(places)
    spec = P(None, "context")

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(spec,) * 4 + (P(),), out_specs=(spec,) * 4 + (P(),), check_vma=False
    )
    def run(q, k, v, weights, sinks):
        out, pull = jax.vjp(lambda q, k, v, sinks: attend(q, k, v, how, sinks), q, k, v, sinks)
        *grads, dsinks = pull(weights)
        return out, *grads, None if dsinks is None else jax.lax.psum(dsinks, "context")

    laid = [jnp.asarray(x[:, places], jnp.float32) for x in arrays]
    *rows, dsinks = jax.block_until_ready(
        jax.jit(run)(*laid, None if sinks is None else jnp.asarray(sinks, jnp.float32))
    )
    return [np.asarray(x)[:, back] for x in rows] + ([] if sinks is None else [np.asarray(dsinks)])


def numerical(f, x, direction):
    """Derivative of f at x along a direction, by central differences in float64."""
    step = 1e-6
    return (f(x + step * direction) - f(x - step * direction)) / (2 * step)


def check(how: AttentionShape, sinks=False, **sizes):
    arrays, logits = inputs(**sizes)
    logits = logits if sinks else None
    found = sharded(how, arrays, logits)
    dense = functools.partial(softmax_attention, causal=how.causal, window=how.window, scale=how.scale)
    q, k, v, weights = arrays
    np.testing.assert_allclose(found[0], dense(q, k, v, sinks=logits), atol=TOLERANCE)
    loss = lambda q, k, v, logits: (dense(q, k, v, sinks=logits) * weights).sum()  # noqa: E731
    at = [q, k, v, logits]
    rng = np.random.default_rng(1)
    for index, gradient in enumerate(found[1:]):
        direction = rng.normal(size=gradient.shape) / np.sqrt(gradient.size)
        moved = functools.partial(lambda index, x: loss(*at[:index], x, *at[index + 1 :]), index)
        want = numerical(moved, at[index], direction)
        assert (gradient * direction).sum() == pytest.approx(want, abs=1e-4), f"gradient {index}"


CAUSAL = AttentionShape(causal=True, scale=0.35, kernel="reference")


@pytest.mark.parametrize("context", [1, 2, 4, 8])
@pytest.mark.parametrize(("heads", "kv"), [(4, 4), (4, 2), (4, 1)])
def test_causal_attention_over_the_ring_is_attention(context: int, heads: int, kv: int) -> None:
    check(replace(CAUSAL, context=context), heads=heads, kv=kv)

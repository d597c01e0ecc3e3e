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

from asap_ray.trainer import unfused
from asap_ray.trainer.attention import AttentionShape, attend, order, positions
from asap_ray.trainer.blocks import Mask, Rows

SEQ = 32
TOLERANCE = 2e-5  # float32, of numbers around 1; sums over 32 keys


def softmax_attention(q, k, v, causal=True, window=0, scale=1.0, sinks=None):
    """Head by head in float64. q [b, s, h, d], k and v [b, s, kv, ·]; gives [b, s, h, v]."""
    b, s, heads, _ = q.shape
    unseen = np.array([[(j > i and causal) or (0 < window <= abs(i - j)) for j in range(s)] for i in range(s)])
    out = np.zeros((b, s, heads, v.shape[-1]))
    for batch, head in np.ndindex(b, heads):
        shared = head * k.shape[2] // heads
        weights = np.exp(scale * q[batch, :, head] @ k[batch, :, shared].T)
        weights[unseen] = 0
        total = weights.sum(1, keepdims=True) + (0 if sinks is None else np.exp(sinks[head]))
        out[batch, :, head] = weights / total @ v[batch, :, shared]
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


@pytest.mark.parametrize(("context", "heads", "kv"), [(1, 4, 2), (2, 4, 2), (4, 4, 4), (4, 4, 1), (8, 4, 2)])
def test_causal_attention_over_the_ring_is_attention(context: int, heads: int, kv: int) -> None:
    check(replace(CAUSAL, context=context), heads=heads, kv=kv)


@pytest.mark.parametrize(("context", "sinks"), [(1, True), (2, False), (2, True)])
def test_keys_may_be_wider_than_values_and_rows_may_have_sinks(context: int, sinks: bool) -> None:
    check(replace(CAUSAL, context=context), heads=2, kv=2, qk=12, width=8, sinks=sinks)


# Chunks of 8 tokens at context 2: a window within one, over several, and over more than there are.
@pytest.mark.parametrize(("context", "window"), [(1, 3), (2, 1), (2, 3), (2, 8), (2, 17), (2, 31), (2, 32), (8, 3)])
def test_a_window_sees_itself_and_the_keys_before_it(context: int, window: int) -> None:
    check(replace(CAUSAL, context=context, window=window), sinks=window == 3)


@pytest.mark.parametrize(("context", "window"), [(1, 0), (1, 5), (2, 5), (4, 0)])
def test_attention_that_is_not_causal_sees_both_sides(context: int, window: int) -> None:
    check(replace(CAUSAL, causal=False, context=context, window=window))


@pytest.mark.parametrize("how", [CAUSAL, replace(CAUSAL, window=100), replace(CAUSAL, causal=False)])
def test_what_a_fused_kernel_saves_gives_the_gradients_that_autodiff_gives(how: AttentionShape) -> None:
    """At context 1 the reference is differentiated by JAX; its two passes, as the ring runs them, must agree."""
    (q, k, v, weights), _ = inputs()
    q, k, v, weights = (jnp.asarray(x, jnp.float32).swapaxes(1, 2) for x in (q, k, v, weights))
    mask = Mask(causal=how.causal, window=how.window)
    out, lse = unfused.forward(q, k, v, mask, how.scale)
    grads = unfused.backward(q, k, v, Rows(out, weights, lse, (out * weights).sum(-1)), mask, how.scale)
    want, pull = jax.vjp(lambda *x: unfused.dense(*x, mask.visible(SEQ, SEQ), how.scale, None), q, k, v)
    for one, other in zip((out, *grads), (want, *pull(weights)), strict=True):
        np.testing.assert_allclose(one, other, atol=TOLERANCE)


def test_the_zigzag_of_two_ranks_by_hand() -> None:
    assert order(8, 1).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert order(8, 2).tolist() == [0, 1, 6, 7, 2, 3, 4, 5]


@pytest.mark.parametrize("context", [1, 2, 8])
def test_each_rank_knows_the_positions_of_its_tokens(context: int) -> None:
    mesh = Mesh(np.array(jax.devices()[:context]), ("context",))
    spec = P("context")
    found = jax.jit(
        jax.shard_map(lambda: positions(SEQ, context), mesh=mesh, in_specs=(), out_specs=spec, check_vma=False)
    )()
    assert np.asarray(found).tolist() == order(SEQ, context).tolist()


@pytest.mark.parametrize("context", [2, 4, 8])
def test_the_ring_sends_keys_and_values_n_minus_1_times_and_their_gradients_as_often(context: int) -> None:
    how = replace(CAUSAL, context=context)
    mesh = Mesh(np.array(jax.devices()[:context]), ("context",))
    spec = P(None, "context")
    run = jax.shard_map(
        lambda q, k, v: jax.grad(lambda *x: attend(*x, how).sum(), (0, 1, 2))(q, k, v),
        mesh=mesh,
        in_specs=(spec,) * 3,
        out_specs=(spec,) * 3,
        check_vma=False,
    )
    q, kv = jnp.zeros((1, SEQ, 2, 4)), jnp.zeros((1, SEQ, 1, 4))
    # Of k and v each: forward and backward n - 1, and n - 1 of the gradient.
    assert sends(jax.make_jaxpr(run)(q, kv, kv).jaxpr) == 2 * 3 * (context - 1)


def sends(jaxpr) -> int:
    """How often `ppermute` runs, loops multiplied out."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [x for value in equation.params.values() for x in (value if isinstance(value, tuple) else [value])]
        bodies = [getattr(x, "jaxpr", x) for x in inner if hasattr(getattr(x, "jaxpr", x), "eqns")]
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += (equation.primitive.name == "ppermute") + times * sum(map(sends, bodies))
    return total


@pytest.mark.parametrize(
    ("mask", "queries", "keys"),
    [(Mask(), 3, 5), (Mask(True), 6, 6), (Mask(True), 3, 7), (Mask(True, 2), 6, 9), (Mask(False, 3), 6, 6)],
)
def test_pairs_are_counted_as_the_mask_shows_them(mask: Mask, queries: int, keys: int) -> None:
    visible = mask.visible(queries, keys)
    assert mask.pairs(queries, keys) == (queries * keys if visible is None else int(visible.sum()))


def test_a_policy_that_saves_the_context_runs_the_ring_once() -> None:
    how = replace(CAUSAL, context=2)
    mesh = Mesh(np.array(jax.devices()[:2]), ("context",))
    spec = P(None, "context")

    def gradients(policy):
        layer = jax.checkpoint(lambda *x: attend(*x, how), policy=policy)
        run = lambda *x: jax.grad(lambda *x: layer(*x).sum(), (0, 1, 2))(*x)  # noqa: E731
        return jax.shard_map(run, mesh=mesh, in_specs=(spec,) * 3, out_specs=(spec,) * 3, check_vma=False)

    q, kv = jnp.zeros((1, SEQ, 2, 4)), jnp.zeros((1, SEQ, 1, 4))
    saved = jax.checkpoint_policies.save_only_these_names("context")
    assert sends(jax.make_jaxpr(gradients(saved))(q, kv, kv).jaxpr) == 6
    assert sends(jax.make_jaxpr(gradients(jax.checkpoint_policies.nothing_saveable))(q, kv, kv).jaxpr) == 8

"""Attention in plain JAX, scores in memory: the reference, and what a plan without a fused kernel runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from asap_ray.trainer.blocks import Kernel, Mask, Rows


def _grouped(q: jax.Array, kv_heads: int) -> jax.Array:
    """[b, heads, s, d] to [b, kv, group, s, d]: the queries of one key head side by side, no key repeated."""
    b, heads, s, width = q.shape
    return q.reshape(b, kv_heads, heads // kv_heads, s, width)


def _scores(q: jax.Array, k: jax.Array, visible: jax.Array | None, scale: float) -> jax.Array:
    """Masked scores [b, kv, group, s, t] in float32; q is grouped, `visible` is [s, t]."""
    scores = jnp.einsum("bhgsd,bhtd->bhgst", q, k, preferred_element_type=jnp.float32) * scale
    return scores if visible is None else jnp.where(visible, scores, -jnp.inf)


def dense(
    q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array | None, scale: float, sinks: jax.Array | None
) -> jax.Array:
    """Softmax attention for JAX to differentiate: the probabilities are kept, under the name `scores`.

    `visible` [s, t] says which keys each query sees (None: all); the rest is as for a `Kernel`.
    """
    scores = _scores(_grouped(q, k.shape[1]), k, visible, scale)
    if sinks is not None:
        logits = sinks.astype(jnp.float32).reshape(k.shape[1], -1, 1, 1)
        scores = jnp.concatenate([scores, jnp.broadcast_to(logits, (*scores.shape[:-1], 1))], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., : k.shape[2]].astype(v.dtype)
    weights = checkpoint_name(weights, "scores")
    out = jnp.einsum("bhgst,bhtv->bhgsv", weights, v)
    return checkpoint_name(out.reshape(*q.shape[:-1], v.shape[-1]), "context")


def _visible(q: jax.Array, k: jax.Array, mask: Mask, first: jax.Array | None) -> jax.Array | None:
    visible = mask.visible(q.shape[2], k.shape[2])
    if first is None:
        return visible
    late = jnp.arange(k.shape[2]) >= first
    return late[None, :] if visible is None else visible & late


def forward(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, scale: float, first: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Output and log-sum-exp of one block; see `Kernel`."""
    scores = _scores(_grouped(q, k.shape[1]), k, _visible(q, k, mask, first), scale)
    lse = jax.nn.logsumexp(scores, axis=-1)
    weights = jnp.exp(scores - lse[..., None]).astype(v.dtype)
    out = jnp.einsum("bhgst,bhtv->bhgsv", weights, v)
    return out.reshape(*q.shape[:-1], v.shape[-1]), lse.reshape(q.shape[:-1])


def backward(
    q: jax.Array, k: jax.Array, v: jax.Array, rows: Rows, mask: Mask, scale: float, first: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of q, k and v of one block; see `Kernel`."""
    kv = k.shape[1]
    q_grouped, gradient = _grouped(q, kv), _grouped(rows.gradient, kv)
    lse, delta = (each.reshape(*q_grouped.shape[:-1], 1) for each in (rows.lse, rows.delta))
    weights = jnp.exp(_scores(q_grouped, k, _visible(q, k, mask, first), scale) - lse)
    dv = jnp.einsum("bhgst,bhgsv->bhtv", weights.astype(v.dtype), gradient)
    dweights = jnp.einsum("bhgsv,bhtv->bhgst", gradient, v, preferred_element_type=jnp.float32)
    dscores = (weights * (dweights - delta) * scale).astype(q.dtype)
    dq = jnp.einsum("bhgst,bhtd->bhgsd", dscores, k)
    dk = jnp.einsum("bhgst,bhgsd->bhtd", dscores, q_grouped)
    return dq.reshape(q.shape), dk, dv


KERNEL = Kernel(forward, backward)

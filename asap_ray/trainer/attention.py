"""Attention inside the trainer's manual `shard_map`: one call for every kernel, mask and size of the context axis.

With context = n > 1 each rank holds chunks i and 2n-1-i of the 2n chunks of a sequence, in that order, so that causal
work is even; `order` says which token lies where. Full causal layers go round the ring (`ring.py`). Layers with a
window gather keys and values over the context axis instead, which moves more than a window needs, and each chunk
attends to those near it; their gradients are scattered back. cuDNN cannot hide the keys before a sequence's first at
run time, so there, as for a window that is not causal, such a layer's scores are in memory.

A fused kernel keeps q, k, v, the output and its log-sum-exp for the backward pass. The last two carry the name
`context`, so that a recomputation policy which saves it does not run the kernel (nor the ring) again. Do not name the
output of `attend` a second time.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from asap_ray.trainer import ring, unfused
from asap_ray.trainer.blocks import Kernel, Mask, Rows, near

KEYS_TILE = 512
KernelName = Literal["splash", "cudnn", "reference"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionShape:
    """How a layer attends.

    `window`: keys a query sees, itself included (0: all). `scale` multiplies q · k. `context` is the size of the mesh
    axis of that name. `kernel`: splash on TPU, cudnn on NVIDIA GPUs, reference anywhere. `tiles` are splash's, in
    queries and keys (0: its own choice).
    """

    causal: bool = True
    window: int = 0
    scale: float
    context: int = 1
    kernel: KernelName = "reference"
    tiles: tuple[int, int] = (0, 0)


def order(seq_len: int, context: int) -> np.ndarray:
    """Position of the token at each place, int32 [seq_len]: rank 0's places first, then rank 1's, …"""
    if context == 1:
        return np.arange(seq_len, dtype=np.int32)
    chunks = np.arange(seq_len, dtype=np.int32).reshape(2 * context, -1)
    return np.concatenate([chunks[[rank, 2 * context - 1 - rank]].ravel() for rank in range(context)])


def positions(seq_len: int, context: int) -> jax.Array:
    """Positions of this rank's tokens, int32 [seq_len / context], inside the `shard_map`."""
    if context == 1:
        return jnp.arange(seq_len, dtype=jnp.int32)
    rank, chunk = lax.axis_index(ring.AXIS), seq_len // (2 * context)
    starts = jnp.stack([rank, 2 * context - 1 - rank]) * chunk
    return (starts[:, None] + jnp.arange(chunk)).reshape(-1).astype(jnp.int32)


def attend(q: jax.Array, k: jax.Array, v: jax.Array, how: AttentionShape, sinks: jax.Array | None = None) -> jax.Array:
    """Softmax attention of this rank's queries over all keys of their sequence.

    q [b, s, heads, qk], k [b, s, kv, qk], v [b, s, kv, v] with s = seq / context; `sinks` [heads] is one more logit in
    each row's softmax. Gives [b, s, heads, v] in q's type. The softmax is float32.
    """
    if how.window >= q.shape[1] * how.context:
        how = replace(how, window=0)
    with jax.named_scope("attention"):
        q, k, v = q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2)
        if how.context > 1 and how.window:
            out = _windowed(q, k, v, sinks, how) if how.causal else _gathered(q, k, v, sinks, how)
        elif how.context == 1 and how.kernel == "reference":
            visible = Mask(causal=how.causal, window=how.window).visible(q.shape[2], k.shape[2])
            out = unfused.dense(q, k, v, visible, how.scale, sinks)
        else:
            out: Any = _fused(q, k, v, sinks, None, how)
        return jnp.swapaxes(out, 1, 2)


def kernel_named(name: KernelName, tiles: tuple[int, int] = (0, 0)) -> Kernel:
    """The two passes of a kernel; its own imports wait until then."""
    if name == "splash":
        from asap_ray.trainer import splash

        return splash.tiled(*tiles) if any(tiles) else splash.KERNEL
    if name == "cudnn":
        from asap_ray.trainer import cudnn

        return cudnn.KERNEL
    if name == "reference":
        return unfused.KERNEL
    raise ValueError(f"no attention kernel is called {name}")


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _fused(
    q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array | None, first: jax.Array | None, how: AttentionShape
) -> jax.Array:
    """Head-major attention whose backward pass starts from the saved output and log-sum-exp; `first` as in `Kernel`."""
    return _fused_forward(q, k, v, sinks, first, how)[0]


def _fused_forward(
    q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array | None, first: jax.Array | None, how: AttentionShape
) -> tuple[Any, ...]:
    kernel = kernel_named(how.kernel, how.tiles)
    if how.context > 1:
        out, lse = ring.forward(q, k, v, ring.Ring(how.context, kernel, how.causal, how.scale))
    else:
        out, lse = kernel.forward(q, k, v, Mask(causal=how.causal, window=how.window), how.scale, first)
    if sinks is not None:  # a key without a value: it takes its share of the softmax and adds nothing
        whole = jnp.logaddexp(lse, sinks.astype(jnp.float32)[None, :, None])
        out = (out * jnp.exp(lse - whole)[..., None]).astype(q.dtype)
        lse = whole
    out, lse = checkpoint_name(out, "context"), checkpoint_name(lse, "context")
    return out, (q, k, v, sinks, first, out, lse)


def _fused_backward(how: AttentionShape, saved: tuple[Any, ...], gradient: jax.Array) -> tuple[Any, ...]:
    q, k, v, sinks, first, out, lse = saved
    kernel = kernel_named(how.kernel, how.tiles)
    with jax.named_scope("attention"):
        delta = jnp.einsum("bhsv,bhsv->bhs", out, gradient, preferred_element_type=jnp.float32)
        rows = Rows(out=out, gradient=gradient, lse=lse, delta=delta)
        if how.context > 1:
            grads = ring.backward(q, k, v, rows, ring.Ring(how.context, kernel, how.causal, how.scale))
        else:
            grads = kernel.backward(q, k, v, rows, Mask(causal=how.causal, window=how.window), how.scale, first)
        if sinks is None:
            return *grads, None, None
        share = jnp.exp(sinks.astype(jnp.float32)[None, :, None] - lse)
        return *grads, -(share * delta).sum((0, 2)).astype(sinks.dtype), None


_fused.defvjp(_fused_forward, _fused_backward)


def _windowed(q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array | None, how: AttentionShape) -> jax.Array:
    """Each of this rank's two chunks over its own keys and those a window before them, cut out of all keys."""
    chunk = q.shape[2] // 2
    seq_len = 2 * how.context * chunk
    # Whole tiles, so that a kernel finds a tile that divides the keys; no query looks back further than to the first.
    tile = math.gcd(chunk, KEYS_TILE)
    before = min(-(-(how.window - 1) // tile) * tile, seq_len - chunk)
    padded = [jnp.pad(_all_keys(x, how.context), ((0, 0), (0, 0), (before, 0), (0, 0))) for x in (k, v)]
    alone = replace(how, context=1)
    outs = []
    for half, start in enumerate(positions(seq_len, how.context)[::chunk]):
        near_keys = [lax.dynamic_slice_in_dim(x, start, before + chunk, axis=2) for x in padded]
        own = q[:, :, half * chunk : (half + 1) * chunk]
        outs.append(_fused(own, *near_keys, sinks, jnp.maximum(before - start, 0), alone))
    return jnp.concatenate(outs, axis=2)


def _all_keys(x: jax.Array, context: int) -> jax.Array:
    """Keys or values [b, kv, s, width] of every rank, by position."""
    b, kv, s, width = x.shape
    chunks = lax.all_gather(x.reshape(b, kv, 1, 2, s // 2, width), ring.AXIS, axis=2, tiled=True)
    natural = jnp.concatenate([chunks[:, :, :, 0], chunks[:, :, ::-1, 1]], axis=2)
    return natural.reshape(b, kv, s * context, width)


def _gathered(q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array | None, how: AttentionShape) -> jax.Array:
    """All keys here, masked by position, in plain JAX: a window on both sides of a query."""
    k, v = (lax.all_gather(x, ring.AXIS, axis=2, tiled=True) for x in (k, v))
    seq_len = k.shape[2]
    of_keys = jnp.asarray(order(seq_len, how.context))
    ahead = of_keys[None, :] - positions(seq_len, how.context)[:, None]
    visible = near(ahead, Mask(causal=how.causal, window=how.window))
    return unfused.dense(q, k, v, visible, how.scale, sinks)

"""Attention inside the trainer's manual `shard_map`: one call for every kernel, mask and size of the context axis.

With context = n > 1 each rank holds chunks i and 2n-1-i of the 2n chunks of a sequence, in that order, so that causal
work is even; `order` says which token lies where. Full causal layers go round the ring (`ring.py`). Layers with a
window gather keys and values over the context axis instead and mask them by position: right, and more than a window
needs; their gradients are scattered back.

A fused kernel keeps q, k, v, the output and its log-sum-exp for the backward pass. The last two carry the name
`context`, so that a recomputation policy which saves it does not run the kernel (nor the ring) again. Do not name the
output of `attend` a second time.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from asap_ray.trainer import ring, unfused
from asap_ray.trainer.blocks import Kernel, Mask, Rows, near

KernelName = Literal["splash", "triton", "cudnn", "reference"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionShape:
    """How a layer attends.

    `window`: keys a query sees, itself included (0: all). `scale` multiplies q · k. `context` is the size of the mesh
    axis of that name. `kernel`: splash on TPU, triton or cudnn on GPU, reference anywhere.
    """

    causal: bool = True
    window: int = 0
    scale: float
    context: int = 1
    kernel: KernelName = "reference"


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
    with jax.named_scope("attention"):
        q, k, v = q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2)
        mask = Mask(causal=how.causal, window=how.window)
        if how.context > 1 and how.window:
            out = _gathered(q, k, v, how, sinks)
        elif how.context == 1 and how.kernel == "reference":
            out = unfused.dense(q, k, v, mask.visible(q.shape[2], k.shape[2]), how.scale, sinks)
        else:
            out: Any = _fused(q, k, v, sinks, how)
        return jnp.swapaxes(out, 1, 2)


def kernel_named(name: KernelName) -> Kernel:
    """The two passes of a kernel; its own imports wait until then."""
    if name == "reference":
        return unfused.KERNEL
    if name == "splash":
        from asap_ray.trainer import splash

        return splash.KERNEL
    raise NotImplementedError(name)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _fused(q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array | None, how: AttentionShape) -> jax.Array:
    """Head-major attention whose backward pass starts from the saved output and log-sum-exp."""
    return _fused_forward(q, k, v, sinks, how)[0]


def _fused_forward(
    q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array | None, how: AttentionShape
) -> tuple[Any, ...]:
    kernel = kernel_named(how.kernel)
    if how.context > 1:
        out, lse = ring.forward(q, k, v, ring.Ring(how.context, kernel, how.causal, how.scale))
    else:
        out, lse = kernel.forward(q, k, v, Mask(causal=how.causal, window=how.window), how.scale)
    if sinks is not None:  # a key without a value: it takes its share of the softmax and adds nothing
        whole = jnp.logaddexp(lse, sinks.astype(jnp.float32)[None, :, None])
        out = (out * jnp.exp(lse - whole)[..., None]).astype(q.dtype)
        lse = whole
    out, lse = checkpoint_name(out, "context"), checkpoint_name(lse, "context")
    return out, (q, k, v, sinks, out, lse)


def _fused_backward(how: AttentionShape, saved: tuple[jax.Array, ...], gradient: jax.Array) -> tuple[Any, ...]:
    q, k, v, sinks, out, lse = saved
    kernel = kernel_named(how.kernel)
    with jax.named_scope("attention"):
        delta = jnp.einsum("bhsv,bhsv->bhs", out, gradient, preferred_element_type=jnp.float32)
        rows = Rows(out=out, gradient=gradient, lse=lse, delta=delta)
        if how.context > 1:
            grads = ring.backward(q, k, v, rows, ring.Ring(how.context, kernel, how.causal, how.scale))
        else:
            grads = kernel.backward(q, k, v, rows, Mask(causal=how.causal, window=how.window), how.scale)
        if sinks is None:
            return *grads, None
        share = jnp.exp(sinks.astype(jnp.float32)[None, :, None] - lse)
        return *grads, -(share * delta).sum((0, 2)).astype(sinks.dtype)


_fused.defvjp(_fused_forward, _fused_backward)


def _gathered(q: jax.Array, k: jax.Array, v: jax.Array, how: AttentionShape, sinks: jax.Array | None) -> jax.Array:
    """Attention of a layer with a window where the sequence is sharded: all keys here, masked by position."""
    k, v = (lax.all_gather(x, ring.AXIS, axis=2, tiled=True) for x in (k, v))
    seq_len = k.shape[2]
    of_keys = jnp.asarray(order(seq_len, how.context))
    ahead = of_keys[None, :] - positions(seq_len, how.context)[:, None]
    visible = near(ahead, Mask(causal=how.causal, window=how.window))
    return unfused.dense(q, k, v, visible, how.scale, sinks)

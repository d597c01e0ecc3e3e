"""Matmuls of 8-bit floats: operands scaled to their largest number, e4m3 forward, e5m2 for gradients of outputs.

The recipe is that of Micikevicius et al. (arXiv 2209.05433) with scales taken from the operands at hand, one a tensor
and device.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2


def _narrow(x: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """x in 8 bits, and the float32 factor that brings it back."""
    scale = jnp.maximum(jnp.max(jnp.abs(x)).astype(jnp.float32), 1e-12) / float(jnp.finfo(dtype).max)
    return (x.astype(jnp.float32) / scale).astype(dtype), scale


def _product(a: jax.Array, b: jax.Array, dimensions: tuple, like: jnp.dtype, scale: jax.Array) -> jax.Array:
    product = jax.lax.dot_general(a, b, (dimensions, ((), ())), preferred_element_type=jnp.float32)
    return (product * scale).astype(like)


@jax.custom_vjp
def fp8_matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    """x [..., k] times w [k, n], both in e4m3."""
    return _forward(x, w)[0]


def _forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple]:
    (a, sa), (b, sb) = _narrow(x, E4M3), _narrow(w, E4M3)
    y = _product(a, b, ((x.ndim - 1,), (0,)), x.dtype, sa * sb)
    return y, (a, sa, b, sb, jnp.zeros((), x.dtype))


def _backward(saved: tuple, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, sa, b, sb, like = saved
    g, sg = _narrow(dy, E5M2)
    rows = tuple(range(dy.ndim - 1))
    dx = _product(g, b, ((dy.ndim - 1,), (1,)), like.dtype, sg * sb)
    dw = _product(a, g, (rows, rows), like.dtype, sa * sg)
    return dx, dw


fp8_matmul.defvjp(_forward, _backward)

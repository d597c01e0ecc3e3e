"""Blocks of attention by cuDNN's fused kernels on NVIDIA GPUs (Hopper and later for widths over 128, and for MLA).

The kernels are called below JAX's public function, which asks a GPU and an installed cuDNN for their versions: where a
program is only compiled, there is neither. Queries of a group share keys; q and k may be wider than v. cuDNN chooses
its engine, and with it its workspace, when a program is loaded on a GPU: HLO compiled without one has a workspace of 0
bytes, and its memory lacks the float32 sum for the gradient of q (4 bytes × heads × queries × width) of one layer.

What cuDNN does not do runs in plain JAX: float32, a window that is not causal, a causal block that is not square, keys
that are hidden at run time.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from asap_ray.trainer import unfused
from asap_ray.trainer.blocks import Kernel, Mask, Rows

WIDEST = 256


def fits(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask) -> bool:
    """Whether cuDNN has a kernel for a block."""
    square = not mask.causal or q.shape[2] == k.shape[2]
    widths = all(x.shape[3] <= WIDEST and x.shape[3] % 8 == 0 for x in (q, v))
    return q.dtype.itemsize == 2 and square and widths and (mask.causal or not mask.window)


def forward(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, scale: float, first: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Output and log-sum-exp of one block; see `Kernel`."""
    if first is not None or not fits(q, k, v, mask):
        return unfused.forward(q, k, v, mask, scale, first)
    with jax.named_scope(mask.scope(q.shape[2], k.shape[2])):
        out, lse = cudnn._dot_product_attention_fwd_p.bind(
            *_sequence_major(q, k, v), *_absent(7), **_settings(mask, scale), is_training=True
        )
        return out.swapaxes(1, 2), lse


def backward(
    q: jax.Array, k: jax.Array, v: jax.Array, rows: Rows, mask: Mask, scale: float, first: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of q, k and v of one block; see `Kernel`. cuDNN sums out × gradient itself."""
    if first is not None or not fits(q, k, v, mask):
        return unfused.backward(q, k, v, rows, mask, scale, first)
    with jax.named_scope(mask.scope(q.shape[2], k.shape[2])):
        out, gradient = _sequence_major(rows.out, rows.gradient)
        dq, dk, dv = cudnn._dot_product_attention_bwd_p.bind(
            *_sequence_major(q, k, v), *_absent(7), rows.lse, out, gradient, **_settings(mask, scale)
        )
        return dq.swapaxes(1, 2), dk.swapaxes(1, 2), dv.swapaxes(1, 2)


def _sequence_major(*arrays: jax.Array) -> list[jax.Array]:
    """[b, seq, heads, width], as the model has them: two transposes cancel, and nothing is copied."""
    return [x.swapaxes(1, 2) for x in arrays]


def _absent(count: int) -> list[jax.Array]:
    """Operands that are not used: bias, lengths, offsets and page tables."""
    return [jnp.zeros(0)] * count


def _settings(mask: Mask, scale: float) -> dict[str, Any]:
    return {
        "scale": scale,
        "seed": 42,
        "dropout_rate": 0.0,
        "variadic_args": (False, False),
        "mask_type": cudnn.MaskType.CAUSAL if mask.causal else cudnn.MaskType.NO_MASK,
        "layout": cudnn.AttentionLayout.BTNH.value,
        "sliding_window_length": mask.window or None,
    }


KERNEL = Kernel(forward, backward)

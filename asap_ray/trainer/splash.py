"""Blocks of attention by JAX's splash kernel for TPU (`jax.experimental.pallas.ops.tpu.splash_attention`).

The forward pass is the library's own. Its backward kernels are called below its public interface, because that one
takes no log-sum-exp over keys of other blocks, which the ring needs. Queries of a group share keys, which are never
repeated. Widths that are no multiple of 128 lanes (64; MLA's 192 for q and k) are padded by Mosaic inside the kernel:
they take the time of the next multiple.

Tiles are as large as divides the sequence, up to `LARGEST`, or half of it where heads are wider than 128: the backward
kernel's tiles must lie in 16 MB of VMEM. The gradient of q comes out of the kernel of k's and v's
(5 matmuls instead of 7) as one partial sum for each key block, all of them in HBM: so only up to `MOST_PARTIALS`, and
of the largest tiles, for with smaller ones adding them up takes longer than two more matmuls.
A chunk of a sequence that is no multiple of 128 runs in plain JAX.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from asap_ray.trainer import unfused
from asap_ray.trainer.blocks import Kernel, Mask, Rows
from asap_ray.trainer.priced import priced

LANES = 128
LARGEST = 1024
LARGEST_COMPUTE = 512
MOST_PARTIALS = 4


def tile(length: int, largest: int) -> int:
    """The largest multiple of 128 up to `largest` that divides a length, itself a multiple of 128."""
    return max(size for size in range(LANES, largest + 1, LANES) if length % size == 0)


def block_sizes(queries: int, keys: int, width: int = LANES, wanted: tuple[int, int] = (0, 0)) -> splash.BlockSizes:
    """Tiles for a block of this size; `wanted` are upper limits for those of queries and keys, 0 for the usual one."""
    largest = LARGEST if width <= LANES else LARGEST // 2
    q, kv = tile(queries, wanted[0] or largest), tile(keys, wanted[1] or largest)
    compute = tile(kv, LARGEST_COMPUTE)
    fused = keys == kv or (kv == LARGEST and keys // kv <= MOST_PARTIALS)
    return splash.BlockSizes(
        block_q=q,
        block_kv=kv,
        block_kv_compute=compute,
        block_q_dkv=q,
        block_kv_dkv=kv,
        block_kv_dkv_compute=compute,
        block_q_dq=None if fused else q,
        block_kv_dq=None if fused else kv,
        use_fused_bwd_kernel=fused,
    )


def _library_mask(mask: Mask, queries: int, keys: int) -> masks.Mask:
    shape, offset = (queries, keys), keys - queries
    if mask.window:
        return masks.LocalMask(shape, (mask.window - 1, 0 if mask.causal else mask.window - 1), offset)
    return masks.CausalMask(shape, offset) if mask.causal else masks.FullMask(shape)


@functools.lru_cache(maxsize=64)
def library_kernel(
    mask: Mask, heads: int, queries: int, keys: int, width: int, wanted: tuple[int, int] = (0, 0)
) -> splash.SplashAttentionKernel:
    """The library's kernel for a mask, made once; what it knows of the mask is NumPy, free of any trace."""
    every_head = masks.MultiHeadMask([_library_mask(mask, queries, keys)] * heads)
    with jax.ensure_compile_time_eval():
        kernel = splash.make_splash_mha(
            every_head,
            block_sizes=block_sizes(queries, keys, width, wanted),
            head_shards=1,
            q_seq_shards=1,
            save_residuals=True,
        )
        return jax.tree.map(np.asarray, kernel)


@dataclass(frozen=True, slots=True)
class Block:
    """The three passes over one block of one shape, and what each costs."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    mask: Mask
    first: jax.Array | None
    interpret: bool
    wanted: tuple[int, int] = (0, 0)

    @property
    def kernel(self) -> splash.SplashAttentionKernel:
        """The library's kernel for this shape."""
        _, heads, queries, width = self.q.shape
        return library_kernel(self.mask, heads, queries, self.k.shape[2], width, self.wanted)

    @property
    def tiles(self) -> splash.BlockSizes:
        """Tile sizes of this shape."""
        return block_sizes(self.q.shape[2], self.k.shape[2], self.q.shape[3], self.wanted)

    @property
    def segments(self) -> splash.SegmentIds | None:
        """Which keys may be seen at all, as the library says it: those of the queries' own segment."""
        if self.first is None:
            return None
        hidden = jnp.arange(self.k.shape[2]) < self.first
        return splash.SegmentIds(q=jnp.zeros(self.q.shape[2], jnp.int32), kv=hidden.astype(jnp.int32))

    def call(self, function: Any, qk_matmuls: int, v_matmuls: int, **arguments: Any) -> Any:
        """A kernel of the library over every sequence of the batch, with its cost, counted by its matmuls.

        `arguments` hold its `mask_info`; `bq` and `bkv` are its tile. Each matmul is a product over the width of
        keys (`qk_matmuls`) or of values.
        """
        kernel, info = self.kernel, arguments["mask_info"]
        known = ("mask_value", "is_mqa", "attn_logits_soft_cap", "mask_function")
        common = {name: kernel.kwargs[name] for name in known} | {"interpret": self.interpret, "sinks": None}
        common["segment_ids"] = self.segments
        queries, keys = self.q.shape[2], self.k.shape[2]
        tile, width = arguments["bq"] * arguments["bkv"], qk_matmuls * self.q.shape[3] + v_matmuls * self.v.shape[3]
        heads = self.q.shape[0] * self.q.shape[1]
        every = queries * keys // tile
        run = heads * (every if info.block_mask is None else int(np.count_nonzero(info.block_mask)))
        moved = self.q.dtype.itemsize * (self.q.shape[3] + self.v.shape[3])
        cost = pl.CostEstimate(
            flops=2 * run * tile * width,
            transcendentals=run * tile,
            bytes_accessed=moved * (run * max(arguments["bq"], arguments["bkv"]) + 2 * heads * queries),
        )
        return priced(
            jax.vmap(functools.partial(function, **common, **arguments)), cost, self.mask.scope(queries, keys)
        )


def forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: Mask,
    scale: float,
    first: jax.Array | None = None,
    interpret: bool = False,
    wanted: tuple[int, int] = (0, 0),
) -> tuple[jax.Array, jax.Array]:
    """Output and log-sum-exp of one block; see `Kernel`."""
    if q.shape[2] % LANES or k.shape[2] % LANES:
        return unfused.forward(q, k, v, mask, scale, first)
    block = Block(q, k, v, mask, first, interpret, wanted)
    run = block.call(
        _forward_pass,
        qk_matmuls=1,
        v_matmuls=1,
        mask_info=block.kernel.fwd_mask_info,
        bq=block.tiles.block_q,
        bkv=block.tiles.block_kv,
        block_sizes=block.tiles,
    )
    return run(_scaled(q, scale), k, v)


def _forward_pass(
    q: jax.Array, k: jax.Array, v: jax.Array, *, mask_info: Any, bq: int, bkv: int, **given: Any
) -> tuple[jax.Array, jax.Array]:
    out, (lse,) = splash._splash_attention_forward(
        mask_info, q, k, v, save_residuals=True, residual_checkpoint_name=None, **given
    )
    return out, lse


def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    rows: Rows,
    mask: Mask,
    scale: float,
    first: jax.Array | None = None,
    interpret: bool = False,
    wanted: tuple[int, int] = (0, 0),
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of q, k and v of one block; see `Kernel`."""
    if q.shape[2] % LANES or k.shape[2] % LANES:
        return unfused.backward(q, k, v, rows, mask, scale, first)
    block = Block(q, k, v, mask, first, interpret, wanted)
    tiles, kernel = block.tiles, block.kernel
    layouts = {name: getattr(tiles, name) for name in ("q_layout", "k_layout", "v_layout")}
    of_keys = block.call(
        _keys_pass,
        qk_matmuls=3 if tiles.use_fused_bwd_kernel else 2,
        v_matmuls=2,
        mask_info=kernel.dkv_mask_info,
        bq=tiles.block_q_dkv,
        bkv=tiles.block_kv_dkv,
        bkv_compute=tiles.block_kv_dkv_compute,
        use_fused_bwd_kernel=tiles.use_fused_bwd_kernel,
        **layouts,
    )
    operands = (_scaled(q, scale), k, v, rows.lse, rows.gradient, rows.delta)
    dq, dk, dv = of_keys(*operands)
    if not tiles.use_fused_bwd_kernel:
        of_queries = block.call(
            _queries_pass,
            qk_matmuls=2,
            v_matmuls=1,
            mask_info=kernel.dq_mask_info,
            bq=tiles.block_q_dq,
            bkv=tiles.block_kv_dq,
            **layouts,
        )
        dq = of_queries(*operands)
    return _scaled(dq, scale), dk, dv


def _keys_pass(q: Any, k: Any, v: Any, lse: Any, gradient: Any, delta: Any, **given: Any) -> tuple[Any, Any, Any]:
    return splash._splash_attention_bwd_dkv(q, k, v, logsumexp=lse, do=gradient, di=delta, **given)


def _queries_pass(q: Any, k: Any, v: Any, lse: Any, gradient: Any, delta: Any, **given: Any) -> Any:
    return splash._splash_attention_bwd_dq(q, k, v, logsumexp=lse, do=gradient, di=delta, **given)


def _scaled(x: jax.Array, scale: float) -> jax.Array:
    return (x * jnp.float32(scale)).astype(x.dtype)


def tiled(block_q: int, block_kv: int, interpret: bool = False) -> Kernel:
    """The kernels with tiles of at most so many queries and keys; 0 leaves the usual limit."""
    given = {"interpret": interpret, "wanted": (block_q, block_kv)}
    return Kernel(functools.partial(forward, **given), functools.partial(backward, **given))


KERNEL = Kernel(forward, backward)
INTERPRETED = Kernel(functools.partial(forward, interpret=True), functools.partial(backward, interpret=True))
"""The same kernels, run on the host by Pallas' interpreter: for tests."""

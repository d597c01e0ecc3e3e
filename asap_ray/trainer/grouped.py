"""Grouped matmuls: rows sorted by expert, each run of rows times its own expert's weights.

Three are needed: forward, the rows' gradient, and the weights' gradient. XLA's `ragged_dot` does the first two well on
TPUs, but expands the third to a dense matmul for every group: as many times the FLOPs as there are experts. So TPUs use
Megablox (Gale et al., arXiv 2211.15841, as Pallas kernels in JAX), whose FLOPs are those of the rows, and which tells
them to the compiler as `cost_estimate`: a custom call has no cycles.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

Kernel = Literal["ragged_dot", "megablox", "megablox_interpreted"]

KERNELS: Mapping[str, Kernel] = {"tpu": "megablox", "cuda": "ragged_dot", "cpu": "ragged_dot"}
"""The kernel of each platform."""

ROW_TILES = (512, 256, 128)
LARGEST_TILE = 1024  # 512 x 1024 x 1024: MaxText's default; with two buffers each it fits the 16 MiB that a kernel gets
LANES = 128


def grouped_matmul(rows: Array, weights: Array, sizes: Array, kernel: Kernel) -> Array:
    """rows [m, k], sorted by group, times weights [groups, k, n] -> [m, n] in the rows' own type.

    `sizes` [groups] are how many rows each group has. They may sum to less than m; what stands in the rows beyond is
    unspecified, and what comes back for them as a gradient is not used.
    """
    if kernel == "ragged_dot":
        return jax.lax.ragged_dot(rows, weights, sizes)
    m = len(rows)
    # Its kernels want whole tiles of rows. Those that are added belong to no group.
    rows = jnp.pad(rows, ((0, -m % ROW_TILES[-1]), (0, 0)))
    product: Array = _megablox(rows, weights, sizes, kernel == "megablox_interpreted")
    return product[:m]


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _megablox(rows: Array, weights: Array, sizes: Array, interpret: bool) -> Array:
    # Imported here: importing Pallas takes a second.
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm

    tiling = _tiling(len(rows), *weights.shape[1:])
    return gmm(rows, weights, sizes, rows.dtype, tiling, interpret=interpret)


def _forward(rows: Array, weights: Array, sizes: Array, interpret: bool) -> tuple[Array, tuple[Array, Array, Array]]:
    return _megablox(rows, weights, sizes, interpret), (rows, weights, sizes)


def _backward(interpret: bool, kept: tuple[Array, Array, Array], g: Array) -> tuple[Array, Array, None]:
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm

    rows, weights, sizes = kept
    (m, k), n = rows.shape, weights.shape[2]
    to_rows = gmm(g, weights, sizes, rows.dtype, _tiling(m, n, k), transpose_rhs=True, interpret=interpret)
    to_weights = tgmm(rows.T, g, sizes, weights.dtype, _tiling(m, k, n), interpret=interpret)
    return to_rows, to_weights, None


_megablox.defvjp(_forward, _backward)


def _tiling(m: int, k: int, n: int) -> tuple[int, int, int]:
    return next(tile for tile in ROW_TILES if m % tile == 0), _tile(k), _tile(n)


def _tile(size: int) -> int:
    """The tile of a dimension: what it pads and what small tiles read again are weighed against each other."""
    if size <= LARGEST_TILE:
        return size
    tiles = range(LANES, LARGEST_TILE + 1, LANES)
    return min(tiles, key=lambda tile: -(-size // tile) * tile * (1 + LANES / tile))

"""Grouped matmuls: rows sorted by expert, each run of rows times its own expert's weights."""

from __future__ import annotations

from typing import Literal

import jax
from jax import Array

Kernel = Literal["ragged_dot"]


def grouped_matmul(rows: Array, weights: Array, sizes: Array, kernel: Kernel) -> Array:
    """rows [m, k], sorted by group, times weights [groups, k, n] -> [m, n] in the rows' own type.

    `sizes` [groups] are how many rows each group has. They may sum to less than m; what stands in the rows beyond is
    unspecified, and no gradient comes from them.
    """
    return jax.lax.ragged_dot(rows, weights, sizes)

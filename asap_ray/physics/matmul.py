"""Time of one matmul on one device, by its shape.

A matmul [m, k] x [k, n] needs 2*m*k*n FLOPs. Matrix units work on tiles, so each dimension is rounded up to them:

- A TPU streams the m rows through a systolic array that holds a tile of k x n weights; k and n are rounded to the
  array's side, m to 8 sublanes (scaling book, "How to think about TPUs").
- A GPU hands output tiles of m x n to its SMs in waves; the last wave counts like a full one (wave quantisation, NVIDIA
  "Matrix Multiplication Background"). Tiles of half the side waste less and reach 0.75 of the rate.

A short contraction k does not amortise filling the pipeline: the rate is k / (k + ramp) of the large-matmul rate.
Time is the larger of the compute time and of moving each operand once, plus a launch (counted by the caller).
"""

from __future__ import annotations

import numpy as np

from asap_ray.physics.calibration import Machine

SUBLANES = 8
SMALL_TILE_RATE = 0.75

Number = np.ndarray | float | int


def utilisation(m: Number, k: Number, n: Number, machine: Machine, groups: Number = 1) -> Number:
    """Useful share of the matrix units' work, 0 to 1, for `groups` alike matmuls [m, k] x [k, n] side by side."""
    ramp = k / (k + machine.contraction_ramp)
    if machine.streams:
        tile = machine.tile
        return ramp * (_filled(m, SUBLANES) * _filled(k, tile) * _filled(n, tile))
    large = _waves(m, n, machine.tile, machine.units, groups)
    small = _waves(m, n, machine.tile // 2, machine.units * 4, groups)
    return ramp * np.maximum(large, SMALL_TILE_RATE * small)


def matmul_s(
    m: Number, k: Number, n: Number, peak: Number, machine: Machine, groups: Number = 1, number_bytes: Number = 2.0
) -> np.ndarray:
    """Seconds of `groups` alike matmuls on one device at `peak` FLOP/s, all arguments broadcast together."""
    compute = 2.0 * m * k * n * groups / (peak * utilisation(m, k, n, machine, groups))
    traffic = (m * k + k * n + m * n) * groups * number_bytes
    return np.maximum(compute, traffic / machine.hbm_bytes_per_s)


def _filled(size: Number, tile: int) -> Number:
    return size / (np.ceil(size / tile) * tile)


def _waves(m: Number, n: Number, tile: int, units: float, groups: Number) -> Number:
    # Four half-side tiles run at once on a unit, so `units` is scaled by the caller to keep the peak the same.
    tiles = np.ceil(m / tile) * np.ceil(n / tile) * groups
    rounded = np.ceil(tiles / units) * units * float(tile) ** 2
    return m * n * groups / rounded

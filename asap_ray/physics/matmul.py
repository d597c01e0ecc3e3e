"""Time of one matmul on one device, by its shape.

A matmul [m, k] x [k, n] needs 2*m*k*n FLOPs. Matrix units work on tiles, so each dimension is rounded up to them:

- A TPU streams the m rows through a systolic array that holds a tile of k x n weights; k and n are rounded to the
  array's side, m to 8 sublanes (scaling book, "How to think about TPUs").
- A GPU hands output tiles of m x n to its SMs in waves; the last wave counts like a full one (wave quantisation, NVIDIA
  "Matrix Multiplication Background"). Tiles of half the side waste less and reach 0.75 of the rate.

A short contraction k does not amortise filling the pipeline: the rate is k / (k + ramp) of the large-matmul rate.
Time is the larger of the compute time and of moving each operand once, plus a launch (counted by the caller). `Work`
keeps apart how long the matrix units wait for HBM: what the bytes take beyond the FLOPs at the full rate. What tiles
that are not full add to that is the kernel's own loss, and not HBM's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asap_ray.physics.calibration import Machine

SUBLANES = 8
SMALL_TILE_RATE = 0.75
"""Rate of half-side tiles. Assumed: a tile of side s reads 2/s numbers a multiply-add, so halves wait more on L2."""

Number = np.ndarray | float | int


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of some kernels, one after the other: in all, of them those in which the matrix units wait for HBM, and
    those in which HBM is busy, under compute or not."""

    total_s: np.ndarray
    waits_s: np.ndarray
    hbm_s: np.ndarray

    def __add__(self, other: Work) -> Work:
        """First these kernels, then the others."""
        return Work(self.total_s + other.total_s, self.waits_s + other.waits_s, self.hbm_s + other.hbm_s)

    def times(self, count: np.ndarray | float) -> Work:
        """The same kernels `count` times."""
        return Work(count * self.total_s, count * self.waits_s, count * self.hbm_s)

    @classmethod
    def moved(cls, hbm_s: np.ndarray) -> Work:
        """Kernels that do nothing but move bytes."""
        return cls(hbm_s, hbm_s, hbm_s)

    @classmethod
    def none(cls, *shape: int) -> Work:
        """Nothing yet."""
        return cls(*(np.zeros(shape) for _ in range(3)))


def utilisation(m: Number, k: Number, n: Number, machine: Machine, groups: Number = 1) -> Number:
    """Useful share of the matrix units' work, 0 to 1, for `groups` alike matmuls [m, k] x [k, n] side by side."""
    ramp = k / (k + machine.contraction_ramp)
    if machine.streams:
        tile = machine.tile
        return ramp * (_filled(m, SUBLANES) * _filled(k, tile) * _filled(n, tile))
    large = _waves(m, n, machine.tile, machine.units, groups)
    small = _waves(m, n, machine.tile // 2, machine.units * 4, groups)
    return ramp * np.maximum(large, SMALL_TILE_RATE * small)


def matmul_work(
    m: Number, k: Number, n: Number, peak: Number, machine: Machine, groups: Number = 1, number_bytes: Number = 2.0
) -> Work:
    """`groups` alike matmuls on one device at `peak` FLOP/s, all arguments broadcast together."""
    full_rate = np.asarray(2.0 * m * k * n * groups / peak)
    hbm = np.asarray((m * k + k * n + m * n) * groups * number_bytes / machine.hbm_bytes_per_s)
    total = np.maximum(full_rate / utilisation(m, k, n, machine, groups), hbm)
    return Work(total, np.maximum(hbm - full_rate, 0.0), hbm)


def gradients_work(
    m: Number, k: Number, n: Number, peak: Number, machine: Machine, groups: Number = 1, number_bytes: Number = 2.0
) -> Work:
    """The backward pass of the same matmuls: the gradients of their inputs and of their weights."""
    of_input = matmul_work(m, n, k, peak, machine, groups, number_bytes)
    return of_input + matmul_work(k, m, n, peak, machine, groups, number_bytes)


def _filled(size: Number, tile: int) -> Number:
    return size / (np.ceil(size / tile) * tile)


def _waves(m: Number, n: Number, tile: int, units: float, groups: Number) -> Number:
    # Four half-side tiles run at once on a unit, so `units` is scaled by the caller to keep the peak the same.
    tiles = np.ceil(m / tile) * np.ceil(n / tile) * groups
    rounded = np.ceil(tiles / units) * units * float(tile) ** 2
    return m * n * groups / rounded

"""Matmuls by hand: full tiles, part-filled tiles, waves, short contractions, and weights that are merely read."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from asap_ray.physics.calibration import Machine
from asap_ray.physics.matmul import SMALL_TILE_RATE, matmul_work, utilisation


def matmul_s(*shape):
    """Seconds of a matmul."""
    return matmul_work(*shape).total_s


@pytest.fixture
def v5e(physics) -> Machine:
    return Machine.achieved(physics.chips["v5e"], physics.perfect)


@pytest.fixture
def h100(physics) -> Machine:
    return Machine.achieved(physics.chips["h100"], physics.perfect)


def test_perfect_shapes_use_all_of_a_tpu_as_the_ramp_vanishes(v5e):
    assert utilisation(8192, 1024, 4096, v5e) == 1.0
    losses = [1 - utilisation(8192, 1024, 4096, replace(v5e, contraction_ramp=ramp)) for ramp in (64, 8, 1, 1e-6)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 1e-8
    assert losses[0] == pytest.approx(64 / (1024 + 64))


def test_perfect_waves_use_all_of_a_gpu(h100):
    # 132 SMs, one 128 x 128 tile each: 12 x 11 tiles is one wave.
    assert utilisation(12 * 128, 4096, 11 * 128, h100) == 1.0


def test_a_contraction_as_long_as_the_ramp_halves_the_rate(v5e):
    assert utilisation(1024, 256, 1024, replace(v5e, contraction_ramp=256)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("m", "k", "n", "share"),
    [
        (1024, 96, 1024, 96 / 128),  # heads of 96 in an array of 128
        (1024, 130, 1024, 130 / 256),  # one column into the second tile
        (1024, 128, 64, 64 / 128),
        (4, 128, 128, 4 / 8),  # rows come eight at a time
        (1025, 200, 72, 1025 / 1032 * 200 / 256 * 72 / 128),
    ],
)
def test_part_filled_tiles_of_a_systolic_array(v5e, m, k, n, share):
    assert utilisation(m, k, n, v5e) == pytest.approx(share, rel=1e-12)


def test_a_bigger_array_wastes_more(physics):
    # v6e's arrays have 256 a side: 128 columns fill half.
    v6e = Machine.achieved(physics.chips["v6e"], physics.perfect)
    assert utilisation(1024, 1024, 128, v6e) == 0.5


def test_the_second_wave_of_a_gpu_is_paid_in_full(h100):
    # 12 x 11 tiles fill 132 SMs; a thirteenth row of 11 tiles needs a second wave: 143 of 264 tiles are useful.
    large = 143 / 264
    # Half-side tiles: 26 x 22 = 572 on 132 x 4 slots take two waves as well, at three quarters of the rate.
    small = SMALL_TILE_RATE * 572 / (2 * 528)
    assert utilisation(13 * 128, 4096, 11 * 128, h100) == pytest.approx(max(large, small))


def test_small_outputs_take_small_tiles(h100):
    # 64 x 64: a quarter of one large tile on one SM of 132; or one small tile, of which a wave has 528.
    assert utilisation(64, 4096, 64, h100) == pytest.approx(max(64 * 64 / (132 * 128**2), 0.75 * 1 / 528))
    # 66 x 128 x 128 output in half tiles: 2 x 2 x 132 tiles exactly, at 0.75; one large tile row is 66/128 filled.
    assert utilisation(132 * 64, 4096, 64, h100) == pytest.approx(max(0.5 * 66 / 132, 0.75 * 132 / 528))


def test_experts_side_by_side_share_the_waves(h100):
    # One expert's 12 tiles leave 120 SMs idle, eleven experts' fill the wave.
    assert utilisation(12 * 128, 4096, 128, h100, 11) == 1.0
    assert utilisation(12 * 128, 4096, 128, h100) < 0.2


def test_experts_are_padded_one_by_one(v5e):
    # Four tokens for each of 64 experts fill half the sublanes, though 256 tokens together would fill them all.
    assert utilisation(4, 1024, 1024, v5e, 64) == 0.5


def test_compute_bound_time_is_flops_over_peak(v5e):
    seconds = matmul_s(8192, 8192, 8192, v5e.peaks[0], v5e)
    assert seconds == pytest.approx(2 * 8192**3 / 197e12, rel=1e-12)


@pytest.mark.parametrize("chip", ["v5e", "h100"])
def test_a_small_batch_costs_the_reading_of_the_weights(physics, chip):
    machine = Machine.achieved(physics.chips[chip], physics.perfect)
    seconds = matmul_s(8, 8192, 8192, machine.peaks[0], machine)
    bytes_ = 2 * (8192 * 8192 + 2 * 8 * 8192)
    assert seconds == pytest.approx(bytes_ / physics.chips[chip].hbm_bytes_per_s, rel=1e-12)


def test_arguments_broadcast_to_columns(v5e):
    m = np.array([128.0, 256.0, 512.0])
    together = matmul_s(m, 1024, 2048, v5e.peaks[0], v5e)
    assert together.tolist() == [float(matmul_s(rows, 1024, 2048, v5e.peaks[0], v5e)) for rows in m]


def test_a_matmul_is_never_faster_than_its_flops(v5e, h100):
    rng = np.random.default_rng(7)
    m, k, n = (rng.integers(1, 20_000, 2_000) for _ in range(3))
    for machine in (v5e, h100):
        share = np.asarray(utilisation(m, k, n, machine))
        assert np.all((share > 0) & (share <= 1))
        brute = [2.0 * a * b * c / machine.peaks[0] for a, b, c in zip(m, k, n, strict=True)]
        assert np.all(matmul_s(m, k, n, machine.peaks[0], machine) >= np.array(brute) * (1 - 1e-12))


def test_waves_by_counting_tiles_one_by_one(h100):
    rng = np.random.default_rng(11)
    for m, n in rng.integers(1, 4000, (200, 2)):
        best = 0.0
        for side, slots, rate in ((128, 132, 1.0), (64, 528, SMALL_TILE_RATE)):
            tiles = sum(1 for _ in range(0, m, side) for _ in range(0, n, side))
            # A wave of any tile size covers all SMs: slots x side^2 outputs.
            best = max(best, rate * m * n / (ceil(tiles / slots) * slots * side**2))
        assert float(utilisation(int(m), 4096, int(n), h100)) == pytest.approx(best, rel=1e-12)

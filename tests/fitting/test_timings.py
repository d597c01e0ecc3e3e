"""Times that were made from known constants give these constants back, however they are disturbed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from asap_ray.fitting.timings import (
    Gather,
    Timing,
    bounded,
    copy_fraction,
    doubts,
    each_costs,
    link_constants,
    matmul_constants,
    robust_sum,
    stream_fraction,
    timing_of,
)

CONTRACTIONS = [256, 512, 1024, 2048, 4096, 8192]
PEAK = 1e15
SIDE = 8192
FULL_S = [2 * SIDE * SIDE * k / PEAK for k in CONTRACTIONS]


def timed(seconds: float, error: float = 0.0) -> Timing:
    return Timing(seconds=seconds, error=error)


def test_a_timing_is_the_median_with_its_standard_error() -> None:
    found = timing_of([2.0, 3.0, 1.0, 100.0, 4.0])
    # The distances from 3 are 1, 0, 2, 97, 1: their median is 1, 1.4826 standard deviations of a normal distribution.
    assert found.seconds == 3.0
    assert found.error == pytest.approx(math.sqrt(math.pi / 2) * 1.4826 / math.sqrt(5), rel=1e-3)


def matmul_s(k: int, fraction: float, ramp: float) -> float:
    return 2 * SIDE * SIDE * k / (PEAK * fraction * k / (k + ramp))


@pytest.mark.parametrize(("fraction", "ramp"), [(0.8, 96.0), (0.3, 1000.0), (1.0, 0.0), (1.7, 50.0)])
def test_matmuls_give_their_fraction_and_ramp(fraction: float, ramp: float) -> None:
    found = matmul_constants(CONTRACTIONS, FULL_S, [timed(matmul_s(k, fraction, ramp)) for k in CONTRACTIONS])
    assert found["matmul_fraction"][0] == pytest.approx(fraction, rel=1e-6)
    assert found["contraction_ramp"][0] == pytest.approx(ramp, rel=1e-6, abs=1e-6)


def test_one_slow_matmul_among_six_changes_little() -> None:
    seconds = [matmul_s(k, 0.8, 96.0) for k in CONTRACTIONS]
    seconds[3] *= 2
    found = matmul_constants(CONTRACTIONS, FULL_S, [timed(each) for each in seconds])
    assert found["matmul_fraction"][0] == pytest.approx(0.8, rel=0.02)
    assert found["contraction_ramp"][0] == pytest.approx(96.0, rel=0.1)


def test_matmuls_of_one_length_tell_no_ramp() -> None:
    found = matmul_constants([1024], [1e-3], [timed(2e-3)])
    assert list(found) == ["matmul_fraction"]
    assert found["matmul_fraction"][0] == pytest.approx(0.5)


def test_standard_errors_are_the_scatter_of_repeated_fits() -> None:
    noise, rng = 0.02, np.random.default_rng(0)
    exact = np.array([matmul_s(k, 0.8, 96.0) for k in CONTRACTIONS])
    fits = [
        matmul_constants(CONTRACTIONS, FULL_S, [timed(float(each), float(each) * noise) for each in disturbed])
        for disturbed in exact * (1 + noise * rng.standard_normal((200, len(exact))))
    ]
    for name in ("matmul_fraction", "contraction_ramp"):
        values, errors = np.array([fit[name] for fit in fits]).T
        assert np.median(errors) == pytest.approx(values.std(), rel=0.25)


def test_a_fit_agrees_with_least_squares_where_nothing_is_an_outlier() -> None:
    design = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 4.0]])
    seconds = np.array([3.003, 4.996, 9.009])
    found, _ = robust_sum(design, [timed(each) for each in seconds])
    expected, *_ = np.linalg.lstsq(design / seconds[:, None], np.ones(3), rcond=None)
    assert found == pytest.approx(expected, rel=1e-9)


def test_an_unknown_is_never_negative() -> None:
    seconds, _ = each_costs([1, 2, 3], [timed(3.0), timed(2.0), timed(1.0)])
    assert seconds == 0.0


def test_each_launch_costs_what_it_adds() -> None:
    counts = [16, 64, 128]
    value, error = each_costs(counts, [timed(1e-4 + 2e-6 * count) for count in counts])
    assert value == pytest.approx(2e-6, rel=1e-6)
    assert 0 < error < 1e-6


def test_a_copy_starts_before_it_streams() -> None:
    described = [1e-3, 2e-3, 4e-3]
    value, _ = copy_fraction(described, [timed(5e-4 + each / 0.6) for each in described])
    assert value == pytest.approx(0.6, rel=1e-6)


def test_a_stream_is_a_plain_ratio() -> None:
    assert stream_fraction(3e-3, timed(4e-3, 4e-4)) == pytest.approx((0.75, 0.075))


def gathers(devices: int, hops: int, start_s: float) -> tuple[list[Gather], list[Timing]]:
    """All-gathers at 0.7 of 100 GB/s, 2 us a hop."""
    described = [size * (devices - 1) / devices / 1e11 for size in (1e4, 1e6, 1e8, 1e9)]
    times = [timed(start_s + hops * 2e-6 + each / 0.7) for each in described]
    return [Gather(hops=hops, described_s=each) for each in described], times


def test_two_groups_tell_the_start_from_the_hops() -> None:
    all_of_them, whole_s = gathers(8, 7, 5e-6)
    pair, pair_s = gathers(2, 1, 5e-6)
    found = link_constants(all_of_them + pair, whole_s + pair_s)
    values = {name: value for name, (value, _) in found.items()}
    assert values == pytest.approx({"ici_fraction": 0.7, "hop_latency_s": 2e-6, "ici_start_s": 5e-6}, rel=1e-5)


def test_one_group_counts_its_start_as_latency() -> None:
    found = link_constants(*gathers(8, 7, 7e-6))
    values = {name: value for name, (value, _) in found.items()}
    assert values == pytest.approx({"ici_fraction": 0.7, "hop_latency_s": 3e-6, "ici_start_s": 0.0}, rel=1e-5)
    assert found["ici_start_s"][1] == pytest.approx(7 * found["hop_latency_s"][1])


def test_times_that_do_not_grow_say_nothing_of_a_rate() -> None:
    kept, missing = bounded(link_constants([Gather(hops=1, described_s=each) for each in (1, 2, 4)], [timed(1.0)] * 3))
    assert "ici_fraction" not in kept
    assert list(missing) == ["ici_fraction"]


def test_constants_are_clipped_to_what_the_physics_allows() -> None:
    kept, missing = bounded(
        {"hbm_fraction": (1.3, 0.1), "contraction_ramp": (9000.0, 5.0), "pcie_fraction": (0.5, 0.1)}
    )
    assert kept == {"hbm_fraction": (1.0, 0.1), "contraction_ramp": (4096.0, 5.0), "pcie_fraction": (0.5, 0.1)}
    assert missing == {}


def test_a_figure_below_what_was_measured_is_named() -> None:
    figures = {
        "matmul_fraction": ("peak_flops.bf16", 1e14),
        "hbm_fraction": ("hbm_bytes_per_s", 2e12),
        "pcie_fraction": ("pcie_bytes_per_s", 1e12),
        "ici_fraction": ("link_bytes_per_s", 1e12),
    }
    measured = {"matmul_fraction": (1.5, 0.1), "hbm_fraction": (0.8, 0.1), "pcie_fraction": (0.01, 0.001)}
    assert doubts("hardware.local", figures, measured) == (
        "hardware.local.peak_flops.bf16=1e+14: too low, since 1.5e+14 was measured; matmul_fraction counts as 1",
        "hardware.local.pcie_bytes_per_s=1e+12: too high, since 1e+10 was measured; pcie_fraction counts as 0.02",
    )

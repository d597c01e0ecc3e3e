"""From times of small programs to constants of `conf/calibration/`: pure, so that it can be tested with known answers.

Every time is a sum of positive parts, each linear in an unknown: of a matmul [m, k] x [k, n] at the rate
peak * fraction * k / (k + ramp), the unknowns are 1 / fraction and ramp / fraction; of a collective they are the start,
the latency of a hop and 1 / fraction (the alpha-beta model of `physics.network`). So one fit serves all: non-negative
least squares of relative residuals, with outliers weighed down (Huber 1964).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from asap_ray.physics.calibration import CONSTANTS

DRIFT = 0.005
"""Relative standard error that no number of repetitions undercuts. Assumed: clocks and temperatures drift that much."""
NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
MEDIAN = 1.2533
"""Standard error of the median of a normal sample over that of its mean, sqrt(pi / 2)."""
HUBER = 1.345
"""Residual, in standard deviations, from which on a time counts less: 95% efficiency on normal errors (Huber 1964)."""
ROUNDS = 30

Estimated = dict[str, tuple[float, float]]
"""Constants by name: value and standard error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Seconds that something takes, the median of several runs, and the standard error of that."""

    seconds: float
    error: float


def timing_of(samples: Sequence[float]) -> Timing:
    """The median of repeated times in seconds, and its standard error by the median absolute deviation."""
    times = np.asarray(samples, float)
    median = float(np.median(times))
    scatter = NORMAL * float(np.median(np.abs(times - median)))
    return Timing(seconds=median, error=MEDIAN * scatter / len(times) ** 0.5)


def robust_sum(design: NDArray[np.float64], timings: Sequence[Timing]) -> tuple[NDArray, NDArray]:
    """The non-negative unknowns x of `design @ x = seconds`, by relative residuals, outliers weighed down.

    Args:
        design: what one unit of each unknown costs, in seconds, [timings, unknowns].
        timings: what was measured.

    Returns:
        The unknowns [unknowns] and their covariance [unknowns, unknowns].
    """
    seconds = np.array([each.seconds for each in timings])
    relative = design / seconds[:, None]
    scale = np.linalg.norm(relative, axis=0)  # unknowns differ by many orders of magnitude
    relative = relative / scale
    noise = max(DRIFT, float(np.median([each.error / each.seconds for each in timings])))
    weights = np.ones(len(seconds))
    found, residuals = _weighed(relative, weights)
    for _ in range(ROUNDS):
        spread = max(noise, NORMAL * float(np.median(residuals)))
        weights = np.sqrt(np.minimum(1.0, HUBER * spread / np.maximum(residuals, spread / 10)))
        found, residuals = _weighed(relative, weights)
    weighted = relative * weights[:, None]
    free = max(len(seconds) - len(found), 1)
    variance = max(noise**2, float(np.sum((weights * residuals) ** 2)) / free)
    covariance = variance * np.linalg.pinv(weighted.T @ weighted)
    return found / scale, covariance / np.outer(scale, scale)


def _weighed(relative: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[NDArray, NDArray]:
    """The unknowns and how far each time is from their sum, relative to it."""
    found, _ = nnls(relative * weights[:, None], weights)
    return found, np.abs(relative @ found - 1.0)


def matmul_constants(contractions: Sequence[int], full_rate_s: Sequence[float], timings: Sequence[Timing]) -> Estimated:
    """`matmul_fraction` and `contraction_ramp` of matmuls that no memory holds back.

    Args:
        contractions: k of each; where all are alike only the fraction is found, and a ramp counts as part of it.
        full_rate_s: seconds that each takes at the described peak, with the tiles that it leaves partly empty.
        timings: how long each took.
    """
    full = np.asarray(full_rate_s)
    if len(set(contractions)) < 2:
        (slowness,), covariance = robust_sum(full[:, None], timings)
        return {"matmul_fraction": _inverse(slowness, covariance[0, 0])}
    found, covariance = robust_sum(np.column_stack([full, full / np.asarray(contractions)]), timings)
    slowness, pipeline = found
    ramp = pipeline / slowness
    towards = np.array([-ramp, 1.0]) / slowness  # the derivatives of the ramp by both unknowns
    return {
        "matmul_fraction": _inverse(slowness, covariance[0, 0]),
        "contraction_ramp": (float(ramp), float(np.sqrt(towards @ covariance @ towards))),
    }


def stream_fraction(seconds_described: float, timing: Timing) -> tuple[float, float]:
    """Achieved over described bandwidth, from the time that the described one would need and the one that it took."""
    fraction = seconds_described / timing.seconds
    return fraction, fraction * max(DRIFT, timing.error / timing.seconds)


def each_costs(counts: Sequence[float], timings: Sequence[Timing]) -> tuple[float, float]:
    """Seconds that each one of several things adds, and its standard error, what all together need to start apart."""
    found, covariance = robust_sum(np.column_stack([np.ones(len(counts)), np.asarray(counts, float)]), timings)
    return float(found[1]), float(covariance[1, 1] ** 0.5)


def copy_fraction(seconds_described: Sequence[float], timings: Sequence[Timing]) -> tuple[float, float]:
    """Achieved over described rate of copies of several sizes, each of which starts after a fixed time."""
    slowness, error = each_costs(seconds_described, timings)
    return _inverse(slowness, error**2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gather:
    """An all-gather as `physics.network` sees it: the hops of one pass, and its seconds at the described link rate."""

    hops: int
    described_s: float


def link_constants(gathers: Sequence[Gather], timings: Sequence[Timing]) -> Estimated:
    """`ici_fraction`, `hop_latency_s`, `ici_start_s` of all-gathers of several sizes.

    A start differs from latency only where groups of different hops were timed; else all of it counts as latency, and
    the start is 0.
    """
    hops = np.array([each.hops for each in gathers], float)
    columns = [np.array([each.described_s for each in gathers]), hops]
    apart = len(set(hops)) > 1
    found, covariance = robust_sum(np.column_stack([*columns, *([np.ones_like(hops)] if apart else [])]), timings)
    errors = np.sqrt(np.diag(covariance))
    start = (float(found[2]), float(errors[2])) if apart else (0.0, float(errors[1] * hops[0]))
    return {
        "ici_fraction": _inverse(found[0], covariance[0, 0]),
        "hop_latency_s": (float(found[1]), float(errors[1])),
        "ici_start_s": start,
    }


def _inverse(value: float, variance: float) -> tuple[float, float]:
    if value <= 0:  # the times do not grow with size at all: infinitely fast, as far as they tell
        return float("inf"), float("inf")
    return float(1 / value), float(variance**0.5 / value**2)


def bounded(estimated: Estimated) -> tuple[Estimated, dict[str, str]]:
    """Constants within the bounds of the physics, and why some are left out: times that say nothing of them."""
    kept: Estimated = {}
    missing: dict[str, str] = {}
    for name, (value, error) in estimated.items():
        if np.isfinite(value) and np.isfinite(error):
            kept[name] = (float(np.clip(value, CONSTANTS[name]["least"], CONSTANTS[name]["most"])), error)
        else:
            missing[name] = "the times do not grow with size: try again on a machine that does nothing else"
    return kept, missing


def doubts(where: str, described: Mapping[str, tuple[str, float]], estimated: Estimated) -> tuple[str, ...]:
    """One line for each described figure that cannot be right: more was measured, or less than any chip is taken for.

    Args:
        where: the chip's key, such as `hardware.local`.
        described: for each fraction the chip's key and figure that it is a fraction of.
        estimated: what was measured, before it is bounded.
    """
    lines = []
    for name, (key, figure) in described.items():
        value = estimated.get(name, (np.nan, 0.0))[0]
        least, most = CONSTANTS[name]["least"], CONSTANTS[name]["most"]
        if np.isfinite(value) and not least <= value <= most:
            wrong = "low" if value > most else "high"
            limit = f"{name} counts as {most if value > most else least:g}"
            lines.append(f"{where}.{key}={figure:g}: too {wrong}, since {figure * value:.3g} was measured; {limit}")
    return tuple(lines)

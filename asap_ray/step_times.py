"""What steps that a clock has timed come to: their median, and an interval that counts more than their scatter.

Steps of one process agree better with each other than with those of the next process of the same program: memory lies
elsewhere, another core or node runs it, clocks differ. So the interval has two parts, in the logarithm of the time: the
error of the median within the process, and the spread between processes, which one process cannot see.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

Z90 = 1.645
"""Standard deviations on either side that hold 90% of a normal distribution."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, of many normal values: sqrt(pi / 2)."""
TO_SIGMA = 1.4826
"""Standard deviation over the median absolute deviation, of a normal distribution."""
PROCESS_SPREAD: Mapping[str, float] = {"cpu": 0.03, "cuda": 0.01, "tpu": 0.005}
"""Standard deviation between medians of processes of one program, in the logarithm. cpu: measured, docs/trials.md;
others assumed: clocks of GPUs vary by about a hundredth, those of TPUs are fixed."""


KNOWN = 4.0
"""Degrees of freedom that what is known of a spread beforehand counts for, beside those of the runs at hand."""
T95: Sequence[float] = (2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""Quantile of Student's t that leaves 5% above it, by degrees of freedom, from `KNOWN`."""


def median_s(steps_s: Sequence[float]) -> float:
    """The median step, seconds."""
    return statistics.median(steps_s)


def interval_s(steps_s: Sequence[float], spread: float) -> tuple[float, float]:
    """Where 90% of such medians lie, seconds.

    Args:
        steps_s: of one process, at least one.
        spread: standard deviation between processes, in the logarithm; 0 for what this process alone says.
    """
    middle = median_s(steps_s)
    off = TO_SIGMA * statistics.median(abs(each - middle) for each in steps_s) / middle
    half = Z90 * math.hypot(MEDIAN_ERROR * off / math.sqrt(len(steps_s)), spread)
    return middle * math.exp(-half), middle * math.exp(half)


def pooled(medians_s: Sequence[float], spread: float) -> tuple[float, tuple[float, float]]:
    """Step and interval that holds 90% of several processes of one program, by the median of each.

    Args:
        medians_s: of each process, seconds.
        spread: what is known beforehand of the standard deviation between processes, in the logarithm.
    """
    logs = [math.log(each) for each in medians_s]
    half, middle = _half(logs, spread), math.exp(statistics.fmean(logs))
    return middle, (middle * math.exp(-half), middle * math.exp(half))


def gain(baseline_s: Sequence[float], plan_s: Sequence[float], spread: float) -> tuple[float, tuple[float, float]]:
    """How much shorter a plan's step is than a baseline's, as a share of it, with the interval that holds 90%.

    Args:
        baseline_s: steps of the baseline, turn by turn.
        plan_s: those of the plan in the same turns: what drifts from turn to turn is in both.
        spread: as of `pooled`.
    """
    logs = [math.log(plan / base) for base, plan in zip(baseline_s, plan_s, strict=True)]
    half, middle = _half(logs, math.sqrt(2) * spread), statistics.fmean(logs)
    return 1 - math.exp(middle), (1 - math.exp(middle + half), 1 - math.exp(middle - half))


def _half(logs: Sequence[float], spread: float) -> float:
    """Half-width of the interval of a mean: few values say little of their own spread, so its variance is a mean of
    theirs and of what is known, by degrees of freedom."""
    own = len(logs) - 1
    squares = own * statistics.variance(logs) if own else 0.0
    sigma = math.sqrt((KNOWN * spread**2 + squares) / (KNOWN + own))
    return (T95[own] if own < len(T95) else Z90) * sigma / math.sqrt(len(logs))

"""How much faster than the best plan one that was not tried can be, and which trials would narrow that most.

Two bounds, each the least of one figure over all untried plans that are legal and fit in memory:

- hard: of their floors. A floor is below every execution of its plan, so none can be faster than that.
- credible: of the lower ends of their intervals. An interval holds 90% and leaves 5% on either side, so each plan taken
  by itself is above its lower end, and all the more above the least of all lower ends, with 95%. For the fastest of
  thousands of plans this promises less than 95%: errors of neighbouring plans go together, so adding up their 5% (a
  union bound) says nothing, and taking them as independent would be wrong. `check` counts how often it holds for
  whole groups of measured plans.

Both speak of the best plan's step: a measured one, or, before any trial, the estimate, and then under the condition
that the best plan takes it. Worked instance: the best takes 10 s; untried plans have floors 8, 9 and 12 s. Nothing can
be more than 10 / 8 - 1 = 25% faster. Two of the three are contenders. If the first is tried and takes its estimate of
11 s, 10 / 9 - 1 = 11% is left; if the second too, nothing can be faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan

INTERVAL = 0.90
"""Share of runs that an estimate's interval is made to hold, with as many below as above (physics/calibration.py)."""
PROBABILITY = (1.0 + INTERVAL) / 2.0
"""With which a plan taken by itself is above the lower end of its interval."""
TIGHTEN = 3
"""How many plans each bound names whose trials would tighten it most."""
ROUNDING = 1e-9
"""Relative difference up to which two times of one formula are the same."""

Figure = Callable[[Estimate], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """An untried plan that would tighten a bound: how much faster than the best another plan could still be
    (best / bound - 1) once this one and those before it in the list are tried and take their estimates."""

    plan: Plan
    step_time_s: float
    floor_s: float
    low_s: float
    at_most_faster: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """The least floor, or the least lower end, of all untried plans.

    `bound_s` is None where no plan is left untried. `at_most_faster` is best / bound - 1, and 0 where the bound is
    above the best. `contenders` counts the plans whose own figure is below the best step: no other can win. `at_bound`
    counts those of them whose figure is the bound: fewer trials than that cannot move it.
    """

    bound_s: float | None
    at_most_faster: float
    contenders: int
    at_bound: int
    tighten: tuple[Trial, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """Both bounds around the best plan; `measured` says whether its step is, else it is an estimate."""

    best_step_s: float
    measured: bool
    untried: int
    hard: Bound
    credible: Bound
    probability: float = PROBABILITY


def floor_of(estimate: Estimate) -> float:
    """The figure of the hard bound."""
    return estimate.floor_s


def low_of(estimate: Estimate) -> float:
    """The figure of the credible bound."""
    return estimate.interval_s[0]


def faster(best_step_s: float, bound_s: float | None) -> float:
    """By how much a step of `bound_s` is faster than the best, 0.25 for 25% more steps a second; 0 where it is not."""
    return max(best_step_s / bound_s - 1.0, 0.0) if bound_s else 0.0


def bound_over(
    best_step_s: float, figure: Figure, lowest: tuple[Estimate, ...], contenders: int, at_bound: int
) -> Bound:
    """One of the bounds.

    Args:
        best_step_s: the best plan's step.
        figure: `floor_of` or `low_of`.
        lowest: the untried plans with the lowest figures, lowest first: TIGHTEN + 1 of them if there are as many.
        contenders: how many untried plans have a figure below the best step.
        at_bound: how many of those have the lowest figure.
    """
    least = figure(lowest[0]) if lowest else None
    trials, fastest = [], best_step_s
    for k, each in enumerate(lowest[: min(TIGHTEN, contenders)], start=1):
        fastest = min(fastest, each.step_time_s)
        left = figure(lowest[k]) if k < len(lowest) else None
        trials.append(
            Trial(
                plan=each.plan,
                step_time_s=each.step_time_s,
                floor_s=floor_of(each),
                low_s=low_of(each),
                at_most_faster=faster(fastest, left),
            )
        )
    return Bound(
        bound_s=least,
        at_most_faster=faster(best_step_s, least),
        contenders=contenders,
        at_bound=at_bound,
        tighten=tuple(trials),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Whether the credible bound held in a group of measured plans, of which the predicted best were tried.

    It holds where the fastest of the others was not below `bound_s`, or not below `best_s`, whichever is less. `above`
    counts the others that took at least their own lower end: that is what `PROBABILITY` is stated for.
    """

    holds: bool
    best_s: float
    bound_s: float
    fastest_s: float
    untried: int
    above: int


def check(steps_s: np.ndarray, lows_s: np.ndarray, measured_s: np.ndarray, tried: int = 1) -> Check:
    """Hold the credible bound against a group of measured plans of one workload on one slice.

    Args:
        steps_s: estimated steps [plans].
        lows_s: lower ends of their intervals [plans].
        measured_s: what the plans took [plans].
        tried: how many of the predicted best count as tried, the best of them by their measurement.

    Raises:
        ValueError: no plan would be left untried.
    """
    if len(steps_s) <= tried:
        raise ValueError(f"{len(steps_s)} plans, of which {tried} are tried, leave none untried")
    order = np.argsort(steps_s, kind="stable")
    first, rest = order[:tried], order[tried:]
    best, bound, fastest = float(measured_s[first].min()), float(lows_s[rest].min()), float(measured_s[rest].min())
    return Check(
        holds=fastest >= min(bound, best),
        best_s=best,
        bound_s=bound,
        fastest_s=fastest,
        untried=len(rest),
        above=int((measured_s[rest] >= lows_s[rest]).sum()),
    )

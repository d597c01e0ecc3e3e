"""Constants of the roofline as finished trials correct them: a factor for each group of a step's parts, with shrinkage.

A step is the sum of its parts, each times a scale that all share and times its group's own factor. What is believed
before any trial (the scale may be off by any amount, a group beside it by `APART`) is part of the fit, so few trials
move only what they speak of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from asap_ray.agents.proposal import GROUPS, grouped
from asap_ray.physics.estimate import TIME_PARTS
from asap_ray.search.protocol import Result

SCALE = 3.0
"""Standard deviation of the logarithm of the scale before any trial: a factor of 20."""
APART = 0.3
"""That of a group beside the scale: a factor of 1.35. Chosen with `SCATTER` on replay tables: with 0.5 and 0.05 few
trials lead astray."""
SCATTER = 0.15
"""That of a step, of what no factor of a part explains: estimates of one stack scatter so (docs/accuracy.md)."""
ROUNDS = 6
"""Of Gauss-Newton."""


def step_ratios(told: Sequence[Result]) -> np.ndarray:
    """What each part takes over its price [parts], by the steps of trials that tell no parts; 1 before any."""
    trials = [each for each in told if each.step_time_s and each.roofline]
    if not trials:
        return np.ones(len(TIME_PARTS))
    errors = np.array([math.log((each.step_time_s or 1.0) / _price(each)) for each in trials])
    shares = np.array([[grouped(_parts(each))[group] / _price(each) for group in GROUPS] for each in trials])
    belief = np.concatenate([[SCALE], np.full(len(GROUPS), APART)])
    found = np.zeros(len(belief))
    for _ in range(ROUNDS):  # Gauss-Newton: a group that takes longer than its price has more of the step
        weighed = shares * np.exp(found[1:])
        totals = weighed.sum(1, keepdims=True)
        design = np.hstack([np.ones((len(trials), 1)), weighed / totals])
        left = errors - np.log(totals[:, 0]) - found[0] + design @ found
        # The mean of a linear model with normal beliefs, in units of them.
        a = np.vstack([design * belief / SCATTER, np.eye(len(belief))])
        found = np.linalg.lstsq(a, np.concatenate([left / SCATTER, np.zeros(len(belief))]), rcond=None)[0] * belief
    factors = dict(zip(GROUPS, np.exp(found[0] + found[1:]), strict=True))
    group_of = {name: group for group, names in GROUPS.items() for name in names}
    return np.array([factors[group_of[name]] for name in TIME_PARTS])


def _parts(result: Result) -> dict[str, float]:
    assert result.roofline is not None
    return dict(result.roofline.time_parts)


def _price(result: Result) -> float:
    assert result.roofline is not None
    return result.roofline.step_time_s

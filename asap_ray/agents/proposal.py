"""A proposal: a plan with its hypothesis, its mechanism, a prediction fixed before the trial, and what would refute it.

Worked instance: of two plans the roofline says that gathering weights takes 2 s with one and 1 s with the other; a
trial of the first took 2.4 s for it. The prediction for the other is 1.2 s, between 0.85 and 1.7 s: the roofline's
change, to the power of 1.5 and of 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.recipe import PLAIN, Recipe
from asap_ray.search.protocol import Result

GROUPS: Mapping[str, tuple[str, ...]] = {
    "matmul": ("matmul", "head"),
    **{name: (name,) for name in ("attention", "elementwise", "recompute", "tensor", "context", "expert", "fsdp")},
    **{name: (name,) for name in ("gradient", "pipeline", "offload", "bubble", "optimizer")},
    "host": ("host", "input"),
}
"""Parts of a step as every tier tells them apart: a compiled head is a matmul."""
STEP = "step_time_s"
SURE, UNSURE = 0.5, 1.5
"""Powers of a predicted change between which it is to lie."""
ROOM = 0.02
"""Of the base's figure: what any prediction may be off by."""
LEAST_SIGMA = 0.005
"""Of the logarithm of a step: no estimate is surer."""
UNCHANGED = 0.005
"""Relative change below which nothing has happened."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What a profile is to show: `field` (the step, or a part of it) goes from `base` to between `low` and `high`
    seconds; `direction` says which way that is."""

    field: str
    direction: Literal["down", "up", "same"]
    base: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """The prediction in words."""
        way = {"down": "falls", "up": "rises", "same": "stays near"}[self.direction]
        return f"{self.field} {way} {self.base:.3g} s: {self.low:.3g} to {self.high:.3g} s"

    @property
    def falsification(self) -> str:
        """What would refute it."""
        return f"{self.field} below {self.low:.3g} s or above {self.high:.3g} s"


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """A figure that a proposal rests on: `source` is a trial or an option as the brain was shown it."""

    source: str
    figure: str
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A plan and why it is worth a trial; `base` is the number of the trial that it starts from, where it does.

    `expected_s` is the step that is expected; `card` names the card behind it, where there is one, and `cites` whatever
    else of the memory. `author` is whose it is where a brain lets others speak for it. `confidence` is worked out
    (`confidence`), never claimed: how likely the step is below the best trial's. `recipe` is what it changes
    besides the plan.
    """

    plan: Plan
    hypothesis: str
    mechanism: str
    prediction: Prediction
    expected_s: float
    card: str = ""
    base: int | None = None
    author: str = ""
    trade_off: str = ""
    cites: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    confidence: float | None = None
    recipe: Recipe = PLAIN


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What became of a prediction."""

    status: Literal["confirmed", "refuted", "no-op", "invalid"]
    observed: float | None
    text: str


def grouped(parts: Mapping[str, float]) -> dict[str, float]:
    """Seconds by group of parts."""
    return {group: sum(parts.get(name, 0.0) for name in names) for group, names in GROUPS.items()}


def observed(result: Result, field: str) -> float | None:
    """What a trial showed of a field, in seconds."""
    if field == STEP:
        return result.step_time_s
    return grouped(result.estimate.time_parts)[field] if result.estimate else None


def predict_step(expected_s: float, low_s: float, high_s: float) -> Prediction:
    """That a step is as long as expected."""
    return Prediction(field=STEP, direction="same", base=expected_s, low=low_s, high=high_s)


def predict_change(base: Result, before: Estimate, after: Estimate) -> Prediction:
    """What is to change most from a trial's plan to another, by what the roofline says of both.

    That is the part whose seconds fall most, by the roofline's change of what was seen, or the step where none is seen.
    """
    told = {STEP: (before.step_time_s, after.step_time_s), **dict(_changes(before, after))}
    seen = [name for name in told if name != STEP and (observed(base, name) or 0.0) > ROOM * (base.step_time_s or 0.0)]
    field = min(seen, key=lambda name: told[name][1] - told[name][0], default=STEP)
    if told[field][1] >= told[field][0]:
        field = STEP
    here, ratio = observed(base, field) or 0.0, told[field][1] / told[field][0] if told[field][0] else 1.0
    ends = sorted((here * ratio**SURE, here * ratio**UNSURE))
    room = ROOM * here
    way = "same" if abs(ratio - 1.0) <= ROOM else "down" if ratio < 1.0 else "up"
    return Prediction(field=field, direction=way, base=here, low=ends[0] - room, high=ends[1] + room)


def _changes(before: Estimate, after: Estimate) -> Iterator[tuple[str, tuple[float, float]]]:
    first, last = grouped(before.time_parts), grouped(after.time_parts)
    yield from ((name, (first[name], last[name])) for name in GROUPS)


def confidence(best_s: float, expected_s: float, interval: tuple[float, float], held: float) -> float:
    """How likely a step is below the best trial's, from the estimate's interval and how predictions have held.

    The logarithm of the step is taken as normal, with 90% of it between the ends; where the predictions of a brain have
    held in another share than 90%, the distribution is as much wider or narrower as would have made them.

    Args:
        best_s: step of the best trial.
        expected_s: that is expected.
        interval: ends of the 90% interval over the expected step, both above 0.
        held: share of this brain's predictions that were confirmed, strictly between 0 and 1.
    """
    normal = NormalDist()
    half = normal.inv_cdf(0.95)
    sigma = max(math.log(interval[1] / interval[0]) / (2.0 * half), LEAST_SIGMA) * half / normal.inv_cdf((1 + held) / 2)
    return normal.cdf(math.log(best_s / expected_s) / sigma)


def judge(prediction: Prediction, result: Result, base: Result | None) -> Verdict:
    """Hold a prediction against a trial; `base` is the trial that the proposal started from."""
    value = observed(result, prediction.field)
    if result.status not in ("complete", "pruned") or value is None:  # one that was ended as slower has its step too
        return Verdict(status="invalid", observed=None, text=f"{result.status}: {result.reason or 'no such figure'}")
    same_program = base is not None and base.digest == result.digest != ""
    still = abs(value - prediction.base) <= UNCHANGED * prediction.base and prediction.direction != "same"
    if same_program or still:
        why = "the program is the same" if same_program else f"{prediction.field} stays at {value:.3g} s"
        return Verdict(status="no-op", observed=value, text=why)
    inside = prediction.low <= value <= prediction.high
    words = f"{prediction.field} is {value:.3g} s, {prediction.low:.3g} to {prediction.high:.3g} s predicted"
    return Verdict(status="confirmed" if inside else "refuted", observed=value, text=words)

"""What would have to be off for a prediction to be as wrong as it is: each part of the step, taken alone."""

from __future__ import annotations

from dataclasses import dataclass

from asap_ray.comparison import Compared
from asap_ray.report import units

LEAST_SHARE = 0.02
"""Of the predicted step: a smaller part is not looked at alone."""
MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class PartBlame:
    """A part of the predicted step, and how many times as long it would have to take for the step to come out as
    measured; None where even nothing of it would not do."""

    part: str
    seconds: float
    factor: float | None


def blames(row: Compared) -> list[PartBlame]:
    """The parts of a timed row's estimate, longest first."""
    missing = (row.measured_s or 0.0) - row.estimate.step_time_s
    parts = sorted(row.estimate.time_parts.items(), key=lambda pair: -pair[1])
    return [
        PartBlame(part=name, seconds=seconds, factor=(seconds + missing) / seconds if seconds + missing >= 0 else None)
        for name, seconds in parts
        if seconds > 0
    ]


def blame_line(row: Compared) -> str:
    """In words: how far off the prediction is, and which part alone could be the reason, the least change first."""
    measured, step = row.measured_s or 0.0, row.estimate.step_time_s
    size = units.seconds(abs(measured - step))
    found = [each for each in blames(row) if each.seconds >= LEAST_SHARE * step and each.factor is not None]
    if measured >= step:
        named = sorted(found, key=lambda each: each.factor or 0.0)[:MOST_NAMED]
        words = [f"{each.part} {units.times(each.factor)}" for each in named]
        return f"{size} are missing; alone would explain it: {', or '.join(words)} of what is predicted"
    named = sorted(found, key=lambda each: -(each.factor or 0.0))[:MOST_NAMED]
    if not named:
        return f"{size} too much; no part alone is as long"
    words = [f"{each.part} {units.times(each.factor)}" for each in named]
    return f"{size} too much; alone would explain it: {', or '.join(words)} of what is predicted"


def parts_line(row: Compared) -> str:
    """The predicted step by part, with each part's share."""
    step = row.estimate.step_time_s
    shown = [each for each in blames(row) if each.seconds >= 0.005 * step]
    return ", ".join(f"{each.part} {units.seconds(each.seconds)} ({each.seconds / step:.0%})" for each in shown)

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


def factor_text(factor: float | None) -> str:
    """How many times as long a part would have to take, or that even nothing of it would not do."""
    return "not even gone" if factor is None else f"{units.three_digits(factor)}x"


def blame_line(row: Compared) -> str:
    """In words: how far off the prediction is, and which parts alone could be the reason, the least change first."""
    off, step = (row.measured_s or 0.0) - row.estimate.step_time_s, row.estimate.step_time_s
    large = [each for each in blames(row) if each.seconds >= LEAST_SHARE * step and each.factor is not None]
    closest = sorted(large, key=lambda each: abs((each.factor or 0.0) - 1.0))[:MOST_NAMED]
    what = f"{units.seconds(abs(off))} {'are missing' if off >= 0 else 'too much'}"
    if not closest:
        return f"{what}; no part alone is as long"
    words = " or ".join(f"{each.part} {factor_text(each.factor)}" for each in closest)
    return f"{what}; alone would do: {words} as long"

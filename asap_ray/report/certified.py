"""The certificate of the best plan: in words for the terminal and the page, as a table, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from asap_ray.report import sentences, units
from asap_ray.report.answer import SliceAnswer

if TYPE_CHECKING:
    from asap_ray.certificate import Bound, Certificate
    from asap_ray.plan import Plan

NAMED = 6
"""Places of the leaderboard that the terminal shows; plans there are named by their place."""


def certificate_facts(answer: SliceAnswer) -> list[tuple[str, str]]:
    """Both bounds and what would tighten them, one labelled sentence each; none where nothing fits."""
    found, best = answer.certificate, answer.priced
    if found is None or best is None:
        return []
    if not found.untried:
        return [("hard", "no other legal plan fits: nothing is left to try")]
    facts = [("hard", hard_line(found)), ("credible", credible_line(found))]
    names = {each.plan: f"#{place}" for place, each in enumerate(answer.ranked[:NAMED], start=1)}
    tighten = [
        tighten_line(label, bound, names, best.plan)
        for label, bound in (("credible", found.credible), ("hard", found.hard))
        if bound.at_most_faster
    ]
    return [*facts, ("tighten", "; ".join(tighten))] if tighten else facts


def hard_line(found: Certificate) -> str:
    """What no other plan can do, whatever the estimates are worth."""
    if not found.hard.at_most_faster:
        least = units.seconds(found.hard.bound_s)
        return f"{_condition(found)}no other legal plan that fits can be faster: the lowest floor is {least}"
    return (
        f"{_condition(found)}no other legal plan that fits can be more than {at_most(found.hard.at_most_faster)} "
        f"faster: the lowest floor is {_below(found, found.hard)}"
    )


def credible_line(found: Certificate) -> str:
    """What each other plan is not likely to do, by its interval."""
    each = f"{_condition(found)}each other plan, taken alone, is with {100 * found.probability:.0f}%"
    if not found.credible.at_most_faster:
        return f"{each} not faster: the lowest interval begins at {units.seconds(found.credible.bound_s)}"
    return (
        f"{each} at most {at_most(found.credible.at_most_faster)} faster: the lowest interval begins at "
        f"{_below(found, found.credible)}"
    )


def tighten_line(label: str, bound: Bound, names: dict[Plan, str], best: Plan) -> str:
    """What trials of the few named plans would leave of a bound, or that it takes more than a few."""
    if bound.at_bound > len(bound.tighten):
        shared = "floor" if label == "hard" else "lower end"
        return (
            f"{units.count(bound.at_bound)} plans share the lowest {shared}: fewer trials do not move the {label} one"
        )
    plans = [names.get(each.plan) or " ".join(sentences.differences(each.plan, best)) for each in bound.tighten]
    left = ", ".join(at_most(each.at_most_faster) for each in bound.tighten)
    return f"trials of {', '.join(plans)} that confirm their estimates would leave the {label} one at {left}"


def at_most(share: float) -> str:
    """A share that is never shown smaller than it is: rounded up to tenths of a percent, to whole ones from 10 on."""
    if share >= 10.0:
        return f"{math.ceil(100 * share * (1 - 1e-12)):,}%"
    return f"{math.ceil(1000 * share * (1 - 1e-12)) / 10:.1f}%"


def _condition(found: Certificate) -> str:
    return "" if found.measured else f"if the best takes the {units.seconds(found.best_step_s)} estimated, "


def _below(found: Certificate, bound: Bound) -> str:
    return (
        f"{units.seconds(bound.bound_s)} ({units.count(bound.contenders)} of {units.count(found.untried)} lie below "
        "the best step)"
    )


def tighten_rows(found: Certificate) -> Iterator[tuple[str, ...]]:
    """The plans whose trials would tighten a bound: which, step, floor, lower end, what would be left, the plan."""
    for label, bound in (("credible", found.credible), ("hard", found.hard)):
        for each in bound.tighten if bound.at_bound <= len(bound.tighten) else ():
            times = (units.seconds(value) for value in (each.step_time_s, each.floor_s, each.low_s))
            yield label, *times, at_most(each.at_most_faster), each.plan.line


def certificate_fields(found: Certificate | None) -> dict[str, Any] | None:
    """The certificate under the names of `summary.json`; None where nothing fits."""
    if found is None:
        return None
    return {
        "best_step_s": found.best_step_s,
        "measured": found.measured,
        "untried": found.untried,
        "hard": _bound_fields(found.hard),
        "credible": {
            "probability": found.probability,
            "holds_for": "each untried plan by itself",
            **_bound_fields(found.credible),
        },
        "tighten": [
            {
                "bound": label,
                "plan": each.plan.as_dict(),
                "line": each.plan.line,
                "step_time_s": each.step_time_s,
                "floor_s": each.floor_s,
                "interval_low_s": each.low_s,
                "at_most_faster_percent": 100 * each.at_most_faster,
            }
            for label, bound in (("credible", found.credible), ("hard", found.hard))
            for each in bound.tighten
        ],
    }


def _bound_fields(bound: Bound) -> dict[str, Any]:
    return {
        "bound_s": bound.bound_s,
        "at_most_faster_percent": 100 * bound.at_most_faster,
        "contenders": bound.contenders,
        "at_bound": bound.at_bound,
    }

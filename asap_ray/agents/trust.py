"""How far a brain is trusted with trials: one that wastes more than its share of them loses its turn."""

from __future__ import annotations

import math

from asap_ray.agents.brief import Brief
from asap_ray.search.protocol import best_of

NEAR = 1.05
"""Times the best of what is known or expected that a trial may take and not be a waste."""


def wasted(brief: Brief, author: str, share: float, width: int) -> str:
    """Why a brain has lost its turn; nothing where it has it.

    A trial of its own is wasted where it came to no step, or to one that neither is the best up to then nor lies near
    the best that is known or expected. One round may be lost, or `share` of all trials where that is more.

    Args:
        brief: all trials, in order.
        author: whose trials count.
        share: of all trials.
        width: trials of a round.
    """
    known = best_of(brief.results)
    expected = float(brief.expected_s.min()) if len(brief.expected_s) else math.inf
    near = NEAR * min(known.step_time_s or math.inf if known else math.inf, expected)
    lost, best = 0, math.inf
    for each in brief.results:
        step = each.step_time_s if each.status == "complete" and each.step_time_s else math.inf
        if each.candidate.author == author and step >= best and step > near:
            lost += 1
        best = min(best, step)
    allowed = max(width, math.ceil(share * (len(brief.results) + width)))
    return f"{lost} of its trials came to nothing, where {allowed} may" if lost >= allowed else ""

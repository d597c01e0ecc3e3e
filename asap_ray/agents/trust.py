"""How far a brain is trusted with trials: one whose gambles cost more than its share of them loses its turn."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet

import numpy as np

from asap_ray.agents.brief import Brief
from asap_ray.agents.proposal import Proposal
from asap_ray.agents.verifier import row_of
from asap_ray.plan import Plan

NEAR = 1.05
"""Times the step of the open plan that is expected to be fastest up to which a proposal is no gamble."""


def gamble(brief: Brief, proposal: Proposal) -> bool:
    """Whether a plan is expected to be clearly slower than another that is open: by all that trials have taught, and
    whatever its author expects."""
    row = row_of(brief.pool, proposal.plan)
    best = float(np.min(brief.expected_s[brief.open], initial=math.inf))
    return row is None or not brief.expected_s[row] <= NEAR * best


def wasted(brief: Brief, gambles: AbstractSet[Plan], share: float, width: int) -> str:
    """Why a brain has lost its turn; nothing where it has it.

    A gamble is lost where its trial came to no step, or to none that was the best by then. As many as one round may
    be, or `share` of all trials where that is more.

    Args:
        brief: all trials, in order.
        gambles: plans that were gambles when the brain proposed them.
        share: of all trials.
        width: trials of a round.
    """
    lost, best = 0, math.inf
    for each in brief.results:
        step = each.step_time_s if each.status == "complete" and each.step_time_s else math.inf
        lost += each.candidate.plan in gambles and step >= best
        best = min(best, step)
    allowed = max(width, math.ceil(share * (len(brief.results) + width)))
    return f"{lost} of its gambles came to nothing, where fewer than {allowed} may" if lost >= allowed else ""

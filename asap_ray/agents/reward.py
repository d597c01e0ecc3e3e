"""One scalar for whatever came of a move, so that a brain can learn from all of it.

As in ML-Agent (arXiv 2505.23723, its reward module): what is an error is worth 0, what changes nothing 0.5, and a
change of the metric the logistic function of its size, which is 0.5 at no change. The metric here is the logarithm of
the step of the best trial before over that of the move, times `SHARPNESS`: a step that is 10% shorter is worth 0.74.
"""

from __future__ import annotations

import math

ERRORS = ("illegal", "refused", "infeasible", "failed", "timeout")
"""How a move ends that comes to no step: refused before it costs a trial, out of memory, failed, too slow to tell."""
NEUTRAL = 0.5
SHARPNESS = 10.0
"""Ours: ML-Agent scales by task. With it 1% is 0.52, 10% is 0.74, a third is 0.98."""


def reward(status: str, step_s: float | None, best_s: float | None, *, no_op: bool = False) -> float:
    """What a move was worth, from 0 to 1.

    Args:
        status: how it ended, a trial's status, or one of `ERRORS`.
        step_s: seconds of its step, where it came to one.
        best_s: those of the best trial before; None where there is none to gain on.
        no_op: whether the program is the one that was there before.
    """
    if status in ERRORS or step_s is None:
        return 0.0
    if no_op or best_s is None:
        return NEUTRAL
    gain = max(min(SHARPNESS * math.log(best_s / step_s), 60.0), -60.0)
    return 1.0 / (1.0 + math.exp(-gain))

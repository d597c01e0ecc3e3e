"""What a card's move makes of a plan: the plans of the pool that it may lead to.

Mesh axes that a move does not name keep their size, and so do recomputation, precision and attention. Micro-batch,
ZeRO, schedule and sequence parallelism follow where they must: they stay as they are if any plan lets them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from asap_ray.knowledge import axes_of
from asap_ray.plan import AXES
from asap_ray.problem import coding
from asap_ray.search.pool import Pool

KEPT = ("remat", "precision", "attention")
FOLLOWING = ("schedule", "virtual", "sequence_parallel", "zero", "micro_batch")
"""Knobs that follow, in the order in which they are kept if they can be."""


def reached(pool: Pool, row: int, move: Mapping[str, str], recomputed: np.ndarray) -> np.ndarray:
    """Which plans a move leads to from one of them [plans].

    Args:
        pool: the plans.
        row: where the move starts.
        move: what becomes of each column that it names.
        recomputed: FLOPs that each recomputation policy computes again [policies].
    """
    columns = pool.columns
    mask = np.ones(len(pool), bool)
    mask[row] = False
    for axis in set(AXES) - axes_of(move):
        mask &= columns[axis] == columns[axis][row]
    for knob in KEPT:
        if knob not in move:
            mask &= columns[knob] == columns[knob][row]
    for name, action in move.items():
        mask &= _acted(pool, row, name, action, recomputed)
    for knob in FOLLOWING:
        same = mask & (columns[knob] == columns[knob][row])
        if knob not in move and same.any():
            mask = same
    return mask


def _acted(pool: Pool, row: int, name: str, action: str, recomputed: np.ndarray) -> np.ndarray:
    column = pool.columns[name]
    here = column[row]
    if name == "remat" and action in ("lighter", "heavier"):
        more = recomputed[column] > recomputed[here]
        return more if action == "heavier" else recomputed[column] < recomputed[here]
    if action in ("half", "double"):
        return 2 * column == here if action == "half" else column == 2 * here
    if action in ("lower", "higher"):
        return column < here if action == "lower" else column > here
    if action == "free":
        return np.ones(len(pool), bool)
    return column == _code(pool, name, action)


def _code(pool: Pool, name: str, action: str) -> int:
    """The code of a value that a move names; -1, which no plan has, where this stack does not know it."""
    if names := coding(pool.problem).get(name):
        return names.index(action) if action in names else -1
    return {"true": 1, "false": 0}[action] if action in ("true", "false") else int(action)

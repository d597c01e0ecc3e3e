"""What a card's move makes of a plan: the plans of the pool that it may lead to.

Mesh axes that a move does not name keep their size, and so do recomputation, precision and attention. Micro-batch,
ZeRO, schedule and sequence parallelism follow where they must: they stay as they are if any plan lets them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from asap_ray.knowledge import axes_of
from asap_ray.plan import AXES
from asap_ray.problem import coding
from asap_ray.search.pool import Pool

KEPT = ("remat", "precision", "attention")
FOLLOWING = ("schedule", "virtual", "sequence_parallel", "zero", "micro_batch")
"""Knobs that follow, in the order in which they are kept if they can be."""


def moves_from(
    pool: Pool, row: int, moves: Sequence[Mapping[str, str]], times: int
) -> Iterator[tuple[Mapping[str, str], int]]:
    """Moves in the order in which they are to be looked at from a plan, each with how many times over.

    A plan doubles what it has before it begins with an axis: one whose weights are sharded over fsdp keeps sharding
    them. All moves come before any is made once more.
    """

    def begun(move: Mapping[str, str]) -> int:
        doubled = [axis for axis in AXES if move.get(axis) == "double"]
        return sum(pool.columns[axis][row] == 1 for axis in doubled)

    for steps in range(1, times + 1):
        yield from ((move, steps) for move in sorted(moves, key=begun))


def reached(pool: Pool, row: int, move: Mapping[str, str], recomputed: np.ndarray, times: int = 1) -> np.ndarray:
    """Which plans a move leads to from one of them [plans].

    Args:
        pool: the plans.
        row: where the move starts.
        move: what becomes of each column that it names.
        recomputed: FLOPs that each recomputation policy computes again [policies].
        times: how often what it halves is halved, and what it doubles doubled.
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
        mask &= _acted(pool, row, name, action, recomputed, 2**times)
    for knob in FOLLOWING:
        same = mask & (columns[knob] == columns[knob][row])
        if knob not in move and same.any():
            mask = same
    return mask


def _acted(pool: Pool, row: int, name: str, action: str, recomputed: np.ndarray, factor: int) -> np.ndarray:
    column = pool.columns[name]
    here = column[row]
    if name == "remat" and action in ("lighter", "heavier"):
        more = recomputed[column] > recomputed[here]
        return more if action == "heavier" else recomputed[column] < recomputed[here]
    if action in ("half", "double"):
        return factor * column == here if action == "half" else column == factor * here
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

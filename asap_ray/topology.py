"""How the mesh axes of a plan lie on the link axes of a slice, and how fast each collective then is.

A *layout* says how many steps each mesh axis takes along each link axis: `factors[mesh axis, ici axis]`. Column j
multiplies to the size of ici axis j, row m to the ici size of mesh axis m. Where several mesh axes share a link axis,
the later one (in the order of `plan.AXES`) lies innermost, on neighbours, and the earlier ones stride over it:

    a ring of 16 split as fsdp=4, tensor=4:   tensor  0-1-2-3          next to each other, but no ring any more
                                              fsdp    0---4---8---12-0  still a ring, four such share each link

From a layout follow four figures for each mesh axis, and for each group of axes that talk as one: three rates and the
hops of one pass. Many layouts of one tuple of sizes have the same figures, or worse ones throughout; `layouts` keeps
those that can be best for some plan. Groups count beside their axes, since a group may be fast where its axes are slow:
two axes that stride over a ring can be the whole ring together.

What each figure means, and how it follows from steps and strides, stands in `rates.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from asap_ray.hardware import Slice
from asap_ray.rates import Group, IciAxis, alone, axis_figures, group_rates, joint_steps, rounded, together

MESH_AXES = 6  # data, fsdp, pipeline, context, expert, tensor: the order of plan.AXES


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutTable:
    """Layouts as columns; rows are ordered by sizes. An axis of size 1 sends nothing: its rates are inf, its hops 0.

    Attributes:
        factors: steps of each mesh axis along each ici axis, [L, 6, J].
        sizes: ici size of each mesh axis, [L, 6].
        gather_bytes_per_s: per device, of an all-gather or reduce-scatter, [L, 6].
        all_to_all_bytes_per_s: per device, [L, 6].
        permute_bytes_per_s: per device, to the next along the mesh axis, [L, 6].
        hops: link hops that one pass over the axis must wait for, one after the other, [L, 6].
    """

    factors: NDArray[np.int16]
    sizes: NDArray[np.int32]
    gather_bytes_per_s: NDArray[np.float64]
    all_to_all_bytes_per_s: NDArray[np.float64]
    permute_bytes_per_s: NDArray[np.float64]
    hops: NDArray[np.int32]

    def __len__(self) -> int:
        """Number of layouts."""
        return len(self.factors)

    def plan_layout(self, row: int) -> tuple[tuple[int, ...], ...]:
        """One layout as a `Plan` takes it; empty where nothing lies on two ICI axes."""
        factors = self.factors[row]
        if factors.shape[1] == 1 or factors.max() == 1:
            return ()
        return tuple(tuple(int(f) for f in steps) for steps in factors)

    def take(self, rows: NDArray[np.intp]) -> LayoutTable:
        """The table of the given rows only."""
        return LayoutTable(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


@dataclass(frozen=True, slots=True)
class _Steps:
    """The ways to split one ici axis among the mesh axes, [K, 6], and the distinct steps that occur in them, [S]."""

    factors: NDArray[np.int64]  # [K, 6]
    state: NDArray[np.int64]  # [K, 6], index into the columns below
    size: NDArray[np.int64]  # [S], devices along this axis
    gather: NDArray[np.float64]  # [S], bytes/s into each device; 0 for a size of 1
    exchange: NDArray[np.float64]  # [S], seconds of the most loaded link for each byte that a device sends to all
    neighbour: NDArray[np.float64]  # [S], bytes/s to the next device; inf for a size of 1
    hops: NDArray[np.int64]  # [S]


def layouts(
    slice_: Slice,
    allowed: Sequence[bool] = (True,) * MESH_AXES,
    sizes: Sequence[int | None] = (None,) * MESH_AXES,
    groups: Sequence[Group] = (),
) -> LayoutTable:
    """Every useful layout of the mesh on one slice.

    Args:
        slice_: the slice; only its `axes` matter.
        allowed: per mesh axis, whether it may be larger than 1.
        sizes: per mesh axis, the ici size it must have, or None.
        groups: the groups of several mesh axes, or of parts of them, that collectives run over.

    Returns:
        For each tuple of sizes the layouts that no other equals or beats in all four figures of all mesh axes and all
        groups. Empty where no layout has the sizes asked for. The arrays are shared and read-only.
    """
    pairs = list(zip(allowed, sizes, strict=True))
    wanted = tuple(size if grows else 1 for grows, size in pairs)
    if any(not grows and size not in (None, 1) for grows, size in pairs):
        wanted = (0,) * MESH_AXES  # no layout has such sizes
    return _layouts(slice_.axes, wanted, tuple(groups) if len(slice_.axes) > 1 else ())  # one axis leaves no choice


@lru_cache(maxsize=16)
def _layouts(axes: tuple[IciAxis, ...], wanted: tuple[int | None, ...], groups: tuple[Group, ...]) -> LayoutTable:
    steps = [_steps(axis, wanted) for axis in axes]
    swaps = all(group.part == "whole" for group in groups)  # what is divided takes ici axes in their order
    rows = _combinations(axes, steps, wanted, swaps)  # [L, J]
    joint = np.zeros((len(rows), MESH_AXES), np.int64)
    for j, step in enumerate(steps):
        joint = joint * len(step.size) + step.state[rows[:, j]]
    figures, code = _figures(steps)  # [F, 5] and, for each joint state, its row in them
    codes = code[joint]
    for group in groups:
        more, row = _group_figures(axes, _factors(steps, rows), group)
        figures, codes = np.concatenate([figures, more]), np.column_stack([codes, len(figures) + row])
    # [L, 6 + groups]: two layouts with the same codes are alike in everything that is priced
    _, first = np.unique(_keys(codes, len(figures)), return_index=True)
    rows, codes = rows[first], codes[first]
    kept = _undominated(figures, codes)
    rows, codes = rows[kept], codes[kept, :MESH_AXES]
    table = LayoutTable(
        factors=_factors(steps, rows),
        sizes=figures[codes, 0].astype(np.int32),
        gather_bytes_per_s=figures[codes, 1],
        all_to_all_bytes_per_s=figures[codes, 2],
        permute_bytes_per_s=figures[codes, 3],
        hops=figures[codes, 4].astype(np.int32),
    )
    for field in fields(table):
        getattr(table, field.name).flags.writeable = False
    return table


def _factorizations(size: int, wanted: tuple[int | None, ...]) -> NDArray[np.int64]:
    """Every tuple of MESH_AXES factors of `size`, each dividing the size that is wanted of its mesh axis, [K, 6]."""
    found = np.ones((1, 0), np.int64)
    for want in wanted:
        left = size // found.prod(axis=1)
        options = [d for d in range(1, size + 1) if size % d == 0 and (want is None or (want and want % d == 0))]
        grown = [(found[left % d == 0], d) for d in options]
        columns = [np.column_stack([rows, np.full(len(rows), d)]) for rows, d in grown]
        found = np.concatenate(columns) if columns else np.zeros((0, found.shape[1] + 1), np.int64)
    return found[found.prod(axis=1) == size]


def _steps(axis: IciAxis, wanted: tuple[int | None, ...]) -> _Steps:
    factors = _factorizations(axis.size, wanted)
    stride = np.ones_like(factors)
    stride[:, :-1] = np.cumprod(factors[:, :0:-1], axis=1)[:, ::-1]
    if axis.fabric != "torus":
        stride[:] = 1  # a switch and a full mesh know no distance
    pairs = np.stack([factors, np.where(factors == 1, 1, stride)], axis=-1).reshape(-1, 2)
    distinct, state = np.unique(pairs, axis=0, return_inverse=True)
    size, stride = distinct[:, 0], distinct[:, 1]
    gather, exchange, neighbour, hops = alone(size, *axis_figures(axis, size, stride))
    return _Steps(
        factors=factors,
        state=state.reshape(factors.shape),
        size=size,
        gather=gather,
        exchange=exchange,
        neighbour=neighbour,
        hops=hops,
    )


def _figures(steps: list[_Steps]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The distinct (size, gather, all-to-all, permute, hops) of a mesh axis, [F, 5], and the row of each state."""
    at = np.indices([len(step.size) for step in steps]).reshape(len(steps), -1)  # [J, joint states]
    names = ("size", "gather", "exchange", "neighbour", "hops")
    by_axis = (np.stack([getattr(step, name)[i] for step, i in zip(steps, at, strict=True)]) for name in names)
    figures = np.stack([rounded(column.astype(np.float64)) for column in together(*by_axis)], axis=1)
    distinct, row = np.unique(figures, axis=0, return_inverse=True)
    return distinct, row.reshape(-1)


def _group_figures(
    axes: tuple[IciAxis, ...], factors: NDArray[np.int16], group: Group
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The distinct figures of one group, [F, 5], and the row of each layout [L] in them."""
    steps, members = group.steps(factors)
    size, span = joint_steps(steps, members)
    joint = np.concatenate([size, span]).T
    _, first, row = np.unique(_keys(joint, int(joint.max(initial=0)) + 1), return_index=True, return_inverse=True)
    rates = group_rates(axes, steps[first], members)
    columns = (rates.gather_bytes_per_s, rates.all_to_all_bytes_per_s, rates.permute_bytes_per_s, rates.hops)
    figures = np.stack([size.prod(axis=0)[first], *columns], axis=1).astype(np.float64)
    distinct, again = np.unique(figures, axis=0, return_inverse=True)
    return distinct, again.reshape(-1)[row.reshape(-1)]


def _factors(steps: list[_Steps], rows: NDArray[np.intp]) -> NDArray[np.int16]:
    return np.stack([step.factors[rows[:, j]] for j, step in enumerate(steps)], axis=2).astype(np.int16)


def _combinations(
    axes: tuple[IciAxis, ...], steps: list[_Steps], wanted: tuple[int | None, ...], swaps: bool = True
) -> NDArray[np.intp]:
    """Rows into each axis' factorizations, [L, J]; where alike axes may swap, one of all layouts that only do so."""
    rows = np.zeros((1, 0), np.intp)
    sizes = np.ones((1, MESH_AXES), np.int64)
    for j, step in enumerate(steps):
        alike = swaps and j > 0 and replace(axes[j], name="") == replace(axes[j - 1], name="")
        start = rows[:, -1] if alike else np.zeros(len(rows), np.intp)
        count = len(step.factors) - start
        parent = np.repeat(np.arange(len(rows)), count)
        child = np.arange(len(parent)) + (start - np.cumsum(count) + count)[parent]
        sizes = sizes[parent] * step.factors[child]
        fits = np.ones(len(parent), bool)
        for m, want in enumerate(wanted):
            if want is not None:
                fits &= want % sizes[:, m] == 0
        rows, sizes = np.column_stack([rows[parent], child])[fits], sizes[fits]
    exact = np.ones(len(rows), bool)
    for m, want in enumerate(wanted):
        if want is not None:
            exact &= sizes[:, m] == want
    return rows[exact]


def _keys(columns: NDArray[np.int64], base: int) -> NDArray[np.int64]:
    """One integer for each row of numbers below `base`, in the order of the rows."""
    keys = np.zeros(len(columns), np.int64)
    span = 1
    for column in columns.T:
        span *= base
        if span >= 1 << 62:  # renumber what has been read so far: it takes at most len(columns) values
            keys = np.unique(keys, return_inverse=True)[1].reshape(-1)
            span = len(columns) * base
        keys = keys * base + column
    return keys


def _undominated(figures: NDArray[np.float64], codes: NDArray[np.int64]) -> NDArray[np.intp]:
    """Rows of `codes` that no other row of the same sizes equals or beats throughout, ordered by sizes."""
    better = np.array([1, 1, 1, -1]) * figures[:, 1:]
    as_good = (figures[:, None, 0] == figures[None, :, 0]) & (better[:, None] >= better[None]).all(axis=2)  # [F, F]
    sizes, number = np.unique(figures[:, 0], return_inverse=True)
    key = _keys(number.reshape(-1)[codes], len(sizes))
    order = np.argsort(key, kind="stable")
    bounds = np.flatnonzero(np.diff(key[order], prepend=-1, append=-1))
    kept = [_front(as_good, codes, order[a:b]) for a, b in itertools.pairwise(bounds)]
    return np.concatenate(kept) if kept else order


def _front(as_good: NDArray[np.bool_], codes: NDArray[np.int64], rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Of rows that differ from each other, those that none of the others is as good as."""
    if len(rows) == 1:
        return rows
    beats = np.ones((len(rows), len(rows)), bool)
    for column in codes[rows].T:
        beats &= as_good[column][:, column]
    np.fill_diagonal(beats, False)
    return rows[~beats.any(axis=0)]

"""Layouts found the slow way: all of them, each figure of each mesh axis and group of axes written out in plain Python.

Which axes form groups is read from the stack's own file, not from `asap_ray.meshes`.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cache

import numpy as np

from asap_ray.hardware import Slice
from asap_ray.plan import Six, six
from asap_ray.problem import Problem
from asap_ray.rates import IciAxis, group_rates
from asap_ray.settings import load_group
from asap_ray.topology import LayoutTable

Factors = tuple[tuple[int, ...], ...]  # [mesh axis][ici axis]
ORDER = ("data", "fsdp", "pipeline", "context", "expert", "tensor")
YAML = load_group("stack")


def splits(size: int, may_grow: list[bool]) -> list[tuple[int, ...]]:
    """Every way to write a size as a product of six factors, with 1 where an axis may not grow."""
    options = [[d for d in range(1, size + 1) if size % d == 0] if grows else [1] for grows in may_grow]
    return [split for split in itertools.product(*options) if math.prod(split) == size]


def figures(problem: Problem, factors: Factors) -> tuple[tuple[float, ...], ...]:
    """What a layout is judged by, the less the better: seconds of a byte gathered, exchanged and passed on, and hops.

    For tori and switches; one row a mesh axis and one a group of ranks that the stack has talk as one.
    """
    experts = problem.workload.architecture.experts
    return _figures(problem.slice.axes, problem.stack.name, experts.experts if experts else 1, factors)


@cache
def _figures(axes: tuple[IciAxis, ...], stack: str, experts: int, factors: Factors) -> tuple[tuple[float, ...], ...]:
    also, multiplies = YAML[stack]["shards_weights"], YAML[stack]["expert"] == "multiplies"
    shards = {"fsdp", *also} - (set() if multiplies else {"expert"})
    copies = {"data", "context", "fsdp", *(["expert"] if multiplies else [])} - shards
    found = [group_figures(axes, factors, {m}) for m in range(6)]
    for group in (shards, copies, shards - {"expert"}, copies - {"expert"}):
        found.append(group_figures(axes, factors, {ORDER.index(axis) for axis in group}))
    if multiplies or experts == 1:
        return tuple(found)
    nearest = [axis for axis in ("context", "fsdp", "data") if axis in shards]
    nearest += [axis for axis in ("context", "fsdp", "data") if axis not in shards]
    for degree in range(2, experts + 1):
        if experts % degree == 0:
            outer, inner = nearest_ranks(factors, nearest, degree)
            steps = tuple(itertools.chain.from_iterable(zip(outer, inner, strict=True)))
            found.append(group_figures(axes, steps, {2 * ORDER.index(axis) + 1 for axis in nearest}))
            found += [
                group_figures(axes, steps, {2 * ORDER.index(axis) for axis in group}) for group in (shards, copies)
            ]
    return tuple(found)


def nearest_ranks(factors: Factors, order: list[str], ways: int) -> tuple[Factors, Factors]:
    """Each mesh axis' outer and inner steps where `ways` nearest ranks are split off, prime by prime."""
    outer, inner = [list(row) for row in factors], [[1] * len(row) for row in factors]
    for axis, j in itertools.product(order, reversed(range(len(factors[0])))):
        m = ORDER.index(axis)
        while common := [p for p in (2, 3, 5, 7) if ways % p == 0 and outer[m][j] % p == 0]:
            ways, outer[m][j], inner[m][j] = ways // common[0], outer[m][j] // common[0], inner[m][j] * common[0]
    return tuple(map(tuple, outer)), tuple(map(tuple, inner))


def group_figures(axes: tuple[IciAxis, ...], steps: Factors, members: set[int]) -> tuple[float, ...]:
    """The four figures of the ranks that some steps span together; `steps` from the outermost to the innermost."""
    used, n = [], 1
    for j, axis in enumerate(axes):
        assert axis.fabric in ("torus", "switch")
        own = [k for k in members if steps[k][j] > 1]
        if own:
            size = math.prod(steps[k][j] for k in own)
            reach = math.prod(row[j] for row in steps[min(own) :])
            stride = reach // size if axis.fabric == "torus" else 1
            closes = axis.fabric == "torus" and axis.wrap and size * stride == axis.size
            used.append((size, stride, axis.bytes_per_s / stride, closes))
            n *= size
    if not used:
        return (0.0, 0.0, 0.0, 0.0)
    cuts = []
    for few in itertools.chain.from_iterable(itertools.combinations(used, k + 1) for k in range(len(used))):
        block = n / math.prod(f for f, *_ in few)
        cuts.append((1 - block / n) / (block * sum(2 * rate if closes else rate for _, _, rate, closes in few)))
    shortest = [
        sum(min(k, f - k) for k in range(f)) / 2 if closes else (f // 2) * (f - f // 2) for f, *_, closes in used
    ]
    exchange = max(far / f / rate for far, (f, _, rate, _) in zip(shortest, used, strict=True))
    step = max(1 / rate / (2 if closes and f == 2 else 1) for f, _, rate, closes in used)
    hops = sum((f // 2 if closes else f - 1) * stride for f, stride, _, closes in used)
    row = (max(cuts), exchange, step, hops)
    return tuple(float(f"{value:.9e}") for value in row)


def every_layout(
    slice_: Slice, allowed: Sequence[bool] = (True,) * 6, sizes: Sequence[int | None] = (None,) * 6, groups: object = ()
) -> LayoutTable:
    """Takes the place of `topology.layouts`, and leaves none out."""
    found = np.array(
        [
            list(zip(*columns, strict=True))
            for columns in itertools.product(*(splits(axis.size, list(allowed)) for axis in slice_.axes))
        ]
    )
    total = found.prod(axis=2)
    order = [i for i in np.lexsort(total.T[::-1]) if all(s in (None, t) for s, t in zip(sizes, total[i], strict=True))]
    found = found[order].astype(np.int16)
    rates = [group_rates(slice_.axes, found, [m == k for k in range(6)]) for m in range(6)]
    names = ("gather_bytes_per_s", "all_to_all_bytes_per_s", "permute_bytes_per_s", "hops")
    columns = {name: np.stack([getattr(each, name) for each in rates], axis=1) for name in names}
    return LayoutTable(factors=found, sizes=total[order].astype(np.int32), **columns)


def useful_layouts(problem: Problem, may_grow: list[bool]) -> dict[Six, list[Factors]]:
    """By sizes inside the slice: one layout for each set of figures that no other equals or beats throughout."""
    by_sizes: dict[Six, dict[tuple, Factors]] = defaultdict(dict)
    for columns in itertools.product(*(splits(axis.size, may_grow) for axis in problem.slice.axes)):
        factors = tuple(zip(*columns, strict=True))
        sizes = six(math.prod(row) for row in factors)
        by_sizes[sizes].setdefault(figures(problem, factors), factors)
    kept: dict[Six, list[Factors]] = {}
    for sizes, candidates in by_sizes.items():
        flat = {key: tuple(itertools.chain.from_iterable(key)) for key in candidates}
        beaten = {
            key for key, a in flat.items() for b in flat.values() if a != b and all(map(float.__le__, b, a))
        }  # fmt: skip
        kept[sizes] = [factors for key, factors in candidates.items() if key not in beaten]
    return kept

"""Layouts and their rates against brute force: every layout enumerated, every message routed, every cut tried."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import yaml

from asap_ray import topology
from asap_ray.chip import chip_from_mapping
from asap_ray.hardware import Slice, parse_slice
from asap_ray.plan import AXES
from asap_ray.rates import IciAxis
from asap_ray.topology import MESH_AXES, LayoutTable, layouts

CONF = Path(__file__).parents[1] / "conf" / "hardware"
CHIPS = {chip.name: chip for chip in (chip_from_mapping(yaml.safe_load(p.read_text())) for p in CONF.glob("*.yaml"))}
Node = tuple[int, ...]


def made(*axes: tuple[int, bool, float], fabric: str = "torus") -> Slice:
    """A slice of (size, wrap, bytes/s) axes."""
    ici = tuple(
        IciAxis(name=f"axis{i}", size=size, wrap=wrap, bytes_per_s=rate, fabric=fabric)
        for i, (size, wrap, rate) in enumerate(axes)
    )
    return Slice(name="made", chip=CHIPS["v5p"], topology=tuple(axis.size for axis in ici), axes=ici, slices=1)


# --- a slow, plain model of one layout -------------------------------------------------------------------------------


def all_factors(slice_: Slice) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every layout there is, by trying each factor for each mesh axis on each ici axis: [6][J]."""

    def splits(size: int) -> list[tuple[int, ...]]:
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        return [split for split in itertools.product(divisors, repeat=MESH_AXES) if math.prod(split) == size]

    for columns in itertools.product(*(splits(axis.size) for axis in slice_.axes)):
        yield tuple(zip(*columns, strict=True))


def groups(slice_: Slice, factors: tuple[tuple[int, ...], ...], mesh: int) -> list[list[Node]]:
    """The devices of each group of one mesh axis, in the order of their index along it."""
    members: dict[Node, list[tuple[Node, Node]]] = defaultdict(list)
    for node in itertools.product(*(range(axis.size) for axis in slice_.axes)):
        own, rest = [], []
        for j, position in enumerate(node):
            stride = math.prod(factors[m][j] for m in range(mesh + 1, MESH_AXES))
            own.append(position // stride % factors[mesh][j])
            rest.append(position - own[-1] * stride)
        members[tuple(rest)].append((tuple(own), node))
    return [[node for _, node in sorted(group)] for group in members.values()]


def paths(axis: IciAxis, start: int, end: int) -> list[list[tuple[int, int]]]:
    """The shortest ways along one axis, as lists of directed links; two where both ways round a ring are as long."""
    right = [(i % axis.size, (i + 1) % axis.size) for i in range(start, start + (end - start) % axis.size)]
    left = [(i % axis.size, (i - 1) % axis.size) for i in range(start, start - (start - end) % axis.size, -1)]
    if not axis.wrap:
        return [right if end >= start else left]
    shortest = min(len(right), len(left))
    return [way for way in (right, left) if len(way) == shortest]


def route(slice_: Slice, loads: dict[tuple, float], start: Node, end: Node, bytes_: float) -> None:
    """Add a message to the links of its way, last axis first; it is split evenly where two ways are as long."""
    at = list(start)
    for j in reversed(range(len(at))):
        ways = paths(slice_.axes[j], at[j], end[j])
        for a, b in itertools.chain.from_iterable(ways):
            loads[(j, *at[:j], a, b, *at[j + 1 :])] += bytes_ / len(ways)
        at[j] = end[j]


def busiest(slice_: Slice, loads: dict[tuple, float]) -> float:
    return max(load / slice_.axes[link[0]].bytes_per_s for link, load in loads.items())


def all_to_all_s(slice_: Slice, everyone: list[list[Node]]) -> float:
    """Seconds of an all-to-all of one byte a device in all groups at once."""
    loads: dict[tuple, float] = defaultdict(float)
    for group in everyone:
        for start, end in itertools.permutations(group, 2):
            route(slice_, loads, start, end, 1 / len(group))
    return busiest(slice_, loads)


def permute_s(slice_: Slice, everyone: list[list[Node]]) -> float:
    """Seconds until each device has sent one byte to the next of its group, the last one to the first."""
    loads: dict[tuple, float] = defaultdict(float)
    for group in everyone:
        for start, end in zip(group, group[1:] + group[:1], strict=True):
            route(slice_, loads, start, end, 1.0)
    return busiest(slice_, loads)


def longest(slice_: Slice, group: list[Node]) -> int:
    """Hops between the two members of a group that are farthest apart."""
    distance = lambda a, b: sum(len(paths(axis, *ends)[0]) for axis, *ends in zip(slice_.axes, a, b, strict=True))  # noqa: E731
    return max(distance(a, b) for a, b in itertools.combinations(group, 2))


def gather_s(slice_: Slice) -> float:
    """Seconds of an all-gather of one byte over the whole slice: the tightest cut, over all sets of devices.

    (Edmonds 1973 for the packing of trees; Zhao et al. 2024, arXiv 2402.06787, theorem 1, for the collective.)
    """
    nodes = list(itertools.product(*(range(axis.size) for axis in slice_.axes)))
    place = {node: i for i, node in enumerate(nodes)}
    inside = (np.arange(1, 2 ** len(nodes) - 1)[:, None] >> np.arange(len(nodes))) & 1  # [sets, devices]
    ingress = np.zeros(len(inside))
    for node, (j, axis) in itertools.product(nodes, enumerate(slice_.axes)):
        ends = {node[j] - 1, node[j] + 1}
        ends = {end % axis.size for end in ends} if axis.wrap else {end for end in ends if 0 <= end < axis.size}
        for end in ends:
            other = place[(*node[:j], end, *node[j + 1 :])]
            ingress += axis.bytes_per_s * (inside[:, place[node]] & (1 - inside[:, other]))
    return float(np.max((1 - inside.sum(axis=1) / len(nodes)) / ingress))


def row_of(table: LayoutTable, factors: tuple[tuple[int, ...], ...]) -> int | None:
    found = np.flatnonzero((table.factors == np.array(factors)).all(axis=(1, 2)))
    return int(found[0]) if len(found) else None


def only(slice_: Slice, mesh: int) -> tuple[LayoutTable, int]:
    """The one layout that gives the whole slice to one mesh axis."""
    sizes = [1] * MESH_AXES
    sizes[mesh] = math.prod(axis.size for axis in slice_.axes)
    table = layouts(slice_, sizes=sizes)
    assert len(table) == 1
    return table, 0


# --- rates -----------------------------------------------------------------------------------------------------------

W = 1e9
WHOLE = [
    made((2, False, W)), made((5, False, W)), made((3, True, W)), made((4, True, W)), made((7, True, W)),
    made((8, True, W)), made((2, False, W), (4, False, W)), made((4, True, W), (4, True, W)),
    made((3, False, W), (4, True, W)), made((2, False, W), (2, False, W), (4, False, W)),
    made((4, True, W), (2, False, 6 * W)), made((2, False, W), (2, False, W), (2, False, 6 * W)),
    made((2, False, W), (4, True, 3 * W)),
]  # fmt: skip


@pytest.mark.parametrize("slice_", WHOLE, ids=lambda slice_: "x".join(map(str, slice_.topology)))
def test_gather_rate_is_the_tightest_of_all_cuts(slice_: Slice) -> None:
    table, row = only(slice_, 1)
    n = math.prod(slice_.topology)
    assert (n - 1) / n / table.gather_bytes_per_s[row, 1] == pytest.approx(gather_s(slice_), rel=1e-9)


MIXED = [
    made((8, True, W)), made((8, False, W)), made((12, True, W)), made((9, True, W)), made((4, True, W), (4, True, W)),
    made((2, False, W), (6, True, W)), made((4, True, W), (3, False, W), (2, False, 6 * W)),
]  # fmt: skip


@pytest.mark.parametrize("slice_", MIXED, ids=lambda slice_: "x".join(map(str, slice_.topology)))
def test_all_to_all_permute_and_hops_are_what_routing_every_message_gives(slice_: Slice) -> None:
    table = layouts(slice_, allowed=(True, True, False, False, False, True))
    rows = np.random.default_rng(0).permutation(len(table))[:40]
    for row, mesh in itertools.product(rows, (0, 1, 5)):
        n = table.sizes[row, mesh]
        if n == 1:
            continue
        everyone = groups(slice_, table.factors[row].tolist(), mesh)
        all_to_all = (n - 1) / n / table.all_to_all_bytes_per_s[row, mesh]
        assert all_to_all == pytest.approx(all_to_all_s(slice_, everyone), rel=1e-9)
        assert 1 / table.permute_bytes_per_s[row, mesh] == pytest.approx(permute_s(slice_, everyone), rel=1e-9)
        assert table.hops[row, mesh] == max(longest(slice_, group) for group in everyone)


@pytest.mark.parametrize("wrap", [True, False])
@pytest.mark.parametrize("sizes", [(4, 2), (2, 4), (2, 2, 3), (6, 2), (3, 4)])
def test_interleaved_groups_share_links_as_their_shards_travel(wrap: bool, sizes: tuple[int, ...]) -> None:
    """Each shard goes half each way round a ring of its group, or to both ends of a line, in all groups at once."""
    slice_ = made((math.prod(sizes), wrap, W))
    wanted = sizes + (1,) * (MESH_AXES - len(sizes))
    table = layouts(slice_, sizes=wanted)
    for mesh, n in enumerate(sizes):
        loads: dict[tuple, float] = defaultdict(float)
        closes = wrap and mesh == 0
        everyone = groups(slice_, table.factors[0].tolist(), mesh)
        for group, i in itertools.product(everyone, range(n)):
            for way in (1, -1):
                steps = n - 1 if closes else (n - 1 - i if way == 1 else i)
                for k in range(steps):
                    a, b = group[(i + way * k) % n][0], group[(i + way * (k + 1)) % n][0]
                    span = (b - a) * way % slice_.topology[0]
                    for hop in range(span):
                        loads[(0, (a + way * hop) % slice_.topology[0], way)] += (0.5 if closes else 1.0) / n
        assert (n - 1) / n / table.gather_bytes_per_s[0, mesh] == pytest.approx(busiest(slice_, loads), rel=1e-9)


def test_rates_worked_by_hand() -> None:
    v5e = made((16, True, 4.5e10), (16, True, 4.5e10))  # the scaling book's v5e pod
    table, row = only(v5e, 1)
    assert table.gather_bytes_per_s[row, 1] == pytest.approx(2 * 9e10)  # bidirectional, times two axes
    ring = made((16, True, 4.5e10))
    table, row = only(ring, 1)
    assert table.gather_bytes_per_s[row, 1] == pytest.approx(9e10)
    gather_whole = 1 / 9e10  # seconds for each byte of the whole array
    exchange_whole = 15 / 16 / table.all_to_all_bytes_per_s[row, 1] / 16
    assert exchange_whole == pytest.approx(gather_whole / 4)  # scaling book, part 3: an all-to-all costs a quarter
    assert table.hops[row, 1] == 8
    # a ring of 16 as fsdp=4 over tensor=4: tensor is a line of neighbours; fsdp is a ring, but four share each link
    table = layouts(ring, sizes=(1, 4, 1, 1, 1, 4))
    assert table.gather_bytes_per_s[0].tolist() == [np.inf, 2 * 4.5e10 / 4, np.inf, np.inf, np.inf, 4.5e10]
    assert table.hops[0].tolist() == [0, 8, 0, 0, 0, 3]


def test_switches_and_meshes() -> None:
    table, row = only(parse_slice("h100x8", CHIPS), 5)
    assert table.gather_bytes_per_s[row, 5] == table.all_to_all_bytes_per_s[row, 5] == pytest.approx(450e9)
    assert table.hops[row, 5] == 7
    split = layouts(parse_slice("gb200x72", CHIPS), sizes=(1, 9, 1, 1, 1, 8))
    assert split.gather_bytes_per_s[0, [1, 5]].tolist() == [900e9, 900e9]  # nobody shares a port
    table, row = only(parse_slice("mi300x8", CHIPS), 5)
    assert table.gather_bytes_per_s[row, 5] == pytest.approx(448e9)  # seven links of 64 GB/s
    assert table.permute_bytes_per_s[row, 5] == pytest.approx(64e9)
    half = layouts(parse_slice("mi300x8", CHIPS), sizes=(2, 1, 1, 1, 1, 4))
    assert half.gather_bytes_per_s[0, [0, 5]].tolist() == [64e9, 192e9]  # only links inside the group are of use


def test_ironwoods_chips_are_the_bottleneck_not_their_dies() -> None:
    table, row = only(parse_slice("tpu7x:4x4x4", CHIPS), 1)
    # both dies need every byte, and a chip takes bytes in over six links of 100 GB/s: each byte enters the chip once
    outside, ingress = 63 / 64, 600e9
    assert 127 / 128 / table.gather_bytes_per_s[row, 1] == pytest.approx(outside / ingress)


# --- which layouts there are -----------------------------------------------------------------------------------------

SMALL = ["v5e-4", "v5e-16", "v5p:2x2x4", "v5p-128", "h100x8", "gb200x12", "tpu7x-8", "tpu7x-16", "mi250x4", "v5e-1"]
FIGURES = ("gather_bytes_per_s", "all_to_all_bytes_per_s", "permute_bytes_per_s", "hops")


@lru_cache(maxsize=200_000)
def figures(axes: tuple[IciAxis, ...], row: tuple[int, ...], strides: tuple[int, ...]) -> tuple[float, ...]:
    """Gather, all-to-all and permute seconds of a byte, and hops, of one mesh axis; written out, one axis at a time."""
    n = math.prod(row)
    if n == 1:
        return (0.0, 0.0, 0.0, 0)
    used = []
    for axis, f, s in zip(axes, row, strides, strict=True):
        if f == 1:
            continue
        if axis.fabric == "switch":
            used.append((f, axis.bytes_per_s, (f - 1) / f / axis.bytes_per_s, axis.bytes_per_s, f - 1))
        elif axis.fabric == "mesh":
            used.append((f, axis.bytes_per_s * (f - 1), 1 / f / axis.bytes_per_s, axis.bytes_per_s, 1))
        else:
            w = axis.bytes_per_s / s
            closes = axis.wrap and f * s == axis.size
            half = sum(min(k, f - k) for k in range(f)) / f / 2 if closes else (f // 2) * (f - f // 2) / f
            step = 2 * w if closes and f == 2 else w
            used.append((f, 2 * w if closes else w, half / w, step, (f // 2 if closes else f - 1) * s))
    cuts = []
    for chosen in itertools.chain.from_iterable(itertools.combinations(used, k) for k in range(1, len(used) + 1)):
        block = n // math.prod(item[0] for item in chosen)
        cuts.append((1 - block / n) / block / sum(item[1] for item in chosen))
    return (max(cuts), max(u[2] for u in used), 1 / min(u[3] for u in used), sum(u[4] for u in used))


def costs(slice_: Slice, factors: tuple[tuple[int, ...], ...]) -> list[tuple[float, ...]]:
    tail = [tuple(math.prod(f[j] for f in factors[m + 1 :]) for j in range(len(slice_.axes))) for m in range(MESH_AXES)]
    return [figures(slice_.axes, factors[m], tail[m]) for m in range(MESH_AXES)]


def seconds(table: LayoutTable) -> np.ndarray:
    """The same four figures of a table's rows, [L, 6, 4]."""
    away = (table.sizes - 1) / table.sizes
    columns = (away / table.gather_bytes_per_s, away / table.all_to_all_bytes_per_s, 1 / table.permute_bytes_per_s)
    return np.stack([*columns, table.hops], axis=2)


@pytest.mark.parametrize("name", SMALL)
def test_kept_layouts_are_valid_and_hold_the_best_of_all(name: str) -> None:
    slice_ = parse_slice(name, CHIPS)
    if name == "v5p-128":  # 9,261 layouts on three alike rings
        assert len(list(all_factors(slice_))) == 21**3
    table = layouts(slice_)
    everything = list(all_factors(slice_))
    known = set(everything)
    rows = [tuple(map(tuple, factors)) for factors in table.factors.tolist()]
    assert len(set(rows)) == len(rows)
    assert set(rows) <= known
    found = seconds(table)
    for row, factors in enumerate(rows):
        assert table.sizes[row].tolist() == [math.prod(steps) for steps in factors]
        np.testing.assert_allclose(found[row], costs(slice_, factors), rtol=1e-9)
    by_sizes: dict[tuple[int, ...], list] = defaultdict(list)
    for factors in everything:
        by_sizes[tuple(math.prod(steps) for steps in factors)].append(costs(slice_, factors))
    kept: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, sizes in enumerate(table.sizes.tolist()):
        kept[tuple(sizes)].append(row)
    assert set(kept) == set(by_sizes)
    rng = np.random.default_rng(0)
    scale = np.array([1e9, 1e9, 1e9, 0.1])  # so that no figure drowns the others
    for sizes, candidates in by_sizes.items():
        weights = rng.exponential(size=(12, MESH_AXES, 4)) ** 3 * scale
        best = np.tensordot(weights, np.array(candidates), axes=([1, 2], [1, 2])).min(axis=1)
        reached = np.tensordot(weights, found[kept[sizes]], axes=([1, 2], [1, 2])).min(axis=1)
        np.testing.assert_allclose(reached, best, rtol=1e-9)


@pytest.mark.parametrize("name", SMALL)
def test_no_kept_layout_is_beaten_by_another(name: str) -> None:
    table = layouts(parse_slice(name, CHIPS))
    found = seconds(table)
    for sizes in np.unique(table.sizes, axis=0):
        same = found[(table.sizes == sizes).all(axis=1)]
        as_good = (same[:, None] <= same[None] * (1 + 1e-9)).all(axis=(2, 3))
        assert as_good.sum() == len(same)  # each row only as good as itself


def test_fixed_sizes_and_allowed_axes_select_from_the_whole_table() -> None:
    slice_ = parse_slice("v5e-256", CHIPS)
    whole = layouts(slice_)
    fixed = layouts(slice_, sizes=(None, 16, 1, 1, 1, 4))
    want = (whole.sizes[:, 1] == 16) & (whole.sizes[:, 2:5] == 1).all(axis=1) & (whole.sizes[:, 5] == 4)
    expected = whole.take(np.flatnonzero(want))
    np.testing.assert_array_equal(fixed.factors, expected.factors)
    for name in FIGURES:
        np.testing.assert_array_equal(getattr(fixed, name), getattr(expected, name))
    few = layouts(slice_, allowed=(False, True, False, False, False, True))
    want = (whole.sizes[:, [0, 2, 3, 4]] == 1).all(axis=1)
    np.testing.assert_array_equal(few.factors, whole.factors[want])


@pytest.mark.parametrize(
    "sizes", [(3, None, None, None, None, None), (512,) + (None,) * 5, (1,) * 6, (0,) + (None,) * 5]
)
def test_sizes_that_no_layout_has_give_an_empty_table(sizes: tuple[int | None, ...]) -> None:
    table = layouts(parse_slice("v5e-256", CHIPS), sizes=sizes)
    assert len(table) == 0
    assert table.factors.shape == (0, 6, 2)


def test_an_axis_that_may_not_grow_cannot_be_asked_to() -> None:
    slice_ = parse_slice("v5e-16", CHIPS)
    assert len(layouts(slice_, allowed=(True,) * 5 + (False,), sizes=(None,) * 5 + (2,))) == 0


def test_axes_are_in_the_order_of_plan() -> None:
    assert len(AXES) == MESH_AXES
    assert AXES[-1] == "tensor"  # the innermost: neighbours


@pytest.mark.parametrize(
    ("name", "multisets"),
    [
        ("v6e-256", math.comb(126 + 1, 2)),  # 16 splits among six axes in C(9, 5) = 126 ways; two alike rings
        ("v5p-1024", math.comb(56 + 2, 3)),  # 8 in C(8, 5) = 56 ways; three alike rings
    ],
)
def test_layouts_are_made_once_and_compared_with_those_of_their_own_sizes_only(
    monkeypatch: pytest.MonkeyPatch, name: str, multisets: int
) -> None:
    counts: dict[str, list[int]] = {"made": [], "compared": []}
    combinations, front = topology._combinations, topology._front

    def made_now(*args):
        rows = combinations(*args)
        counts["made"].append(len(rows))
        return rows

    def compared_now(as_good, codes, rows):
        counts["compared"].append(len(rows))
        return front(as_good, codes, rows)

    monkeypatch.setattr(topology, "_combinations", made_now)
    monkeypatch.setattr(topology, "_front", compared_now)
    topology._layouts.cache_clear()
    table = layouts(parse_slice(name, CHIPS))
    assert counts["made"] == [multisets]  # swapping alike axes makes no other layout
    each = counts["compared"]
    assert 100 * sum(n**2 for n in each) < sum(each) ** 2, "all with all would be a hundred times the work"
    assert 1000 < len(table) <= sum(each) <= multisets

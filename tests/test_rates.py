"""Rates of groups that several mesh axes span, against every cut there is and every message routed."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest

from asap_ray.rates import IciAxis, group_rates

Node = tuple[int, ...]
W = 1e9


def ici(*axes: tuple[int, bool, float], fabric: str = "torus") -> tuple[IciAxis, ...]:
    """Link axes of (size, wrap, bytes/s)."""
    return tuple(
        IciAxis(name=f"axis{i}", size=size, wrap=wrap, bytes_per_s=rate, fabric=fabric)
        for i, (size, wrap, rate) in enumerate(axes)
    )


def all_factors(axes: tuple[IciAxis, ...], parts: int) -> Iterator[np.ndarray]:
    """Every way to split the link axes among `parts` mesh axes, [parts, J]."""
    splits = [
        [s for s in itertools.product(range(1, axis.size + 1), repeat=parts) if math.prod(s) == axis.size]
        for axis in axes
    ]
    for columns in itertools.product(*splits):
        yield np.array(columns).T


def groups(axes: tuple[IciAxis, ...], factors: np.ndarray, members: list[bool]) -> list[list[Node]]:
    """The devices of each group: those that differ in the members' digits only, the last mesh axis counting fastest."""
    found: dict[tuple, list[Node]] = defaultdict(list)
    for node in itertools.product(*(range(axis.size) for axis in axes)):
        digits = [np.unravel_index(position, factors[:, j]) for j, position in enumerate(node)]
        found[tuple(d for ds in digits for d, own in zip(ds, members, strict=True) if not own)].append(node)
    return list(found.values())


def neighbours(axes: tuple[IciAxis, ...], node: Node) -> Iterator[tuple[Node, float]]:
    for j, axis in enumerate(axes):
        ends = {node[j] - 1, node[j] + 1}
        for end in {e % axis.size for e in ends} if axis.wrap else {e for e in ends if 0 <= e < axis.size}:
            yield (*node[:j], end, *node[j + 1 :]), axis.bytes_per_s


def tightest_cut_s(axes: tuple[IciAxis, ...], everyone: list[list[Node]]) -> float:
    """Seconds that no all-gather of one byte in all groups at once can beat, over all sets of devices.

    What a set has any part in of a group, and does not hold itself, must come in over the links into the set.
    """
    nodes = sorted(itertools.chain.from_iterable(everyone))
    place = {node: i for i, node in enumerate(nodes)}
    inside = (np.arange(1, 2 ** len(nodes) - 1)[:, None] >> np.arange(len(nodes))) & 1  # [sets, devices]
    ingress, wanted = np.zeros(len(inside)), np.zeros(len(inside))
    for node in nodes:
        for other, rate in neighbours(axes, node):
            ingress += rate * (inside[:, place[node]] & (1 - inside[:, place[other]]))
    for group in everyone:
        held = inside[:, [place[node] for node in group]].sum(axis=1)
        wanted += np.where(held > 0, 1 - held / len(group), 0)
    return float(np.max(wanted / ingress))


def exchange_s(axes: tuple[IciAxis, ...], everyone: list[list[Node]]) -> float:
    """Seconds of an all-to-all of one byte a device in all groups, on shortest ways, last axis first."""
    loads: dict[tuple, float] = defaultdict(float)
    for group in everyone:
        for start, end in itertools.permutations(group, 2):
            at = list(start)
            for j in reversed(range(len(axes))):
                size, there = axes[j].size, (end[j] - at[j])
                ways = [(1, there % size), (-1, -there % size)] if axes[j].wrap else [(int(np.sign(there)), abs(there))]
                shortest = [way for way in ways if way[1] == min(length for _, length in ways)]
                for way, length in shortest:
                    for k in range(length):
                        link = (j, way, *at[:j], (at[j] + way * k) % size, *at[j + 1 :])
                        loads[link] += 1 / len(group) / len(shortest) / axes[j].bytes_per_s
                at[j] = end[j]
    return max(loads.values())


SLICES = {
    "ring": ici((12, True, W)),
    "line": ici((12, False, W)),
    "ring of 8": ici((8, True, W)),
    "torus": ici((4, True, W), (4, True, W)),
    "ring and line": ici((4, True, W), (3, False, W)),
    "dies": ici((4, True, W), (2, False, 6 * W)),
    "unlike": ici((2, False, W), (6, True, 3 * W)),
}
GROUPS = [[True, True, False], [False, True, True], [True, False, True], [True, True, True]]


def cases(axes: tuple[IciAxis, ...], limit: int) -> Iterator[tuple[np.ndarray, list[bool], bool, list[list[Node]]]]:
    """Layouts of three mesh axes, a group of them, whether it is clustered, and its devices."""
    every = list(itertools.product(all_factors(axes, 3), GROUPS))
    for at in np.random.default_rng(0).permutation(len(every))[:limit]:
        factors, members = every[at]
        everyone = groups(axes, factors, members)
        if len(everyone[0]) > 1:
            clustered = members == [True, False, True] and bool((factors > 1).all(axis=0).any())
            yield factors, members, clustered, everyone


@pytest.mark.parametrize("name", SLICES)
def test_a_joint_gather_takes_what_the_tightest_cut_demands(name: str) -> None:
    axes = SLICES[name]
    for factors, members, clustered, everyone in cases(axes, 60):
        away = 1 - 1 / len(everyone[0])
        rates, best = (group_rates(axes, factors[None], members, bound=bound) for bound in (False, True))
        least, found = tightest_cut_s(axes, everyone), away / rates.gather_bytes_per_s[0]
        assert found >= least * (1 - 1e-9), (factors, members)
        assert away / best.gather_bytes_per_s[0] <= least * (1 + 1e-9), (factors, members)
        if not clustered:
            assert found == pytest.approx(least, rel=1e-9), (factors, members)


@pytest.mark.parametrize("name", SLICES)
def test_a_joint_exchange_loads_links_as_routing_every_message_does(name: str) -> None:
    axes = SLICES[name]
    for factors, members, clustered, everyone in cases(axes, 60):
        away = 1 - 1 / len(everyone[0])
        rates, best = (group_rates(axes, factors[None], members, bound=bound) for bound in (False, True))
        routed, found = exchange_s(axes, everyone), away / rates.all_to_all_bytes_per_s[0]
        assert away / best.all_to_all_bytes_per_s[0] <= routed * (1 + 1e-9), (factors, members)
        if clustered:
            assert routed * (1 - 1e-9) <= found <= 1.5 * routed, (factors, members)
        else:
            assert found == pytest.approx(routed, rel=1e-9), (factors, members)


def test_two_halves_of_a_ring_are_the_ring() -> None:
    ring = ici((16, True, 5e10))
    both = group_rates(ring, np.array([[[4], [4]]]), [True, True])
    assert both.gather_bytes_per_s.tolist() == [1e11]  # two links a chip
    assert both.hops.tolist() == [8]
    # with another axis of two inside, two such groups share the ring
    shared = group_rates(ring, np.array([[[4], [2], [2]]]), [True, True, False])
    assert shared.gather_bytes_per_s.tolist() == [5e10]
    assert shared.hops.tolist() == [8]


def test_dies_of_a_chip_take_in_each_byte_once() -> None:
    # 4 x 4 x 4 chips of two dies with links of 50 GB/s a die: six a die on rings, and 600 GB/s to the other die
    axes = ici((4, True, 5e10), (4, True, 5e10), (4, True, 5e10), (2, False, 6e11))
    both = group_rates(axes, np.array([[[4, 4, 4, 1], [1, 1, 1, 2]]]), [True, True])
    whole = group_rates(axes, np.array([[[4, 4, 4, 2]]]), [True])
    assert both.gather_bytes_per_s[0] == whole.gather_bytes_per_s[0]
    # two dies take in 126/128 of all bytes over twelve links
    assert both.gather_bytes_per_s[0] == pytest.approx(600e9 * (127 / 128) / (126 / 128))


def test_switches_and_meshes_know_no_distance() -> None:
    switch, mesh = ici((8, False, 4.5e11), fabric="switch"), ici((8, False, 6.4e10), fabric="mesh")
    halves = np.array([[[2], [2], [2]]])
    assert group_rates(switch, halves, [True, False, True]).gather_bytes_per_s.tolist() == [4.5e11]
    assert group_rates(mesh, halves, [True, False, True]).gather_bytes_per_s.tolist() == [3 * 6.4e10]
    assert group_rates(mesh, halves, [True, True, True]).hops.tolist() == [1]


def test_a_group_of_one_sends_nothing() -> None:
    alone = group_rates(ici((4, True, W)), np.array([[[1], [4]]]), [True, False])
    assert (alone.gather_bytes_per_s[0], alone.all_to_all_bytes_per_s[0]) == (np.inf, np.inf)
    assert (alone.permute_bytes_per_s[0], alone.hops[0]) == (np.inf, 0)

"""Collectives against schedules that are played message by message, published figures and laws."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from asap_ray.chip import chip_from_mapping
from asap_ray.hardware import parse_slice
from asap_ray.physics.network import Link, all_gather, all_reduce, all_to_all, permute, reduce_scatter
from asap_ray.topology import MESH_AXES, layouts

CONF = Path(__file__).parents[2] / "conf" / "hardware"
CHIPS = {chip.name: chip for chip in (chip_from_mapping(yaml.safe_load(p.read_text())) for p in CONF.glob("*.yaml"))}
COLLECTIVES = {
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_reduce": all_reduce,
    "all_to_all": all_to_all,
    "permute": permute,
}


def link(n_ici: Any = 1, n_dcn: Any = 1, rate: float = 1e11, **more: Any) -> Link:
    """Columns of axes whose three rates are alike; hops as on a line."""
    ici = np.atleast_1d(np.asarray(n_ici))
    rates = np.where(ici > 1, rate, np.inf)
    figures = dict.fromkeys(("gather_bytes_per_s", "all_to_all_bytes_per_s", "permute_bytes_per_s"), rates)
    columns = {"n_ici": ici, "n_dcn": np.atleast_1d(np.asarray(n_dcn)), "hops": ici - 1, "dcn_bytes_per_s": 6e9}
    return Link(**{**columns, **figures, **more})


def on_slice(
    name: str,
    link_bytes_per_s: float,
    sizes: tuple[int, ...],
    mesh: int,
    pick: Callable[[np.ndarray], np.intp] = np.argmax,
    **more: Any,
) -> Link:
    """One mesh axis laid on a slice with links of the given speed; `pick` chooses the layout by its all-gather."""
    found = parse_slice(name, CHIPS)
    faster = tuple(dataclasses.replace(axis, bytes_per_s=link_bytes_per_s) for axis in found.axes)
    table = layouts(dataclasses.replace(found, axes=faster), sizes=sizes)
    row = int(pick(table.gather_bytes_per_s[:, mesh]))
    return Link(
        n_ici=table.sizes[row, [mesh]],
        n_dcn=np.array([1]),
        gather_bytes_per_s=table.gather_bytes_per_s[row, [mesh]],
        all_to_all_bytes_per_s=table.all_to_all_bytes_per_s[row, [mesh]],
        permute_bytes_per_s=table.permute_bytes_per_s[row, [mesh]],
        hops=table.hops[row, [mesh]],
        dcn_bytes_per_s=found.chip.device_nic_bytes_per_s,
        **more,
    )


def wire_bytes(kind: str, n_ici: int, n_dcn: int, bytes_: float) -> tuple[float, float]:
    """Bytes that one device sends inside its slice and across: the seconds of a network of 1 byte/s that never waits.

    What is asserted of them is asserted of the very coefficients that price plans.
    """
    ici, dcn = COLLECTIVES[kind](link(n_ici, n_dcn, 1.0, dcn_bytes_per_s=1.0), bytes_)
    return float(ici[0]), float(dcn[0])


# --- schedules, played ------------------------------------------------------------------------------------------------


def played_ring_all_gather(n: int) -> tuple[np.ndarray, int]:
    """Shards sent by each device, and steps, of a ring all-gather."""
    held, sent, steps = [{i} for i in range(n)], np.zeros(n), 0
    last = list(range(n))
    while any(len(shards) < n for shards in held):
        arriving = [last[i - 1] for i in range(n)]
        for i, shard in enumerate(arriving):
            held[i].add(shard)
            sent[i - 1] += 1
        last, steps = arriving, steps + 1
    return sent, steps


def played_ring_reduce_scatter(n: int) -> tuple[np.ndarray, int]:
    """Shards sent by each device, and steps, until each owns one whole sum; the sums are checked."""
    values = np.random.default_rng(0).integers(0, 100, (n, n))
    partial, sent = values.copy(), np.zeros(n)
    for step in range(n - 1):
        moving = [(i, (i - step) % n, partial[i, (i - step) % n]) for i in range(n)]
        for i, shard, value in moving:
            partial[(i + 1) % n, shard] += value
            sent[i] += 1
    assert all(partial[i, (i + 1) % n] == values[:, (i + 1) % n].sum() for i in range(n))
    return sent, n - 1


def played_tree_all_reduce(n: int) -> tuple[np.ndarray, int]:
    """Whole arrays sent by each device, and the messages on the longest chain, of a binary tree: up, then down."""
    values = np.arange(1.0, n + 1)
    total, sent, width, depth = values.copy(), np.zeros(n), 1, 0
    while width < n:
        for i in range(0, n - width, 2 * width):
            total[i] += total[i + width]
            sent[i + width] += 1
        width, depth = 2 * width, depth + 1
    while width > 1:
        width //= 2
        for i in range(0, n - width, 2 * width):
            total[i + width] = total[i]
            sent[i] += 1
    assert (total == values.sum()).all()
    return sent, 2 * depth


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 16])
def test_wire_bytes_and_waits_are_those_of_a_played_schedule(n: int) -> None:
    bytes_, latency, rate = 840.0, 1e-3, 6e3
    gathered, gather_steps = played_ring_all_gather(n)
    scattered, scatter_steps = played_ring_reduce_scatter(n)
    tree, tree_waits = played_tree_all_reduce(n)
    for sizes, nothing in (((n, 1), 1), ((1, n), 0)):  # all inside one slice, or one device in each of n
        sent = {kind: wire_bytes(kind, *sizes, bytes_) for kind in COLLECTIVES}
        assert {moved[nothing] for moved in sent.values()} == {0.0}
        for i in range(n):
            assert sum(sent["all_gather"]) == pytest.approx(gathered[i] * bytes_ / n)
            assert sum(sent["reduce_scatter"]) == pytest.approx(scattered[i] * bytes_ / n)
            assert sum(sent["all_reduce"]) == pytest.approx((gathered[i] + scattered[i]) * bytes_ / n)
        assert sum(sent["all_reduce"]) == pytest.approx(tree.mean() * bytes_)  # a tree moves as much, unevenly

    across = link(1, n, dcn_bytes_per_s=rate, dcn_latency_s=latency)
    ring_s = gather_steps * (latency + bytes_ / n / rate)  # every step waits for a message of one shard
    assert all_gather(across, bytes_)[1] == pytest.approx(ring_s)
    assert reduce_scatter(across, bytes_)[1] == pytest.approx(scatter_steps * (latency + bytes_ / n / rate))
    tree_s = tree_waits * latency + (2 * bytes_ / rate if n > 1 else 0)  # pipelined: latency, then two passes of bytes
    assert all_reduce(across, bytes_)[1] == pytest.approx(min(2 * ring_s, tree_s))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_all_to_all_and_permute_bytes(n: int) -> None:
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    for sizes in ((n, 1), (1, n)):
        assert sum(wire_bytes("all_to_all", *sizes, 120.0)) * n == pytest.approx(len(pairs) * 120.0 / n)
        assert sum(wire_bytes("permute", *sizes, 120.0)) == (120.0 if n > 1 else 0.0)


@pytest.mark.parametrize(("n_ici", "n_dcn"), [(4, 3), (8, 2), (1, 5), (6, 1), (3, 4)])
def test_a_hierarchical_gather_moves_what_each_device_needs_once(n_ici: int, n_dcn: int) -> None:
    """Play it: devices gather their peers' pieces across, then each slice gathers inside; count pieces by network."""
    held = {(s, i): {(s, i)} for s in range(n_dcn) for i in range(n_ici)}
    across = {d: {(s, d[1]) for s in range(n_dcn)} - pieces for d, pieces in held.items()}
    for device, pieces in across.items():
        held[device] |= pieces
    inside = {(s, i): set().union(*(held[s, k] for k in range(n_ici))) - held[s, i] for s, i in held}
    for device, pieces in inside.items():
        held[device] |= pieces
    assert all(len(pieces) == n_ici * n_dcn for pieces in held.values())

    bytes_ = 1e9
    piece = bytes_ / (n_ici * n_dcn)
    received = [[len(pieces) * piece for pieces in network.values()] for network in (inside, across)]
    for device in zip(*received, strict=True):  # each takes in as much as any other, and so sends as much
        assert wire_bytes("all_gather", n_ici, n_dcn, bytes_) == pytest.approx(device)
        assert wire_bytes("reduce_scatter", n_ici, n_dcn, bytes_) == pytest.approx(device)
        assert wire_bytes("all_reduce", n_ici, n_dcn, bytes_) == pytest.approx([2 * moved for moved in device])
    ici, dcn = all_gather(link(n_ici, n_dcn, 1e11), bytes_)
    assert (ici[0], dcn[0]) == pytest.approx((received[0][0] / 1e11, received[1][0] / 6e9))


@pytest.mark.parametrize(("n_ici", "n_dcn"), [(4, 3), (8, 2), (1, 5), (6, 1)])
def test_an_all_to_all_sends_each_byte_on_one_network(n_ici: int, n_dcn: int) -> None:
    devices = [(s, i) for s in range(n_dcn) for i in range(n_ici)]
    inside = sum(1 for s, i in devices if s == 0 and i != 0)
    across = sum(1 for s, _ in devices if s != 0)
    bytes_ = 1e9
    ici, dcn = all_to_all(link(n_ici, n_dcn, 1e11), bytes_)
    assert dcn == pytest.approx(across * bytes_ / len(devices) / 6e9)
    assert ici == pytest.approx(inside * bytes_ / len(devices) / 1e11)  # the rate is of bytes (n-1)/n, n inside


# --- published and hand-worked figures --------------------------------------------------------------------------------


def test_scaling_book_quiz_all_gather_on_a_line_of_four() -> None:
    """Part 3, pop quiz 2: bf16[2048, 8192] over Y of a v5e {X: 8, Y: 4}: 3 x 8.4e6 / 4.5e10 = 560 us, no wraparound."""
    on_y = on_slice("v5e-32", 4.5e10, (1, 8, 1, 1, 1, 4), 5, np.argmin, hop_latency_s=1e-6)  # all of Y on one axis
    ici, dcn = all_gather(on_y, 2048 * 8192 * 2)
    assert ici[0] == pytest.approx(560e-6, rel=0.01)
    assert dcn[0] == 0
    small, _ = all_gather(on_y, 256 * 256 * 2)
    assert small[0] == pytest.approx(3e-6 + 3 * 32e3 / 4.5e10, rel=0.03)  # three hops of a microsecond: latency bound
    square = on_slice("v5e-32", 4.5e10, (1, 8, 1, 1, 1, 4), 5)  # as 2x2 both axes carry it
    assert all_gather(square, 2048 * 8192 * 2)[0][0] == pytest.approx(280e-6, rel=0.01)


def test_scaling_book_all_gather_over_two_axes_of_a_pod() -> None:
    """Part 3: V / (W_ici n_axes) with W_ici = 9e10 both ways; the book neglects the 1/256 that is already there."""
    both = on_slice("v5e-256", 4.5e10, (1, 256, 1, 1, 1, 1), 1)
    assert all_gather(both, 1e9)[0][0] == pytest.approx(1e9 / (2 * 9e10) * 255 / 256)


def test_scaling_book_all_to_all_costs_a_quarter_of_the_all_gather() -> None:
    """Part 3: on a bidirectional ring, of the same array; the book counts n - 1 as n."""
    ring = on_slice("v5e-256", 4.5e10, (1, 16, 1, 1, 1, 16), 1)
    bytes_ = 1e9
    gathered, exchanged = all_gather(ring, bytes_)[0][0], all_to_all(ring, bytes_ / 16)[0][0]
    assert exchanged / gathered == pytest.approx(1 / 4 * 16 / 15)


def test_torus_all_reduce_by_hand() -> None:
    """A 4x4x4 v5p at 90 GB/s a link: six links take in 540 GB/s, and 2 x 63/64 of 1 GB must come in."""
    cube = on_slice("v5p-128", 9e10, (1, 64, 1, 1, 1, 1), 1, hop_latency_s=1e-6)
    ici, dcn = all_reduce(cube, 1e9)
    assert ici[0] == pytest.approx(2 * 63 / 64 * 1e9 / 540e9 + 2 * (2 + 2 + 2) * 1e-6)
    assert dcn[0] == 0


def test_nvlink_all_reduce_by_hand() -> None:
    """Eight H100: 2 x 7/8 of 1 GiB at 450 GB/s is 4.18 ms; a small one takes the tree, 6 waits instead of 14."""
    node = on_slice("h100x8", 450e9, (1, 1, 1, 1, 1, 8), 5, hop_latency_s=1e-6, switched=True)
    assert all_reduce(node, 2**30)[0][0] == pytest.approx(4.1756e-3 + 14e-6, rel=1e-4)
    assert all_reduce(node, 1e3)[0][0] == pytest.approx(2 * 1e3 / 450e9 + 6e-6)


def test_gradients_of_two_pods_by_hand() -> None:
    """Data parallel over 2 x v5e-256: 1.6 GB inside, and a 256th of it through each chip's 3.125 GB/s card."""
    ici, dcn = all_reduce(link(256, 2, 1.8e11, dcn_bytes_per_s=3.125e9), 1.6e9)
    assert ici[0] == pytest.approx(2 * 255 / 256 * 1.6e9 / 1.8e11)
    assert dcn[0] == pytest.approx(2 * 0.5 * (1.6e9 / 256) / 3.125e9)  # 2 ms


# --- laws -------------------------------------------------------------------------------------------------------------

size = st.integers(1, 64)
rate = st.floats(1e8, 1e12)
amount = st.floats(1.0, 1e12)
latency = st.floats(0.0, 1e-3)


@pytest.mark.parametrize("kind", COLLECTIVES)
@given(
    n_ici=size, n_dcn=size, rate=rate, more=st.floats(1.0, 10.0), bytes_=amount, wait=latency, switched=st.booleans()
)
def test_more_bandwidth_or_less_latency_is_never_slower(
    kind: str, n_ici: int, n_dcn: int, rate: float, more: float, bytes_: float, wait: float, switched: bool
) -> None:
    waits = {"hop_latency_s": wait, "dcn_latency_s": 2 * wait, "switched": switched}
    base = COLLECTIVES[kind](link(n_ici, n_dcn, rate, dcn_bytes_per_s=rate / 8, **waits), bytes_)
    fast = COLLECTIVES[kind](link(n_ici, n_dcn, rate * more, dcn_bytes_per_s=rate / 8 * more, **waits), bytes_)
    quick = {"hop_latency_s": wait / more, "dcn_latency_s": 2 * wait / more, "switched": switched}
    prompt = COLLECTIVES[kind](link(n_ici, n_dcn, rate, dcn_bytes_per_s=rate / 8, **quick), bytes_)
    for slow, better in (*zip(base, fast, strict=True), *zip(base, prompt, strict=True)):
        assert better[0] <= slow[0] * (1 + 1e-12)


@pytest.mark.parametrize("kind", COLLECTIVES)
@given(bytes_=amount, wait=latency, switched=st.booleans())
def test_an_axis_of_one_costs_exactly_nothing(kind: str, bytes_: float, wait: float, switched: bool) -> None:
    alone = link([1, 1, 4], [1, 4, 1], hop_latency_s=wait, dcn_latency_s=wait, switched=switched)
    ici, dcn = COLLECTIVES[kind](alone, bytes_)
    assert ici[[0, 1]].tolist() == [0.0, 0.0]
    assert dcn[[0, 2]].tolist() == [0.0, 0.0]
    assert wire_bytes(kind, 1, 1, bytes_) == (0.0, 0.0)


@given(n_ici=size, n_dcn=size, rate=rate, bytes_=amount)
def test_without_latency_an_all_reduce_is_a_scatter_and_a_gather(
    n_ici: int, n_dcn: int, rate: float, bytes_: float
) -> None:
    axis = link(n_ici, n_dcn, rate)
    for whole, half, other in zip(
        all_reduce(axis, bytes_), reduce_scatter(axis, bytes_), all_gather(axis, bytes_), strict=True
    ):
        assert whole[0] == pytest.approx(half[0] + other[0])


@pytest.mark.parametrize("kind", COLLECTIVES)
@given(n=size, bytes_=amount, rate=rate)
def test_no_collective_moves_fewer_bytes_than_its_devices_lack(kind: str, n: int, bytes_: float, rate: float) -> None:
    """What a device must take in whatever the schedule: the shards it lacks, once, or once each way where it sums."""
    lacks = {"permute": float(n > 1), "all_reduce": 2 * (n - 1) / n}.get(kind, (n - 1) / n) * bytes_
    inside = COLLECTIVES[kind](link(n, 1, rate), bytes_)[0][0]
    across = COLLECTIVES[kind](link(1, n, dcn_bytes_per_s=rate), bytes_)[1][0]
    assert inside >= lacks / rate * (1 - 1e-12)
    assert across >= lacks / rate * (1 - 1e-12)


def test_a_ring_over_two_nodes_waits_for_the_messages_that_an_adapter_passes_on() -> None:
    # Of 16 ranks in two nodes each has its own part of 1 MB and is passed the other 15, one message each of 20 us.
    ring = link(8, 2, rate=np.inf, dcn_message_s=20e-6, dcn_bytes_per_s=1e10)
    bytes_s = 0.5 * 16e6 / 8 / 1e10
    assert all_gather(ring, 16e6)[1] == pytest.approx([15 * 20e-6 + bytes_s])
    assert reduce_scatter(ring, 16e6)[1] == pytest.approx([15 * 20e-6 + bytes_s])
    assert all_gather(link(8, 1, dcn_message_s=20e-6), 16e6)[1] == pytest.approx([0.0])


def test_columns_broadcast_and_rows_do_not_touch_each_other() -> None:
    rng = np.random.default_rng(0)
    n_ici, n_dcn, bytes_ = rng.integers(1, 17, 200), rng.integers(1, 5, 200), rng.uniform(1, 1e9, 200)
    many = link(n_ici, n_dcn, dcn_latency_s=1e-5, hop_latency_s=1e-6, switched=True)
    for collective in COLLECTIVES.values():
        together = collective(many, bytes_)
        for i in (0, 57, 199):
            one = link(n_ici[i], n_dcn[i], dcn_latency_s=1e-5, hop_latency_s=1e-6, switched=True)
            alone = collective(one, bytes_[i])
            assert (together[0][i], together[1][i]) == (alone[0][0], alone[1][0])


def test_a_tables_columns_make_a_link() -> None:
    table = layouts(parse_slice("v5p-128", CHIPS))
    for mesh in range(MESH_AXES):
        axis = Link(
            n_ici=table.sizes[:, mesh],
            n_dcn=np.ones(len(table), int),
            gather_bytes_per_s=table.gather_bytes_per_s[:, mesh],
            all_to_all_bytes_per_s=table.all_to_all_bytes_per_s[:, mesh],
            permute_bytes_per_s=table.permute_bytes_per_s[:, mesh],
            hops=table.hops[:, mesh],
            dcn_bytes_per_s=6.25e9,
            hop_latency_s=1e-6,
        )
        for collective in COLLECTIVES.values():
            ici, _ = collective(axis, 1e9)
            assert np.isfinite(ici).all()
            assert ((ici == 0) == (table.sizes[:, mesh] == 1)).all()
    assert math.prod(table.sizes[0].tolist()) == 64

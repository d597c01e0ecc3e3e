"""How long collectives take on a slice and across the data-centre network (DCN).

Time is alpha-beta: messages that must wait for each other times latency, plus bytes over a rate. The rates inside a
slice come from `topology.layouts`, which knows how a mesh axis lies on the links; here it is also spread over slices:

- all-gather: each device first gathers, over the DCN, the pieces of its peers in the other slices; the slice then
  gathers its n_ici parts over its own links. So B/n_ici crosses the DCN, by all devices' network cards at once.
- reduce-scatter is the mirror image; all-reduce is both in turn, and moves twice the bytes.
- all-to-all sends each byte straight to its device: the share of 1/n_dcn stays inside the slice.
- permute: neighbours inside a slice use its links, the step from slice to slice uses the DCN.

Rings are bandwidth-optimal and wait n - 1 times; double binary trees (Sanders et al. 2009, as in NCCL) send up to
n/(n-1) times the bytes and wait about log2 n times. An all-reduce takes the better one, on the DCN and on a switch; a
torus is already traversed along shortest paths.

A collective returns (ici_s, dcn_s): the seconds of its two parts, one after the other. An axis of size 1 costs exactly
0. No efficiency is built in: multiply the rates before they come here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Column: TypeAlias = NDArray[np.floating]
Seconds: TypeAlias = tuple[Column, Column]  # on the slice's own links, on the data-centre network


@dataclass(frozen=True, kw_only=True)  # no slots: each collective's coefficients are worked out once and kept
class Link:
    """One mesh axis of many plans, as columns [N] that broadcast against each other.

    Attributes:
        n_ici, n_dcn: devices of the axis inside a slice and across slices.
        gather_bytes_per_s, all_to_all_bytes_per_s, permute_bytes_per_s, hops: see `topology.LayoutTable`.
        dcn_bytes_per_s: one way, per device.
        hop_latency_s: seconds of one hop inside the slice.
        dcn_latency_s: seconds of one message across.
        ici_start_s, dcn_start_s: seconds that each collective needs besides, wherever it has more than one rank.
        dcn_message_s: seconds that an adapter's host needs for each message of a ring.
        switched: whether the slice's devices meet at a switch, so that latency does not grow with distance.
    """

    n_ici: NDArray[np.integer]
    n_dcn: NDArray[np.integer]
    gather_bytes_per_s: Column
    all_to_all_bytes_per_s: Column
    permute_bytes_per_s: Column
    hops: NDArray[np.integer]
    dcn_bytes_per_s: Column | float
    hop_latency_s: Column | float = 0.0
    dcn_latency_s: Column | float = 0.0
    ici_start_s: float = 0.0
    dcn_start_s: float = 0.0
    dcn_message_s: float = 0.0
    switched: bool = False

    @cached_property
    def _away(self) -> tuple[Column, Column]:
        """The shares of an array that the other devices hold, inside the slice and across."""
        return 1.0 - 1.0 / self.n_ici, 1.0 - 1.0 / self.n_dcn

    @cached_property
    def _start(self) -> tuple[Column, Column]:
        """What every collective over the axis pays, inside the slice and across."""
        return (self.n_ici > 1) * self.ici_start_s, (self.n_dcn > 1) * self.dcn_start_s

    @cached_property
    def _gather(self) -> _Affine:
        inside, across = self._away
        return _Affine(
            ici_s_per_byte=inside / self.gather_bytes_per_s,
            ici_s=self.hops * self.hop_latency_s + self._start[0],
            dcn_s_per_byte=across / self.n_ici / self.dcn_bytes_per_s,
            dcn_s=(self.n_dcn - 1) * self.dcn_latency_s + self._start[1] + self._served,
        )

    @cached_property
    def _served(self) -> Column:
        """What an adapter's host needs for a ring's messages: each rank is passed all parts but its own."""
        return np.where(self.n_dcn > 1, self.n_ici * self.n_dcn - 1, 0) * self.dcn_message_s

    @cached_property
    def _tree(self) -> _Affine:
        """A double binary tree's all-reduce: on the DCN, and inside the slice where the axis does not leave it."""
        depth, depth_dcn = (np.frexp(n - 1.0)[1] for n in (self.n_ici, self.n_dcn))  # ceil(log2 n), exactly
        return _Affine(
            ici_s_per_byte=np.where(self.n_ici > 1, 2.0, 0.0) / self.gather_bytes_per_s,
            ici_s=np.where(self.n_dcn > 1, np.inf, 2 * self.hop_latency_s * depth + self._start[0]),
            dcn_s_per_byte=np.where(self.n_dcn > 1, 2.0, 0.0) / self.n_ici / self.dcn_bytes_per_s,
            dcn_s=2 * self.dcn_latency_s * depth_dcn + self._start[1],
        )

    @cached_property
    def _trees_may_win(self) -> tuple[bool, bool]:
        across = bool(np.any(self.dcn_latency_s) or self.dcn_message_s)
        return self.switched and bool(np.any(self.hop_latency_s)), across

    @cached_property
    def _all_to_all(self) -> _Affine:
        inside, across = self._away
        hops = self.n_ici > 1 if self.switched else self.hops  # to all peers at once, or step by step
        return _Affine(
            ici_s_per_byte=inside / self.n_dcn / self.all_to_all_bytes_per_s,
            ici_s=hops * self.hop_latency_s + self._start[0],
            dcn_s_per_byte=across / self.dcn_bytes_per_s,
            dcn_s=(self.n_dcn > 1) * self.dcn_latency_s + self._start[1],
        )

    @cached_property
    def _permute(self) -> _Affine:
        inside, across = self.n_ici > 1, self.n_dcn > 1
        return _Affine(
            ici_s_per_byte=inside / self.permute_bytes_per_s,
            ici_s=inside * self.hop_latency_s + self._start[0],
            dcn_s_per_byte=across / self.dcn_bytes_per_s,
            dcn_s=across * self.dcn_latency_s + self._start[1],
        )


@dataclass(frozen=True, slots=True)
class _Affine:
    """Seconds for each byte, and to start with, inside the slice and across."""

    ici_s_per_byte: Column
    ici_s: Column
    dcn_s_per_byte: Column
    dcn_s: Column

    def __call__(self, bytes_: Column | float) -> Seconds:
        return self.ici_s_per_byte * bytes_ + self.ici_s, self.dcn_s_per_byte * bytes_ + self.dcn_s


def all_gather(link: Link, bytes_: Column | float) -> Seconds:
    """Seconds until every device holds all `bytes_` of an array that was sharded over the axis."""
    return link._gather(bytes_)


def reduce_scatter(link: Link, bytes_: Column | float) -> Seconds:
    """Seconds until every device holds its shard of the sum of `bytes_` of each: an all-gather run backwards."""
    return link._gather(bytes_)


def all_reduce(link: Link, bytes_: Column | float) -> Seconds:
    """Seconds until every device holds the sum of `bytes_` from each device: a reduce-scatter, then an all-gather."""
    ici, dcn = link._gather(bytes_)
    start_ici, start_dcn = link._start  # one kernel does both halves
    ici, dcn = 2 * ici - start_ici, 2 * dcn - start_dcn
    tree_inside, tree_across = link._trees_may_win
    if tree_inside or tree_across:
        tree_ici, tree_dcn = link._tree(bytes_)
        ici = np.minimum(ici, tree_ici) if tree_inside else ici
        dcn = np.minimum(dcn, tree_dcn) if tree_across else dcn
    return ici, dcn


def all_to_all(link: Link, bytes_: Column | float) -> Seconds:
    """Seconds until each of n devices has sent 1/n of its `bytes_` to every device, itself included."""
    return link._all_to_all(bytes_)


def permute(link: Link, bytes_: Column | float) -> Seconds:
    """Seconds until every device has sent `bytes_` to the next along the axis."""
    return link._permute(bytes_)

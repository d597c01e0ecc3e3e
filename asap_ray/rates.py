"""Link axes, and how fast the groups of a mesh talk over them: steps along one axis, and several axes together.

Rates are in bytes/s per device and are bounds that a good schedule reaches (all links busy, shortest paths):

- all-gather of B bytes over n devices takes B (n-1)/n / gather_bytes_per_s. The rate is a cut bound: the part of the
  group that shares its position on the link axes S must take in what the rest holds, through its links on S alone. The
  tightest S counts; on alike axes that is all of them, and the rate is the plain sum of the links' rates.
- all-to-all of B bytes a device takes B (n-1)/n / all_to_all_bytes_per_s: the most loaded link under shortest-path,
  dimension-ordered routing. On a ring of even n that is B n/8 over one direction of a link, on a line B n/4.
- permute (each device to its neighbour along the mesh axis) of B bytes takes B / permute_bytes_per_s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class IciAxis:
    """One axis of a slice's links, in devices.

    `bytes_per_s` is one way, per direction and device; of a `switch` the device's whole egress, of a `mesh` per peer.
    `on_chip` axes join the dies of a chip, not chips.
    """

    name: str
    size: int
    wrap: bool
    bytes_per_s: float
    fabric: str
    on_chip: bool = False

    @property
    def device_bytes_per_s(self) -> float:
        """What a device can send along the axis, one way; the mean, where the ends of a line have one link only."""
        ends = 0 if self.wrap else 2 / self.size
        links = {"torus": 2 - ends, "mesh": self.size - 1}.get(self.fabric, 1)
        return links * self.bytes_per_s if self.size > 1 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Mesh axes whose ranks talk as one, or the part of them that is left when some are divided.

    Attributes:
        members: per mesh axis, whether it is of the group.
        part: `whole` axes, or of each only the `inner` or the `outer` part.
        within: mesh axes that are divided, the first one first (`divided`).
        ways: ranks that their inner parts hold together, or as many of these as divide what is there.
    """

    members: tuple[bool, ...]
    part: str = "whole"
    within: tuple[int, ...] = ()
    ways: int = 1

    def steps(self, factors: NDArray[np.integer]) -> tuple[NDArray[np.integer], list[bool]]:
        """Steps and members as `group_rates` takes them, of layouts [N, M, J]."""
        if self.part == "whole":
            return factors, list(self.members)
        return divided(factors, self.within, self.ways), self.of_parts(self.members, self.part)

    @staticmethod
    def of_parts(members: Sequence[bool], part: str) -> list[bool]:
        """Which steps of `divided` are the inner or the outer part of some mesh axes [2M]."""
        return [member and part == name for member in members for name in ("outer", "inner")]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRates:
    """The figures of `LayoutTable` for groups of devices that several mesh axes span together, each [N]."""

    gather_bytes_per_s: NDArray[np.float64]
    all_to_all_bytes_per_s: NDArray[np.float64]
    permute_bytes_per_s: NDArray[np.float64]
    hops: NDArray[np.int64]


def group_rates(
    axes: Sequence[IciAxis], factors: NDArray[np.integer], members: Sequence[bool], *, bound: bool = False
) -> GroupRates:
    """Figures of the groups that some mesh axes span together, from their joint steps along each ici axis.

    Steps next to each other are one longer step: on a ring of 16 as fsdp=4 over tensor=4, both together are the ring.
    Steps of other mesh axes that lie inside a group's outermost one leave a stride. Where they lie between the group's
    own steps its devices come in clusters, and it is priced as if they were spread evenly, which is no faster.

    Args:
        axes: link axes of the slice [J].
        factors: steps of each mesh axis, or of parts of one, the innermost last, [N, M, J].
        members: which of the M span the group.
        bound: grant clusters all links of their ici axis, so that no schedule is faster.
    """
    member = np.array(members, bool)
    size, span = joint_steps(factors, members)
    each = []
    for j, axis in enumerate(axes):
        stride = span[j] // size[j] if axis.fabric == "torus" else np.ones_like(size[j])
        figures = alone(size[j], *axis_figures(axis, size[j], stride))
        if bound and axis.fabric == "torus":
            near = alone(size[j], *axis_figures(axis, size[j], np.ones_like(stride)))
            clustered = _clustered(factors[:, :, j], member)
            free = (2.0 * axis.bytes_per_s, near[1] / np.where(axis.wrap, 2, 1), 2.0 * axis.bytes_per_s, 0)
            figures = tuple(np.where(clustered, f, old) for f, old in zip(free, figures, strict=True))
        each.append(figures)
    n, gather, all_to_all, permute, hops = together(size, *(np.stack(column) for column in zip(*each, strict=True)))
    return GroupRates(
        gather_bytes_per_s=np.where(n > 1, rounded(gather), np.inf),
        all_to_all_bytes_per_s=rounded(all_to_all),
        permute_bytes_per_s=rounded(permute),
        hops=hops,
    )


def joint_steps(factors: NDArray[np.integer], members: Sequence[bool]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Devices of a group along each ici axis, and the reach of its outermost step, each [J, N]; all that rates need."""
    member = np.array(members, bool)[None, :, None]
    size = np.where(member, factors, 1).prod(axis=1, dtype=np.int64).T
    inside = np.cumprod(factors[:, ::-1], axis=1, dtype=np.int64)[:, ::-1]  # of each step and all within it
    return size, np.where(member & (factors > 1), inside, 1).max(axis=1, initial=1).T


def divided(
    factors: NDArray[np.integer], within: Sequence[int], ways: NDArray[np.integer] | int
) -> NDArray[np.integer]:
    """Each mesh axis as an outer and an inner step, [N, 2M, J]: the inner ones of `within` are its nearest ranks.

    Those of the first axis are taken first, along the last ici axis first, until there are `ways` [N]; the inner steps
    of all other axes are 1.
    """
    outer, inner = factors.copy(), np.ones_like(factors)
    left = np.broadcast_to(ways, len(factors)).astype(np.int64)
    for m in within:
        for j in reversed(range(factors.shape[2])):
            taken = np.gcd(left, outer[:, m, j])
            inner[:, m, j] = taken
            outer[:, m, j] //= taken.astype(outer.dtype)
            left = left // taken
    return np.stack([outer, inner], axis=2).reshape(len(factors), 2 * factors.shape[1], factors.shape[2])


def _clustered(factors: NDArray[np.integer], member: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether steps of others lie between steps of the group on one ici axis; `factors` [N, M] -> [N]."""
    own, other = (factors > 1) & member, (factors > 1) & ~member
    outer = np.logical_or.accumulate(own, axis=1)
    inner = np.logical_or.accumulate(own[:, ::-1], axis=1)[:, ::-1]
    return np.asarray((other & outer & inner).any(axis=1))


def alone(n: NDArray[np.int64], *figures: NDArray) -> tuple[NDArray, ...]:
    """Figures of one ici axis as they count beside others: none where a group has one device along it."""
    return tuple(np.where(n == 1, none, column) for none, column in zip((0.0, 0.0, np.inf, 0), figures, strict=True))


def axis_figures(axis: IciAxis, n: NDArray[np.int64], stride: NDArray[np.int64]) -> tuple[NDArray, ...]:
    """Gather rate, all-to-all load, neighbour rate and hops of `n` devices `stride` apart on one ici axis, each [S]."""
    link = np.full(n.shape, axis.bytes_per_s)
    if axis.fabric == "switch":
        return link, (n - 1) / n / link, link, n - 1
    if axis.fabric == "mesh":
        return link * (n - 1), 1 / n / link, link, np.ones_like(n)
    ring = axis.wrap & (n * stride == axis.size)  # only a step that goes all the way round meets its start again
    share = link / stride  # as many groups as the stride is wide interleave on each link
    crossing = (
        (n**2 - n % 2) / n / np.where(ring, 8, 4)
    )  # mean shortest path over links in use, or half a line over one
    neighbour = np.where(ring & (n == 2), 2, 1) * share  # the other of two is as near either way round
    return np.where(ring, 2, 1) * share, crossing / share, neighbour, np.where(ring, n // 2, n - 1) * stride


def together(
    size: NDArray, gather: NDArray, exchange: NDArray, neighbour: NDArray, hops: NDArray
) -> tuple[NDArray, ...]:
    """Devices, gather, all-to-all and permute rate and hops [S] of groups, from their figures by ici axis [J, S]."""
    n, load = size.prod(axis=0), exchange.max(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        all_to_all = np.where(n > 1, (n - 1) / n / load, np.inf)
    return n, _gather_rate(n, size, gather), all_to_all, neighbour.min(axis=0), hops.sum(axis=0)


def _gather_rate(n: NDArray, size: NDArray, gather: NDArray) -> NDArray[np.float64]:
    """The tightest cut: for each set S of ici axes, the devices alike on S take in the rest through their S links.

    The block has n / prod(size on S) devices and lacks the share 1 - block/n of all bytes. `size`, `gather`: [J, S].
    """
    rate = np.full(n.shape, np.inf)
    for members in range(1, 1 << len(size)):
        inside = np.array([bool(members >> j & 1) for j in range(len(size))])
        block = n / size[inside].prod(axis=0)
        ingress = block * gather[inside].sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            cut = np.where(block < n, ingress * (1 - 1 / n) / (1 - block / n), np.inf)
        rate = np.minimum(rate, cut)
    return rate


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values to 40 bits, so that one rate computed along two ways compares equal."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 2.0**40) / 2.0**40, exponent)

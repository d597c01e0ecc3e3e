"""Who talks to whom: the link of every group of ranks that a plan's collectives run over.

A group is one mesh axis or several together, and is priced as a whole by what its axes jointly take of each link axis
(`rates.group_rates`). An expert group that subdivides other axes takes their nearest ranks, so those axes fall into an
inner part that is the expert group's and an outer part that is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from asap_ray.hardware import Slice
from asap_ray.meshes import Meshes
from asap_ray.physics import network
from asap_ray.physics.calibration import Calibration
from asap_ray.physics.network import Link
from asap_ray.physics.state import StateShards
from asap_ray.plan import AXES
from asap_ray.problem import Columns, Problem, divided_axes, replica_axes, sharding_axes
from asap_ray.rates import Group, GroupRates, divided, group_rates
from asap_ray.workload import number_bytes


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """Seconds on ICI and on DCN [2, widths * meshes] for some of one rank's weights, for each width of a number.

    `gather` brings the fsdp group's shards together once, `scatter` sums and splits their gradients once; `reduce`
    makes replicas agree on gradients, `spread` does so with a sharded optimizer (ZeRO): scatter gradients (or sum
    all of them everywhere), gather weights.
    """

    gather: np.ndarray
    scatter: np.ndarray
    reduce: np.ndarray
    spread: np.ndarray


def step_traffic(problem: Problem, links: Mapping[str, Link], state: StateShards) -> tuple[StepTraffic, StepTraffic]:
    """Traffic of weights and gradients by mesh: of all layers, of which a stage has its share, and of embedding and
    head. Layers are gathered one at a time, gradients reduced in large buckets."""
    layers, experts = problem.workload.architecture.layers, problem.workload.architecture.experts
    dense, routed = (links["shards"], links["replicas"]), (links["routed_shards"], links["routed_replicas"])
    scatters = problem.stack.zero_scatters
    inside, edges = [], []
    for width in widths(problem):
        wide = (width, max(problem.stack.state.gradient_wire, width))
        layer = _traffic(dense, state.dense, state.dense_shards, layers, wide, scatters)
        if experts:
            layer = layer + _traffic(routed, state.routed, state.routed_shards, layers, wide, scatters)
        inside.append(layer)
        edges.append(_traffic(dense, state.edges, state.dense_shards, 1, wide, scatters))
    return StepTraffic(*np.concatenate(inside, axis=2)), StepTraffic(*np.concatenate(edges, axis=2))


def widths(problem: Problem) -> tuple[float, ...]:
    """Bytes of a number between matmuls, for the precisions of a problem's plans, ascending."""
    return tuple(sorted({number_bytes(name) for name in problem.precisions}))


def _traffic(
    links: tuple[Link, Link],
    parameters: np.ndarray,
    ways: np.ndarray,
    pieces: int,
    wide: tuple[float, float],
    scatters: bool,
) -> np.ndarray:
    """Seconds to gather, scatter, reduce and spread parameters held by `ways` ranks [4, 2, meshes]; `wide` are bytes of
    a weight and of a gradient on the wire, `scatters` says whether a sharded optimizer gets its part of them alone."""
    (shards, replicas), ratio = links, wide[1] / wide[0]
    piece, held = parameters / pieces * wide[0], parameters / ways * wide[0]
    whole = np.array(network.all_reduce(replicas, held * ratio))
    summed = network.reduce_scatter(replicas, held * ratio) if scatters else whole
    return np.array(
        [
            np.multiply(network.all_gather(shards, piece), pieces),
            np.multiply(network.reduce_scatter(shards, piece * ratio), pieces),
            whole,
            np.add(summed, network.all_gather(replicas, held)),
        ]
    )


def group_links(problem: Problem, meshes: Meshes, calibration: Calibration | None) -> dict[str, Link]:
    """The links of all groups, by role [meshes]; without a calibration at datasheet rates and without latency.

    Roles: `tensor`, `context`, `expert`, `pipeline`; `shards` and `routed_shards` gather weights; `replicas` and
    `routed_replicas` reduce gradients.
    """
    if calibration is None:
        return datasheet_links(problem, meshes, bound=True)
    return achieved_links(datasheet_links(problem, meshes, bound=False), calibration)


def achieved_links(links: Mapping[str, Link], calibration: Calibration) -> dict[str, Link]:
    """Links at datasheet rates as they are in use: at achieved rates, with latencies."""
    ici = calibration.ici_fraction
    return {
        role: replace(
            link,
            gather_bytes_per_s=link.gather_bytes_per_s * ici,
            all_to_all_bytes_per_s=link.all_to_all_bytes_per_s * ici,
            permute_bytes_per_s=link.permute_bytes_per_s * ici,
            dcn_bytes_per_s=link.dcn_bytes_per_s * calibration.dcn_fraction / _crowd(role, link, calibration),
            hop_latency_s=calibration.hop_latency_s,
            dcn_latency_s=calibration.dcn_latency_s,
            ici_start_s=calibration.ici_start_s,
            dcn_start_s=calibration.dcn_start_s,
            dcn_message_s=calibration.dcn_message_s,
        )
        for role, link in links.items()
    }


def axes_link(
    problem: Problem,
    meshes: Meshes,
    axes: Sequence[str],
    calibration: Calibration,
    links: Sequence[int] | None = None,
) -> Link:
    """The link of the groups that some mesh axes span together, as it is in use [meshes].

    `links` are the slice's link axes along which a group lies, by number, where it is not all of these mesh axes.
    """
    builder = _Builder(problem.slice, meshes, bound=False)
    link = builder.link(axes) if links is None else builder.along(axes, links)
    role = "shards" if {"data", "fsdp"} & set(axes) else "group"
    return achieved_links({role: link}, calibration)[role]


def _crowd(role: str, link: Link, calibration: Calibration) -> np.ndarray | float:
    """How much longer weights and gradients take across than between two hosts: the more hosts a group spans, the more
    of its messages share paths above the hosts' own switches."""
    if not role.endswith(("shards", "replicas")):
        return 1.0
    return 1.0 + calibration.crowding * np.maximum(link.n_dcn - 2, 0)


def datasheet_links(problem: Problem, meshes: Meshes, *, bound: bool) -> dict[str, Link]:
    """The links of all groups at datasheet rates, by role [meshes]: the highest credible ones where they `bound`."""
    stack, c = problem.stack, meshes.columns
    sharding, replicas, within = sharding_axes(stack), replica_axes(stack), divided_axes(stack)
    builder = _Builder(problem.slice, meshes, bound)
    links = {
        "tensor": builder.link(["tensor"]),
        "context": builder.link(["context"]),
        "pipeline": builder.link(["pipeline"]),
        "shards": builder.link(sharding),
        "replicas": builder.link(replicas),
    }
    if stack.expert_multiplies:
        links["expert"] = builder.link(["expert"])
        links["routed_shards"] = builder.link([axis for axis in sharding if axis != "expert"])
        links["routed_replicas"] = builder.link([axis for axis in replicas if axis != "expert"])
        return links
    inside, across = c["expert_ici"], c["expert_dcn"]
    builder.divide(within, inside)
    links["expert"] = builder.link(within, (inside, across), "inner")
    shards = _shrunk(c, sharding, inside, across)
    links["routed_shards"] = builder.link(sharding, shards, "outer")
    copies = _shrunk(c, within, inside * shards[0], across * shards[1])
    links["routed_replicas"] = builder.link(replicas, copies, "outer")
    return links


def _shrunk(c: Columns, axes: Sequence[str], inside: np.ndarray, across: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ici = np.prod([c[f"{axis}_ici"] for axis in axes], axis=0)
    dcn = np.prod([c[f"{axis}_dcn"] for axis in axes], axis=0)
    return ici // np.gcd(ici, inside), dcn // np.gcd(dcn, across)


class _Builder:
    """Makes links of groups of mesh axes, and of the outer and inner parts of axes once they are divided."""

    def __init__(self, slice_: Slice, meshes: Meshes, bound: bool) -> None:
        self.slice, self.meshes, self.bound = slice_, meshes, bound
        self.steps: NDArray[np.integer] = meshes.table.factors  # of the parts of axes once they are divided

    def divide(self, axes: Sequence[str], ways: np.ndarray) -> None:
        """Let the inner parts of some axes be their nearest `ways` ranks [meshes], those of the first axis first."""
        self.steps = divided(self.meshes.table.factors, [AXES.index(axis) for axis in axes], ways)

    def link(self, axes: Sequence[str], sizes: tuple[np.ndarray, np.ndarray] | None = None, part: str = "both") -> Link:
        """The link of a group that spans some axes, or their outer or inner parts, of given sizes inside and across."""
        rates = self._rates(axes, part)
        return self._made(rates, *(sizes or (self._size(axes, "ici"), self._size(axes, "dcn"))))

    def along(self, axes: Sequence[str], links: Sequence[int]) -> Link:
        """The link of a group inside a slice that takes of some axes only their steps along some link axes."""
        factors = self.meshes.table.factors
        member = np.array([axis in axes for axis in AXES])
        out = np.ones_like(factors)
        others = [j for j in range(factors.shape[2]) if j not in links]
        out[:, :, others] = np.where(member[:, None], factors[:, :, others], 1)
        steps = np.stack([out, factors // out], axis=2).reshape(len(factors), -1, factors.shape[2])
        inside = [name and kept for name in member for kept in (False, True)]
        size = np.where(np.array(inside)[:, None], steps, 1).prod(axis=(1, 2), dtype=np.int64)
        return self._made(group_rates(self.slice.axes, steps, inside), size, np.ones_like(size))

    def _made(self, rates: GroupRates, n_ici: np.ndarray, n_dcn: np.ndarray) -> Link:
        return Link(
            n_ici=n_ici,
            n_dcn=n_dcn,
            gather_bytes_per_s=rates.gather_bytes_per_s,
            all_to_all_bytes_per_s=rates.all_to_all_bytes_per_s,
            permute_bytes_per_s=rates.permute_bytes_per_s,
            hops=rates.hops,
            dcn_bytes_per_s=self.slice.chip.device_nic_bytes_per_s,
            switched=any(axis.fabric == "switch" for axis in self.slice.axes),
        )

    def _rates(self, axes: Sequence[str], part: str) -> GroupRates:
        table, bound = self.meshes.table, self.bound
        if part == "both" and len(axes) == 1:
            return GroupRates(**{f.name: getattr(table, f.name)[:, AXES.index(axes[0])] for f in fields(GroupRates)})
        member = [axis in axes for axis in AXES]
        if part == "both":
            return group_rates(self.slice.axes, table.factors, member, bound=bound)
        return group_rates(self.slice.axes, self.steps, Group.of_parts(member, part), bound=bound)

    def _size(self, axes: Sequence[str], level: str) -> np.ndarray:
        ones = np.ones(len(self.meshes), np.int64)
        return np.prod([ones, *(self.meshes.columns[f"{axis}_{level}"] for axis in axes)], axis=0)

"""Who talks to whom: the link of every group of ranks that a plan's collectives run over.

A group is one mesh axis or several together. On a torus its axes lie on links of their own, so their rates add;
behind a switch they share each device's egress. Axes of a group that share a ring are traversed one by one, by
estimates; floors grant them all links of that ring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from asap_ray.hardware import Slice
from asap_ray.meshes import Meshes
from asap_ray.physics import network
from asap_ray.physics.activations import NUMBER_BYTES
from asap_ray.physics.calibration import Calibration
from asap_ray.physics.network import Link
from asap_ray.physics.state import StateShards
from asap_ray.plan import AXES
from asap_ray.problem import Columns, Problem

BETWEEN_SUBDIVIDED = ("context", "fsdp", "data")
"""Axes within which an expert group lies where it subdivides them, from the nearest ranks outwards."""


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """Seconds on ICI and on DCN [2, meshes] for some of one rank's weights.

    `gather` brings the fsdp group's shards together once, `scatter` sums and splits their gradients once; `reduce`
    makes replicas agree on gradients, `spread` does so with a sharded optimizer (ZeRO): scatter gradients, gather
    weights.
    """

    gather: np.ndarray
    scatter: np.ndarray
    reduce: np.ndarray
    spread: np.ndarray


def step_traffic(problem: Problem, links: Mapping[str, Link], state: StateShards) -> tuple[StepTraffic, StepTraffic]:
    """Traffic of weights and gradients by mesh: of all layers, of which a stage has its share, and of embedding and
    head. Layers are gathered one at a time, gradients reduced in large buckets."""
    layers, ratio = problem.workload.architecture.layers, problem.stack.state.gradient_wire / NUMBER_BYTES
    dense, routed = (links["shards"], links["replicas"]), (links["routed_shards"], links["routed_replicas"])
    inside = _traffic(dense, state.dense, state.dense_shards, layers, ratio)
    if problem.workload.architecture.experts:
        inside = inside + _traffic(routed, state.routed, state.routed_shards, layers, ratio)
    edges = _traffic(dense, state.edges, state.dense_shards, 1, ratio)
    return StepTraffic(*inside), StepTraffic(*edges)


def _traffic(
    links: tuple[Link, Link], parameters: np.ndarray, ways: np.ndarray, pieces: int, ratio: float
) -> np.ndarray:
    """Seconds to gather, scatter, reduce and spread parameters held by `ways` ranks [4, 2, meshes]; gradients are
    `ratio` times as wide as what is gathered."""
    shards, replicas = links
    piece, held = parameters / pieces * NUMBER_BYTES, parameters / ways * NUMBER_BYTES
    spread = np.add(network.reduce_scatter(replicas, held * ratio), network.all_gather(replicas, held))
    return np.array(
        [
            np.multiply(network.all_gather(shards, piece), pieces),
            np.multiply(network.reduce_scatter(shards, piece * ratio), pieces),
            np.array(network.all_reduce(replicas, held * ratio)),
            spread,
        ]
    )


def group_links(problem: Problem, meshes: Meshes, calibration: Calibration | None) -> dict[str, Link]:
    """The links of all groups, by role [meshes]; without a calibration at datasheet rates and without latency.

    Roles: `tensor`, `context`, `expert`, `pipeline`; `shards` and `routed_shards` gather weights; `replicas` and
    `routed_replicas` reduce gradients.
    """
    stack, c = problem.stack, meshes.columns
    builder = _Builder(problem.slice, meshes, calibration)
    sharding = ["fsdp", *(axis for axis in stack.shards_weights if axis != "expert" or stack.expert_multiplies)]
    ranks = ["data", "fsdp", "context", *(["expert"] if stack.expert_multiplies else [])]
    replicas = [axis for axis in ranks if axis not in sharding]
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
    links["expert"] = builder.link(BETWEEN_SUBDIVIDED, (inside, across))
    shards = _shrunk(c, sharding, inside, across)
    links["routed_shards"] = builder.link(sharding, shards)
    links["routed_replicas"] = builder.link(replicas, _shrunk(c, ranks, inside * shards[0], across * shards[1]))
    return links


def _shrunk(c: Columns, axes: Sequence[str], inside: np.ndarray, across: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ici = np.prod([c[f"{axis}_ici"] for axis in axes], axis=0)
    dcn = np.prod([c[f"{axis}_dcn"] for axis in axes], axis=0)
    return ici // np.gcd(ici, inside), dcn // np.gcd(dcn, across)


class _Builder:
    def __init__(self, slice_: Slice, meshes: Meshes, calibration: Calibration | None) -> None:
        self.slice, self.meshes, self.calibration = slice_, meshes, calibration
        self.shared = any(axis.fabric == "switch" for axis in slice_.axes)
        self.ici = calibration.ici_fraction if calibration else 1.0
        self.dcn_rate = slice_.chip.device_nic_bytes_per_s * (calibration.dcn_fraction if calibration else 1.0)
        self.hop_latency = calibration.hop_latency_s if calibration else 0.0
        self.dcn_latency = calibration.dcn_latency_s if calibration else 0.0

    def link(self, axes: Sequence[str], sizes: tuple[np.ndarray, np.ndarray] | None = None) -> Link:
        table, rows = self.meshes.table, [AXES.index(axis) for axis in axes]
        none = np.zeros(len(self.meshes), np.int64)
        n_ici, n_dcn = sizes or (self._size(axes, "ici"), self._size(axes, "dcn"))
        gather = self._rate(table.gather_bytes_per_s[:, rows])
        return Link(
            n_ici=n_ici,
            n_dcn=n_dcn,
            gather_bytes_per_s=gather if self.calibration else np.maximum(gather, self._whole_rings(rows)),
            all_to_all_bytes_per_s=self._rate(table.all_to_all_bytes_per_s[:, rows]),
            permute_bytes_per_s=self._rate(table.permute_bytes_per_s[:, rows]),
            hops=table.hops[:, rows].sum(axis=1) if rows else none,
            dcn_bytes_per_s=self.dcn_rate,
            hop_latency_s=self.hop_latency,
            dcn_latency_s=self.dcn_latency,
            switched=self.shared,
        )

    def _size(self, axes: Sequence[str], level: str) -> np.ndarray:
        ones = np.ones(len(self.meshes), np.int64)
        return np.prod([ones, *(self.meshes.columns[f"{axis}_{level}"] for axis in axes)], axis=0)

    def _rate(self, rates: np.ndarray) -> np.ndarray:
        # Axes of size 1 have an infinite rate: they send nothing, and add nothing.
        if self.shared or rates.shape[1] == 0:
            return np.min(rates, axis=1, initial=np.inf) * self.ici
        finite = np.where(np.isfinite(rates), rates, 0.0).sum(axis=1)
        return np.where(finite > 0, finite, np.inf) * self.ici

    def _whole_rings(self, rows: Sequence[int]) -> np.ndarray:
        """Rate over all links of the ICI axes where axes of the group share one, 0 where none do [meshes]."""
        steps = self.meshes.table.factors[:, rows]  # [meshes, axes of the group, ici axes]
        torus = np.array([2.0 * axis.bytes_per_s * (axis.fabric == "torus") for axis in self.slice.axes])
        shares = ((steps > 1).sum(axis=1) > 1) & (torus > 0)
        return np.where(shares.any(axis=1), (steps > 1).any(axis=1) @ torus, 0.0)

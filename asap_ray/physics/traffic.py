"""Who talks to whom: the link of every group of ranks that a plan's collectives run over.

A group is one mesh axis or several together. On a torus its axes lie on links of their own, so their rates add;
behind a switch they share each device's egress.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTraffic:
    """Seconds on ICI and on DCN [2, meshes] for all layers and both edges of one rank's weights.

    `gather` brings the fsdp group's shards together once, `scatter` sums and splits their gradients once; `reduce`
    makes replicas agree on gradients, `spread` does so with a sharded optimizer (ZeRO): scatter gradients, gather
    weights.
    """

    gather: np.ndarray
    scatter: np.ndarray
    reduce: np.ndarray
    spread: np.ndarray


def step_traffic(problem: Problem, links: Mapping[str, Link], state: StateShards) -> StepTraffic:
    """Traffic of weights and gradients by mesh; layers are gathered one at a time, gradients reduced in large
    buckets."""
    layers, ratio = problem.workload.architecture.layers, problem.stack.state.gradient_wire / NUMBER_BYTES
    edges = state.embedding + (0 if problem.workload.architecture.tied else state.head)
    gather, scatter, reduce, spread = (np.zeros((2, len(edges))) for _ in range(4))
    none = np.zeros_like(edges)
    for shards, replicas, parameters, ways, extra in (
        ("shards", "replicas", state.dense, state.dense_shards, edges),
        ("routed_shards", "routed_replicas", state.routed, state.routed_shards, none),
    ):
        layer, whole = parameters / layers * NUMBER_BYTES, (parameters + extra) / ways * NUMBER_BYTES
        for size, times in ((layer, layers), (extra * NUMBER_BYTES, 1)):
            gather += times * np.array(network.all_gather(links[shards], size)) * (size > 0)
            scatter += times * np.array(network.reduce_scatter(links[shards], size * ratio)) * (size > 0)
        reduce += np.array(network.all_reduce(links[replicas], whole * ratio)) * (whole > 0)
        spread += np.array(network.reduce_scatter(links[replicas], whole * ratio)) * (whole > 0)
        spread += np.array(network.all_gather(links[replicas], whole)) * (whole > 0)
    return StepTraffic(gather=gather, scatter=scatter, reduce=reduce, spread=spread)


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
    return np.maximum(ici // inside, 1), np.maximum(dcn // across, 1)


class _Builder:
    def __init__(self, slice_: Slice, meshes: Meshes, calibration: Calibration | None) -> None:
        self.meshes, self.shared = meshes, any(axis.fabric == "switch" for axis in slice_.axes)
        self.ici = calibration.ici_fraction if calibration else 1.0
        self.dcn_rate = slice_.chip.device_nic_bytes_per_s * (calibration.dcn_fraction if calibration else 1.0)
        self.hop_latency = calibration.hop_latency_s if calibration else 0.0
        self.dcn_latency = calibration.dcn_latency_s if calibration else 0.0

    def link(self, axes: Sequence[str], sizes: tuple[np.ndarray, np.ndarray] | None = None) -> Link:
        table, rows = self.meshes.table, [AXES.index(axis) for axis in axes]
        none = np.zeros(len(self.meshes), np.int64)
        n_ici, n_dcn = sizes or (self._size(axes, "ici"), self._size(axes, "dcn"))
        return Link(
            n_ici=n_ici,
            n_dcn=n_dcn,
            gather_bytes_per_s=self._rate(table.gather_bytes_per_s[:, rows]),
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

"""The floor: a step time that no execution of a plan can beat, from datasheet peaks and no fitted constant.

Each resource must do its least: the matrix units every FLOP of the model and of the recomputation that the policy
forces, with the pipeline's fill and drain (the model's own FLOPs, forward and back); HBM one pass over the optimizer
state and two over the weights for each micro-batch; each link the fewest bytes that its collectives can send. They
may all overlap perfectly, so the floor is the largest.

What is left out on purpose keeps it a bound: shape losses, latency, kernels' second passes (a fused attention backward
needs 2.5 forward passes, only 2 count), weight gathers repeated for each micro-batch, and all but one copy of a token
sent to experts, since copies for the same rank can share the wire. An all-reduce behind a switch counts one pass, since
switches can add (NVLink SHARP).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asap_ray.meshes import Meshes
from asap_ray.physics import network
from asap_ray.physics.activations import product_of, recomputed
from asap_ray.physics.calibration import peak_flops
from asap_ray.physics.state import StateShards, kv_shards
from asap_ray.physics.traffic import group_links
from asap_ray.plan import PRECISIONS
from asap_ray.problem import ZERO_BUBBLE, Columns, Problem
from asap_ray.space import PlanColumns
from asap_ray.workload import DTYPE_BYTES

FLOOR_PARTS = ("compute", "hbm", "ici", "dcn")
WIDTHS = np.array([DTYPE_BYTES[name] for name in PRECISIONS])
"""Fewest bytes of a number on the wire or read from HBM, by precision code: what the format itself has."""


@dataclass(frozen=True, slots=True)
class _MeshFloor:
    """What the floor needs of each mesh, if a number has one byte: seconds of the slowest channel for one token and of
    the weights for one step [meshes, (ici, dcn)], weights that a rank reads and bytes of its state [meshes]."""

    token: np.ndarray
    step: np.ndarray
    state_bytes: np.ndarray
    weights: np.ndarray


class FloorPricer:
    """Floors of the plans of one problem over some meshes."""

    def __init__(self, problem: Problem, meshes: Meshes, state: StateShards) -> None:
        """Price what depends on the mesh alone."""
        self.problem = problem
        self.peaks = peak_flops(problem.slice.chip)
        self.layer_flops, self.other_flops, self.again_flops = _flops(problem)
        self.mesh = _mesh_floor(problem, meshes, state)

    def parts(self, rows: PlanColumns) -> np.ndarray:
        """Least seconds of each of `FLOOR_PARTS` [4, plans]."""
        problem, mesh = self.problem, rows.mesh
        stages, batches = rows["pipeline"], rows["accumulation"]
        devices, peak = problem.slice.devices, self.peaks[rows["precision"]]
        # Filling and draining take one pass forward and back through the other stages; a schedule that puts weight
        # gradients off leaves the forward third. What is computed again could be done while a stage waits.
        waits = self.layer_flops * np.where(rows["schedule"] == ZERO_BUBBLE, 1.0 / 3.0, 1.0)
        waits = waits * (stages - 1) / (rows["virtual"] * batches)
        out = np.empty((4, len(rows)))
        out[0] = (self.layer_flops + self.again_flops[rows["remat"]] + waits + self.other_flops) / (peak * devices)
        chip, width = problem.slice.chip, WIDTHS[rows["precision"]]
        share = 1.0 / stages
        # Weights that fit on the chip could stay there from one micro-batch to the next.
        reread = np.maximum(width * share * self.mesh.weights[mesh] - chip.on_chip_bytes, 0.0)
        out[1] = (self.mesh.state_bytes[mesh] * share + 2.0 * batches * reread) / chip.device_hbm_bytes_per_s
        # Tokens that pass through the layers of one device in a step.
        tokens = rows["micro_batch"] * batches * (problem.workload.seq_len * share / rows["context"])
        for k in (0, 1):
            out[2 + k] = width * np.maximum(self.mesh.token[mesh, k] * tokens, self.mesh.step[mesh, k] * share)
        return out

    def seconds(self, rows: PlanColumns) -> np.ndarray:
        """The floor [plans]."""
        return self.parts(rows).max(axis=0)


def _flops(problem: Problem) -> tuple[float, float, np.ndarray]:
    """FLOPs of a step: the layers' forward and backward, the head's, and what each policy computes again."""
    policies, parts = problem.stack.remat, problem.workload.flops_by_part()
    head = parts.pop("head")
    again = np.zeros(len(policies))
    for part, flops in parts.items():
        made = "context" if part == "attention" else product_of(problem.stack, part)
        if made:
            again += flops * recomputed(policies, made)
    return 3.0 * sum(parts.values()), 3.0 * head, again


def _mesh_floor(problem: Problem, meshes: Meshes, state: StateShards) -> _MeshFloor:
    stack = problem.stack
    links, c = group_links(problem, meshes, None), meshes.columns
    token = [
        _tensor_token(problem, links),
        _context_token(problem, links, c),
        _expert_token(problem, links, c),
    ]
    gathered = [
        np.add(network.all_gather(links[a], n), network.reduce_scatter(links[a], n))
        for a, n in (("shards", state.dense), ("routed_shards", state.routed))
    ]
    reduced = [
        np.array(network.all_gather(links[a], n))
        for a, n in (
            ("replicas", state.dense / state.dense_shards),
            ("routed_replicas", state.routed / state.routed_shards),
        )
    ]
    local = state.dense / state.dense_shards + state.routed / state.routed_shards
    spread = np.maximum(state.dense_replicas, 1) if max(stack.zero) > 0 else 1
    return _MeshFloor(
        token=np.max(token, axis=0).T,
        step=np.max([gathered[0] + gathered[1], reduced[0] + reduced[1]], axis=0).T,
        state_bytes=local / spread * 2 * (stack.state.optimizer + stack.state.weights * (stack.state.optimizer == 0)),
        weights=state.dense,
    )


def _tensor_token(problem: Problem, links: dict[str, network.Link]) -> np.ndarray:
    architecture = problem.workload.architecture
    block = np.full(len(links["tensor"].n_ici), float(architecture.d_model))
    passes = 4.0 if any(axis.fabric == "switch" for axis in problem.slice.axes) else 8.0
    return np.array(network.all_gather(links["tensor"], block)) * passes * architecture.layers


def _context_token(problem: Problem, links: dict[str, network.Link], c: Columns) -> np.ndarray:
    architecture = problem.workload.architecture
    attention = architecture.attention
    full = sum(group.count for group in architecture.groups if group.window == 0)
    numbers = attention.kv_heads * (attention.qk_head_dim + attention.v_head_dim)
    keys = numbers / kv_shards(problem, c["tensor"]) * c["context"]
    one_way = np.array(network.all_gather(links["context"], keys))
    return one_way * 2.0 * full


def _expert_token(problem: Problem, links: dict[str, network.Link], c: Columns) -> np.ndarray:
    architecture = problem.workload.architecture
    moe = sum(group.count for group in architecture.groups if group.moe)
    payload = architecture.d_model / c["tensor"]
    exchange = np.array(network.all_to_all(links["expert"], payload)) if moe else np.zeros((2, len(payload)))
    return exchange * 4.0 * moe

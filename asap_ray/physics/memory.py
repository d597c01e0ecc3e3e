"""Peak memory of one device, part by part.

State (weights, gradients, optimizer) is what `state.py` says a rank holds, times the stack's bytes a parameter.
Activations are what each layer keeps under its policy, times the layers of a stage, times the micro-batches in
flight, plus the one layer whose backward pass is running. With a pipeline the first stage (most micro-batches in
flight, the embedding) and the last (the head and the logits) are both counted and the larger one is reported; where
the pipeline is a loop over the layers alone, embedding, head and logits are spread over all stages outside of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from asap_ray.architecture import LayerGroup
from asap_ray.physics.activations import kept_tensors, on_device, on_host
from asap_ray.physics.calibration import Calibration
from asap_ray.physics.layer import Units
from asap_ray.physics.state import StateShards, holds_both_edges
from asap_ray.problem import GPIPE, NONE, ZERO_BUBBLE, Problem

MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "gathered", "workspace")
COMPUTE_BYTES = 2.0
GATHERED_LAYERS = 2.0
"""Layers whose weights are gathered at once: the one that runs and the one that is prefetched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationBytes:
    """Bytes of one micro-batch on one device: kept a layer on average, on device and host, and of one running layer."""

    kept: np.ndarray
    host: np.ndarray
    running: np.ndarray
    logits: np.ndarray


def activation_bytes(problem: Problem, units: Units) -> ActivationBytes:
    """Activation bytes of units: `kept` and `host` [units, policies], `running` and `logits` [units]."""
    architecture, policies = problem.workload.architecture, problem.stack.remat
    kept = np.zeros((len(units.tokens), len(policies)))
    host, running = np.zeros_like(kept), np.zeros(len(kept))
    for group in architecture.groups:
        sizes = _tensor_bytes(problem, units, group)
        for name, size in sizes.items():
            kept += (group.count * size)[:, None] * on_device(policies, name)
            host += (group.count * size)[:, None] * on_host(policies, name)
        running = np.maximum(running, sum(sizes.values()))
    logits = units.tokens * architecture.vocab / units.tensor * problem.stack.logit_bytes
    edges = 2 * units.tokens * architecture.d_model * units.number_bytes / units.sequence_shards
    layers = architecture.layers
    return ActivationBytes(kept=kept / layers, host=host / layers, running=running, logits=logits + edges)


def _tensor_bytes(problem: Problem, units: Units, group: LayerGroup) -> dict[str, np.ndarray]:
    shards, sizes = units.shards, {}
    for tensor in kept_tensors(problem.workload, group):
        size = tensor.token_bytes(units.number_bytes) * units.tokens / shards[tensor.shard]
        if tensor.kernel:
            size = size * (units.unfused == (tensor.kernel == "unfused"))
        sizes[tensor.name] = sizes.get(tensor.name, 0.0) + size
    return sizes


def in_flight(problem: Problem, c: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Micro-batches whose activations the first and the last stage hold at their peak, in units of a whole stage's
    layers [plans].

    1F1B holds as many as there are stages in the first and one in the last; with v chunks a stage the first holds
    (p - 1) / v more than p, the last as many less (arXiv 2205.05198, section 4.2.3; warm-up of arXiv 2104.04473). ZB-H1
    keeps p everywhere (arXiv 2401.10241). GPipe, and any schedule that is differentiated as one loop, holds them all
    (arXiv 1811.06965).
    """
    stages, batches = c["pipeline"].astype(float), c["accumulation"]
    ramp = (stages - 1) / c["virtual"]
    first = np.where(c["virtual"] > 1, stages + ramp, stages)
    last = np.where(c["schedule"] == ZERO_BUBBLE, stages, stages - ramp)
    everything = (c["schedule"] == GPIPE) | (problem.stack.holds_all & (c["schedule"] != NONE))
    return np.where(everything, batches, np.minimum(batches, first)), np.where(
        everything, batches, np.minimum(batches, last)
    )


def layers_held(problem: Problem, c: Mapping[str, np.ndarray]) -> np.ndarray:
    """Layers of the fullest stage [plans]; where they do not divide evenly, the fullest chunk counts."""
    chunks = c["pipeline"] * c["virtual"]
    return np.ceil(problem.workload.architecture.layers / chunks) * c["virtual"]


def memory_parts(
    problem: Problem,
    calibration: Calibration,
    state: StateShards,
    activations: ActivationBytes,
    c: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Bytes of each of `MEMORY_PARTS` on the fullest device [plans]; state and activations are given by plan."""
    stack, layers = problem.stack, problem.workload.architecture.layers
    held = layers_held(problem, c)
    stored = activations.kept * held
    running = np.maximum(activations.running - activations.kept, 0.0)
    first, last = (stored * batches + running for batches in in_flight(problem, c))
    alike = holds_both_edges(stack, c)
    # Outside of a pipelined loop all micro-batches' logits exist at once, each stage holding its share of them.
    looped = alike & (c["pipeline"] > 1)
    logits = activations.logits * np.where(looped, c["accumulation"] / c["pipeline"], 1.0)
    bytes_a_parameter = (stack.state.weights + stack.state.gradients + stack.state.optimizer) / state.dense_shards
    first_heavier = first + state.embedding * bytes_a_parameter >= last + logits + state.head * bytes_a_parameter
    edge = np.where(alike, state.edges, np.where(first_heavier, state.embedding, state.head))
    dense, routed = state.dense * held / layers + edge, state.routed * held / layers
    parts = {
        "weights": stack.state.weights * (dense / state.dense_shards + routed / state.routed_shards),
        **_sharded_state(problem, state, dense, routed, c["zero"]),
        "activations": np.where(alike | first_heavier, first, last),
        "logits": np.where(alike | ~first_heavier, logits, 0.0),
        "gathered": _gathered(problem, state, edge, held / layers),
    }
    used = sum(parts.values())
    parts["workspace"] = calibration.workspace_bytes + calibration.fragmentation * used
    return parts


def _sharded_state(
    problem: Problem, state: StateShards, dense: np.ndarray, routed: np.ndarray, zero: np.ndarray
) -> dict[str, np.ndarray]:
    bytes_of = problem.stack.state
    dense_shard, routed_shard = dense / state.dense_shards, routed / state.routed_shards
    spread = dense_shard / state.dense_replicas + routed_shard / state.routed_replicas
    whole = dense_shard + routed_shard
    return {
        "gradients": bytes_of.gradients * np.where(zero >= 2, spread, whole),
        "optimizer": bytes_of.optimizer * np.where(zero >= 1, spread, whole),
    }


def _gathered(problem: Problem, state: StateShards, edge: np.ndarray, held: np.ndarray) -> np.ndarray:
    # Weights that are sharded, or kept wider than they are multiplied in, exist once more while they are used.
    stack = problem.stack
    cast = COMPUTE_BYTES * (stack.state.weights > COMPUTE_BYTES)
    moving = GATHERED_LAYERS * COMPUTE_BYTES + stack.state.gradient_wire
    layer = 0.0
    for largest, all_layers, shards in (
        (state.dense_layer, state.dense, state.dense_shards),
        (state.routed_layer, state.routed, state.routed_shards),
    ):
        gathered = all_layers * held * COMPUTE_BYTES if stack.gathers_per_step else largest * moving
        layer = layer + np.where(shards > 1, gathered, largest * cast)
    return np.maximum(layer, np.where((state.dense_shards > 1) | (cast > 0), edge * COMPUTE_BYTES, 0.0))

"""Peak memory of one device, part by part.

State (weights, gradients, optimizer) is what `state.py` says a rank holds, times the stack's bytes a parameter.
Activations are what each layer keeps under its policy, times the layers of a stage, times the micro-batches in
flight. Two moments come on top of that: in the loss, the logits and the gathered head; in the backward pass of a layer,
that layer's own tensors and gathered weights. Logits are gone by then, so the larger of the two is reported. With a
pipeline the first stage (most micro-batches in flight, the embedding) and the last (the head and the logits) are both
counted and the larger one is reported; where the pipeline is a loop over the layers alone, embedding, head and logits
are spread over all stages outside of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from asap_ray.architecture import LayerGroup
from asap_ray.physics.activations import kept_tensors, on_device, on_host
from asap_ray.physics.calibration import Calibration
from asap_ray.physics.estimate import summed
from asap_ray.physics.layer import NUMBER_BYTES, Units
from asap_ray.physics.state import StateShards, holds_both_edges
from asap_ray.problem import GPIPE, NONE, ZERO_BUBBLE, Problem

MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "gathered", "workspace")
NORMS, GATES = ("attn_in", "mlp_in"), ("act", "expert_act")
"""Tensors that a norm and a gate make."""


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
    logits = units.tokens * architecture.vocab * problem.stack.logit_bytes
    logits = logits / units.tensor if problem.stack.splits_logits else logits
    edges = 2 * units.tokens * architecture.d_model * units.number_bytes / units.sequence_shards
    layers = architecture.layers
    return ActivationBytes(kept=kept / layers, host=host / layers, running=running, logits=logits + edges)


def _tensor_bytes(problem: Problem, units: Units, group: LayerGroup) -> dict[str, np.ndarray]:
    stack, shards, sizes = problem.stack, units.shards, {}
    # Kernels that are not fused keep more for each number of what they make.
    extra = ((NORMS, stack.norm_bytes), (GATES, stack.gate_bytes))  # in 16-bit formats
    more = {name: bytes_ / 2.0 for names, bytes_ in extra for name in names}
    for tensor in kept_tensors(problem.workload, group):
        size = tensor.token_bytes(units.number_bytes) * (1.0 + more.get(tensor.name, 0.0))
        size = size * units.tokens / shards[tensor.shard]
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
    held, alike = layers_held(problem, c), holds_both_edges(stack, c)
    wide = NUMBER_BYTES[c["precision"]]
    # Outside of a pipelined loop all micro-batches' logits exist at once, each stage holding its share of them.
    looped = alike & (c["pipeline"] > 1)
    logits = activations.logits * np.where(looped, c["accumulation"] / c["pipeline"], 1.0)
    running, layer = np.maximum(activations.running - activations.kept, 0.0), _gathered_layer(problem, state, wide)
    head = _gathered_edge(problem, state, np.where(alike, state.edges, state.head), wide)
    first, last = (activations.kept * held * batches for batches in in_flight(problem, c))
    bytes_a_parameter = (stack.state.weights + stack.state.gradients + stack.state.optimizer) / state.dense_shards
    first_heavier = (
        first + running + layer + state.embedding * bytes_a_parameter
        >= last + np.maximum(running + layer, logits + head) + state.head * bytes_a_parameter
    )
    edge = np.where(alike, state.edges, np.where(first_heavier, state.embedding, state.head))
    dense, routed = state.dense * held / layers + edge, state.routed * held / layers
    sharded = _sharded_state(problem, state, dense, routed, c["zero"])
    # In the loss of a step's only micro-batch there may be no gradients yet: logits stand in their room first.
    early = alike & (c["accumulation"] == 1) & (not stack.holds_gradients)
    room = np.where(early, sharded["gradients"], 0.0)
    loss = (alike | ~first_heavier) & (logits + head - room > running + layer)
    parts = {
        "weights": stack.state.weights * (dense / state.dense_shards + routed / state.routed_shards),
        **sharded,
        "activations": np.where(alike | first_heavier, first, last) + np.where(loss, 0.0, running),
        "logits": np.where(loss, np.maximum(logits - room, 0.0), 0.0),
        "gathered": np.where(loss, head - np.maximum(room - logits, 0.0), layer),
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


def _gathered_layer(problem: Problem, state: StateShards, wide: np.ndarray) -> np.ndarray:
    # Weights that are sharded, or kept wider than they are multiplied in, exist once more while they are used; of the
    # layers that are whole at once one half is read ahead, so that gradients exist of the other half.
    stack = problem.stack
    cast = wide * (stack.state.weights > wide)
    moving = stack.gathered_layers * (wide + np.maximum(stack.state.gradient_wire, wide) / 2)
    pairs = ((state.dense_layer, state.dense_shards), (state.routed_layer, state.routed_shards))
    return summed(largest * np.where(shards > 1, moving, cast) for largest, shards in pairs)


def _gathered_edge(problem: Problem, state: StateShards, edge: np.ndarray, wide: np.ndarray) -> np.ndarray:
    twice = (state.dense_shards > 1) | (problem.stack.state.weights > wide)
    return np.where(twice, edge * wide, 0.0)

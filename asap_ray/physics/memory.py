"""Peak memory of one device, part by part.

State (weights, gradients, optimizer) is what `state.py` says a rank holds, times the stack's bytes a parameter.
Activations are what each layer keeps under its policy, times the layers of a stage, times the micro-batches in
flight. Two moments come on top of that: in the loss, the logits and the gathered head; in the backward pass of a layer,
that layer's own tensors, their gradients and gathered weights. Logits are gone by then, so the larger of the two is
reported. With a pipeline the first stage (most micro-batches in flight, the embedding) and the last (the head and the
logits) are both counted, and the fuller one is reported unless one of them is asked for; where the pipeline is a loop
over the layers alone, embedding, head and logits are spread over all stages outside of it.

All that is tensors: what a caching allocator calls allocated. It reserves more, the `fragmentation` of what comes and
goes in a step, and the process holds more than that, the `workspace` of its context, communicators and libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from asap_ray.architecture import LayerGroup
from asap_ray.physics.activations import kept_tensors, on_device, on_host
from asap_ray.physics.calibration import Calibration
from asap_ray.physics.estimate import summed
from asap_ray.physics.stages import stage_layers
from asap_ray.physics.state import StateShards, holds_both_edges, layers_state
from asap_ray.physics.units import NUMBER_BYTES, Units
from asap_ray.plan import PRECISIONS
from asap_ray.problem import GPIPE, NONE, ZERO_BUBBLE, Problem
from asap_ray.workload import DTYPE_BYTES

TENSOR_PARTS = ("weights", "gradients", "optimizer", "activations", "passing", "logits", "gathered")
MEMORY_PARTS = (*TENSOR_PARTS, "fragmentation", "workspace")
FIGURES = {"allocated": TENSOR_PARTS, "reserved": (*TENSOR_PARTS, "fragmentation"), "held": MEMORY_PARTS}
"""Parts of what a caching allocator calls allocated and reserved, and of all that a process holds."""
FIRST, LAST = 0, 1
STAGES = {"first": FIRST, "last": LAST}
NORMS, GATES = ("attn_in", "mlp_in"), ("act", "expert_act")
"""Tensors that a norm and a gate make."""
COLUMN_INPUTS = ("attn_in", "mlp_in")
"""Inputs of column-parallel matmuls, which sequence parallelism gathers."""
MATMUL_INPUTS = ("attn_in", "mlp_in", "act", "expert_in", "expert_act")
"""Tensors that only matmuls read again in the backward pass; `context` is read by attention too."""
PASSING = ("gate_up", "act", "expert_gate_up", "expert_act")
"""Tensors of the widest place of a layer, whose gradients exist at once in its backward pass."""
WHOLE_BLOCKS = 3
"""Inputs of a layer that sequence parallelism has whole at once in its backward pass: the gathered gradient of an
output, the input gathered once more, and its gradient before that is reduced (arXiv 2205.05198, section 4.2.2)."""
MATMUL_BYTES = np.array([DTYPE_BYTES[name] for name in PRECISIONS])
"""Bytes of a number inside a matmul, by precision code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationBytes:
    """Bytes of one micro-batch on one device: kept a layer on average, on device and host, of one running layer, of the
    gradients that pass through it, and of the logits."""

    kept: np.ndarray
    host: np.ndarray
    running: np.ndarray
    passing: np.ndarray
    logits: np.ndarray


def activation_bytes(problem: Problem, units: Units) -> ActivationBytes:
    """Activation bytes of units: `kept` and `host` [units, policies], the rest [units]."""
    architecture, policies = problem.workload.architecture, problem.stack.remat
    kept = np.zeros((len(units.tokens), len(policies)))
    host, running, passing = np.zeros_like(kept), np.zeros(len(kept)), np.zeros(len(kept))
    for group in architecture.groups:
        sizes = _tensor_bytes(problem, units, group)
        for name, size in sizes.items():
            kept += (group.count * size)[:, None] * on_device(policies, name)
            host += (group.count * size)[:, None] * on_host(policies, name)
        running = np.maximum(running, summed(sizes.values()))
        if problem.stack.passes_gradients:
            passing = np.maximum(passing, summed(size for name, size in sizes.items() if name in PASSING))
    logits = _logits(problem, units)
    block = units.tokens * architecture.d_model * units.number_bytes
    edges = 2 * block / units.sequence_shards
    passing = passing + WHOLE_BLOCKS * (block - block / units.sequence_shards)
    layers = architecture.layers
    return ActivationBytes(
        kept=kept / layers, host=host / layers, running=running, passing=passing, logits=logits + edges
    )


def _logits(problem: Problem, units: Units) -> np.ndarray:
    stack, numbers = problem.stack, units.tokens * problem.workload.architecture.vocab
    if not stack.splits_logits:
        return numbers * (stack.logit_bytes + stack.gathering_bytes * (units.tensor > 1))
    here = numbers / units.tensor
    return stack.logit_bytes * (np.minimum(here, stack.logit_chunk) if stack.logit_chunk else here)


def _tensor_bytes(problem: Problem, units: Units, group: LayerGroup) -> dict[str, np.ndarray]:
    stack, shards, sizes = problem.stack, units.shards, {}
    # Kernels that are not fused keep more for each number of what they make; the stack says it of 16-bit formats.
    more = dict.fromkeys(NORMS, stack.norm_bytes) | dict.fromkeys(GATES, stack.gate_bytes)
    more["scores"] = stack.score_bytes
    wide = units.number_bytes
    narrow = np.minimum(MATMUL_BYTES[units.precision], wide) if stack.keeps_narrow else wide
    for tensor in kept_tensors(problem.workload, group):
        if tensor.name == "expert_out" and not stack.weighs_outputs:
            continue
        size = tensor.token_bytes(narrow if tensor.name in MATMUL_INPUTS else wide)
        if tensor.name == "context":
            size = size + tensor.numbers * np.where(narrow < wide, narrow, 0.0)
        size = size * (1.0 + more.get(tensor.name, 0.0) / 2.0) * units.tokens
        if not (stack.keeps_gathered and tensor.name in COLUMN_INPUTS):
            size = size / shards[tensor.shard]
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
    # A loop keeps the ticks of its ramp as well, in which some stages work on nothing.
    held = batches + np.where(problem.stack.holds_all & (stages > 1), ramp, 0.0)
    return np.where(everything, held, np.minimum(batches, first)), np.where(everything, held, np.minimum(batches, last))


def memory_parts(
    problem: Problem,
    calibration: Calibration,
    state: StateShards,
    activations: ActivationBytes,
    c: Mapping[str, np.ndarray],
    stage: str = "fullest",
) -> dict[str, np.ndarray]:
    """Bytes of each of `MEMORY_PARTS` [plans]; state and activations are given by plan.

    `stage` is `first` or `last` for the devices of that stage, or `fullest` for the fuller of the two.
    """
    if stage in STAGES:
        parts = _tensors(problem, state, activations, c, STAGES[stage])
    else:
        parts = _tensors(problem, state, activations, c, FIRST)
        if np.any(c["pipeline"] > 1):
            last = _tensors(problem, state, activations, c, LAST)
            fuller = summed(parts.values()) >= summed(last.values())
            parts = {name: np.where(fuller, parts[name], last[name]) for name in parts}
    lasting = parts["weights"] + parts["gradients"] + parts["optimizer"]
    parts["fragmentation"] = calibration.fragmentation * (summed(parts.values()) - lasting)
    parts["workspace"] = np.full(len(lasting), calibration.workspace_bytes)
    return parts


def _tensors(
    problem: Problem, state: StateShards, activations: ActivationBytes, c: Mapping[str, np.ndarray], which: int
) -> dict[str, np.ndarray]:
    """Bytes of each of `TENSOR_PARTS` on the first or the last stage, which are one without a pipeline."""
    stack, alike, wide = problem.stack, holds_both_edges(problem.stack, c), NUMBER_BYTES[c["precision"]]
    layers = stage_layers(problem, c)[which]
    edge = state.embedding if which == FIRST else state.head
    edge = np.where(alike, state.edges, edge)
    dense, routed = layers_state(problem, state, layers, layers / c["virtual"], last=which == LAST)
    dense = dense + edge
    sharded = _sharded_state(problem, state, dense, routed, c)
    # Outside of a pipelined loop all micro-batches' logits exist at once, each stage holding its share of them.
    looped = alike & (c["pipeline"] > 1) & (not stack.logit_chunk)
    logits = activations.logits * np.where(looped, c["accumulation"] / c["pipeline"], 1.0)
    running, layer = np.maximum(activations.running - activations.kept, 0.0), _gathered_layer(problem, state, wide)
    head = _gathered_edge(problem, state, np.where(alike, state.edges, state.head), wide)
    head = head + wide * state.head * (stack.logit_chunk > 0)
    passing = activations.passing + stack.holds_gradients * wide * state.dense_layer
    # In the loss of a step's only micro-batch there may be no gradients yet: logits stand in their room first.
    early = alike & (c["accumulation"] == 1) & (not stack.holds_gradients)
    room = np.where(early, sharded["gradients"], 0.0)
    loss = (alike | (which == LAST)) & (logits + head - room > running + passing + layer)
    return {
        "weights": stack.state.weights * (dense / state.dense_shards + routed / state.routed_shards),
        **sharded,
        "activations": activations.kept * layers * in_flight(problem, c)[which] + np.where(loss, 0.0, running),
        "passing": np.where(loss, 0.0, passing),
        "logits": np.where(loss, np.maximum(logits - room, 0.0), 0.0),
        "gathered": np.where(loss, head - np.maximum(room - logits, 0.0), layer),
    }


def _sharded_state(
    problem: Problem, state: StateShards, dense: np.ndarray, routed: np.ndarray, c: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    bytes_of, zero = problem.stack.state, c["zero"]
    # One loop over a pipeline adds each tick's gradients to their sum at once. On TPUs it also holds what a tick picked
    # of the weights or its gradient; XLA:GPU reads and adds in place.
    looped = (c["pipeline"] > 1) & (problem.stack.sums_bytes > 0)
    copies = ((c["accumulation"] > 1) | looped).astype(float) + looped * (problem.slice.chip.kind == "tpu")
    sums, own = problem.stack.sums_bytes * copies, np.where(looped, 0.0, bytes_of.gradients)
    dense_shard, routed_shard = dense / state.dense_shards, routed / state.routed_shards
    spread = dense_shard / state.dense_replicas + routed_shard / state.routed_replicas
    whole = dense_shard + routed_shard
    return {
        "gradients": own * np.where(zero >= 2, spread, whole) + sums * whole,
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

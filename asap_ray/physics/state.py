"""Where weights, gradients and optimizer state live: parameters on one rank, and over how many ranks each is sharded.

All of it follows from the mesh alone. Dense weights are sharded by tensor and pipeline, and over the fsdp group; routed
experts by the expert axis too. What is not sharded is replicated, and replicas must agree on gradients once a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asap_ray.architecture import Architecture, LayerGroup
from asap_ray.problem import Columns, Problem, weight_shards
from asap_ray.stack import Stack


@dataclass(frozen=True, kw_only=True, slots=True)
class StateShards:
    """Parameters of one tensor and expert rank, before fsdp, and the sizes of the groups that hold them [meshes].

    `dense`, `routed`: of all layers; `dense_layer`, `routed_layer`: of the largest single layer; `lead_layer`: of a
    dense layer before the first mixture of experts, or 0; `embedding`, `head`:
    of the first and last stage (a tied head is a copy where they differ); `edges`: of the fuller of these two, or of
    both where every device holds them. `*_shards` hold disjoint parts of each weight, `*_replicas` alike copies.
    """

    dense: np.ndarray
    routed: np.ndarray
    dense_layer: np.ndarray
    routed_layer: np.ndarray
    lead_layer: np.ndarray
    embedding: np.ndarray
    head: np.ndarray
    edges: np.ndarray
    dense_shards: np.ndarray
    dense_replicas: np.ndarray
    routed_shards: np.ndarray
    routed_replicas: np.ndarray


def kv_shards(problem: Problem, tensor: np.ndarray) -> np.ndarray:
    """Ways in which keys and values are really split [meshes]: no more than there are key-value heads."""
    return np.minimum(tensor, problem.workload.architecture.attention.kv_heads)


def state_shards(problem: Problem, c: Columns) -> StateShards:
    """Parameters by rank and group sizes for mesh columns [meshes]."""
    architecture, stack = problem.workload.architecture, problem.stack
    tensor, kv = c["tensor"], kv_shards(problem, c["tensor"])
    dense, routed, dense_layer, routed_layer, lead_layer = (np.zeros(len(tensor)) for _ in range(5))
    for group in architecture.groups:
        here = _dense_parameters(architecture, group, tensor, kv)
        experts = architecture.expert_parameters(group) / (tensor * c["expert"])
        dense, routed = dense + group.count * here, routed + group.count * experts
        dense_layer, routed_layer = np.maximum(dense_layer, here), np.maximum(routed_layer, experts)
        if architecture.dense_layers and not group.moe:
            lead_layer = here
    shards = weight_shards(stack, c)
    ranks = c["data"] * c["fsdp"] * c["context"]
    if stack.expert_multiplies:
        # Dense weights see the expert axis as one more axis of ranks; each expert lives on one of its ranks only.
        in_expert = c["expert"] if "expert" in stack.shards_weights else np.ones_like(shards)
        routed_shards, all_ranks = shards // in_expert, ranks * c["expert"]
        routed_ranks = ranks
    else:
        all_ranks, routed_ranks = ranks, ranks // c["expert"]
        # An expert group takes ranks of the sharding group first; what does not divide it lies across.
        routed_shards = shards // np.gcd(shards, c["expert"])
    embedding, head = _edges(architecture, tensor)
    both = embedding + (0 if architecture.tied else head)
    return StateShards(
        dense=dense,
        routed=routed,
        dense_layer=dense_layer,
        routed_layer=routed_layer,
        lead_layer=lead_layer,
        embedding=embedding,
        head=head,
        edges=np.where(holds_both_edges(stack, c), both, np.maximum(embedding, head)),
        dense_shards=shards,
        dense_replicas=all_ranks // shards,
        routed_shards=routed_shards,
        routed_replicas=np.maximum(routed_ranks // routed_shards, 1),
    )


def holds_both_edges(stack: Stack, c: Columns) -> np.ndarray:
    """Whether every device holds embedding and head alike [meshes]: without a pipeline, or where the pipeline is a loop
    over the layers alone (autodiff), so that embedding and head stand outside of it."""
    return (c["pipeline"] == 1) | stack.holds_all


def layers_state(
    problem: Problem, state: StateShards, layers: np.ndarray, chunk: np.ndarray, last: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Dense and routed parameters of so many layers of the first or the last stage [plans], `chunk` layers in a row.

    The dense layers of a mixture of experts lead: the first stage has them, the last only where it reaches so far.
    """
    architecture = problem.workload.architecture
    lead, count = architecture.dense_layers, architecture.layers
    here = np.clip(layers - (count - lead), 0, None) if last else np.minimum(chunk, lead)
    share = (layers - here) / (count - lead)
    return here * state.lead_layer + share * (state.dense - lead * state.lead_layer), share * state.routed


def _edges(architecture: Architecture, tensor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    positions = architecture.learned_positions * architecture.d_model
    return architecture.vocab * architecture.d_model / tensor + positions, architecture.head.parameters / tensor


def _dense_parameters(architecture: Architecture, group: LayerGroup, tensor: np.ndarray, kv: np.ndarray) -> np.ndarray:
    split, split_kv = 0, 0
    for matmul in architecture.matmuls(group):
        if matmul.kind == "dense" and matmul.tensor != "none":
            if matmul.name == "key_value":
                split_kv += matmul.parameters
            else:
                split += matmul.parameters
    whole = architecture.layer_parameters(group) - architecture.expert_parameters(group) - split - split_kv
    return split / tensor + split_kv / kv + whole

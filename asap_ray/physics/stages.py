"""How many layers each stage of a pipeline holds, and how many stand before the head on the stage that has it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from asap_ray.architecture import LayerGroup
from asap_ray.problem import Problem
from asap_ray.workload import Workload


def stage_layers(problem: Problem, c: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Layers of the fullest stage without the head, and of the stage with it [plans].

    Most trainers deal layers out evenly; where they do not divide, the fullest chunk counts for both. A stack that
    `stages_by_cost` cuts where the FLOPs, those of the head included, are even, and its first stage is the fullest.
    """
    layers, chunks = problem.workload.architecture.layers, c["pipeline"] * c["virtual"]
    even = np.ceil(layers / chunks) * c["virtual"]
    if not problem.stack.stages_by_cost:
        return even, even
    sizes, of = np.unique(c["pipeline"], return_inverse=True)
    plain, headed = np.array([weighed_layers(problem.workload, int(n)) for n in sizes], float).T
    return plain[of], headed[of]


@lru_cache(maxsize=4096)
def weighed_layers(workload: Workload, stages: int) -> tuple[int, int]:
    """Layers of the fullest stage without the head, and of the stage with it, if stages are filled one after another.

    A stage is full once the FLOPs of its blocks and of all before them exceed its even share of the whole; so the block
    that exceeds it still belongs to it. Blocks are the layers in order, then the head. As nanotron's `build_model`
    (https://github.com/huggingface/nanotron); its published `get_block_compute_costs` counts weights alone, but the
    steps of its published runs are those of stages that were cut with attention counted, as here.
    """
    architecture = workload.architecture
    blocks = [flops for group in architecture.groups for flops in [_layer_flops(workload, group)] * group.count]
    head = 2.0 * architecture.head.parameters
    held, stage, done, whole = [0] * stages, 0, 0.0, sum(blocks) + head
    for flops in blocks:
        held[stage] += 1
        done += flops
        stage += done * stages > whole * (stage + 1)
    headed = held.pop(stage)
    return (max(held) if held else headed), headed


def _layer_flops(workload: Workload, group: LayerGroup) -> float:
    """Forward FLOPs of a token in one layer."""
    experts = workload.architecture.experts
    weights = 0
    for matmul in workload.architecture.matmuls(group):
        weights += matmul.parameters * (experts.topk if experts and matmul.kind == "expert" else 1)
    return 2.0 * weights + workload.attention_flops_per_token(group.window)

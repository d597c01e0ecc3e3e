"""What one device has of a layer: units, which are priced together, and the shapes of what each of them computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asap_ray.architecture import Architecture, LayerGroup
from asap_ray.layers import Matmul
from asap_ray.physics.calibration import Machine
from asap_ray.physics.network import Link
from asap_ray.plan import PRECISIONS
from asap_ray.workload import Workload, number_bytes

NUMBER_BYTES = np.array([number_bytes(name) for name in PRECISIONS])
"""Bytes of a number between matmuls, by precision code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """Rows to be priced: `tokens` a micro-batch on one device, degrees, kernels and links [units]."""

    tokens: np.ndarray
    tensor: np.ndarray
    kv_shards: np.ndarray
    context: np.ndarray
    expert: np.ndarray
    sequence_shards: np.ndarray
    precision: np.ndarray
    unfused: np.ndarray
    links: dict[str, Link]

    @property
    def number_bytes(self) -> np.ndarray:
        """Bytes of a number between matmuls, and of what they read and write [units]."""
        return NUMBER_BYTES[self.precision]

    @property
    def shards(self) -> dict[str, np.ndarray]:
        """Divisors of a tensor's bytes by what shards it [units]."""
        return {"tensor": self.tensor, "kv": self.kv_shards, "sequence": self.sequence_shards}


def sharded_matmul(
    architecture: Architecture, matmul: Matmul, units: Units
) -> tuple[np.ndarray, np.ndarray | int, np.ndarray | int, np.ndarray | int]:
    """Shape (m, k, n, groups) of a forward matmul on one device [units]: tokens x inputs x outputs, experts side by
    side."""
    shards = units.kv_shards if matmul.name == "key_value" else units.tensor
    k = matmul.k / shards if matmul.tensor == "row" else matmul.k
    n = matmul.n / shards if matmul.tensor == "column" else matmul.n
    if matmul.kind == "dense":
        # Matmuls that the tensor axis does not shard work on the rank's own tokens where the sequence is split.
        m = units.tokens / units.sequence_shards if matmul.tensor == "none" else units.tokens
        return m, k, n, 1
    experts = architecture.experts
    assert experts is not None
    held = experts.experts / units.expert
    return units.tokens * experts.topk / held, k, n, held


def attention_flops(workload: Workload, group: LayerGroup, units: Units) -> np.ndarray:
    """Forward FLOPs of one layer's scores and values on one device [units]; context ranks share the work evenly."""
    return units.tokens * workload.attention_flops_per_token(group.window) / units.tensor


def attention_waste(workload: Workload, group: LayerGroup, machine: Machine) -> float:
    """What a fused kernel computes over what is counted: masked keys of blocks that are not wholly masked, and the
    parts of a systolic array that a narrow head leaves empty."""
    attention, block = workload.architecture.attention, machine.attention_block
    attended = workload.attended(group.window)
    edges = 1.0 * workload.causal + (group.window > 0)  # half a block is wasted along each edge of what is seen
    waste = min(attended + block / 2 * edges, max(workload.seq_len, attended)) / attended
    if not machine.streams:
        return waste
    widths = (attention.qk_head_dim, attention.v_head_dim)
    return waste * sum(-(-width // machine.tile) * machine.tile for width in widths) / sum(widths)

"""What a layer leaves in memory for its backward pass, tensor by tensor, and what a policy computes again.

For a GPT layer with dropout this is the count of Korthikanti et al. (arXiv 2205.05198, section 4): 34 s*b*h bytes, plus
5 a*s^2*b of attention scores where the kernel does not recompute them itself. Each tensor says what shards it:

- `tensor`: the tensor axis, as heads or feed-forward columns;
- `kv`: the tensor axis, but only as far as there are key-value heads;
- `sequence`: the tensor axis with sequence parallelism, nothing without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from asap_ray.architecture import Architecture, LayerGroup
from asap_ray.layers import LatentAttention
from asap_ray.stack import Remat, Stack
from asap_ray.workload import Workload

T = TypeVar("T", float, np.ndarray)
MASK_BYTES = 1.0
STATISTIC_BYTES = 4.0

PRODUCT_OF = {
    "query": "query",
    "q_down": "query",
    "q_up": "query",
    "key_value": "key_value",
    "kv_down": "key_value",
    "kv_up": "key_value",
    "out": "out",
    "gate_up": "gate_up",
    "shared_gate_up": "gate_up",
    "router": "router",
    "expert_gate_up": "expert_gate_up",
    "expert_down": "expert_out",
}
"""The tensor each matmul makes; the last matmul of a dense block makes the next layer's input, which is always kept."""


def product_of(stack: Stack, matmul: str) -> str | None:
    """The tensor that a matmul makes for a gradient to need; None where none does: the last matmul of a dense block's,
    and of experts' where the router's weights multiply what enters it (`Stack.weighs_outputs`)."""
    made = PRODUCT_OF.get(matmul)
    return None if made == "expert_out" and not stack.weighs_outputs else made


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor kept for the backward pass: `numbers` a token on one device before sharding, and what shards it.

    `fixed_bytes` a token come on top that are as wide in every precision: masks and statistics. `kernel` is the
    attention kernel that leaves it, or "" for any.
    """

    name: str
    numbers: float
    shard: str
    kernel: str = ""
    fixed_bytes: float = 0.0

    def token_bytes(self, number_bytes: T) -> T:
        """Bytes a token where a number has `number_bytes`."""
        return self.numbers * number_bytes + self.fixed_bytes


def kept_tensors(workload: Workload, group: LayerGroup) -> tuple[Kept, ...]:
    """Everything that one layer of the group can keep, its own input (`input`) included."""
    return (*_attention(workload, group), *_mixer(workload.architecture, group))


def _attention(workload: Workload, group: LayerGroup) -> Iterator[Kept]:
    architecture = workload.architecture
    d, attention = architecture.d_model, architecture.attention
    dropped = architecture.dropout
    yield Kept("input", d, "sequence")
    yield Kept("attn_in", d, "sequence")
    yield Kept("query", attention.heads * attention.qk_head_dim, "tensor")
    widths = attention.qk_head_dim + attention.v_head_dim
    yield Kept("key_value", attention.kv_heads * widths, "kv")
    if isinstance(attention, LatentAttention):
        yield Kept("query", attention.q_lora_rank, "sequence")
        latent = attention.kv_lora_rank + attention.rope_head_dim
        yield Kept("key_value", latent, "sequence")
    # Softmax output, and with dropout its mask and its result; a fused kernel keeps one statistic a head instead.
    scores = attention.heads * workload.seq_len
    yield Kept("scores", scores * (1 + dropped), "tensor", "unfused", scores * MASK_BYTES * dropped)
    yield Kept("context", attention.heads * attention.v_head_dim, "tensor")
    yield Kept("context", 0, "tensor", "flash", attention.heads * STATISTIC_BYTES)
    yield Kept("out", d, "sequence", fixed_bytes=d * MASK_BYTES * dropped)


def _mixer(architecture: Architecture, group: LayerGroup) -> Iterator[Kept]:
    d = architecture.d_model
    yield Kept("mlp_in", d, "sequence")
    if group.moe and architecture.experts:
        experts = architecture.experts
        wide = 2 if experts.gated else 1
        yield Kept("router", 0, "sequence", fixed_bytes=experts.experts * STATISTIC_BYTES)
        yield Kept("expert_in", experts.topk * d, "sequence")
        yield Kept("expert_gate_up", experts.topk * wide * experts.d_ff, "tensor")
        yield Kept("expert_act", experts.topk * experts.d_ff, "tensor")
        yield Kept("expert_out", experts.topk * d, "sequence")
        width = experts.shared * experts.d_ff
    elif architecture.ffn:
        width, wide = architecture.ffn.d_ff, 2 if architecture.ffn.gated else 1
    else:
        return
    yield Kept("gate_up", wide * width, "tensor")
    yield Kept("act", width, "tensor")
    yield Kept("act", 0, "sequence", fixed_bytes=d * MASK_BYTES * architecture.dropout)


def recomputed(policies: tuple[Remat, ...], tensor: str) -> np.ndarray:
    """Whether each policy computes a tensor again [policies]."""
    return np.array([tensor not in policy.kept for policy in policies])


def recomputed_share(policies: tuple[Remat, ...], tensor: str) -> np.ndarray:
    """How much of a tensor each policy computes again, 0 to 1 [policies]."""
    return recomputed(policies, tensor) + np.array([0.5 * (tensor in policy.halves) for policy in policies])


def on_device(policies: tuple[Remat, ...], tensor: str) -> np.ndarray:
    """The share of a tensor that each policy keeps in device memory [policies]."""
    if tensor == "input":
        return np.array([float(not policy.offload_input) for policy in policies])
    return np.array([0.5 if tensor in policy.halves else float(tensor in policy.saved) for policy in policies])


def on_host(policies: tuple[Remat, ...], tensor: str) -> np.ndarray:
    """Whether each policy keeps a tensor in host memory [policies]."""
    if tensor == "input":
        return np.array([policy.offload_input for policy in policies])
    return np.array([tensor in policy.offloaded for policy in policies])

"""A workload: a model and the shape it is trained in, and the FLOPs of a step from first principles.

FLOPs are counted as for model FLOPs utilisation (PaLM, arXiv 2204.02311, appendix B): two for each multiply-add of a
matmul, attention by the keys a query really sees, experts by those a token really goes through, the head included,
the embedding look-up (which multiplies nothing) not; the backward pass is twice the forward pass, and recomputation
is not the model's own work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asap_ray.architecture import Architecture
from asap_ray.errors import ConfigError
from asap_ray.layers import check_choice, check_fields

# Bytes of one number. Block formats include their scales, one byte for 32 numbers (OCP MX v1.0, section 5.1) or for
# 16 (NVFP4, whose other scale, one a tensor, counts as nothing); so does fp8's and int8's scale, one a tensor or row.
DTYPE_BYTES: Mapping[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "mxfp8": 1.0 + 1 / 32,
    "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}


def number_bytes(precision: str) -> float:
    """Bytes of a number between matmuls, on the wire and in HBM: narrow formats hold operands inside a matmul only."""
    return max(DTYPE_BYTES[precision], DTYPE_BYTES["bf16"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A model trained on `global_batch` sequences of `seq_len` tokens a step.

    `expert_capacity` is how many tokens an expert has room for, over its even share: what is beyond is dropped, what is
    left is padded. 0: as many as come.
    """

    architecture: Architecture
    global_batch: int
    seq_len: int
    causal: bool = True
    precision: str = "bf16"
    expert_capacity: float = 0.0

    def __post_init__(self) -> None:
        """Raise ConfigError for a shape that cannot be trained."""
        check_fields(self, "workload")
        check_choice("workload.precision", self.precision, DTYPE_BYTES)
        experts = self.architecture.experts.experts if self.architecture.experts else 0
        if not 0 <= self.expert_capacity <= experts:
            rule = f"allowed: a number from 0 to {experts}, the experts of {self.architecture.name}"
            raise ConfigError("workload.expert_capacity", self.expert_capacity, rule)
        positions = self.architecture.learned_positions
        if positions and self.seq_len > positions:
            rule = f"allowed: at most {positions}, the positions that {self.architecture.name} learns"
            raise ConfigError("workload.seq_len", self.seq_len, rule)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.global_batch * self.seq_len

    def attended(self, window: int = 0) -> float:
        """Mean number of keys that a query sees, over the positions of a sequence.

        Query i of S sees min(i + 1, w) keys, itself included; the mean is w - w(w - 1)/(2S), and (S + 1)/2 without a
        window. Where attention is not causal the same number lies on the other side, the query itself counted once.
        """
        reach = min(window or self.seq_len, self.seq_len)
        causal = reach - reach * (reach - 1) / (2 * self.seq_len)
        return causal if self.causal else 2 * causal - 1

    def attention_flops_per_token(self, window: int = 0) -> float:
        """Forward FLOPs of scores and values of one layer, per token."""
        attention = self.architecture.attention
        return 2.0 * self.attended(window) * attention.heads * (attention.qk_head_dim + attention.v_head_dim)

    def flops_by_part(self) -> dict[str, float]:
        """Forward FLOPs of a step by matmul, with `attention` (scores and values) and `head`; they sum to all."""
        model = self.architecture
        per_token: defaultdict[str, float] = defaultdict(float)
        for group in model.groups:
            per_token["attention"] += group.count * self.attention_flops_per_token(group.window)
            for matmul in model.matmuls(group):
                uses = model.experts.topk if matmul.kind == "expert" and model.experts else 1
                per_token[matmul.name] += group.count * uses * 2.0 * matmul.k * matmul.n
        per_token["head"] += 2.0 * model.head.parameters
        return {part: self.tokens_per_step * flops for part, flops in per_token.items()}

    @property
    def forward_flops(self) -> float:
        """FLOPs of one forward pass over the global batch."""
        return sum(self.flops_by_part().values())

    @property
    def model_flops(self) -> float:
        """FLOPs of a training step: the forward pass and a backward pass of twice the work, nothing recomputed."""
        return 3.0 * self.forward_flops


def train_shape_from_mapping(mapping: Mapping[str, Any]) -> tuple[int, int] | None:
    """The published (global_batch, seq_len) that a file of conf/model/ gives under `train`, or None without one.

    Raises:
        ConfigError: `model.train` is not a mapping of these two to positive whole numbers.
    """
    train = mapping.get("train")
    if train is None:
        return None
    if not isinstance(train, Mapping) or set(train) != {"global_batch", "seq_len"}:
        raise ConfigError("model.train", train, "allowed: global_batch and seq_len")
    for key in ("global_batch", "seq_len"):
        if type(train[key]) is not int or train[key] < 1:
            raise ConfigError(f"model.train.{key}", train[key], "allowed: a whole number from 1")
    return train["global_batch"], train["seq_len"]

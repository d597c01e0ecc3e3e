"""The attention blocks of a layer: grouped-query attention and multi-head latent attention, heads split over tensor."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from asap_ray.layers import Attention, LatentAttention
from asap_ray.trainer.attention import AttentionShape, attend
from asap_ray.trainer.layers import Block, Norm, Turns, gather_sequence, narrowed, rotated, scatter_sequence, widened
from asap_ray.trainer.spec import Spec


class SelfAttention(Block):
    """Grouped-query attention (arXiv 2305.13245), with what its architecture adds: biases, norms of q and k, sinks."""

    def __init__(self, spec: Spec, stacked: int, rngs: nnx.Rngs, window: int) -> None:
        """Attention over `window` keys; 0 for all."""
        super().__init__(spec, stacked)
        a, d = spec.workload.architecture.attention, spec.workload.architecture.d_model
        assert isinstance(a, Attention)
        wide, wide_kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
        self.query, self.key, self.value = (
            self.weight(rngs, (each, d), ("heads", "embed")) for each in (wide, wide_kv, wide_kv)
        )
        self.out = self.weight(rngs, (wide, d), ("heads", "embed"), inputs=wide)
        biased = (a.heads, a.kv_heads, a.kv_heads) if a.qkv_bias else ()
        self.biases = nnx.List([self.weight(rngs, (n, a.head_dim), ("heads", None), jnp.zeros) for n in biased])
        self.out_bias = self.weight(rngs, (d,), (None,), jnp.zeros) if a.out_bias else None
        self.sinks = self.weight(rngs, (a.heads,), ("heads",), jnp.zeros) if a.sinks else None
        spans = a.qk_norm and a.qk_norm_span == "all"
        self.spans = "tensor" if spans and spec.sizes["tensor"] > 1 else ""
        widths = (wide, wide_kv) if spans else (a.head_dim, a.head_dim)
        self.query_norm = Norm(spec, stacked, rngs, widths[0]) if a.qk_norm else None
        self.key_norm = Norm(spec, stacked, rngs, widths[1]) if a.qk_norm else None
        self.how = shape_of(spec, window, a.head_dim)

    def __call__(self, x: jax.Array, turn: Turns) -> jax.Array:
        """The block's output for x [b, s, d], the sequence split over tensor in and out."""
        x = gather_sequence(x, self.spec)
        width = self.spec.workload.architecture.attention.qk_head_dim
        q, k, v = (
            widened(x, self.whole(w), self.spec).reshape(*x.shape[:2], -1, width)
            for w in (self.query, self.key, self.value)
        )
        if self.biases:
            q, k, v = (y + bias[...].astype(y.dtype) for y, bias in zip((q, k, v), self.biases, strict=True))
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self._normed(self.query_norm, q), self._normed(self.key_norm, k)
        if not self.spec.workload.architecture.learned_positions:
            q, k = rotated(q, turn), rotated(k, turn)
        q = checkpoint_name(q, "query")
        k, v = checkpoint_name(k, "key_value"), checkpoint_name(v, "key_value")
        o = attend(q, k, v, self.how, None if self.sinks is None else self.sinks[...])
        return _projected(self, o)

    def _normed(self, norm: Norm, x: jax.Array) -> jax.Array:
        if norm.gain[...].shape[0] == x.shape[-1]:
            return norm(x)
        return norm(x.reshape(*x.shape[:2], -1), self.spans).reshape(x.shape)


class MultiLatentAttention(Block):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), keys and values expanded.

    The latents are made from each rank's part of the sequence and gathered over tensor; they are narrow.
    """

    def __init__(self, spec: Spec, stacked: int, rngs: nnx.Rngs) -> None:
        """Full attention."""
        super().__init__(spec, stacked)
        a, d = spec.workload.architecture.attention, spec.workload.architecture.d_model
        assert isinstance(a, LatentAttention)
        self.a = a
        self.query_down = self.weight(rngs, (a.q_lora_rank, d), (None, "embed")) if a.q_lora_rank else None
        self.query_norm = Norm(spec, stacked, rngs, a.q_lora_rank) if a.q_lora_rank else None
        names = ("heads", "latent" if a.q_lora_rank else "embed")
        self.query_up = self.weight(rngs, (a.heads * a.qk_head_dim, a.q_lora_rank or d), names)
        self.key_value_down = self.weight(rngs, (a.kv_lora_rank + a.rope_head_dim, d), (None, "embed"))
        self.key_value_norm = Norm(spec, stacked, rngs, a.kv_lora_rank)
        up = (a.heads * (a.nope_head_dim + a.v_head_dim), a.kv_lora_rank)
        self.key_value_up = self.weight(rngs, up, ("heads", "latent"))
        wide = a.heads * a.v_head_dim
        self.out = self.weight(rngs, (wide, d), ("heads", "embed"), inputs=wide)
        self.out_bias = None
        self.how = shape_of(spec, 0, a.qk_head_dim)

    def __call__(self, x: jax.Array, turn: Turns) -> jax.Array:
        """The block's output for x [b, s, d], the sequence split over tensor in and out."""
        spec, a = self.spec, self.a
        if self.query_down is not None and self.query_norm is not None:
            latent = self.query_norm(checkpoint_name(widened(x, self.whole(self.query_down), spec), "query"))
        else:
            latent = x
        q = widened(gather_sequence(latent, spec), self.whole(self.query_up), spec)
        q = q.reshape(*q.shape[:2], -1, a.qk_head_dim)
        down = checkpoint_name(widened(x, self.whole(self.key_value_down), spec), "key_value")
        narrow = jnp.concatenate([self.key_value_norm(down[..., : a.kv_lora_rank]), down[..., a.kv_lora_rank :]], -1)
        narrow = gather_sequence(narrow, spec)
        kv = widened(narrow[..., : a.kv_lora_rank], self.whole(self.key_value_up), spec)
        kv = kv.reshape(*kv.shape[:2], -1, a.nope_head_dim + a.v_head_dim)
        k, v = jnp.split(kv, [a.nope_head_dim], axis=-1)
        turned = rotated(narrow[..., None, a.kv_lora_rank :], turn)
        k = jnp.concatenate([k, jnp.broadcast_to(turned, (*k.shape[:-1], a.rope_head_dim))], axis=-1)
        q_plain, q_turned = jnp.split(q, [a.nope_head_dim], axis=-1)
        q = checkpoint_name(jnp.concatenate([q_plain, rotated(q_turned, turn)], axis=-1), "query")
        k, v = checkpoint_name(k, "key_value"), checkpoint_name(v, "key_value")
        return _projected(self, attend(q, k, v, self.how))


def shape_of(spec: Spec, window: int, width: int) -> AttentionShape:
    """How this plan attends, with heads `width` wide."""
    return AttentionShape(
        causal=spec.workload.causal,
        window=window,
        scale=1.0 / math.sqrt(width),
        context=spec.sizes["context"],
        kernel=spec.kernel,
        tiles=(spec.recipe.block_q, spec.recipe.block_kv),
    )


def _projected(block: SelfAttention | MultiLatentAttention, o: jax.Array) -> jax.Array:
    """The output projection of o [b, s, heads, width]."""
    y = narrowed(o.reshape(*o.shape[:2], -1), block.whole(block.out), block.spec)
    y = checkpoint_name(scatter_sequence(y, block.spec), "out")
    return y if block.out_bias is None else y + block.out_bias[...].astype(y.dtype)

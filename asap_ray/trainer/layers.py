"""The pieces of a decoder layer: weights that know how they are sharded, norms, rotary positions, the dense blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from asap_ray import layers
from asap_ray.trainer.fp8 import fp8_matmul
from asap_ray.trainer.gather import gathered
from asap_ray.trainer.sharding import GATHERED, Names
from asap_ray.trainer.spec import Spec, psum

ROPE_BASE = 10_000.0
"""Base of the rotary angles (RoFormer, arXiv 2104.09864, section 3.2.2); models differ, and none of it costs time."""
NORM_EPSILON = 1e-6
WHOLE = "whole"
"""The name by which a recomputation policy keeps a gathered weight from the forward to the backward pass."""


class Block(nnx.Module):
    """A part of the model that makes weights, and brings their shards together where it uses them."""

    def __init__(self, spec: Spec, stacked: int) -> None:
        """`stacked` layers share each weight, along a leading axis; 0 for a part that is no layer's."""
        self.spec, self.stacked = spec, stacked

    def weight(
        self,
        rngs: nnx.Rngs,
        shape: Sequence[int],
        names: Names,
        fill: Callable[..., jax.Array] | None = None,
        inputs: int = 0,
    ) -> nnx.Param:
        """A float32 weight with its logical axes: normal with variance 1 / inputs, or what `fill` makes.

        A matrix has its wide dimension first, whichever of the two is summed over: see `Rules.of_matrix`.
        """
        rules, leading = self.spec.rules, (self.stacked,) if self.stacked else ()
        if len(names) == 2 and names[1] in GATHERED:
            lies, shards = rules.of_matrix(names, shape)
        else:
            lies = rules.spec(names, shape)
            shards = PartitionSpec(*(axes if n in GATHERED else None for axes, n in zip(lies, names, strict=True)))
        layers = tuple(rules.spec(("layers",), leading)) if leading else ()
        whole = (*leading, *shape)
        if fill is None:
            value = jax.random.normal(rngs.params(), whole, jnp.float32) / math.sqrt(inputs or shape[-1])
        else:
            value = fill(whole, jnp.float32)
        return nnx.Param(value, spec=PartitionSpec(*layers, *lies), shards=shards)

    def whole(self, weight: nnx.Param, flat: bool = False) -> jax.Array:
        """A weight in the compute format, brought together over the axes that shard it beside tensor and pipeline.

        `flat` joins its last two dimensions while it is still a shard: TPUs tile these two, and would copy the whole.
        """
        with jax.named_scope("gather"):
            shard = weight[...].astype(self.spec.dtype)
            shard = shard.reshape(*shard.shape[:-2], -1) if flat else shard
            whole = gathered(shard, weight.shards, self.spec.plan, torus=self.spec.platform == "tpu")
            return checkpoint_name(whole, WHOLE)


class Norm(Block):
    """RMSNorm or LayerNorm of the last dimension, in float32."""

    def __init__(self, spec: Spec, stacked: int, rngs: nnx.Rngs, width: int) -> None:
        """A norm over `width` numbers."""
        super().__init__(spec, stacked)
        self.gain = self.weight(rngs, (width,), (None,), jnp.ones)
        self.bias = (
            self.weight(rngs, (width,), (None,), jnp.zeros) if spec.workload.architecture.norm == "layer" else None
        )

    def __call__(self, x: jax.Array, across: str = "") -> jax.Array:
        """Normalise x [..., width]; with `across`, x is split over that mesh axis and the gain is taken to match."""
        y = x.astype(jnp.float32)

        def mean(values: jax.Array) -> jax.Array:
            local = jnp.mean(values, axis=-1, keepdims=True)
            return psum(local, self.spec, across) / self.spec.sizes[across] if across else local

        if self.bias is not None:
            y = y - mean(y)
        y = y * jax.lax.rsqrt(mean(jnp.square(y)) + NORM_EPSILON)
        y = y * self._here(self.gain[...], x.shape[-1], across)
        if self.bias is not None:
            y = y + self._here(self.bias[...], x.shape[-1], across)
        return y.astype(self.spec.dtype)

    def _here(self, vector: jax.Array, width: int, across: str) -> jax.Array:
        if not across or vector.shape[0] == width:
            return vector
        return jax.lax.dynamic_slice_in_dim(vector, jax.lax.axis_index(across) * width, width)


Turns = tuple[jax.Array, jax.Array]
"""Cosines and sines of rotary angles, each [s, width / 2]."""


def turns(positions: jax.Array, width: int) -> Turns:
    """Those of `width` numbers at positions [s]. They are made once a step: layers only multiply by them."""
    half = width // 2
    angles = positions[:, None].astype(jnp.float32) * ROPE_BASE ** (-jnp.arange(half) / half)
    return jnp.cos(angles), jnp.sin(angles)


def rotated(x: jax.Array, by: Turns) -> jax.Array:
    """Rotary position embedding of x [b, s, heads, width] by the `turns` of its positions, halves as pairs."""
    cos, sin = (each[:, None, :] for each in by)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def widened(x: jax.Array, w: jax.Array, spec: Spec) -> jax.Array:
    """x [..., narrow] times a matrix w [wide, narrow]: [..., wide], in 8-bit numbers where the plan says so."""
    return fp8_matmul(x, w.T) if spec.fp8 else jnp.einsum("...k,nk->...n", x, w)


def narrowed(x: jax.Array, w: jax.Array, spec: Spec) -> jax.Array:
    """x [..., wide] times a matrix w [wide, narrow]: [..., narrow]."""
    return fp8_matmul(x, w) if spec.fp8 else jnp.einsum("...k,kn->...n", x, w)


def gather_sequence(x: jax.Array, spec: Spec) -> jax.Array:
    """x [b, s, ...] with the tensor axis' parts of the sequence brought together: [b, s * tensor, ...]."""
    if spec.sizes["tensor"] == 1:
        return x
    with jax.named_scope("sequence"):
        return jax.lax.all_gather(x, "tensor", axis=1, tiled=True)


def scatter_sequence(x: jax.Array, spec: Spec) -> jax.Array:
    """The sum of x [b, s, ...] over the tensor axis, each rank with its part of the sequence: [b, s / tensor, ...]."""
    if spec.sizes["tensor"] == 1:
        return x
    with jax.named_scope("sequence"):
        return jax.lax.psum_scatter(x, "tensor", scatter_dimension=1, tiled=True)


class FeedForward(Block):
    """A dense feed-forward block, gated (SwiGLU, arXiv 2002.05202) or not; columns split over tensor."""

    def __init__(self, spec: Spec, stacked: int, rngs: nnx.Rngs, shape: layers.FeedForward) -> None:
        """A block of this shape."""
        super().__init__(spec, stacked)
        d, width, bias = spec.workload.architecture.d_model, shape.d_ff, shape.bias
        wide = 2 if shape.gated else 1
        self.ups = nnx.List([self.weight(rngs, (width, d), ("mlp", "embed")) for _ in range(wide)])
        self.down = self.weight(rngs, (width, d), ("mlp", "embed"), inputs=width)
        self.up_biases = nnx.List([self.weight(rngs, (width,), ("mlp",), jnp.zeros) for _ in range(wide) if bias])
        self.down_bias = self.weight(rngs, (d,), (None,), jnp.zeros) if bias else None
        self.bend = BENDS[shape.activation or ("silu" if shape.gated else "gelu")]

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The block's output for x [b, s, d], the sequence split over tensor in and out; and that it drops nothing."""
        with jax.named_scope("mlp"):
            x = gather_sequence(x, self.spec)
            hidden = [widened(x, self.whole(up), self.spec) for up in self.ups]
            if self.up_biases:
                hidden = [h + bias[...].astype(h.dtype) for h, bias in zip(hidden, self.up_biases, strict=True)]
            h = activated([checkpoint_name(h, "gate_up") for h in hidden], self.bend)
            y = scatter_sequence(narrowed(checkpoint_name(h, "act"), self.whole(self.down), self.spec), self.spec)
            y = y if self.down_bias is None else y + self.down_bias[...].astype(y.dtype)
            return y, jnp.zeros((), jnp.float32)


BENDS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
}
"""Activations by name."""


def activated(hidden: Sequence[jax.Array], bend: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """bend(gate) * up of two arrays [..., width], or the bent one."""
    return bend(hidden[0]) * hidden[1] if len(hidden) == 2 else bend(hidden[0])

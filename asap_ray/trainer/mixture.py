"""The mixture-of-experts block of a layer: its weights, and the shared experts that every token goes through."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from asap_ray.trainer.experts import ExpertShape, ExpertWeights, apply_experts
from asap_ray.trainer.grouped import KERNELS
from asap_ray.trainer.layers import BENDS, Block, activated, narrowed, widened
from asap_ray.trainer.spec import NotTrainedError, Spec


class Mixture(Block):
    """Routed experts, split over the expert axis and their columns over tensor, and shared ones as one wide block."""

    def __init__(self, spec: Spec, stacked: int, rngs: nnx.Rngs) -> None:
        """The experts of `stacked` layers."""
        super().__init__(spec, stacked)
        model = spec.workload.architecture
        d, e = model.d_model, model.experts
        assert e is not None
        if e.bias or spec.fp8:
            raise NotTrainedError(f"the trainer has no experts {'with biases' if e.bias else 'in fp8'}")
        wide = 2 if e.gated else 1
        self.router = self.weight(rngs, (e.experts, d), (None, "embed"))
        self.router_bias = self.weight(rngs, (e.experts,), (None,), jnp.zeros) if e.router_bias else None
        names = ("experts", "expert_embed", None, "mlp")
        self.gate_up = self.weight(rngs, (e.experts, d, wide, e.d_ff), names, inputs=d)
        self.down = self.weight(rngs, (e.experts, e.d_ff, d), ("experts", "mlp", "expert_embed"), inputs=e.d_ff)
        width = e.shared * e.d_ff
        self.shared_ups = nnx.List([self.weight(rngs, (width, d), ("mlp", "embed")) for _ in range(wide) if width])
        self.shared_down = self.weight(rngs, (width, d), ("mlp", "embed"), inputs=width) if width else None
        self.shared_gate = self.weight(rngs, (1, d), (None, "embed")) if e.shared_gate else None
        self.how = ExpertShape(
            experts=e.experts,
            topk=e.topk,
            gated=e.gated,
            capacity=spec.workload.expert_capacity,
            expert=spec.sizes["expert"],
            tensor=spec.sizes["tensor"],
            room=spec.room,
            kernel=KERNELS[spec.platform],
        )

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The block's output for x [b, s, d], the sequence split over tensor in and out; and the choices it dropped."""
        weights = ExpertWeights(
            router=self.whole(self.router).T,
            gate_up=self.whole(self.gate_up, flat=True),
            down=self.whole(self.down),
            router_bias=None if self.router_bias is None else self.router_bias[...],
        )
        with jax.named_scope("experts"):
            y, told = apply_experts(x, weights, self.how, self._shared if self.shared_ups else None)
            return y, told.dropped

    def _shared(self, tokens: jax.Array) -> jax.Array:
        assert self.shared_down is not None
        hidden = [widened(tokens, self.whole(up), self.spec) for up in self.shared_ups]
        h = activated([checkpoint_name(h, "gate_up") for h in hidden], BENDS["silu" if self.how.gated else "gelu"])
        y = narrowed(checkpoint_name(h, "act"), self.whole(self.shared_down), self.spec)
        if self.shared_gate is None:
            return y
        return y * jax.nn.sigmoid(widened(tokens, self.whole(self.shared_gate), self.spec))

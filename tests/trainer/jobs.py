"""Small training jobs on host devices: the same step on one device and on a mesh of eight."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from asap_ray.architecture import architecture_from_mapping
from asap_ray.plan import AXES, Plan
from asap_ray.recipe import PLAIN, Recipe
from asap_ray.settings import load_group
from asap_ray.stack import Stack, stack_from_mapping
from asap_ray.trainer.attention import order
from asap_ray.trainer.optimizer import LEARNING_RATE
from asap_ray.trainer.step import TrainStep, train_step
from asap_ray.workload import Workload

Training = tuple[list[tuple[float, float]], dict[str, np.ndarray]]
"""Loss and gradient norm by step, and weights by path."""
BATCH, LENGTH, VOCAB = 8, 16, 64
ATTENTION = {"heads": 4, "kv_heads": 4, "head_dim": 8}
SIZES = {"layers": 4, "d_model": 32, "vocab": VOCAB, "attention": ATTENTION}
MODELS = {
    "dense": {**SIZES, "ffn": {"d_ff": 64}},
    "grouped": {**SIZES, "attention": {**ATTENTION, "kv_heads": 2, "qk_norm": True}, "ffn": {"d_ff": 64}, "tied": True},
    "gpt": {
        **SIZES,
        "attention": {**ATTENTION, "qkv_bias": True, "out_bias": True},
        "ffn": {"d_ff": 64, "gated": False, "bias": True},
        "norm": "layer",
        "learned_positions": 32,
    },
    "windows": {
        **SIZES,
        "attention": {**ATTENTION, "window": 4, "full_every": 2},
        "ffn": {"d_ff": 64},
        "norms_per_layer": 4,
    },
    "latent": {
        **SIZES,
        "attention": {
            "kind": "mla",
            "heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "nope_head_dim": 8,
            "rope_head_dim": 4,
            "v_head_dim": 8,
        },
        "ffn": {"d_ff": 64},
        "experts": {"experts": 4, "topk": 2, "d_ff": 32, "shared": 1, "router_bias": True},
        "dense_layers": 1,
    },
    "experts": {**SIZES, "experts": {"experts": 4, "topk": 2, "d_ff": 32}},
}


@cache
def ours() -> Stack:
    """The trainer's own stack."""
    return stack_from_mapping(load_group("stack")["ours"])


def workload(model: str, capacity: float = 0.0) -> Workload:
    """A small job in float32."""
    architecture = architecture_from_mapping({"name": model, **MODELS[model]})
    return Workload(
        architecture=architecture, global_batch=BATCH, seq_len=LENGTH, precision="fp32", expert_capacity=capacity
    )


def step_on_host(job: Workload, line: str, recipe: Recipe = PLAIN) -> TrainStep:
    """The step of a plan on as many host devices as it takes."""
    plan = Plan.parse(line if "precision" in line else f"{line} precision=fp32")
    devices = np.array(jax.devices()[: int(np.prod(plan.sizes))]).reshape(plan.sizes)
    mesh = Mesh(devices, AXES, axis_types=(AxisType.Auto,) * len(AXES))
    room = plan.axes["expert"]  # all rows may go to one rank
    return train_step(job, plan, ours(), mesh, platform="cpu", room=room, recipe=recipe)


def stored_order(layers: int, stages: int, chunks: int) -> np.ndarray:
    """Which layer of the model lies at each place of the stacked weights: rank by rank, chunk by chunk."""
    each = layers // (stages * chunks)
    parts = [(k * stages + r) * each + np.arange(each) for r in range(stages) for k in range(chunks)]
    return np.concatenate(parts)


def trained(job: Workload, line: str, steps: int = 2, recipe: Recipe = PLAIN) -> Training:
    """Loss and gradient norm of each of some steps on the same tokens, and the weights after them, by their path."""
    made, plan = step_on_host(job, line, recipe), Plan.parse(line)
    state = made.init(jax.random.key(0))
    places = stored_order(job.architecture.layers, plan.axes["pipeline"], plan.virtual)
    if plan.axes["pipeline"] > 1:
        moved = {
            path: jax.device_put(np.asarray(w)[places], w.sharding) if path[0] == "runs" else w
            for path, w in state.weights.items()
        }
        state = state._replace(weights=moved)
    tokens = np.random.default_rng(0).integers(0, VOCAB, (BATCH, LENGTH)).astype(np.int32)
    batch = [_placed(made, plan, each) for each in (tokens, np.roll(tokens, -1, 1))]
    told = []
    for _ in range(steps):
        state, metrics = made.jitted(state, *batch)
        jax.block_until_ready(state)
        told.append((float(metrics["loss"]), float(metrics["grad_norm"])))
        assert float(metrics["dropped"]) == 0.0
    back = np.argsort(places)
    stacked = plan.axes["pipeline"] > 1
    return told, {
        "/".join(map(str, path)): np.asarray(w)[back] if stacked and path[0] == "runs" else np.asarray(w)
        for path, w in state.weights.items()
    }


def _placed(made: TrainStep, plan: Plan, tokens: np.ndarray) -> jax.Array:
    shape = made.arguments[1].shape
    return jax.device_put(tokens[:, order(LENGTH, plan.axes["context"])].reshape(shape), made.arguments[1].sharding)


def check_alike(found: Training, expected: Training, rtol: float) -> None:
    """Two trainings came to the same: losses and norms to `rtol`, 99.9% of each weight to a hundredth of a step."""
    np.testing.assert_allclose(found[0], expected[0], rtol=rtol)
    assert found[1].keys() == expected[1].keys()
    for path, weight in found[1].items():
        if "biases/1" in path:  # a bias of all keys changes no softmax: its gradient is rounding alone
            continue
        off = np.abs(weight - expected[1][path])
        assert off.max() <= 4.1 * LEARNING_RATE, path
        assert np.quantile(off, 0.999) <= 0.01 * LEARNING_RATE, path

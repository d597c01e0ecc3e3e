"""One training step: micro-batches forward and backward, gradients summed, AdamW; a single program for all devices.

Master weights and moments are float32 and sharded; a copy in the compute format is made once a step, so that what is
gathered, multiplied and sent is narrow. Gradients of the micro-batches add up in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from asap_ray.plan import Plan
from asap_ray.recipe import PLAIN, Recipe
from asap_ray.stack import Stack
from asap_ray.trainer.experts import ROOM
from asap_ray.trainer.groups import Whole
from asap_ray.trainer.model import Decoder, saving, scanned
from asap_ray.trainer.optimizer import AdamW, State
from asap_ray.trainer.pipeline import pipelined
from asap_ray.trainer.sharding import BATCH_AXES
from asap_ray.trainer.spec import NotTrainedError, Platform, Spec, psum, spec_of
from asap_ray.workload import Workload

TOKENS = PartitionSpec("pipeline", BATCH_AXES, "context")
"""How tokens [micro-batches, sequences, positions] lie on the mesh; positions in the order of `attention.order`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainStep:
    """A compiled-to-be step and what it takes.

    `jitted(state, tokens, targets)` gives the next state, which takes the room of the one before, and metrics {loss,
    grad_norm, dropped}: choices of experts that found no room, in all layers.
    `arguments` are the shapes and shardings of all three: `jitted.trace(*arguments)` needs no array and no device.
    `init(key)` makes the first state on the mesh.
    """

    jitted: Any
    arguments: tuple[Any, Any, Any]
    init: Any
    spec: Spec


def train_step(
    workload: Workload,
    plan: Plan,
    stack: Stack,
    mesh: Mesh,
    *,
    platform: Platform,
    room: float = ROOM,
    recipe: Recipe = PLAIN,
) -> TrainStep:
    """The step of a plan on a mesh made by `sharding.device_mesh`; `room` is that of experts (`experts.ROOM`).

    Raises:
        NotTrainedError: the trainer has no program for this plan, model or recipe.
    """
    spec = spec_of(workload, plan, stack, platform, room, recipe)
    graph, shapes = nnx.split(nnx.eval_shape(lambda: Decoder(spec, nnx.Rngs(0))))
    _check_stages(spec, shapes)
    weights = {path: variable.get_value() for path, variable in nnx.to_flat_state(shapes)}
    specs = {path: variable.get_metadata("spec") for path, variable in nnx.to_flat_state(shapes)}
    optimizer = AdamW(spec, specs, {path: value.shape for path, value in weights.items()})
    state_specs = optimizer.state_specs
    local = partial(_step, spec, graph, optimizer)
    sharded = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(state_specs, TOKENS, TOKENS),
        out_specs=(state_specs, PartitionSpec()),
        check_vma=False,
    )

    def init(key: jax.Array) -> State:
        made = {path: value.get_value() for path, value in _made(spec, key)}
        return optimizer.start(made)

    def placed(specs: Any) -> Any:
        return jax.tree.map(lambda each: NamedSharding(mesh, each), specs, is_leaf=_is_spec)

    batch = (plan.accumulation, workload.global_batch // plan.accumulation, workload.seq_len)
    tokens = jax.ShapeDtypeStruct(batch, jnp.int32, sharding=NamedSharding(mesh, TOKENS))
    state = jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
        jax.eval_shape(optimizer.start, weights),
        placed(state_specs),
    )
    return TrainStep(
        jitted=jax.jit(sharded, donate_argnums=0),
        arguments=(state, tokens, tokens),
        init=jax.jit(init, out_shardings=placed(state_specs)),
        spec=spec,
    )


def _made(spec: Spec, key: jax.Array) -> Any:
    return nnx.to_flat_state(nnx.state(Decoder(spec, nnx.Rngs(key))))


def _is_spec(value: object) -> bool:
    return isinstance(value, PartitionSpec)


def _check_stages(spec: Spec, shapes: nnx.State) -> None:
    """A pipeline needs layers that are all alike, or whole periods of them on each chunk."""
    model, chunks = spec.workload.architecture, spec.sizes["pipeline"] * spec.plan.virtual
    runs = nnx.merge(nnx.graphdef(nnx.eval_shape(lambda: Decoder(spec, nnx.Rngs(0)))), shapes).runs
    if spec.sizes["pipeline"] == 1:
        return
    repeats = model.layers // len(runs[0])
    if len(runs) > 1 or repeats % chunks:
        raise NotTrainedError(
            f"the trainer has no pipeline of {chunks} chunks for {model.name}: its layers are not all alike in them"
        )


def _step(
    spec: Spec, graph: nnx.GraphDef, optimizer: AdamW, state: State, tokens: jax.Array, targets: jax.Array
) -> tuple[State, dict[str, jax.Array]]:
    """The step on one device: its shards of the state, its part of tokens and targets [micro-batches, b, s]."""
    total = spec.workload.tokens_per_step

    def share(
        weights: dict, tokens: jax.Array, targets: jax.Array, whole: Sequence[Whole] = ()
    ) -> tuple[jax.Array, jax.Array]:
        model = nnx.merge(graph, nnx.from_flat_state(weights))
        if spec.sizes["pipeline"] > 1:
            loss, dropped = _pipelined_loss(model, tokens, targets)
        else:
            loss, dropped = _loss(model, tokens, targets, whole)
        return loss / total, dropped

    if spec.sizes["pipeline"] > 1:  # one loop holds all micro-batches, and adds their gradients up in float32
        told, gradients = jax.value_and_grad(share, has_aux=True)(state.weights, tokens, targets)
    else:
        told, gradients = _accumulated(spec, graph, share, state.weights, tokens, targets)
    with jax.named_scope("optimizer"):
        state, norm = optimizer.update(state, gradients)
    loss, dropped = (psum(each, spec, *spec.sizes) for each in told)
    return state, {"loss": loss, "grad_norm": norm, "dropped": dropped}


def _accumulated(
    spec: Spec, graph: nnx.GraphDef, share: Any, weights: dict, tokens: jax.Array, targets: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], dict]:
    """Loss, what was dropped and gradients, summed over micro-batches, of the weights copied in the compute format."""
    narrow = jax.tree.map(lambda w: w.astype(spec.dtype), weights)
    if spec.recipe.hold and spec.plan.accumulation > 1:  # before the first micro-batch, and for all of them
        whole = nnx.merge(graph, nnx.from_flat_state(narrow)).whole_layers()
        share = partial(share, whole=whole)
    differentiate = jax.value_and_grad(share, has_aux=True)
    if spec.plan.accumulation == 1:
        return differentiate(narrow, tokens[0], targets[0])

    def add(sums: tuple, batch: tuple[jax.Array, jax.Array]) -> tuple[tuple, None]:
        found = differentiate(narrow, *batch)
        with jax.named_scope("accumulate"):
            return jax.tree.map(lambda a, b: a + b.astype(jnp.float32), sums, found), None

    nought = jnp.zeros((), jnp.float32)
    nothing = ((nought, nought), jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.float32), weights))
    return jax.lax.scan(add, nothing, (tokens, targets))[0]


def _loss(model: Decoder, tokens: jax.Array, targets: jax.Array, whole: Sequence[Whole]) -> tuple[jax.Array, jax.Array]:
    """This device's share of the summed loss of one micro-batch [b, s], and what it dropped."""
    x, dropped = model.layers(model.embed(tokens), whole)
    return model.loss(x, targets), dropped


def _pipelined_loss(model: Decoder, tokens: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """This device's share of the summed loss of the micro-batches that it holds [rounds, b, s], and what it dropped."""
    spec, turn, (run,) = model.spec, model.turns, model.runs
    stages, chunks = spec.sizes["pipeline"], spec.plan.virtual
    graph, weights = nnx.split(run)
    weights = jax.tree.map(lambda w: w.reshape(chunks, w.shape[0] // chunks, *w.shape[1:]), weights)

    def chunk(x: jax.Array, k: jax.Array, weights: nnx.State) -> tuple[jax.Array, jax.Array]:
        # Even a single chunk is picked by the tick: what no tick changes, JAX would gather once and hold for all.
        mine = jax.tree.map(lambda w: jax.lax.dynamic_index_in_dim(w, k, 0, keepdims=False), weights)
        return scanned(nnx.merge(graph, mine), x, turn, saving(spec.remat))

    # Rematerialised as a whole, layers' inputs saved: a layer on its own would save its picked weights in every tick.
    again = jax.checkpoint(chunk, policy=saving(spec.remat, "input"), prevent_cse=False)

    def chunk_of(x: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        return again(x, k, weights)

    _, held = jax.lax.scan(lambda _, each: (None, model.embed(each)), None, tokens)
    held, dropped = pipelined(chunk_of, held, stages, chunks)
    add = lambda sum_, each: (sum_ + model.loss(*each), None)  # noqa: E731
    return jax.lax.scan(add, jnp.zeros((), jnp.float32), (held, targets))[0], dropped

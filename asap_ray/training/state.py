"""The first state and the batch of a short training, the same for every plan, laid out as the plan wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from asap_ray.trainer.attention import order
from asap_ray.trainer.sharding import device_mesh
from asap_ray.trainer.step import TrainStep, train_step
from asap_ray.training.request import RunRequest


def prepared(
    request: RunRequest, devices: Sequence[Any], seed: int
) -> tuple[TrainStep, Callable[[], Any], tuple[jax.Array, jax.Array]]:
    """A plan's step on these devices, what makes its first state, and its batch of tokens and targets.

    Raises:
        NotTrainedError: the trainer has no program for the plan.
        ValueError: there are not as many devices as the plan has.
    """
    job, plan = request.workload, request.plan
    mesh = device_mesh(plan, request.slice, devices)
    step = train_step(job, plan, request.stack, mesh, platform=request.platform, recipe=request.recipe)
    tokens = np.random.default_rng(seed).integers(0, job.architecture.vocab, (job.global_batch, job.seq_len))
    batch = (_placed(step, request, tokens), _placed(step, request, np.roll(tokens, -1, axis=1)))
    return step, lambda: _stored(step, request, step.init(jax.random.key(seed))), batch


def _placed(step: TrainStep, request: RunRequest, tokens: np.ndarray) -> jax.Array:
    """Tokens [sequences, positions] as the step takes them: by micro-batch, positions in the order of context ranks."""
    given = step.arguments[1]
    rows = tokens[:, order(request.workload.seq_len, request.plan.axes["context"])].reshape(given.shape)
    rows = rows.astype(np.int32)
    return jax.make_array_from_callback(given.shape, given.sharding, lambda index: rows[index])


def _stored(step: TrainStep, request: RunRequest, state: Any) -> Any:
    """The state with each layer's weights where the pipeline runs it, so that all plans begin with the same model."""
    places = stored_order(request.workload.architecture.layers, request.plan.axes["pipeline"], request.plan.virtual)
    if (places == np.arange(len(places))).all():
        return state
    moved = {
        path: jax.jit(lambda w: w[places], out_shardings=w.sharding)(w) if path[0] == "runs" else w
        for path, w in state.weights.items()
    }
    return state._replace(weights=moved)


def stored_order(layers: int, stages: int, chunks: int) -> np.ndarray:
    """Which layer of the model lies at each place of the stacked weights [layers]: rank by rank, chunk by chunk."""
    each = layers // (stages * chunks)
    parts = [(k * stages + r) * each + np.arange(each) for r in range(stages) for k in range(chunks)]
    return np.concatenate(parts)

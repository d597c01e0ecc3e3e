"""Trains the policy's networks: of each pair of moves the better one is to be expected to be faster.

A move's score is the logarithm of the step that trials let expect, plus the network's residual; the loss of a pair is
the logistic one of the difference of scores (RankNet, Burges et al. 2005), at the temperature `APART`. Weights decay,
so that what the lessons do not teach is left to the roofline. Each member sees the lessons with weights of its own (the
Bayesian bootstrap, Rubin 1981), which is what makes members disagree where the lessons say little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from asap_ray.agents.features import FEATURES, VERSION
from asap_ray.agents.learned import ARRAYS, Origin, Weights, forward
from asap_ray.agents.lessons import Pairs

APART = 0.1
"""Of the logarithm of a step: how far apart two scores are to be for a pair to count as told apart."""
STEADY = 0.1
"""Added to the standard deviation of each figure: one that hardly varies is not blown up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How the networks are made: `members` of two layers of `hidden`, trained for `steps` on `batch` pairs each."""

    members: int = 4
    hidden: int = 16
    steps: int = 600
    batch: int = 1024
    rate: float = 5e-3
    decay: float = 3e-3


class Ranker(nnx.Module):
    """The members' networks, side by side."""

    def __init__(self, recipe: Recipe, mean: np.ndarray, scale: np.ndarray, rngs: nnx.Rngs) -> None:
        members, hidden, features = recipe.members, recipe.hidden, len(mean)

        def normal(*shape: int) -> nnx.Param:
            return nnx.Param(jax.random.normal(rngs.params(), shape) / np.sqrt(shape[1]))

        self.mean, self.scale = nnx.Variable(jnp.asarray(mean)), nnx.Variable(jnp.asarray(scale))
        self.w1, self.b1 = normal(members, features, hidden), nnx.Param(jnp.zeros((members, hidden)))
        self.w2, self.b2 = normal(members, hidden, hidden), nnx.Param(jnp.zeros((members, hidden)))
        self.w3 = nnx.Param(jnp.zeros((members, hidden)))

    def __call__(self, figures: jax.Array) -> jax.Array:
        """By how much each member expects the logarithm of a step to be off [members, rows]."""
        return forward(jnp, {name: getattr(self, name)[...] for name in ARRAYS}, figures)


def train(
    pairs: Pairs, sources: Sequence[str], *, left_out: Sequence[str] = (), seed: int = 0, recipe: Recipe | None = None
) -> Weights:
    """Train on pairs; the same pairs and seed give the same weights on one machine.

    JAX computes on the processor alone: the networks are tiny, and the devices may be somebody's.

    Args:
        pairs: of all lessons.
        sources: of each lesson, whose it is.
        left_out: what had no part in the lessons, for the record.
        seed: of the first weights, of the weights of lessons and of batches.
        recipe: how the networks are made.
    """
    recipe = recipe or Recipe()
    both = np.concatenate([pairs.better, pairs.worse])
    jax.config.update("jax_platforms", "cpu")  # before JAX starts; afterwards it does nothing
    ranker = Ranker(recipe, both.mean(0), both.std(0) + STEADY, nnx.Rngs(seed))
    arrays = _fitted(ranker, pairs, _shares(pairs, len(sources), recipe.members, seed), recipe, seed)
    origin = Origin(
        version=VERSION,
        features=FEATURES,
        workloads=len(sources),
        sources=tuple(sorted(set(sources))),
        left_out=tuple(left_out),
        seed=seed,
    )
    return Weights(arrays=arrays, origin=origin)


def _shares(pairs: Pairs, lessons: int, members: int, seed: int) -> np.ndarray:
    """What each pair counts for each member, 1 on average [members, pairs]; each lesson has a weight of its own."""
    drawn = np.random.default_rng(seed).exponential(size=(members, lessons))
    found = drawn[:, pairs.lesson]
    return (found / found.mean(1, keepdims=True)).astype(np.float32)


def _fitted(ranker: Ranker, pairs: Pairs, shares: np.ndarray, recipe: Recipe, seed: int) -> dict[str, np.ndarray]:
    graph, params, fixed = nnx.split(ranker, nnx.Param, ...)
    optimizer = optax.adam(optax.cosine_decay_schedule(recipe.rate, recipe.steps))
    data = jax.tree.map(jnp.asarray, (pairs.better, pairs.worse, pairs.ahead, shares.T))

    def loss(params: nnx.State, batch: tuple[jax.Array, ...]) -> jax.Array:
        better, worse, ahead, share = batch
        model = nnx.merge(graph, params, fixed)
        gap = (ahead + model(better) - model(worse)) / APART  # [members, pairs]: below 0 where the better is in front
        squares = sum(jnp.sum(w[...] ** 2) for w in (model.w1, model.w2, model.w3))
        return jnp.sum(jnp.mean(jax.nn.softplus(gap) * share.T, axis=1)) + recipe.decay * squares

    def step(carry: tuple[Any, optax.OptState], key: jax.Array) -> tuple[tuple[Any, optax.OptState], None]:
        params, state = carry
        chosen = jax.random.randint(key, (recipe.batch,), 0, len(pairs.ahead))
        slopes = jax.grad(loss)(params, jax.tree.map(lambda each: each[chosen], data))
        updates, state = optimizer.update(slopes, state)
        return (optax.apply_updates(params, updates), state), None

    keys = jax.random.split(jax.random.key(seed), recipe.steps)
    (params, _), _ = jax.jit(lambda carry: jax.lax.scan(step, carry, keys))((params, optimizer.init(params)))
    trained = nnx.merge(graph, params, fixed)
    return {name: np.asarray(getattr(trained, name)[...], np.float32) for name in ARRAYS}

"""Training: what is planted in some problems is found again in another one; the same seed gives the same weights."""

from __future__ import annotations

from functools import cache

import numpy as np

from asap_ray.agents.features import State, bound_of, features_of
from asap_ray.agents.learned import ARRAYS, Weights, forward
from asap_ray.agents.learning import Ranker, Recipe, train
from asap_ray.agents.lessons import Lesson, pairs_of
from asap_ray.search.pool import Pool
from tests.agents.doubles import small_pool
from tests.problems import MOE

SMALL = Recipe(members=3, hidden=8, steps=150, batch=256)


def sick(pool: Pool) -> np.ndarray:
    """Steps where whatever uses the tensor axis takes half as long again as the roofline says."""
    return pool.step_s * np.where(pool.columns["tensor"] > 1, 1.5, 1.0)


@cache
def taught() -> Weights:
    return taught_with(1)


def taught_with(seed: int) -> Weights:
    given = lessons()
    return train(pairs_of(given, seed), [each.source for each in given], seed=seed, recipe=SMALL)


def lessons() -> list[Lesson]:
    pools = {"dense 4": small_pool("v5e-4"), "dense 8": small_pool("v5e-8"), "gpu": small_pool("h100x4", "megatron")}
    return [Lesson(name=name, source=name, pool=pool, steps_s=sick(pool)) for name, pool in pools.items()]


def test_an_error_that_all_lessons_share_is_corrected_on_another_problem() -> None:
    pool = small_pool("v6e-8", model=MOE)
    base = int(np.argmin(pool.step_s))
    state = State(base=base, bound=bound_of(pool, base), trials=0, expected_s=pool.step_s)
    said = taught().residual(features_of(pool, np.arange(len(pool)), state))
    tensor = pool.columns["tensor"] > 1
    assert said[tensor].mean() - said[~tensor].mean() > 0.2  # of ln 1.5 = 0.41
    truth = np.log(sick(pool))

    def wrong(scores: np.ndarray) -> float:
        i, j = np.triu_indices(len(pool), 1)
        return float(np.mean((scores[i] - scores[j]) * (truth[i] - truth[j]) < 0))

    assert wrong(np.log(pool.step_s) + said) < 0.6 * wrong(np.log(pool.step_s))


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    again, other = taught_with(1), taught_with(2)
    for name in ARRAYS:
        np.testing.assert_array_equal(again.arrays[name], taught().arrays[name])
    assert not np.array_equal(other.arrays["w1"], again.arrays["w1"])
    assert again.origin.sources == ("dense 4", "dense 8", "gpu")


def test_the_trained_network_says_the_same_in_numpy() -> None:
    from flax import nnx

    rng = np.random.default_rng(0)
    figures = rng.normal(size=(5, 6)).astype(np.float32)
    ranker = Ranker(Recipe(members=2, hidden=3), np.zeros(6, np.float32), np.ones(6, np.float32), nnx.Rngs(0))
    arrays = {name: np.asarray(getattr(ranker, name)[...]) for name in ARRAYS}
    arrays["w3"] = rng.normal(size=(2, 3)).astype(np.float32)
    ranker.w3[...] = arrays["w3"]
    np.testing.assert_allclose(np.asarray(ranker(figures)), forward(np, arrays, figures), rtol=1e-4, atol=1e-6)

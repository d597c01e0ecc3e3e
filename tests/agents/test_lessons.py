"""Pairs of moves: the better one is better, and states are those of a search."""

from __future__ import annotations

import numpy as np

from asap_ray.agents.features import FEATURES
from asap_ray.agents.lessons import LOST, PAIRS, ROUNDS, Lesson, learnable, pairs_of
from asap_ray.search.pool import Pool
from tests.agents.doubles import small_pool


def lesson_of(pool: Pool, steps_s: np.ndarray, name: str = "lesson") -> Lesson:
    return Lesson(name=name, source="test", pool=pool, steps_s=steps_s)


def test_the_better_move_of_a_pair_is_the_one_with_the_lower_step() -> None:
    pool = small_pool("v5e-4")
    by_tensor = np.where(pool.columns["tensor"] > 1, 2.0, 1.0)
    pairs = pairs_of([lesson_of(pool, by_tensor)], seed=0)
    tensor = FEATURES.index("tensor")
    assert len(pairs.ahead) == ROUNDS * PAIRS
    assert (pairs.better[:, tensor] == 0).all()
    assert (pairs.worse[:, tensor] > 0).all()


def test_how_far_the_better_was_ahead_is_by_what_is_expected() -> None:
    pool = small_pool("v5e-4")
    pairs = pairs_of([lesson_of(pool, pool.step_s)], seed=0)
    gain = FEATURES.index("gain")
    np.testing.assert_allclose(pairs.better[:, gain] - pairs.worse[:, gain], pairs.ahead, rtol=1e-3, atol=1e-4)
    # Before any trial the roofline's step is expected, which is the truth here.
    first = pairs.ahead[:PAIRS]
    assert (first < 0).all()


def test_what_does_not_run_is_far_behind_and_a_lesson_of_equals_teaches_nothing() -> None:
    pool = small_pool("v5e-4")
    steps = pool.step_s.copy()
    steps[0] = np.inf
    assert lesson_of(pool, steps).behind[0] == LOST
    assert learnable(lesson_of(pool, steps))
    assert not learnable(lesson_of(pool, np.ones(len(pool))))
    assert not learnable(lesson_of(pool, np.full(len(pool), np.inf)))

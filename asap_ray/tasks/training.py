"""Trains a policy in a process of its own: JAX tells the terminal which drivers it misses, and no setting stops it."""

from __future__ import annotations

from collections.abc import Sequence

from asap_ray.agents.learned import Weights
from asap_ray.agents.lessons import Lesson, Pairs, pairs_of
from asap_ray.tasks.running import results
from asap_ray.tiers.protocol import Job


def trained(lessons: Sequence[Lesson], *, left_out: Sequence[str], seed: int, steps: int) -> Weights:
    """Weights that were trained on some lessons, all of them `learnable`.

    Raises:
        AsapError: the training does not end well.
    """
    sources = tuple(each.source for each in lessons)
    given = (pairs_of(lessons, seed), sources, tuple(left_out), seed, steps)
    (found,) = results([Job(name="the training of a policy", work=_train, arguments=given, isolated=True)])
    return found


def _train(pairs: Pairs, sources: Sequence[str], left_out: Sequence[str], seed: int, steps: int) -> Weights:
    from asap_ray.agents.learning import Recipe, train

    return train(pairs, sources, left_out=left_out, seed=seed, recipe=Recipe(steps=steps))

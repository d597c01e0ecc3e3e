"""Lessons: workloads of which it is known what came of each plan, and the pairs of moves that a ranker learns from.

A lesson is searched by a simple search that explores: rounds of the plans that are expected to be fastest, with some
noise, so that states differ. In each of its states, pairs of moves are drawn of which one turned out better. Pairs
count the more, the further they are apart and the nearer the better one is to the best of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from asap_ray.agents.analyzer import analyse
from asap_ray.agents.features import State, bound_of, features_of
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Candidate, Result

ROUNDS, WIDTH = 4, 3
NOISE = 0.1
"""Standard deviation of the logarithm of an expected step: what the search explores by."""
PAIRS = 64
"""Pairs that are drawn in a state."""
LOST = 1.0
"""Of the logarithm of a step: how far behind the best a plan counts that does not run."""
FAR, NEAR = 0.3, 0.3
"""Of the logarithm of a step: how far apart two plans count as apart at most; how fast weight falls behind the best."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """Plans of one workload and what came of each: `steps_s` are seconds, inf where it does not run [plans]."""

    name: str
    source: str
    pool: Pool
    steps_s: np.ndarray

    @property
    def behind(self) -> np.ndarray:
        """The logarithm of each step over the best, `LOST` where there is none [plans]."""
        runs = np.isfinite(self.steps_s)
        found = np.full(len(self.steps_s), LOST)
        found[runs] = np.log(self.steps_s[runs] / self.steps_s[runs].min())
        return found


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Moves of which one was better: figures of both [pairs, features], the logarithm of the expected step of the
    better one over that of the other, `ahead` [pairs], and which lesson each is from [pairs]."""

    better: np.ndarray
    worse: np.ndarray
    ahead: np.ndarray
    lesson: np.ndarray


def learnable(lesson: Lesson) -> bool:
    """Whether there is anything to learn: two plans, one of which runs, that are not equally good."""
    return bool(np.isfinite(lesson.steps_s).any()) and float(np.ptp(lesson.behind)) > 0.0


def pairs_of(lessons: Sequence[Lesson], seed: int) -> Pairs:
    """The pairs of some lessons; `lesson` counts the lessons as they are given."""
    rng = np.random.default_rng(seed)
    found = [
        (place, better, worse, ahead)
        for place, lesson in enumerate(lessons)
        for state in _states(lesson, rng)
        for better, worse, ahead in [_drawn(lesson, state, rng)]
    ]
    return Pairs(
        better=np.concatenate([each[1] for each in found]),
        worse=np.concatenate([each[2] for each in found]),
        ahead=np.concatenate([each[3] for each in found]),
        lesson=np.concatenate([np.full(len(each[3]), each[0]) for each in found]),
    )


def _states(lesson: Lesson, rng: np.random.Generator) -> Iterator[State]:
    """Where a search of a lesson stands before each of its rounds."""
    pool, results, left = lesson.pool, list[Result](), np.ones(len(lesson.pool), bool)
    for _ in range(ROUNDS):
        expected = analyse(pool, results).expected_s
        tried = np.flatnonzero(~left)
        runs = tried[np.isfinite(lesson.steps_s[tried])]
        base = int(runs[np.argmin(lesson.steps_s[runs])]) if len(runs) else int(np.argmin(expected))
        yield State(base=base, bound=bound_of(pool, base), trials=len(tried), expected_s=expected)
        noisy = np.log(expected) + rng.normal(0.0, NOISE, len(pool))
        for row in np.argsort(np.where(left, noisy, np.inf))[: min(WIDTH, int(left.sum()))]:
            left[row] = False
            candidate = Candidate(number=len(results), plan=pool.plan(int(row)), author="lesson")
            results.append(result_of_row(lesson, int(row), candidate))


def result_of_row(lesson: Lesson, row: int, candidate: Candidate) -> Result:
    """What becomes of a candidate, a plan of a lesson's pool."""
    step = float(lesson.steps_s[row])
    return Result(
        candidate=candidate,
        status="complete" if np.isfinite(step) else "infeasible",
        step_time_s=step if np.isfinite(step) else None,
        roofline=lesson.pool.estimate(row),
        source="replay",
    )


def _drawn(lesson: Lesson, state: State, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Figures of the better and the worse moves of some pairs, and how far the better was expected to be ahead."""
    behind = lesson.behind
    apart = behind[None, :] - behind[:, None]  # [better, worse]
    weight = np.clip(apart, 0.0, FAR) * np.exp(-behind[:, None] / NEAR)
    drawn = rng.choice(weight.size, PAIRS, p=weight.ravel() / weight.sum())
    better, worse = np.divmod(drawn, len(behind))
    figures, expected = features_of(lesson.pool, np.arange(len(lesson.pool)), state), np.log(state.expected_s)
    return figures[better], figures[worse], (expected[better] - expected[worse]).astype(np.float32)

"""A study of many trials: its samplers learn from a bounded number of them, the fastest and the latest."""

from __future__ import annotations

import numpy as np
import pytest

from asap_ray.search import study as module
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Candidate, Result
from asap_ray.search.study import Study
from tests.search.test_pool import pool_of, tier_of


@pytest.fixture(scope="module")
def pool() -> Pool:
    return pool_of(tier_of("v5e-4", "maxtext"))


def told(study: Study, number: int, row: int, step: float) -> None:
    candidate = Candidate(number=number, plan=study.pool.plan(row), author="sampler")
    study.tell(Result(candidate=candidate, status="complete", step_time_s=step))


@pytest.mark.parametrize("sampler", ["random", "tpe", "qmc", "nsga2"])
def test_it_keeps_the_fastest_quarter_and_the_latest_quarter(
    sampler: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEARNT", 8)
    study, open_ = Study(pool, sampler, seed=0, first=3), np.ones(len(pool), bool)
    steps = [5.0, 1.0, 7.0, 2.0, 9.0, 8.0, 6.0, 4.0, 3.0]
    for i, step in enumerate(steps):
        asked = study.sample(open_)
        assert asked is not None
        number, row = asked
        assert number == 3 + i
        told(study, number, row, step)
    # When the ninth was asked for, the fastest two (1 and 2 s) and the latest two (6 and 4 s) were kept.
    assert [each.value for each in study.optuna.trials] == [1.0, 2.0, 6.0, 4.0, 3.0]
    assert study.asked == len(steps)


def test_trials_that_run_are_told_to_the_study_that_they_were_asked_of(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEARNT", 4)
    study = Study(pool, "random", seed=0)
    numbers = [study.enqueue(row) for row in range(6)]  # a round wider than what is learnt from
    assert numbers == list(range(6))
    for number in numbers:
        told(study, number, number, 10.0 - number)
    assert study.enqueue(6) == 6
    # Of the six 10 to 5 s, the last is the fastest quarter of four and the latest; the seventh has no step yet.
    assert [each.value for each in study.optuna.trials] == [5.0, None]


def test_a_sequence_of_points_goes_on_where_it_was(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(count: int) -> list[int]:
        study, open_, found = Study(pool, "qmc", seed=0), np.ones(len(pool), bool), []
        for i in range(count):
            number, row = study.sample(open_) or (0, 0)
            told(study, number, row, float(i))
            found.append(row)
        return found

    whole = rows(12)
    monkeypatch.setattr(module, "LEARNT", 4)
    assert rows(12) == whole

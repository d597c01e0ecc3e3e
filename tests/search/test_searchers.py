"""Every searcher keeps the protocol: nothing twice, nothing outside the pool, the same again with the same seed."""

from __future__ import annotations

import numpy as np
import optuna
import pytest

from asap_ray.errors import AsapError
from asap_ray.search import study as studies
from asap_ray.search.blackbox import METHODS, BlackBox, InOrder, black_box, by_roofline
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Candidate, Result, best_of, trial_seed
from asap_ray.search.study import ATTRIBUTES, EXTRAS, Study
from tests.search.test_pool import pool_of, tier_of

HERE = [name for name in METHODS if name not in EXTRAS]


@pytest.fixture(scope="module")
def pool() -> Pool:
    return pool_of(tier_of("v5e-4", "maxtext"))


def result(pool: Pool, candidate: Candidate) -> Result:
    """Every fifth row does not fit after all; the others take twice what the roofline says."""
    row = pool.row(candidate.plan)
    assert row is not None
    if row % 5 == 0:
        return Result(candidate=candidate, status="infeasible", over_bytes=1e9 * (1 + row), reason="too big")
    return Result(candidate=candidate, status="complete", step_time_s=2 * float(pool.step_s[row]), source="double")


def rounds(pool: Pool, searcher: BlackBox | InOrder, count: int, width: int = 3) -> list[Result]:
    found: list[Result] = []
    for _ in range(count):
        told = [result(pool, each) for each in searcher.ask(width)]
        searcher.tell(told)
        found += told
    return found


@pytest.mark.parametrize("method", HERE)
def test_plans_of_the_pool_none_twice_and_the_same_with_the_same_seed(pool: Pool, method: str) -> None:
    first, again = (rounds(pool, black_box(pool, method, seed=7), 8) for _ in range(2))
    lines = [each.candidate.plan.line for each in first]
    assert lines == [each.candidate.plan.line for each in again]
    assert len(set(lines)) == 24
    assert [each.candidate.number for each in first] == list(range(24))
    assert all(pool.row(each.candidate.plan) is not None for each in first)


@pytest.mark.parametrize("method", HERE)
def test_a_whole_pool_is_tried_and_then_it_is_finished(pool: Pool, method: str) -> None:
    small = pool_of(tier_of("v5e-4", "maxtext"), most=7)
    searcher = black_box(small, method, seed=1)
    assert searcher.finished() is None
    assert len(rounds(small, searcher, 4)) == 7
    assert searcher.finished()
    assert searcher.ask(3) == []


def test_another_seed_is_another_search(pool: Pool) -> None:
    lines = [{each.candidate.plan.line for each in rounds(pool, black_box(pool, "random", s), 4)} for s in (1, 2)]
    assert lines[0] != lines[1]


def test_the_sampler_of_a_trial_hangs_on_run_seed_and_number_alone() -> None:
    assert trial_seed(0, 1) == trial_seed(0, 1)
    assert len({trial_seed(s, n) for s in range(20) for n in range(20)}) == 400


def test_what_is_sampled_hangs_on_the_number_not_on_who_asked_for_the_trials_before(pool: Pool) -> None:
    study, again = Study(pool, "random", 0), Study(pool, "random", 0)
    every = np.ones(len(pool), bool)
    asked = [study.sample(every) for _ in range(8)]
    assert len({row for _, row in filter(None, asked)}) > 4
    for row in range(5):
        again.enqueue(row)
    assert [again.sample(every) for _ in range(3)] == asked[5:]


def test_what_does_not_fit_is_told_so_also_where_nobody_knows_by_how_much(pool: Pool) -> None:
    searcher = BlackBox(pool, "random", seed=0)
    searcher.tell([Result(candidate=each, status="infeasible") for each in searcher.ask(1)])
    (trial,) = searcher.study.optuna.get_trials()
    assert trial.constraints == {"hbm_over_bytes": 1.0}


def test_trials_hold_what_was_evaluated_under_the_same_keys(pool: Pool) -> None:
    searcher = BlackBox(pool, "tpe", seed=3)
    told = rounds(pool, searcher, 6)
    trials = searcher.study.optuna.get_trials()
    assert len(trials) == len(told)
    for trial, each in zip(trials, told, strict=True):
        row = pool.row(each.candidate.plan)
        assert row is not None
        assert trial.params == searcher.study.parameters(row)
        assert tuple(trial.user_attrs) == ATTRIBUTES
        assert trial.user_attrs["plan"] == each.candidate.plan.line
        if each.status == "infeasible":
            assert trial.state is optuna.trial.TrialState.PRUNED
            assert trial.constraints == {"hbm_over_bytes": each.over_bytes}
        else:
            assert (trial.value, trial.constraints) == (each.step_time_s, {"hbm_over_bytes": 0.0})


def test_distributions_never_change_and_none_is_of_one_value(pool: Pool) -> None:
    study = Study(pool, "tpe", 0)
    before = dict(study.distributions)
    study.sample(pool.columns["remat"] == pool.columns["remat"][0])
    study.sample(pool.columns["tensor"] == 1)
    assert dict(study.distributions) == before
    assert all(not each.single() for each in before.values())


def test_a_point_is_snapped_to_the_nearest_open_plan(pool: Pool) -> None:
    study = Study(pool, "random", 0)
    row = len(pool) // 2
    only = np.zeros(len(pool), bool)
    only[row] = True
    assert study.sample(only) == (0, row)
    assert study.sample(np.zeros(len(pool), bool)) is None
    assert study._nearest(study.parameters(row), np.ones(len(pool), bool)) == row


def test_given_plans_come_first(pool: Pool) -> None:
    first = [int(row) for row in by_roofline(pool)[:3]]
    searcher = BlackBox(pool, "tpe", seed=0, first=first)
    assert [pool.row(each.plan) for each in searcher.ask(5)[:3]] == first


def test_the_roofline_in_order_is_the_ranking(pool: Pool) -> None:
    told = rounds(pool, InOrder(pool, "roofline", by_roofline(pool).tolist()), 3)
    steps = [float(pool.step_s[pool.row(each.candidate.plan) or 0]) for each in told]
    assert steps == sorted(pool.step_s.tolist())[:9]


def test_tpe_leaves_what_does_not_fit(pool: Pool) -> None:
    limit = float(np.quantile(pool.hbm_bytes, 0.3))
    searcher = BlackBox(pool, "tpe", seed=0)
    over = []
    for _ in range(20):
        told = []
        for each in searcher.ask(2):
            needed = float(pool.hbm_bytes[pool.row(each.plan) or 0])
            status = "complete" if needed <= limit else "infeasible"
            step = 1.0 if status == "complete" else None
            told.append(Result(candidate=each, status=status, step_time_s=step, over_bytes=max(needed - limit, 0.0)))
            over.append(status == "infeasible")
        searcher.tell(told)
    assert sum(over[-16:]) < 0.7 * 16  # by chance: 70% of the pool


@pytest.mark.parametrize("name", EXTRAS)
def test_a_sampler_whose_package_is_missing_names_the_extra(
    pool: Pool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(AsapError, match=rf"search={name}: .*asap-ray\[{name}\]"):
        studies.check_sampler(name)


def test_the_best_is_complete_and_of_equals_the_first(pool: Pool) -> None:
    told = rounds(pool, black_box(pool, "random", 0), 4)
    best = best_of(told)
    assert best is not None
    assert best.step_time_s == min(each.step_time_s for each in told if each.step_time_s)
    assert best_of([each for each in told if each.status != "complete"]) is None

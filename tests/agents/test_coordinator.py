"""When the Coordinator ends a search, what it lets the sampler try, and what a narrowing keeps from being tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asap_ray.agents import coordinator
from asap_ray.agents.analyzer import in_use
from asap_ray.agents.coordinator import Coordinator
from asap_ray.agents.proposal import Proposal, predict_step
from asap_ray.agents.verifier import refusal
from asap_ray.narrowing import Narrowing
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Result
from tests.agents.doubles import Double, agents, play, small_pool
from tests.search.test_pool import pool_of, tier_of


@pytest.fixture(scope="module")
def pool() -> Pool:
    return small_pool("v5e-16", model="llama3_8b", batch=128, seq_len=4096)


def after_one(pool: Pool, step_s: float, **rules: Any) -> Coordinator:
    """A search with one trial that came to a step, and corrects nothing."""
    searcher = agents(pool, **rules)
    (asked,) = searcher.ask(1)
    searcher.tell([Result(candidate=asked, status="complete", step_time_s=step_s)])
    return searcher


def left(pool: Pool, searcher: Coordinator) -> np.ndarray:
    """Rows that were not tried [plans]."""
    return np.setdiff1d(np.arange(len(pool)), list(searcher.brief().tried))


def test_a_search_goes_on_while_a_plan_may_win(pool: Pool) -> None:
    assert agents(pool).finished() is None
    assert after_one(pool, 2.0 * float(pool.step_s.min())).finished() is None


def test_it_ends_where_every_floor_is_above_the_best_step(pool: Pool) -> None:
    assert "every floor is above" in (after_one(pool, 0.99 * float(pool.floor_s.min())).finished() or "")


def test_it_ends_where_the_gap_to_the_lowest_floor_is_as_small_as_asked_for(pool: Pool) -> None:
    lowest = float(pool.floor_s[left(pool, after_one(pool, 1.0))].min())
    words = "no plan left can be more than 40.0% faster by its floor"
    assert after_one(pool, 1.4 * lowest, gap=0.5).finished() == words
    assert after_one(pool, 1.4 * lowest, gap=0.3).finished() != words


def test_it_ends_where_no_interval_begins_below_the_best_step(pool: Pool) -> None:
    floor, low = float(pool.floor_s.min()), float(pool.low_s.min())
    assert floor < 0.99 * low
    assert "likely to win" in (after_one(pool, 0.995 * low).finished() or "")


def test_it_ends_where_nothing_fits_by_what_trials_needed_or_all_is_tried(pool: Pool) -> None:
    small = pool_of(tier_of("v5e-4", "maxtext"), most=6)
    searcher = agents(small)
    play(searcher, Double(small, memory=1e9, too_big=lambda plan: True), rounds=1)
    assert searcher.finished() == "no plan left fits"
    searcher = agents(small)
    play(searcher, Double(small), rounds=2)
    assert searcher.finished() == "every plan that is legal and fits was tried"
    assert searcher.ask(3) == []


def test_the_sampler_tries_only_what_could_still_win(pool: Pool) -> None:
    best = float(np.quantile(pool.low_s, 0.2))
    searcher = after_one(pool, best, share=1.0)
    sampled = [each for _ in range(5) for each in searcher.ask(3) if each.author == "sampler"]
    assert len(sampled) > 5
    assert all(pool.low_s[pool.row(each.plan) or 0] < best for each in sampled)


def test_a_proposal_that_a_narrowing_closes_is_refused_with_its_author_and_reason(pool: Pool) -> None:
    mechanism = in_use(("fsdp",))
    assert mechanism is not None
    closed = Narrowing(
        name="slow fsdp",
        tests=mechanism.tests,
        keep=False,
        author="analyzer",
        reason="trial 0: gathers take twice their price",
    )
    brief = replace(agents(pool).brief(), narrowings=(closed,))

    def why(row: int) -> str | None:
        prediction = predict_step(1.0, 0.5, 2.0)
        return refusal(
            brief,
            Proposal(plan=pool.plan(row), hypothesis="", mechanism="", prediction=prediction, expected_s=1.0),
        )

    with_fsdp = pool.columns["fsdp"] > 1
    assert why(int(np.flatnonzero(with_fsdp)[0])) == "closed by analyzer: trial 0: gathers take twice their price"
    assert why(int(np.flatnonzero(~with_fsdp)[0])) is None


def test_of_many_trials_the_latest_and_the_fastest_are_looked_at(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "KNOWN", 4)
    searcher, steps = agents(pool), [50.0, 30.0, 45.0, 44.0, 43.0, 42.0, 41.0, 40.0]
    for step in steps:
        (asked,) = searcher.ask(1)
        searcher.tell([Result(candidate=asked, status="complete", step_time_s=step)])
    brief = searcher.brief()
    assert [each.step_time_s for each in brief.results] == [30.0, 43.0, 42.0, 41.0, 40.0]
    assert brief.best is brief.results[0]
    assert sorted(brief.tried.values()) == list(range(len(steps)))

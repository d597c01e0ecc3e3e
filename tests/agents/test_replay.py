"""Tables of real measurements played back: the agents against the roofline's own order and against a sampler."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from asap_ray.interchange.measured_tables import read_tables
from asap_ray.plan import Plan
from asap_ray.search.blackbox import BlackBox, InOrder, by_roofline
from asap_ray.search.pool import Pool, pool_of_estimates
from asap_ray.search.protocol import Candidate, Result, Searcher
from asap_ray.settings import data_dir
from asap_ray.tasks.predictions import load_constants, load_mapper, map_rows, predict
from tests.agents.doubles import agents

ROUNDS = 4
LEAST = 10
"""Distinct plans that a table needs for a search to mean anything."""


@cache
def tables() -> Mapping[str, tuple[Pool, Mapping[Plan, float]]]:
    """The measured plans of each workload that was run with enough of them, with the roofline's estimates."""
    names = ("vtrain_single", "vtrain_multi", "ultrascale", "training")
    paths = [data_dir("knowledge") / "measured" / f"{name}.parquet" for name in names]
    rows = map_rows(read_tables("tables", paths), load_mapper())
    estimates = predict(rows.rows, load_constants())
    found: dict[str, dict[Plan, list[float]]] = {}
    pools: dict[str, dict[Plan, object]] = {}
    problems = {}
    for row, estimate in zip(rows.rows, estimates, strict=True):
        if isinstance(estimate, str) or row.step_time_s is None or row.status != "ok":
            continue
        problem, job = row.problem, row.problem.workload
        shape = f"{job.global_batch} x {job.seq_len} on {problem.slice.name} with {problem.stack.name}"
        name = f"{row.table}: {job.architecture.name}, {shape}"
        problems.setdefault(name, problem)
        found.setdefault(name, {}).setdefault(estimate.plan, []).append(row.step_time_s)
        pools.setdefault(name, {}).setdefault(estimate.plan, estimate)
    return {
        name: (
            pool_of_estimates(problems[name], list(pools[name].values())),  # pyright: ignore[reportArgumentType]
            {plan: float(np.median(times)) for plan, times in found[name].items()},
        )
        for name in found
        if len(found[name]) >= LEAST
    }


def best_after(pool: Pool, measured: Mapping[Plan, float], searcher: Searcher) -> list[float]:
    """The best measured step after each round of three."""
    best, found = float("inf"), []
    for _ in range(ROUNDS):
        told = []
        for each in searcher.ask(3):
            step = measured[each.plan]
            best = min(best, step)
            told.append(result(pool, each, step))
        searcher.tell(told)
        found.append(best)
    return found


def result(pool: Pool, candidate: Candidate, step: float) -> Result:
    row = pool.row(candidate.plan)
    assert row is not None
    return Result(
        candidate=candidate, status="complete", step_time_s=step, roofline=pool.estimate(row), source="replay"
    )


def test_there_are_tables_to_play_back() -> None:
    assert len(tables()) >= 10


def test_the_agents_are_after_no_round_worse_than_the_rooflines_order() -> None:
    for name, (pool, measured) in tables().items():
        mine = best_after(pool, measured, agents(pool))
        greedy = best_after(pool, measured, InOrder(pool, "roofline", by_roofline(pool).tolist()))
        assert all(here <= there * (1 + 1e-9) for here, there in zip(mine, greedy, strict=True)), name


def test_the_agents_beat_a_sampler_that_starts_with_the_rooflines_first_three() -> None:
    mine, theirs = [], []
    for pool, measured in tables().values():
        best = min(measured.values())
        if best in [measured[pool.plan(int(row))] for row in by_roofline(pool)[:3]]:
            continue  # all three begin with the best plan
        mine.append(np.mean(best_after(pool, measured, agents(pool))) / best)
        first = by_roofline(pool)[:3].tolist()
        runs = [best_after(pool, measured, BlackBox(pool, "tpe", seed, first=first)) for seed in range(3)]
        theirs.append(np.mean(runs) / best)
    assert len(mine) >= 3
    assert np.mean(mine) < np.mean(theirs)

"""What plans share beyond the parts of a step, against hand calculations and the same model written out in full."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asap_ray.agents.analyzer import analyse
from asap_ray.agents.effects import EFFECT, LEFT, effects
from asap_ray.problem import columns_of
from asap_ray.search.pool import COLUMNS, Pool
from asap_ray.search.protocol import Candidate, Result
from tests.agents.doubles import small_pool


@pytest.fixture(scope="module")
def pool() -> Pool:
    return small_pool()


def shared(pool: Pool, row: int, other: int) -> int:
    return sum(int(pool.columns[name][row] == pool.columns[name][other]) for name in COLUMNS)


def test_one_trial_moves_each_plan_by_what_it_shares_with_it(pool: Pool) -> None:
    tried, error = 7, 0.1
    found = effects(pool, columns_of(pool.problem, [pool.plan(tried)]), np.array([error]))
    # One sum of n alike effects with variance a each and one own part with b: the mean of m of them is m a / (n a + b).
    a, b, n = EFFECT**2, LEFT**2, len(COLUMNS)
    assert found == pytest.approx([shared(pool, row, tried) * a / (n * a + b) * error for row in range(len(pool))])


def test_several_trials_come_to_what_the_linear_model_in_full_says(pool: Pool) -> None:
    rng = np.random.default_rng(3)
    tried, errors = rng.choice(len(pool), 12, replace=False), rng.normal(0.0, 0.05, 12)
    design = np.concatenate([pool.columns[name][:, None] == np.unique(pool.columns[name]) for name in COLUMNS], axis=1)
    of_trials = design[tried].astype(float)
    # Ridge regression of the errors on one column for each thing a plan may have: the posterior mean of the effects.
    beliefs = of_trials.T @ of_trials / LEFT**2 + np.eye(design.shape[1]) / EFFECT**2
    means = np.linalg.solve(beliefs, of_trials.T @ errors / LEFT**2)
    found = effects(pool, columns_of(pool.problem, [pool.plan(int(row)) for row in tried]), errors)
    assert found == pytest.approx(design @ means, abs=1e-9)


def trial(pool: Pool, number: int, row: int, times: float, *, parts: bool) -> Result:
    priced = pool.estimate(row)
    seen = {name: times * value for name, value in priced.time_parts.items()} if parts else {}
    estimate = replace(priced, step_time_s=times * priced.step_time_s, time_parts=seen)
    return Result(
        candidate=Candidate(number=number, plan=priced.plan, author="test"),
        status="complete",
        step_time_s=estimate.step_time_s,
        evidence="ours",
        estimate=estimate,
        roofline=priced,
    )


def test_a_policy_that_takes_longer_than_its_parts_say_is_expected_to_do_so_elsewhere(pool: Pool) -> None:
    """Every part of the plans of one policy takes a tenth longer: no factor of a part can say so."""
    policies = pool.columns["remat"]
    slow = int(np.bincount(policies).argmax())
    rows = [*np.flatnonzero(policies == slow)[:4], *np.flatnonzero(policies != slow)[:4]]
    told = [
        trial(pool, number, int(row), 1.1 if policies[row] == slow else 1.0, parts=True)
        for number, row in enumerate(rows)
    ]
    others = np.setdiff1d(np.arange(len(pool)), rows)
    ratio = analyse(pool, told).expected_s / pool.step_s
    slower, usual = ratio[others][policies[others] == slow], ratio[others][policies[others] != slow]
    assert np.median(slower) / np.median(usual) == pytest.approx(1.1, abs=0.05)


def test_steps_alone_say_nothing_of_effects(pool: Pool) -> None:
    found = analyse(pool, [trial(pool, number, number, 1.0 + 0.1 * number, parts=False) for number in range(4)])
    assert found.expected_s == pytest.approx(pool.parts @ found.ratios)

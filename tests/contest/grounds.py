"""Small grounds with outcomes that a test can work out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from asap_ray.contest.ground import Field, Replay
from tests.search.test_pool import pool_of, tier_of


def small_field(gate: Callable[[int], bool] = lambda row: True) -> Field:
    """The plans of a small problem: each takes twice what the roofline says, every fifth does not fit."""
    pool = pool_of(tier_of("v5e-4", "maxtext"), most=40)
    lost = np.arange(len(pool)) % 5 == 4
    return Field(
        pool=pool,
        gate=np.array([gate(row) for row in range(len(pool))], bool),
        step_s=np.where(lost, np.nan, 2.0 * pool.step_s),
        status=np.where(lost, "infeasible", "complete"),
    )


def small_replay(name: str = "a ground", count: int = 12) -> Replay:
    """A ground of a few plans, the first of which is the best one."""
    pool = pool_of(tier_of("v5e-4", "maxtext"), most=count)
    return Replay(
        name=name,
        source="somebody",
        constants="none",
        problem=pool.problem,
        estimates=tuple(pool.estimate(row) for row in range(len(pool))),
        outcomes=tuple(("complete", 1.0 + row) for row in range(len(pool))),
    )

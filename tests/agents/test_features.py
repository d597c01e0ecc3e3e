"""Figures of moves: worked out by hand for one plan, and the same whatever a second is worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asap_ray.agents.features import FEATURES, State, bound_of, features_of
from tests.agents.doubles import small_pool


def figures(pool, row: int, base: int) -> dict[str, float]:
    state = State(base=base, bound=bound_of(pool, base), trials=3, expected_s=pool.step_s)
    return dict(zip(FEATURES, features_of(pool, np.array([row]), state)[0].tolist(), strict=True))


def test_figures_are_those_of_the_plan_and_of_the_move() -> None:
    pool = small_pool("v5e-8")
    row, base = len(pool) // 2, len(pool) // 5
    told, plan, start = figures(pool, row, base), pool.plan(row), pool.plan(base)
    estimate = pool.estimate(row)
    for axis, size in plan.axes.items():
        assert 2.0 ** told[axis] == pytest.approx(size)
        assert 2.0 ** told[f"to.{axis}"] == pytest.approx(size / start.axes[axis])
    assert told["share.fsdp"] == pytest.approx(estimate.time_parts["fsdp"] / estimate.step_time_s)
    assert sum(value for name, value in told.items() if name.startswith("share.")) == pytest.approx(1.0, rel=1e-5)
    assert told["hbm"] == pytest.approx(estimate.hbm_bytes / pool.problem.slice.chip.usable_hbm_bytes)
    assert told["gain"] == pytest.approx(np.log(estimate.step_time_s / pool.estimate(base).step_time_s), rel=1e-4)
    assert 2.0 ** told["tokens"] == pytest.approx(plan.micro_batch * 24 / plan.axes["context"])
    assert (told["trials"], told["devices"], told["gpu"]) == (2.0, 3.0, 0.0)
    assert sum(value for name, value in told.items() if name.startswith("bound.")) == 1.0


def test_no_figure_hangs_on_what_a_second_is_worth() -> None:
    pool = small_pool("v5e-4")
    slow = replace(
        pool,
        **{name: 10.0 * getattr(pool, name) for name in ("step_s", "low_s", "floor_s", "parts")},
    )
    rows = np.arange(0, len(pool), 7)
    one, other = (
        features_of(each, rows, State(base=3, bound="compute", trials=0, expected_s=each.step_s))
        for each in (pool, slow)
    )
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert np.isfinite(one).all()

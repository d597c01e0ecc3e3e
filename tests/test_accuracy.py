"""Statistics of predictions against figures worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asap_ray.accuracy import (
    RankingBlock,
    coverage_block,
    error_block,
    memory_block,
    ranking_block,
    ranking_summary,
)


def test_errors_by_hand() -> None:
    # Errors 0.1, 0.2, 0, 0.5 of 10, 10, 4, 2: median 0.15, mean 0.2; 90% lies at 0.2 + 0.7 * 0.3 of the sorted ones.
    block = error_block(
        "x",
        np.array([11.0, 8.0, 4.0, 3.0]),
        np.array([10.0, 10.0, 4.0, 2.0]),
        np.array([True, False, False, True]),
    )
    assert (block.name, block.n, block.inferred) == ("x", 4, 2)
    assert block.median_ape == pytest.approx(0.15)
    assert block.mean_ape == pytest.approx(0.2)
    assert block.p90_ape == pytest.approx(0.41)
    assert block.bias == pytest.approx(0.05)  # ratios 0.8, 1, 1.1, 1.5


def test_no_rows_have_no_errors() -> None:
    empty = np.zeros(0)
    block = error_block("x", empty, empty, empty.astype(bool))
    assert (block.n, block.median_ape, block.mean_ape, block.p90_ape, block.bias) == (0, None, None, None, None)
    assert coverage_block("x", empty, empty, empty, empty).share is None


def test_a_ranking_by_hand() -> None:
    # Pairs (predicted, measured): (1, 3), (2, 2), (3, 4), (4, 8): of 6 pairs one is the wrong way round, tau = 4/6.
    block = ranking_block("x", np.array([1.0, 2.0, 3.0, 4.0]), np.array([3.0, 2.0, 4.0, 8.0]))
    assert block.kendall_tau == pytest.approx(4 / 6)
    assert block.regret_top1 == pytest.approx(0.5)
    assert block.regret_top3 == 0.0


def test_equal_predictions_are_no_skill() -> None:
    # All three are predicted alike: the slowest counts as chosen first, and nothing is ranked.
    block = ranking_block("x", np.ones(3), np.array([1.0, 2.0, 4.0]))
    assert (block.kendall_tau, block.regret_top1, block.regret_top3) == (None, 3.0, 0.0)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=3, max_size=9))
def test_tau_is_that_of_all_pairs(pairs: list[tuple[int, int]]) -> None:
    predicted, measured = np.array(pairs, float).T
    signs = [(np.sign(a[0] - b[0]), np.sign(a[1] - b[1])) for a, b in itertools.combinations(pairs, 2)]
    untied = [sum(sign[i] != 0 for sign in signs) for i in (0, 1)]
    tau = ranking_block("x", predicted, measured).kendall_tau
    if not all(untied):
        assert tau is None
    else:  # tau-b, Kendall 1945
        expected = sum(a * b for a, b in signs) / np.sqrt(untied[0] * untied[1])
        assert tau == pytest.approx(expected)


def test_rankings_are_summed_up_by_quantiles() -> None:
    blocks = [
        RankingBlock(name=str(i), n=3, kendall_tau=tau, regret_top1=regret, regret_top3=0.0)
        for i, (tau, regret) in enumerate([(1.0, 0.0), (None, 0.1), (0.5, 0.2)])
    ]
    summary = ranking_summary("all", blocks)
    assert (summary.groups, summary.kendall_tau) == (3, 0.75)
    assert summary.regret_top1 == pytest.approx(0.1)
    assert summary.regret_top1_p90 == pytest.approx(0.18)
    assert ranking_summary("none", []).regret_top3_p90 is None


def test_memory_verdicts_are_counted() -> None:
    misses = np.array([True, True, False, False, True])
    out = np.array([True, False, True, False, True])
    block = memory_block("x", misses, out)
    assert (block.tp, block.fp, block.tn, block.fn) == (2, 1, 1, 1)
    assert (block.recognised, block.refused) == (pytest.approx(2 / 3), 0.5)
    nothing = memory_block("x", misses[:0], out[:0])
    assert (nothing.recognised, nothing.refused) == (None, None)


def test_coverage_by_hand() -> None:
    # Intervals of half-width 0.1 and 0.3 of the estimate; the second holds its measurement, which stands at its end.
    block = coverage_block("x", np.array([1.0, 2.0]), np.array([0.9, 1.4]), np.array([1.1, 2.6]), np.array([1.25, 2.6]))
    assert block.share == 0.5
    assert block.half_width == pytest.approx(0.2)
    assert block.median_ape == pytest.approx((0.2 + 0.6 / 2.6) / 2)

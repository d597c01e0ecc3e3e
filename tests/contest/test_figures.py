"""Figures of searches against values worked out by hand, and pairs against counting."""

from __future__ import annotations

import math

import numpy as np
import pytest

from asap_ray.contest import figures
from asap_ray.contest.figures import area, figure, hit, leader, mean, median, pair, ratio, regret_after, scores, summary
from asap_ray.contest.play import Played

GROUNDS = ("a", "b", "c", "d", "e", "f")


def played(method: str, ground: str, *regret: float | None, seed: int = 0, bad: int = 0) -> Played:
    n = len(regret)
    return Played(
        method=method,
        ground=ground,
        seed=seed,
        regret=regret,
        bad=(True,) * bad + (False,) * (n - bad),
        chip_s=tuple(float(10 * (i + 1)) for i in range(n)),
        end_s=tuple(3600.0 * (i + 1) for i in range(n)),
    )


def test_trials_until_within_a_share_and_what_they_cost() -> None:
    search = played("m", "a", None, 0.3, 0.04, 0.01, 0.0)
    assert (hit(search, 0.01), hit(search, 0.05), hit(search, 0.5)) == (4, 3, 2)
    assert hit(played("m", "a", None, 0.3), 0.01) == math.inf
    found = scores("m", [search], ["a"])
    assert found.trials[:, 0].tolist() == [4, 3]
    assert found.chip_s[0] == 10 + 20 + 30 + 40
    assert found.hours[0] == 4


def test_regret_stays_after_the_last_trial_and_is_none_before_any_ran() -> None:
    search = played("m", "a", None, 0.2, 0.1)
    assert [regret_after(search, k) for k in (1, 2, 3, 20)] == [math.inf, 0.2, 0.1, 0.1]
    assert area(search) == pytest.approx((figures.WORST + 0.2 + 8 * 0.1) / 10)


def test_a_ground_counts_once_by_the_median_over_its_seeds() -> None:
    searches = [played("m", "a", *[0.5] * k, 0.0, seed=k) for k in (0, 2, 6)]
    searches += [played("m", "b", 0.5, seed=0)]
    found = scores("m", searches, ["a", "b"])
    assert found.trials[0].tolist() == [3, math.inf]
    assert found.solved[0].tolist() == [1.0, 0.0]
    told = summary(found)["trials_to_1pct"]
    assert told["median"]["value"] is None  # between 3 and never
    assert told["solved"]["value"] == 0.5


def test_medians_with_infinite_values() -> None:
    inf = math.inf
    assert median(np.array([[1.0, 2.0, inf], [1.0, inf, inf], [3.0, 1.0, 2.0]])).tolist() == [2.0, inf, 2.0]
    assert median(np.array([[1.0, 2.0, 3.0, inf], [1.0, 2.0, inf, inf]])).tolist() == [2.5, inf]


def test_an_interval_holds_the_figure_and_is_a_point_where_all_are_alike() -> None:
    values = np.random.default_rng(1).normal(5.0, 1.0, 60)
    found = figure(values, mean)
    assert found.value == pytest.approx(values.mean())
    assert found.low is not None
    assert found.high is not None
    half = 1.96 * values.std() / math.sqrt(60)  # what the central limit makes of it
    assert (found.low, found.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.08)
    assert figure(np.full(9, 2.0), mean).as_dict() == {"value": 2.0, "low": 2.0, "high": 2.0}


def test_trials_that_did_not_run_are_a_share_of_all_trials() -> None:
    searches = [played("m", "a", *[None] * 3, 0.0, bad=3), played("m", "b", *[0.0] * 16)]
    found = scores("m", searches, ["a", "b"])
    assert figure(np.stack([found.bad, found.run], axis=1), ratio).value == pytest.approx(3 / 20)


def test_pairs_are_counted_ground_by_ground_and_tested() -> None:
    needed = {"m": (1, 1, 2, 1, 1, 1), "n": (2, 3, 2, 5, 6, 7)}
    searches = [
        played(name, ground, *[0.5] * (trials - 1), 0.0)
        for name, all_ in needed.items()
        for ground, trials in zip(GROUNDS, all_, strict=True)
    ]
    m, n = (scores(name, searches, GROUNDS) for name in needed)
    found = pair(m, n)
    assert (found.wins, found.ties, found.losses, found.grounds) == (5, 1, 0, 6)
    assert found.p_trials == pytest.approx(2 / 2**5)  # all of five signs alike, on either side
    assert found.lower_regret
    only = pair(m, n, np.arange(6) < 2)
    assert (only.grounds, only.wins) == (2, 2)


def test_nothing_is_compared_where_one_was_not_played() -> None:
    searches = [played("m", each, 0.0) for each in GROUNDS] + [played("n", "a", 0.1)]
    found = pair(scores("m", searches, GROUNDS), scores("n", searches, GROUNDS))
    assert (found.grounds, found.wins) == (1, 1)


def test_there_is_a_leader_only_where_it_is_better_than_each_other_beyond_chance() -> None:
    def of(name: str, regrets: tuple[float, ...]) -> figures.Scores:
        return scores(name, [played(name, g, r) for g, r in zip(GROUNDS, regrets, strict=True)], GROUNDS)

    low, high = of("low", (0.1, 0.2, 0.3, 0.1, 0.2, 0.3)), of("high", (0.2, 0.3, 0.4, 0.2, 0.3, 0.5))
    mixed = of("mixed", (0.2, 0.1, 0.2, 0.3, 0.3, 0.2))
    assert leader({"high": high, "low": low}) == "low"
    assert leader({"mixed": mixed, "low": low}) is None
    assert leader({"low": low}) is None

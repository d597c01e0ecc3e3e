"""What a sweep keeps, against sorting everything at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asap_ray.tiers.keepers import SAMPLED, Best, Front, Sampler, joined

# Few distinct values, so that ties are common; infinity is what a plan that does not count scores.
scores = st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
finite = st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0])
chunked = st.integers(1, 7)


def space() -> Any:
    """A space whose plans are their numbers."""
    return SimpleNamespace(plan=lambda rows, i: int(rows[i]))


def chunks(n: int, size: int) -> list[np.ndarray]:
    return [np.arange(start, min(start + size, n)) for start in range(0, n, size)]


@given(st.lists(scores, max_size=40), chunked, st.integers(1, 6))
def test_best_is_a_stable_sort_of_all(values: list[float], size: int, count: int) -> None:
    keeper, all_scores = Best(count), np.array(values)
    for rows in chunks(len(values), size):
        keeper.offer(space(), rows, all_scores[rows])
    order = sorted((i for i, value in enumerate(values) if value < np.inf), key=lambda i: values[i])
    assert keeper.plans == order[:count]
    assert [score for score, *_ in keeper.found] == [values[i] for i in order[:count]]


@given(st.lists(st.tuples(finite, finite, st.booleans()), max_size=40), chunked)
def test_front_is_what_no_other_beats(points: list[tuple[float, float, bool]], size: int) -> None:
    keeper = Front()
    first, second, mask = (np.array([point[k] for point in points]) for k in range(3))
    for rows in chunks(len(points), size):
        keeper.offer(space(), rows, first[rows], second[rows], mask[rows].astype(bool))

    def beaten(i: int) -> bool:
        a, b, _ = points[i]
        for j, (c, d, there) in enumerate(points):
            if there and j != i and c <= a and d <= b and ((c, d) != (a, b) or j < i):
                return True
        return False

    expected = sorted((i for i, point in enumerate(points) if point[2] and not beaten(i)), key=lambda i: points[i][0])
    assert [plan for _, _, plan in keeper.found] == expected
    assert keeper.below(1.5) == [i for i in expected if points[i][1] < 1.5]


@given(st.lists(st.booleans(), max_size=120), chunked, st.integers(2, 9))
def test_sampler_keeps_every_nth_of_what_it_is_offered(mask: list[bool], size: int, most: int) -> None:
    keeper, offered = Sampler(most), np.flatnonzero(mask)
    for rows in chunks(len(mask), size):
        columns: Any = dict.fromkeys(SAMPLED, rows)
        prices: Any = SimpleNamespace(step_time_s=rows * 1.0, hbm_bytes=rows * 2.0)
        keeper.offer(columns, prices, rows * 0.5, np.array(mask)[rows], np.array(mask)[rows])
    if not mask:
        assert keeper.kept == {}
        return
    kept = keeper.kept["data"]
    assert kept.tolist() == offered[:: keeper.step].tolist()
    assert len(kept) <= most
    assert keeper.step == 1 or len(offered) > most, "nothing is dropped while there is room"
    assert keeper.step == 1 or len(offered[:: keeper.step // 2]) > most, "and no more than needed"
    assert keeper.kept["hbm_bytes"].tolist() == (2.0 * kept).tolist()
    assert keeper.kept["floor_s"].tolist() == (0.5 * kept).tolist()


def test_samples_are_joined_and_policies_named() -> None:
    keeper = Sampler(5)
    rows: Any = {name: np.array([0, 1, 1]) for name in SAMPLED}
    prices: Any = SimpleNamespace(step_time_s=np.ones(3), hbm_bytes=np.ones(3))
    keeper.offer(rows, prices, np.ones(3), np.array([True, False, True]), np.array([True, False, True]))
    problem: Any = SimpleNamespace(stack=SimpleNamespace(remat_names=("none", "full")))
    columns = keeper.columns(problem)
    assert columns["remat"].tolist() == ["none", "full"]
    both = joined([Sampler(3).columns(problem), columns, columns])
    assert both["remat"].tolist() == ["none", "full", "none", "full"]
    assert joined([{}]) == {}


@pytest.mark.parametrize("keeper", [Best(2), Front()])
def test_nothing_offered_is_nothing_kept(keeper: Best | Front) -> None:
    assert keeper.found == []

"""What Tune's workers do between the rounds of a search: they stay, and take the next trials."""

from __future__ import annotations

import itertools
from pathlib import Path

import executor_chores as chores

from asap_ray.executor.ray_trials import AllIdle
from asap_ray.executor.ray_tune import RayTune
from asap_ray.tiers.protocol import Job


def test_the_workers_of_one_round_run_the_next(tmp_path: Path) -> None:
    def parents(executor: RayTune, name: str) -> set[int]:
        """Of two jobs that run at once, the second of which may not begin in the worker of the first."""
        places = [str(tmp_path / f"{name}{number}") for number in range(2)]
        waiting = iter(
            Job(name=here, work=chores.meet_and_name_parent, arguments=(here, there), timeout_s=600.0, cores=1.0)
            for here, there in itertools.permutations(places)
        )
        return {outcome.value for outcome in executor.stream(lambda: next(waiting, None))}

    with RayTune(address="local", workers=2) as executor:
        first = parents(executor, "first")
        assert len(first) == 2
        waiting = iter([Job(name="alone", work=chores.add, arguments=(1, 1))])
        assert [each.value for each in executor.stream(lambda: next(waiting, None))] == [2]
        assert parents(executor, "second") == first
        assert parents(executor, "third") == first


class TestAllIdle:
    def test_what_nobody_waits_for_is_kept(self) -> None:
        idle = AllIdle()
        assert [idle.cache_object("cpu", each) for each in "abc"] == [True] * 3
        assert list(idle.flush_cached_objects()) == []
        assert [idle.pop_cached_object("cpu") for _ in range(4)] == ["a", "b", "c", None]
        assert idle.num_cached_objects == 0

    def test_others_are_kept_where_one_suits_who_waits_and_given_up_where_none_does(self) -> None:
        idle = AllIdle()
        for key, each in (("cpu", "a"), ("gpu", "b"), ("cpu", "c")):
            idle.cache_object(key, each)
        idle.increase_max("gpu")
        assert list(idle.flush_cached_objects()) == []
        assert idle.pop_cached_object("gpu") == "b"
        assert sorted(idle.flush_cached_objects()) == ["a", "c"], "they may hold what the second GPU trial needs"
        assert idle.num_cached_objects == 0

    def test_at_the_end_all_are_given_up(self) -> None:
        idle = AllIdle()
        idle.cache_object("cpu", "a")
        idle.cache_object("gpu", "b")
        assert sorted(idle.flush_cached_objects(force_all=True)) == ["a", "b"]
        assert idle.num_cached_objects == 0

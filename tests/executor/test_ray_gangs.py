"""Gangs on a Ray of our own: two hosts on this machine, as real as their processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import executor_chores as chores
import pytest

from asap_ray.executor.ray_end import below
from asap_ray.executor.ray_tune import RayTune
from asap_ray.tiers.protocol import Gang, Job, Outcome

LONG_S = 600.0
TWO = Gang(hosts=2, per_host={"CPU": 1})


@pytest.fixture(scope="module")
def tune() -> Iterator[RayTune]:
    with RayTune(address="local", workers=3) as executor:
        yield executor


def gang(work: Callable[..., object], *arguments: object, of: Gang = TWO, timeout_s: float = LONG_S) -> Job:
    return Job(name="gang", work=work, arguments=arguments, timeout_s=timeout_s, gang=of)


def run(executor: RayTune, *jobs: Job) -> list[Outcome]:
    waiting = iter(jobs)
    return list(executor.stream(lambda: next(waiting, None)))


def pids(folder: Path) -> list[int]:
    return [int((folder / str(rank)).read_text()) for rank in range(2)]


def test_two_hosts_of_four_devices_are_eight_to_jax(tune: RayTune) -> None:
    (outcome,) = run(tune, gang(chores.summed))
    assert outcome.value == {"processes": 2, "process": 0, "devices": 8, "local": 4, "sum": 28.0}


def test_a_worker_that_tune_keeps_for_its_next_trial_is_not_in_a_gangs_way(tune: RayTune, tmp_path: Path) -> None:
    jobs = [Job(name="one", work=chores.add, arguments=(1, 1)), gang(chores.place_of, str(tmp_path))]
    assert [outcome.status for outcome in run(tune, *jobs, Job(name="two", work=chores.own_pid))] == ["complete"] * 3


def test_no_more_run_beside_a_gang_than_there_are_cores(tune: RayTune, tmp_path: Path) -> None:
    ended, asked = list[str](), list[int]()
    adds = Job(name="adds", work=chores.add, arguments=(1, 1))
    jobs = [gang(chores.place_of, str(tmp_path)), adds, adds]

    def source() -> Job | None:
        asked.append(len(ended))
        return jobs.pop(0) if jobs else None

    for outcome in tune.stream(source):
        ended.append(outcome.job.name)
    assert sorted(ended) == ["adds", "adds", "gang"]
    assert asked[:2] == [0, 0], "two and one are three"
    assert asked[2] >= 1, "the third only when one has ended"


def test_a_worker_that_is_lost_each_time_is_told_with_its_rank(tune: RayTune, tmp_path: Path, gone: Callable) -> None:
    (outcome,) = run(tune, gang(chores.loses_its_worker, str(tmp_path)))
    assert outcome.status == "failed"
    assert outcome.reason.startswith("rank 1 of 2: its Ray worker was lost twice: ")
    assert outcome.lost
    assert "\n" not in outcome.reason
    for pid in pids(tmp_path):
        gone(pid)


def test_what_the_cluster_cannot_hold_is_told_by_name(tune: RayTune) -> None:
    four = gang(chores.summed, of=Gang(hosts=4, per_host={"CPU": 1}))
    chips = gang(chores.summed, of=Gang(hosts=2, per_host={"GPU": 8}))
    slices = gang(chores.summed, of=Gang(hosts=4, per_host={"CPU": 1, "TPU": 4}, topology="4x4", accelerator="TPU-V6E"))
    assert [outcome.reason for outcome in run(tune, four, chips, slices)] == [
        "the cluster has 3 places with CPU=1, the plan needs 4",
        "the cluster has 0 nodes with GPU=8, the plan needs 2",
        "the cluster has 0 slices of v6e 4x4 with 4 hosts of CPU=1, TPU=4, the plan needs 1",
    ]


# The last: it ends the Ray that the others share.
def test_leaving_early_ends_all_of_a_gang(tune: RayTune, tmp_path: Path, until: Callable, gone: Callable) -> None:
    tune.start()
    assert tune._host is not None
    folder = tune._host.folder
    waiting = [
        Job(name="adds", work=chores.add, arguments=(1, 1)),
        gang(chores.one_fails, str(tmp_path), "waits"),
    ]
    outcomes = tune.stream(lambda: waiting.pop() if waiting else None)
    assert next(outcomes).value == 2
    until(lambda: len(list(tmp_path.glob("[01]"))) == 2)
    outcomes.close()  # type: ignore[attr-defined]
    for pid in pids(tmp_path):
        gone(pid)
    assert list(below(folder)) == []
    assert not folder.exists()

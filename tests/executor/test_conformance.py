"""What holds for every executor, with real processes where it has any: add yours to `EXECUTORS`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import executor_chores as chores
import pytest

from asap_ray.errors import ConfigError
from asap_ray.executor.local import Local
from asap_ray.executor.protocol import Executor
from asap_ray.executor.ray_end import below
from asap_ray.executor.ray_tasks import RayTasks
from asap_ray.executor.ray_tune import RayTune
from asap_ray.executor.simulated import Recorded, Simulated
from asap_ray.tiers.protocol import Gang, Job, Outcome

LONG_S = 600.0  # a deadline that no test reaches; a job with one runs in a process of its own
SHORT_S = 1.0  # a deadline that the job waits for, however late it comes

# What a job of some name does, and what is recorded of it where nothing is run: worked out by hand.
WORKS: Mapping[str, tuple[Callable[..., object], tuple[object, ...], Recorded]] = {
    "one": (chores.add, (0, 1), Recorded(seconds=1.0, value=1)),
    "two": (chores.add, (1, 1), Recorded(seconds=1.0, value=2)),
    "three": (chores.add, (1, 2), Recorded(seconds=1.0, value=3)),
    "refused": (
        chores.refuse,
        (),
        Recorded(
            seconds=1.0,
            status="failed",
            reason="space.fix=tensr: did you mean tensor? no such field",
            error=ConfigError("space.fix", "tensr", "no such field", ("tensor",)),
        ),
    ),
    "slips": (
        chores.slip,
        (),
        Recorded(seconds=1.0, status="failed", reason="IndexError: list index out of range (executor_chores.py, line"),
    ),
    "killed": (chores.killed, (), Recorded(seconds=1.0, status="failed", reason="its process was ended by SIGKILL")),
    "unpicklable": (
        chores.unpicklable,
        (),
        Recorded(seconds=1.0, status="failed", reason="its result cannot be sent back: "),
    ),
    "unreadable": (
        chores.explodes_when_read,
        (),
        Recorded(seconds=1.0, status="failed", reason="its result cannot be read: ValueError"),
    ),
}
EXECUTORS: Mapping[str, Callable[[], Executor]] = {
    "local": lambda: Local(workers=2),
    "ray_tune": lambda: RayTune(address="local", workers=2),
    "ray_tasks": lambda: RayTasks(address="local", workers=2),
    "simulated": lambda: Simulated(records={name: record for name, (*_, record) in WORKS.items()}, workers=2),
}
RUN = [name for name in EXECUTORS if name != "simulated"]


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, Executor]]:
    """Executors that were started: Ray takes a while, so one serves the whole module."""
    with ExitStack() as stack:
        executors: dict[str, Executor] = {}
        yield executors
        for executor in executors.values():
            if isinstance(executor, RayTune | RayTasks):
                stack.enter_context(executor)


@pytest.fixture
def executor(request: pytest.FixtureRequest, kept: dict[str, Executor]) -> Executor:
    name = request.param
    if name not in kept:
        kept[name] = EXECUTORS[name]()
    return kept[name]


every = pytest.mark.parametrize("executor", EXECUTORS, indirect=True)
with_processes = pytest.mark.parametrize("executor", RUN, indirect=True)


def named(name: str, timeout_s: float | None = LONG_S) -> Job:
    work, arguments, _ = WORKS[name]
    return Job(name=name, work=work, arguments=arguments, timeout_s=timeout_s)


def run(executor: Executor, *jobs: Job) -> dict[str, Outcome]:
    waiting = iter(jobs)
    outcomes = list(executor.stream(lambda: next(waiting, None)))
    assert len(outcomes) == len(jobs)
    return {outcome.job.name: outcome for outcome in outcomes}


@every
def test_each_job_ends_once_and_as_it_should(executor: Executor) -> None:
    outcomes = run(executor, *(named(name) for name in WORKS))
    for name, (*_, record) in WORKS.items():
        outcome = outcomes[name]
        assert outcome.job == named(name)
        assert (outcome.status, outcome.value) == (record.status, record.value)
        assert outcome.reason.startswith(record.reason)
        assert bool(outcome.reason) == (outcome.status != "complete")
    error = outcomes["refused"].error
    assert isinstance(error, ConfigError)
    assert (error.key, error.names) == ("space.fix", ("tensor",))
    assert {name for name, outcome in outcomes.items() if outcome.error} == {"refused"}


@every
def test_a_source_with_nothing_ends_it(executor: Executor) -> None:
    assert list(executor.stream(lambda: None)) == []


@every
def test_a_source_that_has_nothing_yet_is_asked_again_when_a_job_has_ended(executor: Executor) -> None:
    waiting, seen = [named("one")], list[tuple[str, object]]()
    for outcome in executor.stream(lambda: waiting.pop() if waiting else None):
        seen.append((outcome.job.name, outcome.value))
        if len(seen) == 1:
            waiting.append(named("two"))
    assert seen == [("one", 1), ("two", 2)]


@every
def test_a_job_is_decided_no_sooner_than_it_can_start(executor: Executor) -> None:
    ended, asked = list[str](), list[int]()
    names = [*WORKS][:3]

    def source() -> Job | None:
        asked.append(len(ended))
        return named(names[len(asked) - 1]) if len(asked) <= 3 else None

    for outcome in executor.stream(source):
        ended.append(outcome.job.name)
    assert asked[:2] == [0, 0], "two at once"
    assert asked[2] >= 1, "the third only when one has ended"
    assert sorted(ended) == sorted(names)


@every
def test_jobs_that_need_more_memory_than_there_is_run_one_by_one(executor: Executor) -> None:
    ended, asked = list[str](), list[int]()

    def source() -> Job | None:
        asked.append(len(ended))
        name = [*WORKS][len(asked) - 1]
        work, arguments, _ = WORKS[name]
        job = Job(name=name, work=work, arguments=arguments, timeout_s=LONG_S, memory_bytes=1e15)
        return job if len(asked) <= 2 else None

    if isinstance(executor, Simulated):
        executor.memory_bytes = 1e12
    for outcome in executor.stream(source):
        assert outcome.status == "complete"
        ended.append(outcome.job.name)
    assert ended == ["one", "two"], "in their order, as the second waited for the first"


@with_processes
def test_jobs_run_side_by_side_each_in_a_fresh_process(executor: Executor, tmp_path: Path) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    meet = [Job(name=each[0], work=chores.meet, arguments=each, timeout_s=LONG_S) for each in ((a, b), (b, a))]
    assert {outcome.value for outcome in run(executor, *meet).values()} == {True}
    pids = [Job(name=str(n), work=chores.own_pid, timeout_s=LONG_S) for n in range(3)]
    assert len({os.getpid(), *(outcome.value for outcome in run(executor, *pids).values())}) == 4


@with_processes
def test_a_timeout_ends_the_process_and_what_it_started(
    executor: Executor, tmp_path: Path, gone: Callable[[int], None]
) -> None:
    marker = tmp_path / "pids"
    deadline = SHORT_S
    while True:  # the deadline is to come when both processes are there: a slow machine gets a later one
        late = Job(name="late", work=chores.deaf, arguments=(str(marker),), timeout_s=deadline)
        outcome = run(executor, late)["late"]
        assert (outcome.status, outcome.reason) == ("timeout", f"not done after {deadline:g} s")
        if marker.exists():
            break
        deadline *= 2
    pids = marker.read_text().split()
    assert len(pids) == 2
    for pid in pids:
        gone(int(pid))


def pair(work: Callable[..., object], *arguments: object, timeout_s: float = LONG_S) -> Job:
    gang = Gang(hosts=2, per_host={"CPU": 1})
    return Job(name="pair", work=work, arguments=arguments, timeout_s=timeout_s, isolated=True, gang=gang)


def pids_of_pair(folder: Path) -> list[int]:
    return [int((folder / str(rank)).read_text()) for rank in range(2)]


@with_processes
def test_the_hosts_of_a_gang_run_at_once_and_the_value_is_that_of_rank_0(executor: Executor, tmp_path: Path) -> None:
    job = pair(chores.place_of, str(tmp_path))
    outcome = run(executor, job)["pair"]
    assert (outcome.status, outcome.job) == ("complete", job)
    rank, hosts, coordinator, pid = outcome.value
    assert (rank, hosts) == (0, 2)
    host, _, port = coordinator.rpartition(":")
    assert host == "127.0.0.1"
    assert port.isdigit()
    assert pids_of_pair(tmp_path)[0] == pid
    assert len({*pids_of_pair(tmp_path), os.getpid()}) == 3


@with_processes
def test_if_one_of_a_gang_is_killed_the_others_are_ended(
    executor: Executor, tmp_path: Path, gone: Callable[[int], None]
) -> None:
    outcome = run(executor, pair(chores.one_fails, str(tmp_path), "killed"))["pair"]
    assert (outcome.status, outcome.reason) == ("failed", "rank 1 of 2: its process was ended by SIGKILL")
    for pid in pids_of_pair(tmp_path):
        gone(pid)
    assert run(executor, named("one"))["one"].value == 1, "its place is free again"


@with_processes
def test_a_deadline_ends_all_of_a_gang(executor: Executor, tmp_path: Path, gone: Callable[[int], None]) -> None:
    deadline = SHORT_S
    while True:  # as above
        outcome = run(executor, pair(chores.one_fails, str(tmp_path), "waits", timeout_s=deadline))["pair"]
        assert (outcome.status, outcome.reason) == ("timeout", f"all 2 ranks: not done after {deadline:g} s")
        if len(list(tmp_path.glob("[01]"))) == 2:
            break
        deadline *= 2
    for pid in pids_of_pair(tmp_path):
        gone(pid)


@with_processes
def test_what_an_isolated_job_writes_is_kept_and_not_shown(
    executor: Executor, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = run(executor, Job(name="loud", work=chores.loud, isolated=True))["loud"]
    assert outcome.status == "complete"
    assert outcome.output == "on stdout\nfrom a library\n"
    assert capfd.readouterr() == ("", "")


@with_processes
def test_a_job_has_the_environment_of_the_command(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seen = run(executor, Job(name="environment", work=chores.environment, timeout_s=LONG_S))["environment"].value
    names = {name for name in os.environ if not name.startswith("PYTEST_")} - {"TMPDIR", "PS1", "SHLVL", "_"}
    names -= {"XDG_DATA_HOME"}  # each test has its own, and workers that are kept have that of an earlier one
    assert {name for name in names if seen["environ"].get(name) != os.environ[name]} == set()
    assert "OMP_NUM_THREADS" not in seen["environ"]
    assert seen["cwd"] == os.getcwd()
    assert seen["loaded"] == []


@with_processes
def test_leaving_early_ends_what_runs(executor: Executor, tmp_path: Path, until: Callable, gone: Callable) -> None:
    marker = tmp_path / "pid"
    waiting = [named("one"), Job(name="waits", work=chores.wait_forever, arguments=(str(marker),), timeout_s=LONG_S)]
    outcomes = executor.stream(lambda: waiting.pop() if waiting else None)
    assert next(outcomes).value == 1
    until(marker.exists)
    folder = executor._host.folder if isinstance(executor, RayTune | RayTasks) and executor._host else None
    outcomes.close()  # type: ignore[attr-defined]
    gone(int(marker.read_text()))
    if folder is not None:
        assert list(below(folder)) == []
        assert not folder.exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "no handler of Ray's"

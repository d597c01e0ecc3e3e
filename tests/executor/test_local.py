"""Every way a job can end, with real processes. The suite is for any executor: add its `run` to `EXECUTORS`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import executor_chores as chores
import pytest

from asap_ray.errors import ConfigError, DoesNotFitError
from asap_ray.executor import local
from asap_ray.tiers.protocol import Job, Outcome

Run = Callable[[Sequence[Job], int], Iterator[Outcome]]
EXECUTORS: dict[str, Run] = {"local": local.run}
LONG_S = 600.0  # a deadline that no test reaches; a job with one runs in a process of its own


@pytest.fixture(params=EXECUTORS)
def run(request: pytest.FixtureRequest) -> Run:
    return EXECUTORS[request.param]


def job(work: Callable[..., object], *arguments: object, name: str = "job", timeout_s: float | None = LONG_S) -> Job:
    return Job(name=name, work=work, arguments=arguments, timeout_s=timeout_s)


def only(outcomes: Iterator[Outcome]) -> Outcome:
    (outcome,) = outcomes
    return outcome


class TestExecutor:
    def test_no_jobs_have_no_outcomes(self, run: Run) -> None:
        assert list(run([], 2)) == []

    def test_each_job_completes_once_with_its_own_value(self, run: Run) -> None:
        jobs = [job(chores.add, n, 1, name=str(n), timeout_s=None) for n in range(5)]
        outcomes = list(run(jobs, 2))
        assert {outcome.job.name: outcome.value for outcome in outcomes} == {str(n): n + 1 for n in range(5)}
        assert {outcome.status for outcome in outcomes} == {"complete"}
        assert len(outcomes) == 5

    def test_each_job_has_a_fresh_process(self, run: Run) -> None:
        pids = [outcome.value for outcome in run([job(chores.own_pid, name=str(n)) for n in range(3)], 1)]
        assert len({*pids, os.getpid()}) == 4

    def test_jobs_run_side_by_side(self, run: Run, tmp_path: Path) -> None:
        a, b = str(tmp_path / "a"), str(tmp_path / "b")
        assert [outcome.value for outcome in run([job(chores.meet, a, b), job(chores.meet, b, a)], 2)] == [True, True]

    def test_no_more_run_at_once_than_there_are_workers(self, run: Run, tmp_path: Path) -> None:
        jobs = [job(chores.overlaps, str(tmp_path), str(n)) for n in range(4)]
        assert [outcome.value for outcome in run(jobs, 1)] == [1, 1, 1, 1]

    def test_a_users_error_comes_back_as_itself(self, run: Run) -> None:
        outcome = only(run([job(chores.refuse)], 1))
        assert outcome.status == "failed"
        assert isinstance(outcome.error, ConfigError)
        assert str(outcome.error) == "space.fix=tensr: did you mean tensor? no such field" == outcome.reason
        assert (outcome.error.key, outcome.error.names) == ("space.fix", ("tensor",))
        assert isinstance(only(run([job(chores.too_small)], 1)).error, DoesNotFitError)

    def test_a_users_error_that_cannot_travel_still_tells_its_text(self, run: Run) -> None:
        outcome = only(run([job(chores.refuse_oddly)], 1))
        assert (outcome.status, outcome.reason) == ("failed", "this and that")

    def test_a_fault_says_what_and_where(self, run: Run) -> None:
        outcome = only(run([job(chores.slip)], 1))
        assert (outcome.status, outcome.error) == ("failed", None)
        assert outcome.reason.startswith("IndexError: list index out of range (executor_chores.py, line ")

    @pytest.mark.parametrize(
        ("work", "reason"),
        [
            (job(chores.leave, 7), "status 7"),
            (job(chores.leave, 0), "status 0 and no result"),
            (job(chores.killed), "SIGKILL"),
            (job(chores.forks_and_dies), "status 3"),
        ],
    )
    def test_a_process_that_dies_is_a_failure_with_its_reason(self, run: Run, work: Job, reason: str) -> None:
        outcome = only(run([work], 1))
        assert outcome.status == "failed"
        assert reason in outcome.reason

    def test_one_that_dies_does_not_stop_the_others(self, run: Run) -> None:
        jobs = [job(chores.killed, name="dies"), job(chores.add, 1, 1, name="lives")]
        assert {outcome.job.name: outcome.status for outcome in run(jobs, 1)} == {"dies": "failed", "lives": "complete"}

    def test_a_result_that_cannot_be_sent_is_a_failure(self, run: Run) -> None:
        outcome = only(run([job(chores.unpicklable)], 1))
        assert outcome.status == "failed"
        assert "cannot be sent back" in outcome.reason

    def test_a_result_that_cannot_be_read_is_a_failure(self, run: Run) -> None:
        outcome = only(run([job(chores.explodes_when_read)], 1))
        assert outcome.status == "failed"
        assert "cannot be read: ValueError" in outcome.reason

    def test_large_results_arrive_whole(self, run: Run) -> None:
        jobs = [job(chores.large, 100_000_000 + n) for n in range(2)]
        assert sorted(len(outcome.value) for outcome in run(jobs, 2)) == [100_000_000, 100_000_001]

    def test_a_timeout_ends_the_process_and_what_it_started(
        self, run: Run, tmp_path: Path, gone: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The deadline comes when both processes are there, however long that takes: the clock then jumps to it.
        marker = tmp_path / "pids"
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + (LONG_S if marker.exists() else 0.0))
        monkeypatch.setattr(local, "time", clock)
        outcome = only(run([job(chores.deaf, str(marker))], 1))
        assert (outcome.status, outcome.reason) == ("timeout", "not done after 600 s")
        pids = marker.read_text().split()
        assert len(pids) == 2
        for pid in pids:
            gone(int(pid))

    def test_closing_early_leaves_nothing_running(
        self, run: Run, tmp_path: Path, until: Callable, gone: Callable[[int], None]
    ) -> None:
        marker = tmp_path / "pid"
        outcomes = run([job(chores.wait_forever, str(marker)), job(chores.add, 1, 1), job(chores.add, 2, 2)], 2)
        assert next(outcomes).status == "complete"
        until(marker.exists)
        outcomes.close()
        gone(int(marker.read_text()))


PARENT = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
sys.path[:0] = sys.argv[1].split(":")
import executor_chores as chores
from asap_ray.executor import local
from asap_ray.tiers.protocol import Job

if __name__ == "__main__":
    places = [f"{sys.argv[2]}/{n}" for n in range(2)]
    jobs = [Job(name=each, work=chores.wait_forever, arguments=(each,), isolated=True) for each in places]
    try:
        list(local.run(jobs, workers=2))
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start a process that waits for two jobs, in a process group of its own as a shell would."""
    started: list[subprocess.Popen[str]] = []
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    path = f"{Path(chores.__file__).parent}:{Path(local.__file__).parents[2]}"
    (temporary := tmp_path / "temporary").mkdir()

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(script), path, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def pids(folder: Path) -> list[int]:
    return [int((folder / str(n)).read_text()) for n in range(2)]


def test_ctrl_c_ends_all_jobs_in_silence(
    parent: Callable, tmp_path: Path, until: Callable, gone: Callable[[int], None]
) -> None:
    process = parent()
    until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    out, err = process.communicate()
    assert (out, err, process.returncode) == ("interrupted\n", "", 0)
    for pid in pids(tmp_path):
        gone(pid)


def test_a_parent_that_is_killed_takes_its_jobs_with_it(
    parent: Callable, tmp_path: Path, until: Callable, gone: Callable[[int], None]
) -> None:
    process = parent()
    until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
    process.kill()
    for pid in pids(tmp_path):
        gone(pid)
    assert list((tmp_path / "temporary").iterdir()) == [], "what they wrote had no name"


def test_one_job_without_a_deadline_runs_in_this_process() -> None:
    assert only(local.run([job(chores.own_pid, timeout_s=None)], 4)).value == os.getpid()
    outcome = only(local.run([job(chores.refuse, timeout_s=None)], 4))
    assert outcome.status == "failed"
    assert isinstance(outcome.error, ConfigError)
    with pytest.raises(IndexError):
        only(local.run([job(chores.slip, timeout_s=None)], 4))


def processes(running: Sequence[local._Running]) -> list[BaseProcess]:
    return [process.process for each in running for process in each.left]


def test_a_start_does_not_reap_a_job_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each start of a process reaps the children that have ended, before they are looked at here: made certain.
    looked = local._wait

    def wait(running: Sequence[local._Running]) -> None:
        for process in processes(running):
            local.wait([process.sentinel])
        multiprocessing.active_children()  # reaps, as a start does
        looked(running)

    monkeypatch.setattr(local, "_wait", wait)
    jobs = [job(chores.add, n, 1, name=str(n)) for n in range(3)] + [job(chores.leave, 7, name="dies")]
    outcomes = {outcome.job.name: outcome for outcome in local.run(jobs, 2)}
    assert [outcomes[str(n)].value for n in range(3)] == [1, 2, 3]
    assert "status 7" in outcomes["dies"].reason


def test_a_job_that_something_else_reaped_is_told_and_never_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    signalled: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: signalled.append(pid))
    monkeypatch.setattr(os, "kill", lambda pid, number: signalled.append(pid))

    def wait(running: Sequence[local._Running]) -> None:
        for process in processes(running):
            local.wait([process.sentinel])
            os.waitpid(process.pid or 0, 0)

    monkeypatch.setattr(local, "_wait", wait)
    assert only(local.run([job(chores.add, 1, 1)], 1)).value == 2
    outcome = only(local.run([job(chores.leave, 7)], 1))
    assert (outcome.status, outcome.reason) == ("failed", "its process ended with no result; its status is lost")
    assert signalled == [], "its number may be another's by now"


class TestStream:
    def test_a_job_may_be_decided_by_how_another_ended(self) -> None:
        waiting, seen = [job(chores.add, 1, 1, name="first")], []

        def source() -> Job | None:
            return waiting.pop() if waiting else None

        for outcome in local.stream(source, 2):
            seen.append((outcome.job.name, outcome.value))
            if len(seen) == 1:
                waiting.append(job(chores.add, outcome.value, 1, name="second"))
        assert seen == [("first", 2), ("second", 3)]

    def test_a_job_is_decided_no_sooner_than_it_can_start(self) -> None:
        ended, asked = list[str](), list[int]()

        def source() -> Job | None:
            asked.append(len(ended))
            return job(chores.add, 1, 1, name=str(len(asked))) if len(asked) < 4 else None

        for outcome in local.stream(source, 1):
            ended.append(outcome.job.name)
        assert asked == [0, 1, 2, 3]

    def test_a_source_with_nothing_ends_it(self) -> None:
        assert list(local.stream(lambda: None, 3)) == []

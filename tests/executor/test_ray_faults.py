"""What is left when a part of it is killed or cannot be had: real processes, and Ray as it is."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import executor_chores as chores
import pytest

from asap_ray.errors import AsapError, ConfigError
from asap_ray.executor.ray_end import below
from asap_ray.executor.ray_process import RayProcess
from asap_ray.executor.ray_start import Host
from asap_ray.executor.ray_tasks import RayTasks
from asap_ray.executor.ray_tune import RayTune
from asap_ray.tiers.protocol import Job

LONG_S = 600.0
LOST = r"^Ray was lost \(.*\); the same command goes on where this one ended$"
T = TypeVar("T")


def waits(marker: Path) -> Job:
    return Job(name="waits", work=chores.wait_forever, arguments=(str(marker),), timeout_s=LONG_S)


def once(job: Job) -> Callable[[], Job | None]:
    waiting = iter([job])
    return lambda: next(waiting, None)


def named(pids: list[int], name: str) -> list[int]:
    """Those of these processes that run a program, or have a title, of this name."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):  # gone by now
            if name in Path(f"/proc/{pid}/comm").read_text():
                found.append(pid)
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="module")
def tune() -> Iterator[RayTune]:
    with RayTune(address="local", workers=1) as executor:
        yield executor


def host_of(executor: RayProcess) -> Host:
    executor.start()
    assert executor._host is not None
    return executor._host


@contextlib.contextmanager
def meanwhile(act: Callable[[], T]) -> Iterator[Future[T]]:
    """Do something beside the block, and be done with it when that is left."""
    with ThreadPoolExecutor(1) as pool:
        yield (future := pool.submit(act))
        future.result()


def test_what_no_node_can_hold_fails_by_name_and_the_rest_goes_on(tune: RayTune) -> None:
    jobs = [
        Job(name="chips", work=chores.add, arguments=(1, 1), resources={"TPU": 4}),
        Job(name="cores", work=chores.add, arguments=(1, 1), cores=64.0),
        Job(name="fits", work=chores.add, arguments=(1, 1)),
    ]
    waiting = iter(jobs)
    outcomes = {each.job.name: each for each in tune.stream(lambda: next(waiting, None))}
    cannot = "no node of the Ray cluster can ever hold it: it needs"
    assert outcomes["chips"].reason == f"{cannot} TPU=4 (a node has 0 at most)"
    assert outcomes["cores"].reason == f"{cannot} CPU=64 (a node has 1 at most)"
    assert (outcomes["fits"].status, outcomes["fits"].value) == ("complete", 2)


def test_all_sockets_are_on_loopback_and_the_terminal_stays_quiet(
    tune: RayTune, capfd: pytest.CaptureFixture[str]
) -> None:
    (outcome,) = tune.stream(once(Job(name="adds", work=chores.add, arguments=(1, 1))))
    assert outcome.value == 2
    ours = {f"socket:[{inode}]" for address, inode in listening() if not address.startswith(LOOPBACK)}
    pids = [*below(host_of(tune).folder)]
    assert pids
    assert {pid for pid in pids if ours & set(open_files(pid))} == set()
    assert capfd.readouterr() == ("", "")


LOOPBACK = ("0100007F:", "0000000000000000FFFF00000100007F:", "00000000000000000000000001000000:")  # as /proc has it


def listening() -> Iterator[tuple[str, str]]:
    """Addresses and inodes of TCP sockets that listen on this machine."""
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                yield fields[1], fields[9]


def open_files(pid: int) -> Iterator[str]:
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed by now
            yield os.readlink(entry)


def test_a_job_whose_worker_is_killed_runs_once_more(
    tune: RayTune, tmp_path: Path, until: Callable, gone: Callable
) -> None:
    marker, second = tmp_path / "pid", tmp_path / "second"

    def kill() -> int:
        until(marker.exists)
        pid = int(marker.read_text())
        second.touch()
        os.kill(parent_of(pid), signal.SIGKILL)
        return pid

    job = Job(name="again", work=chores.waits_the_first_time, arguments=(str(marker), str(second)), timeout_s=LONG_S)
    with meanwhile(kill) as killed:
        (outcome,) = tune.stream(once(job))
    gone(killed.result())
    assert outcome.status == "complete"
    assert outcome.value not in (None, killed.result())


def test_a_job_whose_worker_is_killed_each_time_fails_with_that_reason(tune: RayTune) -> None:
    (outcome,) = tune.stream(once(Job(name="kills", work=chores.kills_its_parent, timeout_s=LONG_S)))
    assert outcome.status == "failed"
    assert outcome.reason.startswith("its Ray worker was lost twice: The actor is dead because")
    assert "\n" not in outcome.reason
    assert outcome.lost, "the job may not be to blame"


@pytest.mark.parametrize("executor_of", [RayTune, RayTasks])
def test_without_retries_a_job_whose_worker_is_killed_has_failed_at_once(
    executor_of: type[RayProcess], tmp_path: Path, until: Callable
) -> None:
    marker = tmp_path / "pid"

    def kill() -> None:
        until(marker.exists)
        os.kill(parent_of(int(marker.read_text())), signal.SIGKILL)

    fails = Job(name="fails", work=chores.slip, timeout_s=LONG_S)
    with executor_of(address="local", workers=1, retries=0) as executor:
        with meanwhile(kill):
            (outcome,) = executor.stream(once(waits(marker)))
        assert (outcome.status, outcome.lost) == ("failed", True)
        assert outcome.reason.startswith("its Ray worker was lost: ")
        (outcome,) = executor.stream(once(fails))
        assert (outcome.status, outcome.lost) == ("failed", False)


# Last of those that share a Ray: each of these ends one.
@pytest.mark.parametrize("part", ["raylet", "gcs_server", "host"])
def test_a_part_of_ray_that_is_killed_is_an_error_in_one_line_and_nothing_is_left(
    part: str, tmp_path: Path, until: Callable, gone: Callable, request: pytest.FixtureRequest
) -> None:
    executor = request.getfixturevalue("tune") if part == "raylet" else RayTasks(address="local", workers=1)
    folder, host, marker = host_of(executor).folder, host_of(executor).process.pid, tmp_path / "pid"

    def kill() -> list[int]:
        until(marker.exists)
        pids = list(below(folder))
        (pid,) = [host] if part == "host" else named(pids, part)
        os.kill(pid, signal.SIGKILL)
        return pids

    with meanwhile(kill) as killed, pytest.raises(AsapError, match=LOST):
        list(executor.stream(once(waits(marker))))
    assert int(marker.read_text()) in killed.result()
    for pid in killed.result():
        gone(pid)
    assert not folder.exists()
    assert executor._host is None, "a later stream would start anew"


def test_a_host_that_is_killed_while_ray_starts_is_the_same_error(tmp_path: Path, until: Callable) -> None:
    executor = RayTasks(address="local", workers=1)
    host = host_of(executor)
    until(lambda: bool(named([*below(host.folder)], "gcs_server")))
    host.process.kill()
    with pytest.raises(AsapError, match=LOST):
        list(executor.stream(once(waits(tmp_path / "pid"))))
    assert list(below(host.folder)) == []
    assert not host.folder.exists()


COMMAND = """
import sys
sys.path[:0] = sys.argv[1].split(":")
import executor_chores as chores
from asap_ray.executor.ray_tune import RayTune
from asap_ray.tiers.protocol import Job

if __name__ == "__main__":
    jobs = iter([Job(name="waits", work=chores.wait_forever, arguments=(sys.argv[2],), timeout_s=600.0)])
    with RayTune(address="local", workers=1) as executor:
        executor.start()
        print(executor._host.folder, executor._host.process.pid, flush=True)
        list(executor.stream(lambda: next(jobs, None)))
"""


@pytest.mark.parametrize("moment", ["ray starts", "a job runs"])
def test_a_command_that_is_killed_takes_all_with_it(
    moment: str, tmp_path: Path, until: Callable, gone: Callable
) -> None:
    marker, script = tmp_path / "pid", tmp_path / "command.py"
    script.write_text(COMMAND)
    path = f"{Path(chores.__file__).parent}:{Path(__file__).parents[2]}"
    with subprocess.Popen(
        [sys.executable, str(script), path, str(marker)], stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        folder, host = command.stdout.readline().split()
        starting = moment == "ray starts"
        # In the midst of Ray's start there are files that its thread is still to write.
        until(lambda: any(Path(folder).glob("session_*")) if starting else marker.exists())
        pids = list(below(Path(folder)))
        command.kill()
    assert int(host) in pids
    assert starting or int(marker.read_text()) in pids
    until(lambda: not Path(folder).exists())
    for pid in pids:
        gone(pid)
    assert list(below(Path(folder))) == []
    assert not Path(folder).exists(), "nobody was left who could make it anew"


class TestAddress:
    def stream(self, address: str) -> None:
        with RayTune(address=address) as executor:
            list(executor.stream(once(Job(name="adds", work=chores.add, arguments=(1, 1)))))

    def test_what_is_no_address_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"^ray\.address=nowhere: takes auto, local, or HOST:PORT"):
            self.stream("nowhere")

    def test_an_address_where_nothing_answers_is_refused_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and does not listen
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(ConfigError, match=rf"^ray\.address={address}: no Ray cluster answers there"):
                self.stream(address)
            monkeypatch.setenv("RAY_ADDRESS", address)
            with pytest.raises(ConfigError, match=rf"^RAY_ADDRESS={address}: no Ray cluster answers there"):
                self.stream("auto")

    def test_a_source_with_nothing_starts_no_ray(self) -> None:
        with RayTune(address="nowhere") as executor:
            assert list(executor.stream(lambda: None)) == []

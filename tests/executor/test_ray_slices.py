"""TPU slices on a cluster: Ray's fake one, whose hosts are processes of this machine that say they have chips."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import executor_chores as chores
import pytest

from asap_ray.errors import AsapError
from asap_ray.executor import local
from asap_ray.executor.ray_end import sweep
from asap_ray.executor.ray_seen import nodes_of
from asap_ray.executor.ray_start import PATIENT
from asap_ray.executor.ray_tasks import RayTasks
from asap_ray.executor.ray_tune import RayTune
from asap_ray.tiers.protocol import Gang, Job, Outcome

LONG_S = 600.0
SHORT_S = 3.0  # nothing becomes free in it
HOST = {"CPU": 1, "TPU": 4}
SLICE = Gang(hosts=2, per_host=HOST, topology="2x2x2", accelerator="TPU-V5P")  # 8 chips, 4 a host
BOTH = Gang(hosts=4, per_host=HOST, topology="2x2x2", accelerator="TPU-V5P")
PART = Gang(hosts=1, per_host=HOST, topology="2x2x1", accelerator="TPU-V5P")


def host(name: str, worker: int) -> dict[str, Any]:
    """A host of a slice as Ray sees real ones: the name of the pod type counts cores, two a chip."""
    pod, topology = "v5p-16", "2x2x2"
    return {
        "num_cpus": 1,
        "resources": {"TPU": 4} | ({f"TPU-{pod}-head": 1} if worker == 0 else {}),
        "env_vars": {
            "TPU_NAME": name,
            "TPU_WORKER_ID": str(worker),
            "TPU_ACCELERATOR_TYPE": pod,
            "TPU_TOPOLOGY": topology,
        },
        "labels": {
            "ray.io/tpu-slice-name": name,
            "ray.io/tpu-worker-id": str(worker),
            "ray.io/tpu-pod-type": pod,
            "ray.io/tpu-topology": topology,
            "ray.io/accelerator-type": "TPU-V5P",
        },
    }


@dataclass
class Cluster:
    process: subprocess.Popen[str]
    address: str
    log: Path

    def ask(self, *words: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.log.read_text()[-2000:]
        return json.loads(answer)

    def is_free(self) -> bool:
        """Whether no placement group is left, and all that nodes have is free."""
        return self.ask("groups") == 0 and self.ask("taken") == {}


@contextmanager
def a_cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="ray_", dir="/tmp"))  # a short path: sockets lie deep below it
    quiet = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0", "SPT_NOENV": "1", **PATIENT}
    # A node that is gone is missed soon; one that is slow to answer has a minute.
    quiet |= {f"RAY_health_check_{name}": n for name, n in (("period_ms", "500"), ("failure_threshold", "3"))}
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    # Worker 1 first: the order of ranks is not that of nodes.
    nodes = [{"num_cpus": 1}, *(host(name, worker) for name in ("a", "b") for worker in (1, 0))]
    with (
        pytest.MonkeyPatch.context() as patch,
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, str(here / "ray_cluster.py"), json.dumps(nodes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **quiet, **token, "TMPDIR": str(folder), "PYTHONPATH": path},
        ) as process,
    ):
        for name, value in (token | quiet).items():  # whoever joins needs them too
            patch.setenv(name, value)
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, (folder / "log").read_text()[-2000:]
            yield Cluster(process, address, folder / "log")
        finally:
            process.kill()
            process.communicate()
            sweep(folder)


@pytest.fixture(scope="module")
def started() -> Iterator[Cluster]:
    with a_cluster() as found:
        yield found


@pytest.fixture
def cluster(started: Cluster, until: Callable) -> Iterator[Cluster]:
    """A cluster of which all is free, before and after."""
    until(started.is_free)
    yield started
    started.ask("release")
    until(started.is_free)


def job(work: Callable[..., object], *arguments: object, of: Gang = SLICE, timeout_s: float = LONG_S) -> Job:
    return Job(name="gang", work=work, arguments=arguments, timeout_s=timeout_s, gang=of)


def run(executor: RayTasks | RayTune, *jobs: Job) -> list[Outcome]:
    waiting = iter(jobs)
    return list(executor.stream(lambda: next(waiting, None)))


ASKED = ["TPU_NAME", "TPU_WORKER_ID", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "TPU_PROCESS_BOUNDS"]


def raylet_of(pid: int) -> int:
    """The process of Ray on whose node a job runs: the parent of its worker."""
    for _ in range(2):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def found(folder: Path) -> list[dict[str, str | None]]:
    """What each rank found in its environment, by rank."""
    return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]


def test_what_the_cluster_has_is_seen_from_a_process_of_its_own(started: Cluster) -> None:
    (outcome,) = local.run([Job(name="look", work=nodes_of, arguments=(started.address,), isolated=True)], workers=1)
    assert outcome.status == "complete", outcome.reason
    hosts = [node for node in outcome.value if node.resources.get("TPU")]
    assert len(outcome.value) == 5
    assert sorted(node.labels["ray.io/tpu-slice-name"] for node in hosts) == ["a", "a", "b", "b"]


def test_two_slices_run_two_jobs_at_once_each_on_its_own_hosts(cluster: Cluster, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    marks = [str(tmp_path / "here"), str(tmp_path / "there")]
    for folder in folders:
        folder.mkdir()
    jobs = [
        job(chores.seen, ASKED, str(folder), here, there)
        for folder, here, there in zip(folders, marks, reversed(marks), strict=True)
    ]
    with RayTune(address=cluster.address) as executor:
        outcomes = run(executor, *jobs)
        assert [outcome.status for outcome in outcomes] == ["complete"] * 2
    slices = [[(each["TPU_NAME"], each["TPU_WORKER_ID"]) for each in found(folder)] for folder in folders]
    assert sorted(slices) == [[("a", "0"), ("a", "1")], [("b", "0"), ("b", "1")]], "ranks are workers"
    assert {each["MEGASCALE_NUM_SLICES"] for folder in folders for each in found(folder)} == {None}
    assert len({each["coordinator"] for each in found(folders[0])}) == 1


def test_a_plan_of_two_slices_has_both_and_is_told_of_them(cluster: Cluster, tmp_path: Path) -> None:
    with RayTasks(address=cluster.address) as executor:
        (outcome,) = run(executor, job(chores.seen, ASKED, str(tmp_path), of=BOTH))
    assert outcome.status == "complete"
    ranks = found(tmp_path)
    assert [each["TPU_WORKER_ID"] for each in ranks] == ["0", "1", "0", "1"]
    assert [each["MEGASCALE_SLICE_ID"] for each in ranks] == ["0", "0", "1", "1"]
    assert {each["MEGASCALE_NUM_SLICES"] for each in ranks} == {"2"}
    names = [each["TPU_NAME"] for each in ranks]
    assert {*names} == {"a", "b"}
    assert names[0] == names[1]


def test_a_slice_that_others_hold_is_not_waited_for_without_end(cluster: Cluster, tmp_path: Path) -> None:
    assert cluster.ask("hold", "2x2x2", "v5p", "2") == 2
    with RayTasks(address=cluster.address, reserve_s=SHORT_S) as executor:
        (outcome,) = run(executor, job(chores.seen, ASKED, str(tmp_path)))
        assert outcome.status == "failed"
        assert outcome.reason == "its hosts were not free within 3 s: others hold what it needs"
        assert outcome.lost, "the plan is not to blame"
        assert cluster.ask("groups") == 3, "what the others hold, two heads and the hosts"
        cluster.ask("release")
        executor.reserve_s = LONG_S
        (outcome,) = run(executor, job(chores.seen, ASKED, str(tmp_path)))
        assert outcome.status == "complete"


def test_parts_of_a_slice_run_small_plans_side_by_side(cluster: Cluster, tmp_path: Path) -> None:
    for name in ("a", "b"):
        cluster.ask("lay_out", name, "2x2x2")
    folders = [tmp_path / str(n) for n in range(4)]
    for folder in folders:
        folder.mkdir()
    with RayTasks(address=cluster.address) as executor:
        outcomes = run(executor, *(job(chores.seen, ASKED, str(folder), of=PART) for folder in folders))
    assert [outcome.status for outcome in outcomes] == ["complete"] * 4, [outcome.reason for outcome in outcomes]
    assert {each["TPU_PROCESS_BOUNDS"] for folder in folders for each in found(folder)} == {"1,1,1"}


def test_what_is_missing_is_told_before_anything_is_reserved(cluster: Cluster) -> None:
    three = Gang(hosts=6, per_host=HOST, topology="2x2x2", accelerator="TPU-V5P")
    large = Gang(hosts=4, per_host=HOST, topology="2x2x4", accelerator="TPU-V5P")
    with RayTasks(address=cluster.address) as executor:
        outcomes = run(executor, job(chores.begun, of=three), job(chores.begun, of=large))
    assert [outcome.reason for outcome in outcomes] == [
        "the cluster has 2 slices of v5p 2x2x2 with 2 hosts of CPU=1, TPU=4, the plan needs 3",
        "the cluster has 0 slices of v5p 2x2x4 with 4 hosts of CPU=1, TPU=4, the plan needs 1; it has 2x2x2",
    ]


def pids(folder: Path) -> list[int]:
    return [int((folder / str(rank)).read_text()) for rank in range(2)]


def all_there(folder: Path) -> bool:
    return len(list(folder.glob("[01]"))) == 2


def test_hosts_are_free_again_when_one_was_killed(cluster: Cluster, tmp_path: Path, gone: Callable) -> None:
    with RayTasks(address=cluster.address) as executor:
        (outcome,) = run(executor, job(chores.one_fails, str(tmp_path), "killed"))
        assert (outcome.status, outcome.reason) == ("failed", "rank 1 of 2: its process was ended by SIGKILL")
        for pid in pids(tmp_path):
            gone(pid)


def test_hosts_are_free_again_at_the_deadline(cluster: Cluster, tmp_path: Path, gone: Callable) -> None:
    deadline = 2.0
    with RayTasks(address=cluster.address) as executor:
        while not all_there(tmp_path):  # the deadline is to come when all are there: a slow machine gets a later one
            deadline *= 2
            (outcome,) = run(executor, job(chores.one_fails, str(tmp_path), "waits", timeout_s=deadline))
            assert (outcome.status, outcome.reason) == ("timeout", f"all 2 ranks: not done after {deadline:g} s")
        for pid in pids(tmp_path):
            gone(pid)


@pytest.mark.parametrize("end", ["closed", "host killed"])
def test_hosts_are_free_again_when_the_executor_ends_midway(
    end: str, cluster: Cluster, tmp_path: Path, until: Callable, gone: Callable
) -> None:
    executor = RayTasks(address=cluster.address)
    waiting = [job(chores.begun), job(chores.one_fails, str(tmp_path), "waits")]
    outcomes = executor.stream(lambda: waiting.pop() if waiting else None)
    assert next(outcomes).status == "complete"
    until(lambda: all_there(tmp_path))
    assert executor._host is not None
    assert cluster.ask("groups") == 2, "the head of the slice, and its hosts"
    if end == "closed":
        outcomes.close()  # type: ignore[attr-defined]
    else:
        os.kill(executor._host.process.pid, signal.SIGKILL)
        with pytest.raises(AsapError, match=r"^Ray was lost"):
            next(outcomes)
    for pid in pids(tmp_path):
        gone(pid)


# The last: the cluster is without that node then.
@pytest.fixture
def to_lose(until: Callable) -> Iterator[Cluster]:
    """A cluster of one's own, since it has a host less afterwards, whichever test comes next."""
    with a_cluster() as found:
        until(found.is_free)
        yield found


def test_a_job_that_loses_a_host_runs_again_on_another_slice(
    to_lose: Cluster, tmp_path: Path, until: Callable, gone: Callable
) -> None:
    cluster = to_lose
    folder, second = tmp_path / "ranks", tmp_path / "second"
    folder.mkdir()

    def lose() -> tuple[list[int], str]:
        until(lambda: all_there(folder))
        lost = pids(folder)
        environ = Path(f"/proc/{lost[1]}/environ").read_text().split("\0")
        second.touch()
        os.kill(raylet_of(lost[1]), signal.SIGKILL)
        return lost, next(each.partition("=")[2] for each in environ if each.startswith("TPU_NAME="))

    with ThreadPoolExecutor(1) as beside, RayTasks(address=cluster.address) as executor:
        losing = beside.submit(lose)
        (outcome,) = run(executor, job(chores.again_elsewhere, str(folder), str(second)))
        lost, name = losing.result()
        assert (outcome.status, outcome.reason) == ("complete", "")
        assert {outcome.value, name} == {"a", "b"}
        for pid in lost:
            gone(pid)

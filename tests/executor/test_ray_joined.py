"""A Ray cluster that others have started: a run joins it, works, and leaves it as it was, also where a node is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import executor_chores as chores
import pytest

from asap_ray.executor.ray_end import sweep
from asap_ray.executor.ray_tune import RayTune
from asap_ray.tiers.protocol import Job

HERE = Path(__file__).parent
LONG_S = 600.0
SOON = {"initial_delay_ms": 0, "period_ms": 200, "timeout_ms": 2000, "failure_threshold": 2}
"""When a cluster takes a node that does not answer for lost; Ray's own are half a minute together."""


class Cluster:
    """A cluster in a process of its own."""

    def __init__(self, folder: str) -> None:
        checks = {f"RAY_health_check_{name}": str(value) for name, value in SOON.items()}
        checks |= {"RAY_gcs_server_port_wait_time_s": "300", "RAY_worker_register_timeout_seconds": "600"}
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        path = os.pathsep.join([str(HERE), str(HERE.parents[1])])  # its nodes need the package and the jobs
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "ray_two_nodes.py"), folder],
            env={**os.environ, **checks, **quiet, "PYTHONPATH": path, "TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self._line()
        assert self.address, "the cluster did not start"

    def tell(self, word: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    folder = tempfile.mkdtemp(prefix="ray_", dir="/tmp")  # sockets of Ray need a short path
    made = Cluster(folder)
    try:
        yield made
    finally:
        made.end()
        sweep(Path(folder))


def test_a_run_joins_a_cluster_and_a_lost_node_costs_it_what_ran_there_alone(
    cluster: Cluster, tmp_path: Path, until: Callable, gone: Callable
) -> None:
    paths = {name: str(tmp_path / name) for name in ("bound", "moves", "again", "holds", "free")}
    jobs = iter(
        [
            # Where it ran nothing else can run it: the second node alone has what it asks for.
            Job(name="bound", work=chores.wait_forever, arguments=(paths["bound"],), resources={"second": 1}, cores=0),
            Job(name="holds", work=chores.meet, arguments=(paths["holds"], paths["free"]), resources={"first": 1}),
            # The first node's core is taken, so this begins on the second, and can go on on the first later.
            Job(name="moves", work=chores.waits_the_first_time, arguments=(paths["moves"], paths["again"])),
        ]
    )

    def lose() -> list[int]:
        until(lambda: all(Path(paths[name]).exists() for name in ("bound", "holds", "moves")))
        pids = [int(Path(paths[name]).read_text()) for name in ("bound", "moves")]
        Path(paths["again"]).touch()
        assert cluster.tell("lose") == "lost"
        Path(paths["free"]).touch()
        return pids

    with ThreadPoolExecutor(1) as beside, RayTune(address=cluster.address) as executor:
        lost = beside.submit(lose)
        outcomes = {each.job.name: each for each in executor.stream(lambda: next(jobs, None))}
        pids = lost.result()
    assert (outcomes["holds"].status, outcomes["holds"].value) == ("complete", True)
    assert outcomes["moves"].status == "complete", outcomes["moves"].reason
    assert outcomes["moves"].value not in (None, *pids)
    assert outcomes["bound"].status == "failed"
    assert "second" in outcomes["bound"].reason
    for pid in pids:
        gone(pid)
    assert cluster.tell("alive") == "True", "it is left as it was"

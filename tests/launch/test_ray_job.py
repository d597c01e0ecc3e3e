"""`ray job submit` for real: a Ray with its dashboard on loopback takes what task=launch writes, and runs it."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from asap_ray.executor.ray_end import MARK, sweep
from asap_ray.executor.ray_start import ON_LOOPBACK, PATIENT, QUIET

pytestmark = pytest.mark.skipif(find_spec("opencensus") is None, reason="no dashboard: it comes with ray[default]")
BIN = Path(sys.executable).parent
LONG_S = 300.0


class Cluster(NamedTuple):
    dashboard: str
    environ: dict[str, str]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A Ray of one node with a dashboard, all of it on loopback and behind a token, that nobody outlives."""
    folder = Path(tempfile.mkdtemp(prefix="ray_", dir="/tmp"))  # a short path: sockets lie deep below it
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environ = {**os.environ, **QUIET, **PATIENT, **ON_LOOPBACK, **token, MARK: str(folder)}
    environ["PATH"] = f"{BIN}:{environ['PATH']}"
    environ.pop("RAY_ADDRESS", None)
    environ.pop("PYTHONPATH", None)  # the job is to run what was shipped
    port, gcs = free_port(), free_port()
    argv = [BIN / "ray", "start", "--head", "--block", f"--port={gcs}", "--node-ip-address=127.0.0.1", "--num-cpus=1"]
    argv += ["--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={port}"]
    argv += [f"--temp-dir={folder}", "--object-store-memory=80000000", "--disable-usage-stats"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder)
    try:
        limit = time.monotonic() + LONG_S
        while not answers(port):
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < limit, "the dashboard did not start"
            time.sleep(0.2)
        yield Cluster(f"http://127.0.0.1:{port}", environ)
    finally:
        process.kill()
        process.wait()
        sweep(folder)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def test_a_launched_job_runs_what_was_shipped_on_the_cluster_that_it_was_sent_to(
    command: Any, cluster: Cluster, tmp_path: Path
) -> None:
    words = ("launch.target=ray_job", "launch.task=doctor", f"launch.address={cluster.dashboard}", "hardware=mi300x8")
    told = command("task=launch", "run_dir=run", "launch.results=" + str(tmp_path / "results"), *words)
    assert told.status == 0, told.err
    ended = subprocess.run(
        ["bash", "run/launch/submit.sh"], capture_output=True, text=True, env=cluster.environ, timeout=LONG_S
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-2000:]
    # It joined the very cluster that it runs on, and its files are those of the wheel, not of the checkout.
    assert "1 node with 1 CPU" in ended.stdout
    assert "python -m asap_ray hardware=mi300x8 ray.address=auto" in ended.stdout
    listed = subprocess.run(
        [BIN / "ray", "job", "list", "--address", cluster.dashboard],
        capture_output=True,
        text=True,
        env=cluster.environ,
    )
    assert "SUCCEEDED" in listed.stdout + listed.stderr

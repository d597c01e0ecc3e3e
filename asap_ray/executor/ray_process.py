"""The process that holds Ray, from the side that gives it jobs: its start, what goes to and fro, and its certain end.

Ray never runs in the process of the command. It would write to its terminal, take its signals over, and end it where a
raylet is lost. It lives in a process of its own (`ray_host`), which is told of jobs and tells of their outcomes.

    command ── jobs, outcomes ── host (Ray's driver) ── gcs, raylet ── worker ── process of the job

All that runs on this machine below the host inherits one variable of the environment, TMPDIR, and lives in the folder
that it names. Whoever is left when another was killed ends what has the variable, and removes the folder: the host
where the command is gone, the command where the host is.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as with_changes
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

from asap_ray.errors import AsapError, ConfigError
from asap_ray.executor.local import GRACE_S, told
from asap_ray.executor.memory import available_bytes
from asap_ray.tiers.protocol import Job, Outcome

ADDRESSES = "auto, local, or HOST:PORT of a Ray cluster that this machine is a node of"
LONGEST_FOLDER = 30
"""Characters of the folder that temporary folders go to: the sockets of Ray lie 80 deeper, and may have 107."""
ANSWER_S = 5.0
"""How long a cluster may take to answer at all."""
END_S = 30.0
"""How long the host may take to end what it has started, before it is ended itself."""
BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from asap_ray.executor.ray_host import main
main(json.loads(sys.argv[2]))
"""
MARK = "TMPDIR"
"""What all that runs below a host on this machine has in its environment."""
QUIET = {
    "SPT_NOENV": "1",  # Ray's processes give themselves titles, which would be written over their environment
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a job that asks for no accelerator sees what it would see without Ray
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1e9",
    "TUNE_MAX_PENDING_TRIALS_PG": "1000",  # no job comes here before there is room for it
    "TUNE_GLOBAL_CHECKPOINT_S": "1e9",  # the ledger is what a run is taken up from
}


@dataclass(kw_only=True, slots=True)
class _Host:
    """A host that was started; its nodes' resources are known once it is ready."""

    process: subprocess.Popen[bytes]
    line: Connection
    folder: Path
    address: str | None
    nodes: list[Mapping[str, float]] = field(default_factory=list)


@dataclass(kw_only=True)
class RayProcess:
    """An executor that has Ray run its jobs; `ray_tune.RayTune` and `ray_tasks.RayTasks` say how.

    To be used as a context, or closed: Ray is started once, with the first job or by `start`, and lives until then.

    Args:
        address: where Ray is, as `ray.address`. auto is the cluster of RAY_ADDRESS, and where that is not set a Ray of
            this executor's own on this machine, as local is.
        workers: jobs at once at most; None is as many as the cluster has room for. A Ray on this machine has so many
            cores, by default those of the machine.
    """

    runner: ClassVar[str]
    address: str = "auto"
    workers: int | None = None
    _host: _Host | None = field(default=None, repr=False)
    _sent: int = field(default=0, repr=False)

    def __enter__(self) -> RayProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Begin to start Ray, and return at once; the first job then waits less.

        Raises:
            ConfigError: the address is none, or nothing answers there.
        """
        if self._host is None:
            self._host = _started(self.runner, _cluster(self.address), self.workers)

    def close(self) -> None:
        """End Ray if it is this executor's own, and all that runs for it; with a cluster, its part in it."""
        host, self._host = self._host, None
        if host is not None:
            host.line.close()  # which the host takes as its end
            _end(host)

    def stream(self, source: Callable[[], Job | None]) -> Iterator[Outcome]:
        """As `protocol.Executor.stream`. A job that no node of the cluster can ever hold fails, and says why."""
        held, running = None, dict[int, Job]()
        try:
            while True:
                while self._may_have_room(running.values()):
                    held = held or source()
                    if held is None or not self._has_room(held, running.values()):
                        break
                    if missing := self._missing(held):
                        yield Outcome(job=held, status="failed", reason=missing)
                    else:
                        running[self._send(held)] = held
                    held = None
                if not running:
                    return
                number, answer = self._receive()
                yield _outcome(running.pop(number), answer)
        finally:
            if running:  # left early: what runs is ended with its host
                self.close()

    def _may_have_room(self, running: Collection[Job]) -> bool:
        if not running:
            return True
        cores = sum(node.get("CPU", 0.0) for node in self._nodes())
        return len(running) < (self.workers or len(running) + 1) and sum(job.cores for job in running) < cores

    def _has_room(self, job: Job, running: Collection[Job]) -> bool:
        if not running:
            return True
        asked = [self._needs(each) for each in (job, *running)]
        return all(
            sum(needs.get(name, 0.0) for needs in asked) <= sum(node.get(name, 0.0) for node in self._nodes())
            for name in asked[0]
        )

    def _missing(self, job: Job) -> str:
        """What no node has enough of for a job, in words; empty where one can hold it."""
        needs, nodes = self._needs(job), self._nodes()
        if any(all(node.get(name, 0.0) >= amount for name, amount in needs.items()) for node in nodes):
            return ""
        most = {name: max((node.get(name, 0.0) for node in nodes), default=0.0) for name in needs}
        short = [name for name in needs if needs[name] > most[name]] or list(needs)
        asked = ", ".join(f"{name}={needs[name]:g} (a node has {most[name]:g} at most)" for name in short)
        return f"no node of the Ray cluster can ever hold it: it needs {asked}"

    def _needs(self, job: Job) -> dict[str, float]:
        """What a job asks of Ray. On this machine one that expects more memory than there is runs alone, as elsewhere:
        no expectation is exact."""
        needs = {"CPU": job.cores, "memory": float(int(job.memory_bytes)), **job.resources}
        if self._host is not None and self._host.address is None:
            needs["memory"] = min(needs["memory"], *(node.get("memory", 0.0) for node in self._nodes()))
        return {name: amount for name, amount in needs.items() if amount > 0}

    def _nodes(self) -> list[Mapping[str, float]]:
        self.start()
        host = self._host
        assert host is not None
        if not host.nodes:
            host.nodes = self._told(host, "ready")[0]
        return host.nodes

    def _send(self, job: Job) -> int:
        self._sent += 1
        host, needs = self._host, self._needs(job)
        assert host is not None
        if host.address is None:  # memory was seen to here; and requests that are alike share workers
            needs.pop("memory", None)
        try:
            host.line.send((self._sent, needs, pickle.dumps(job)))
        except OSError:
            raise self._lost(host) from None
        return self._sent

    def _receive(self) -> tuple[int, bytes | str]:
        assert self._host is not None
        number, answer = self._told(self._host, "ended")
        return number, answer

    def _told(self, host: _Host, wanted: str) -> list[Any]:
        """The next message of the host: its content.

        Raises:
            ConfigError: the cluster cannot be reached.
            AsapError: Ray is lost.
        """
        try:
            kind, *content = host.line.recv()
        except (EOFError, OSError):
            raise self._lost(host) from None
        if kind == wanted:
            return content
        raise self._lost(host, kind, content[0])

    def _lost(self, host: _Host, kind: str = "lost", reason: str = "") -> AsapError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            host.process.wait(ANSWER_S)  # so that its last words are written
        reason = reason or _last_line(host.folder / "log") or "its process is gone"
        self.close()
        if kind == "unreachable":
            return ConfigError("ray.address", host.address or self.address, f"Ray does not start there: {reason}")
        return AsapError(f"Ray was lost ({reason}); the same command goes on where this one ended")


def _cluster(address: str) -> str | None:
    """HOST:PORT of the cluster to join; None for a Ray of our own."""
    key, given = "ray.address", address
    if address == "auto":
        key, given = "RAY_ADDRESS", os.environ.get("RAY_ADDRESS", "local")
    if given in ("local", ""):
        return None
    host, _, port = given.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ConfigError(key, given, f"takes {ADDRESSES}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(key, given, f"no Ray cluster answers there ({error}); it takes {ADDRESSES}") from None
    return given


def _started(runner: str, address: str | None, workers: int | None) -> _Host:
    base = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="asap_ray_", dir=base if len(base) <= LONGEST_FOLDER else "/tmp"))
    ours, theirs = socket.socketpair()
    memory_bytes = available_bytes()
    options = {
        "line": theirs.fileno(),
        "parent": os.getpid(),
        "runner": runner,
        "address": address,
        "folder": str(folder),
        "cores": workers or os.cpu_count() or 1,
        "memory_bytes": memory_bytes if memory_bytes < float("inf") else None,
    }
    path = [os.path.abspath(entry) for entry in sys.path]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", BOOT, json.dumps(path), json.dumps(options)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(folder, own=address is None),
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the command, which ends its host
        )
    theirs.close()
    return _Host(process=process, line=Connection(ours.detach()), folder=folder, address=address)


def _environment(folder: Path, *, own: bool) -> dict[str, str]:
    environment = {**os.environ, **QUIET, MARK: str(folder)}
    if own:
        # A socket on loopback is open to all who are on this machine: only who has the token is served.
        environment |= {
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # all sockets on loopback
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        environment.pop("RAY_ADDRESS", None)
    return environment


def _end(host: _Host) -> None:
    try:
        host.process.wait(END_S)
    except subprocess.TimeoutExpired:
        host.process.kill()
        host.process.wait()
    sweep(host.folder)


def sweep(folder: Path) -> None:
    """End every process on this machine, but this one, that was started with this folder as its TMPDIR, however far
    below and in whatever session; then remove the folder."""
    while pids := list(below(folder)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)  # until they are gone: a killed process may have started another just before
    shutil.rmtree(folder, ignore_errors=True)


def ask(folder: Path) -> None:
    """Ask the jobs that run below this folder's host to end, and give them a little time for it."""
    limit = time.monotonic() + GRACE_S
    jobs = [pid for pid in below(folder) if _leads(pid)]
    for pid in jobs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGTERM)
    while time.monotonic() < limit and any(_leads(pid) for pid in jobs):
        time.sleep(0.01)


def _leads(pid: int) -> bool:
    """Whether a process leads a session: of all that run for Ray, only jobs do."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def below(folder: Path) -> Iterator[int]:
    """Processes on this machine, but this one, that were started with this folder as their TMPDIR."""
    mark = f"{MARK}={folder}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # gone by now, or another user's
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def _outcome(job: Job, answer: bytes | str) -> Outcome:
    """An answer is an outcome, pickled where its job ran; or why there is none, in words."""
    if isinstance(answer, str):
        return Outcome(job=job, status="failed", reason=answer)
    try:
        return with_changes(pickle.loads(answer), job=job)
    except Exception as error:  # unpickling raises whatever the value's own methods raise
        return Outcome(job=job, status="failed", reason=f"its result cannot be read: {told(error)}")


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")

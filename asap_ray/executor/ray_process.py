"""The process that holds Ray, from the side that gives it jobs: what goes to and fro.

Ray never runs in the process of the command. It would write to its terminal, take its signals over, and end it where a
raylet is lost. It lives in a process of its own (`ray_host`), which is told of jobs and tells of their outcomes.

    command ── jobs, outcomes ── host (Ray's driver) ── gcs, raylet ── worker ── process of the job

Whatever of these is killed, nothing is left: `ray_end` says how.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any, ClassVar, Self

from asap_ray.errors import AsapError, ConfigError
from asap_ray.executor.fresh import told
from asap_ray.executor.ray_start import ANSWER_S, Host, cluster_of, started
from asap_ray.tiers.protocol import Job, Outcome


@dataclass(kw_only=True)
class RayProcess:
    """An executor that has Ray run its jobs; `ray_tune.RayTune` and `ray_tasks.RayTasks` say how.

    To be used as a context, or closed: Ray is started once, with the first job or by `start`, and lives until then.

    Args:
        address: where Ray is, as `ray.address`. auto, or None, is the cluster of RAY_ADDRESS, and where that is not set
            a Ray of this executor's own on this machine, as local is.
        workers: jobs at once at most; None is as many as the cluster has room for. A Ray on this machine has so many
            cores, by default those of the machine.
    """

    runner: ClassVar[str]
    address: str | None = None
    workers: int | None = None
    _host: Host | None = field(default=None, repr=False)
    _sent: int = field(default=0, repr=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Begin to start Ray, and return at once; the first job then waits less.

        Raises:
            ConfigError: the address is none, or nothing answers there.
        """
        if self._host is None:
            self._host = started(self.runner, cluster_of(self.address), self.workers)

    def close(self) -> None:
        """End Ray if it is this executor's own, and all that runs for it; with a cluster, its part in it."""
        host, self._host = self._host, None
        if host is not None:
            host.end()

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

    def _told(self, host: Host, wanted: str) -> list[Any]:
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

    def _lost(self, host: Host, kind: str = "lost", reason: str = "") -> AsapError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            host.process.wait(ANSWER_S)  # so that its last words are written
        reason = reason or _last_line(host.folder / "log") or "its process is gone"
        self.close()
        if kind == "unreachable":
            return ConfigError("ray.address", host.address or "local", f"Ray does not start there: {reason}")
        return AsapError(f"Ray was lost ({reason}); the same command goes on where this one ended")


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

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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any, ClassVar, Self

from asap_ray.errors import AsapError, ConfigError
from asap_ray.executor.fresh import told
from asap_ray.executor.gang import joined
from asap_ray.executor.ray_line import FIGURES
from asap_ray.executor.ray_start import ANSWER_S, SEAT, Host, cluster_of, started
from asap_ray.executor.room import Node, has_room, missing, missing_for
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
        reserve_s: how long the hosts of a gang may take to be free, once there should be room for it.
        retries: how often a job is started again of which Ray has lost a worker or a node.
        dashboard: have figures shown as Ray's metrics, and start the dashboard of a Ray on this machine.
    """

    runner: ClassVar[str]
    address: str | None = None
    workers: int | None = None
    reserve_s: float = 100.0
    retries: int = 1
    dashboard: bool = False
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
            self._host = started(
                self.runner, cluster_of(self.address), self.workers, self.retries, dashboard=self.dashboard
            )

    def close(self) -> None:
        """End Ray if it is this executor's own, and all that runs for it; with a cluster, its part in it."""
        host, self._host = self._host, None
        if host is not None:
            host.end()

    @property
    def places(self) -> Mapping[str, str]:
        """Addresses of the dashboard and of the metrics, by name; none before Ray is there, or where none were asked
        for."""
        return self._host.places if self._host is not None else {}

    def show(self, figures: Sequence[tuple[str, Mapping[str, str], float]]) -> None:
        """Have figures shown as metrics (`ray_metrics.METRICS`); none are where Ray is not there."""
        if self.dashboard and self._host is not None and self._host.nodes:
            with contextlib.suppress(OSError):  # whoever waits for an outcome is told that Ray is lost
                self._host.line.send((FIGURES, list(figures)))

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
                number, answer, lost = self._receive()
                yield with_changes(_outcome(running.pop(number), answer), lost=lost)
        finally:
            if running:  # left early: what runs is ended with its host
                self.close()

    def _may_have_room(self, running: Collection[Job]) -> bool:
        if not running:
            return True
        cores = sum(node.resources.get("CPU", 0.0) for node in self._nodes())
        return len(running) < (self.workers or len(running) + 1) and sum(map(_cores, running)) < cores

    def _has_room(self, job: Job, running: Collection[Job]) -> bool:
        if not running:
            return True
        return has_room([(self._needs(each), each.gang) for each in (job, *running)], self._nodes())

    def _missing(self, job: Job) -> str:
        """What the cluster can never hold of a job, in words; empty where it can."""
        needs, nodes = self._needs(job), self._nodes()
        return missing_for(job.gang, needs, nodes) if job.gang else missing(needs, nodes)

    def _needs(self, job: Job) -> dict[str, float]:
        """What a job asks of Ray, on each host. On this machine one that expects more memory than there is runs alone,
        as elsewhere: no expectation is exact."""
        asked = job.gang.per_host if job.gang else {"CPU": job.cores, **job.resources}
        needs = {**asked, "memory": float(int(job.memory_bytes))}
        if self._host is not None and self._host.address is None:
            most = [node.resources.get("memory", 0.0) for node in self._nodes()]
            needs["memory"] = min(needs["memory"], *(each / (job.gang.hosts if job.gang else 1) for each in most))
        return {name: amount for name, amount in needs.items() if amount > 0}

    def _nodes(self) -> list[Node]:
        self.start()
        host = self._host
        assert host is not None
        if not host.nodes:
            host.nodes, host.places = self._told(host, "ready")
        return host.nodes

    def _send(self, job: Job) -> int:
        self._sent += 1
        host, needs = self._host, self._needs(job)
        assert host is not None
        if host.address is None:  # memory and cores were seen to here: requests that are alike share workers,
            needs.pop("memory", None)
            if needs.pop("CPU", None):
                needs[SEAT] = 1.0  # and a worker that is kept holds nothing that another trial waits for
        try:
            host.line.send((self._sent, needs, pickle.dumps(job), job.gang, job.timeout_s, self.reserve_s))
        except OSError:
            raise self._lost(host) from None
        return self._sent

    def _receive(self) -> tuple[int, bytes | str, bool]:
        assert self._host is not None
        number, answer, lost = self._told(self._host, "ended")
        return number, answer, lost

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


def _cores(job: Job) -> float:
    return job.gang.hosts * job.gang.per_host.get("CPU", 0.0) if job.gang else job.cores


def _outcome(job: Job, answer: bytes | str) -> Outcome:
    """An answer is an outcome, pickled where its job ran; or those of a gang by rank; or in words why there is none."""
    if isinstance(answer, str):
        return Outcome(job=job, status="failed", reason=answer)
    try:
        value = pickle.loads(answer)
    except Exception as error:  # unpickling raises whatever the value's own methods raise
        return Outcome(job=job, status="failed", reason=f"its result cannot be read: {told(error)}")
    if isinstance(value, Outcome):
        return with_changes(value, job=job)
    alone = with_changes(job, gang=None)
    return joined(job, {rank: _outcome(alone, each) for rank, each in value.items()})


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")

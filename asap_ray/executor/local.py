"""Runs jobs side by side on this machine, each in a fresh process, and says how each one ended.

A job ends as complete, failed (with the reason, also where its process was killed) or timeout (its process is ended,
and whatever that has started). Results come back as they finish. Jobs start in their order, and side by side only while
the memory that they expect to need is there; one always runs. One job alone, with no deadline and not isolated, runs in
this process, and a fault of the package in it is raised as it is.

The hosts of a gang are processes of this machine: a gang of two is two processes, and one job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait

from asap_ray.errors import AsapError
from asap_ray.executor import fresh
from asap_ray.executor.fresh import LOOK_S, Fresh, Message
from asap_ray.executor.gang import free_port, joined, members
from asap_ray.executor.memory import available_bytes, held_bytes
from asap_ray.tiers.protocol import Job, Outcome

SETTLE_S = 0.3
"""How long the others of a gang may take to fail too, where one has: the first to be seen may not be the cause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Local:
    """The executor of this machine: at most `workers` jobs at once, and only as memory allows."""

    workers: int

    def stream(self, source: Callable[[], Job | None]) -> Iterator[Outcome]:
        """As `protocol.Executor.stream`."""
        return stream(source, self.workers)


@dataclass(frozen=True, slots=True)
class _Running:
    job: Job
    processes: list[Fresh]
    """By rank; one where the job has no gang."""
    deadline: float
    messages: dict[int, Message] = field(default_factory=dict)

    @property
    def left(self) -> list[Fresh]:
        return [each for rank, each in enumerate(self.processes) if rank not in self.messages]

    @property
    def failed(self) -> bool:
        return any(kind != "complete" for kind, _ in self.messages.values())


def run(jobs: Sequence[Job], workers: int) -> Iterator[Outcome]:
    """Run all jobs, at most `workers` at once, and yield each outcome as it comes; nothing is left running."""
    if len(jobs) == 1 and jobs[0].timeout_s is None and not jobs[0].isolated and not jobs[0].gang:
        yield _inline(jobs[0])
        return
    waiting = iter(jobs)
    yield from stream(lambda: next(waiting, None), workers)


def stream(source: Callable[[], Job | None], workers: int) -> Iterator[Outcome]:
    """As `run`, for jobs that are decided while others run: `source` is asked for one whenever there may be room.

    It may have none (None) and be asked again when a job has ended; all is over where it has none and nothing runs.
    """
    held, running = None, list[_Running]()
    try:
        while True:
            while len(running) < max(workers, 1):
                held = held or source()
                if held is None or not _has_room(held, running):
                    break
                running.append(_start(held))
                held = None
            if not running:
                return
            _wait(running)
            for each in list(running):
                if outcome := _ended(each):
                    running.remove(each)
                    yield outcome
    finally:
        fresh.end(*(process for each in running for process in each.processes))


def _inline(job: Job) -> Outcome:
    try:
        return Outcome(job=job, status="complete", value=job.work(*job.arguments))
    except AsapError as error:
        return Outcome(job=job, status="failed", reason=str(error), error=error)


def _has_room(job: Job, running: Sequence[_Running]) -> bool:
    """Whether the memory that a job expects to need is there, besides what those that run will still take."""
    if not running or not job.memory_bytes:
        return True
    pending = sum(
        max(0.0, process.job.memory_bytes - held_bytes(process.process.pid))
        for each in running
        for process in each.left
    )
    hosts = job.gang.hosts if job.gang else 1
    return job.memory_bytes * hosts + pending <= available_bytes()


def _start(job: Job) -> _Running:
    started = list[Fresh]()
    try:
        for member in members(job, f"127.0.0.1:{free_port()}" if job.gang else ""):
            started.append(fresh.start(member))
    except BaseException:
        fresh.end(*started)
        raise
    limit = float("inf") if job.timeout_s is None else time.monotonic() + job.timeout_s
    return _Running(job, started, limit)


def _wait(running: Sequence[_Running]) -> None:
    first = min(each.deadline for each in running)
    timeout = min(LOOK_S, max(0.0, first - time.monotonic()))
    processes = [process for each in running for process in each.left]
    wait([handle for each in processes for handle in (each.pipe, each.process.sentinel)], timeout)


def _ended(each: _Running) -> Outcome | None:
    _look(each)
    if each.left and each.failed:
        wait([process.process.sentinel for process in each.left], SETTLE_S)
        _look(each)
    elif each.left and time.monotonic() < each.deadline:
        return None
    return _outcome(each)


def _look(each: _Running) -> None:
    for rank, process in enumerate(each.processes):
        if rank not in each.messages and (message := fresh.message(process)):
            each.messages[rank] = message


def _outcome(each: _Running) -> Outcome:
    """End the processes of a job, and say how it ended."""
    if not each.left:
        fresh.let_end(*each.processes)  # together: one of a gang may need the others to end well
    ended = dict[int, Outcome]()
    for rank, (process, output) in enumerate(zip(each.processes, fresh.end(*each.processes), strict=True)):
        if message := each.messages.get(rank):
            ended[rank] = fresh.outcome(process, message, output)
        elif not each.failed:
            ended[rank] = fresh.late(process.job, output)
    return joined(each.job, ended)

"""Runs jobs side by side on this machine, each in a fresh process, and says how each one ended.

A job ends as complete, failed (with the reason, also where its process was killed) or timeout (its process is ended).
Results come back as they finish. One job alone, with no deadline, runs in this process.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal

from asap_ray.errors import AsapError
from asap_ray.tiers.protocol import Job

GRACE_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a job ended: its value where it is complete, else the reason; `error` is a user's error, to be raised
    again."""

    job: Job
    status: Literal["complete", "failed", "timeout"]
    value: Any = None
    reason: str = ""
    error: AsapError | None = None


@dataclass(frozen=True, slots=True)
class _Running:
    job: Job
    process: BaseProcess
    pipe: Connection
    deadline: float


def run(jobs: Sequence[Job], workers: int) -> Iterator[Outcome]:
    """Run all jobs, at most `workers` at once, and yield each outcome as it comes; nothing is left running."""
    if len(jobs) == 1 and jobs[0].timeout_s is None:
        yield _inline(jobs[0])
        return
    waiting, running = list(reversed(jobs)), list[_Running]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_start(waiting.pop()))
            first = min(each.deadline for each in running)
            timeout = None if first == float("inf") else max(0.0, first - time.monotonic())
            wait([each.pipe for each in running], timeout)
            for each in list(running):
                if outcome := _ended(each):
                    running.remove(each)
                    yield outcome
    finally:
        for each in running:
            _end(each.process)


def _inline(job: Job) -> Outcome:
    try:
        return Outcome(job=job, status="complete", value=job.work(*job.arguments))
    except AsapError as error:
        return Outcome(job=job, status="failed", reason=str(error), error=error)


def _start(job: Job) -> _Running:
    # Spawned, not forked: a job may load a compiler or a runtime that does not survive a fork.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(job, theirs), daemon=True)
    process.start()
    theirs.close()
    limit = float("inf") if job.timeout_s is None else time.monotonic() + job.timeout_s
    return _Running(job, process, ours, limit)


def _work(job: Job, pipe: Connection) -> None:
    try:
        pipe.send(("complete", job.work(*job.arguments)))
    except AsapError as error:
        pipe.send(("error", error))
    except Exception as error:  # the border of the process: what went wrong is told, not lost
        pipe.send(("failed", f"{type(error).__name__}: {error}"))


def _ended(each: _Running) -> Outcome | None:
    if each.pipe.poll():
        try:
            status, value = each.pipe.recv()
        except EOFError:
            each.process.join()
            return Outcome(job=each.job, status="failed", reason=f"its process ended with {each.process.exitcode}")
        each.process.join(GRACE_S)
        _end(each.process)
        if status == "complete":
            return Outcome(job=each.job, status="complete", value=value)
        if status == "error":
            return Outcome(job=each.job, status="failed", reason=str(value), error=value)
        return Outcome(job=each.job, status="failed", reason=value)
    if time.monotonic() >= each.deadline:
        _end(each.process)
        return Outcome(job=each.job, status="timeout", reason=f"not done after {each.job.timeout_s:g} s")
    return None


def _end(process: BaseProcess) -> None:
    if process.is_alive():
        process.terminate()
        process.join(GRACE_S)
    if process.is_alive():
        process.kill()
        process.join()

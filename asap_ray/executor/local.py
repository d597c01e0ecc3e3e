"""Runs jobs side by side on this machine, each in a fresh process, and says how each one ended.

A job ends as complete, failed (with the reason, also where its process was killed) or timeout (its process is ended,
and whatever that has started). Results come back as they finish. One job alone, with no deadline, runs in this process,
and a fault of the package in it is raised as it is.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import process as processes
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from asap_ray.errors import AsapError
from asap_ray.tiers.protocol import Job

GRACE_S = 2.0
"""How long a process may take to end by itself once it is asked to, or once its result is here."""
LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT
"""Flags that look at a process without waiting for it or reaping it."""
LOOK_S = 1.0
"""How often processes are looked at: one that dies while its own child holds the pipes open gives no other sign."""


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
            while waiting and len(running) < max(workers, 1):
                running.append(_start(waiting.pop()))
            _wait(running)
            for each in list(running):
                if outcome := _ended(each):
                    running.remove(each)
                    yield outcome
    finally:
        _end(*running)


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
    # Ctrl-C is for the parent, which ends its children: one that is still starting would print a traceback of its own.
    resource_tracker.ensure_running()  # its first start would lift the mask
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    # Each start reaps what has ended of the children listed here; this one is ours to reap, once all it started is
    # ended. Nothing needs the list: `run` ends its processes, and they end by themselves when this one is gone.
    getattr(processes, "_children", set()).discard(process)
    theirs.close()
    limit = float("inf") if job.timeout_s is None else time.monotonic() + job.timeout_s
    return _Running(job, process, ours, limit)


def _wait(running: Sequence[_Running]) -> None:
    first = min(each.deadline for each in running)
    timeout = min(LOOK_S, max(0.0, first - time.monotonic()))
    wait([handle for each in running for handle in (each.pipe, each.process.sentinel)], timeout)


def _work(job: Job, pipe: Connection) -> None:
    os.setsid()  # a group of its own, so that all it starts can be ended with it
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        message = ("complete", job.work(*job.arguments))
    except AsapError as error:
        message = ("error", error)
    except Exception as error:  # the border of the process: what went wrong is told, not lost
        message = ("failed", _told(error))
    try:
        pipe.send(message)
    except Exception as error:  # pickle raises whatever the value's own methods raise
        told = str(message[1]) if message[0] == "error" else f"its result cannot be sent back: {_told(error)}"
        pipe.send(("failed", told))


def _told(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # returns when the parent is gone, also where it was killed
        os.killpg(0, signal.SIGKILL)


def _ended(each: _Running) -> Outcome | None:
    gone = _gone(each.process)  # before the pipe is looked at: what it sent last is there by now
    if each.pipe.poll():
        return _read(each)
    if gone:
        _end(each)
        return Outcome(job=each.job, status="failed", reason=_death(each.process))
    if time.monotonic() >= each.deadline:
        _end(each)
        return Outcome(job=each.job, status="timeout", reason=f"not done after {each.job.timeout_s:g} s")
    return None


def _read(each: _Running) -> Outcome:
    try:
        status, value = each.pipe.recv()
    except (EOFError, OSError):  # it died before or amid its message
        _end(each)
        return Outcome(job=each.job, status="failed", reason=_death(each.process))
    except Exception as error:  # unpickling raises whatever the value's own methods raise
        status, value = "failed", f"its result cannot be read: {_told(error)}"
    wait([each.process.sentinel], GRACE_S)
    _end(each)
    if status == "complete":
        return Outcome(job=each.job, status="complete", value=value)
    error = value if isinstance(value, AsapError) else None
    return Outcome(job=each.job, status="failed", reason=str(value), error=error)


def _death(process: BaseProcess) -> str:
    code = process.exitcode
    if code is None:
        return "its process ended with no result; its status is lost"
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with status {code} and no result"


def _end(*running: _Running) -> None:
    """End processes and all they have started: asked first, then forced."""
    for each in running:
        _signal(each.process, signal.SIGTERM)
    limit = time.monotonic() + GRACE_S
    for each in running:
        wait([each.process.sentinel], max(0.0, limit - time.monotonic()))
        _signal(each.process, signal.SIGKILL)
        each.process.join()
        each.pipe.close()


def _gone(process: BaseProcess) -> bool:
    # Looked at without reaping it, so that its number stays its own until all it started is ended.
    return _state(process) != "running"


def _state(process: BaseProcess) -> Literal["running", "ended", "reaped"]:
    assert process.pid is not None
    try:
        return "ended" if os.waitid(os.P_PID, process.pid, LOOK) else "running"
    except ChildProcessError:  # reaped by something else in this process, as a handler of SIGCHLD may
        return "reaped"


def _signal(process: BaseProcess, number: signal.Signals) -> None:
    # Until a process is reaped its number, and its group's, cannot be another's; afterwards it may.
    assert process.pid is not None
    if _state(process) == "reaped":
        return
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:  # it is still starting and has no group yet
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)

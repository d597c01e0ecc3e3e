"""Runs jobs side by side on this machine, each in a fresh process, and says how each one ended.

A job ends as complete, failed (with the reason, also where its process was killed) or timeout (its process is ended,
and whatever that has started). Results come back as they finish. Jobs start in their order, and side by side only while
the memory that they expect to need is there; one always runs. One job alone, with no deadline and not isolated, runs in
this process, and a fault of the package in it is raised as it is.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import process as processes
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Literal

from asap_ray.errors import AsapError
from asap_ray.executor.memory import available_bytes, held_bytes
from asap_ray.tiers.protocol import Job, Outcome

GRACE_S = 2.0
"""How long a process may take to end by itself once it is asked to, or once its result is here."""
LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT
"""Flags that look at a process without waiting for it or reaping it."""
LOOK_S = 1.0
"""How often processes are looked at: one that dies while its own child holds the pipes open gives no other sign."""
KEPT_BYTES = 8000
"""How much of what an isolated job wrote is kept: its end, where a crash says why."""


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
    process: BaseProcess
    pipe: Connection
    deadline: float
    output: IO[bytes] | None


def run(jobs: Sequence[Job], workers: int) -> Iterator[Outcome]:
    """Run all jobs, at most `workers` at once, and yield each outcome as it comes; nothing is left running."""
    if len(jobs) == 1 and jobs[0].timeout_s is None and not jobs[0].isolated:
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
        _end(*running)


def _inline(job: Job) -> Outcome:
    try:
        return Outcome(job=job, status="complete", value=job.work(*job.arguments))
    except AsapError as error:
        return Outcome(job=job, status="failed", reason=str(error), error=error)


def _has_room(job: Job, running: Sequence[_Running]) -> bool:
    """Whether the memory that a job expects to need is there, besides what those that run will still take."""
    if not running or not job.memory_bytes:
        return True
    pending = sum(max(0.0, each.job.memory_bytes - held_bytes(each.process.pid)) for each in running)
    return job.memory_bytes + pending <= available_bytes()


def _start(job: Job) -> _Running:
    # Spawned, not forked: a job may load a compiler or a runtime that does not survive a fork.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    output = tempfile.NamedTemporaryFile(prefix="asap_ray_") if job.isolated else None  # noqa: SIM115 (closed by _end)
    process = context.Process(target=_work, args=(job, theirs, output and output.name), daemon=True)
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
    return _Running(job, process, ours, limit, output)


def _wait(running: Sequence[_Running]) -> None:
    first = min(each.deadline for each in running)
    timeout = min(LOOK_S, max(0.0, first - time.monotonic()))
    wait([handle for each in running for handle in (each.pipe, each.process.sentinel)], timeout)


def _work(job: Job, pipe: Connection, output: str | None) -> None:
    os.setsid()  # a group of its own, so that all it starts can be ended with it
    if output:
        _write_to(output)
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        message = ("complete", job.work(*job.arguments))
    except AsapError as error:
        message = ("error", error)
    except Exception as error:  # the border of the process: what went wrong is told, not lost
        message = ("failed", told(error))
    try:
        pipe.send(message)
    except Exception as error:  # pickle raises whatever the value's own methods raise
        reason = str(message[1]) if message[0] == "error" else f"its result cannot be sent back: {told(error)}"
        pipe.send(("failed", reason))


def _write_to(path: str) -> None:
    """Send what this process writes to a file, also what libraries write that know nothing of sys.stderr."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)


def told(error: Exception) -> str:
    """What went wrong, and where, in one line."""
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
        return _died(each)
    if time.monotonic() >= each.deadline:
        reason = f"not done after {each.job.timeout_s:g} s"
        return Outcome(job=each.job, status="timeout", reason=reason, output=_end(each))
    return None


def _died(each: _Running) -> Outcome:
    output = _end(each)  # its exit code is known once it is reaped
    return Outcome(job=each.job, status="failed", reason=_death(each.process), output=output)


def _read(each: _Running) -> Outcome:
    try:
        status, value = each.pipe.recv()
    except (EOFError, OSError):  # it died before or amid its message
        return _died(each)
    except Exception as error:  # unpickling raises whatever the value's own methods raise
        status, value = "failed", f"its result cannot be read: {told(error)}"
    wait([each.process.sentinel], GRACE_S)
    output = _end(each)
    if status == "complete":
        return Outcome(job=each.job, status="complete", value=value, output=output)
    error = value if isinstance(value, AsapError) else None
    return Outcome(job=each.job, status="failed", reason=str(value), error=error, output=output)


def _death(process: BaseProcess) -> str:
    code = process.exitcode
    if code is None:
        return "its process ended with no result; its status is lost"
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with status {code} and no result"


def _end(*running: _Running) -> str:
    """End processes and all they have started: asked first, then forced. Returns the end of what they wrote."""
    for each in running:
        _signal(each.process, signal.SIGTERM)
    limit = time.monotonic() + GRACE_S
    for each in running:
        wait([each.process.sentinel], max(0.0, limit - time.monotonic()))
        _signal(each.process, signal.SIGKILL)
        each.process.join()
        each.pipe.close()
    return "".join(_written(each.output) for each in running if each.output)


def _written(output: IO[bytes]) -> str:
    with output:
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - KEPT_BYTES))
        return output.read().decode(errors="replace")


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

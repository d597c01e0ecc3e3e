"""One job in one fresh process: how it starts, what it sends back, how it died, and its certain end."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing import process as processes
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any, Literal

from asap_ray.errors import AsapError
from asap_ray.tiers.protocol import Job, Outcome

GRACE_S = 2.0
"""How long a process may take to end by itself once it is asked to, or once its result is here."""
END_S = 120.0
"""How long one of a gang may take to end by itself once its result is here: the others may still be at work."""
LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT
"""Flags that look at a process without waiting for it or reaping it."""
LOOK_S = 1.0
"""How often processes are looked at: one that dies while its own child holds the pipes open gives no other sign."""
KEPT_BYTES = 8000
"""How much of what an isolated job wrote is kept: its end, where a crash says why."""


Message = tuple[Literal["complete", "error", "failed", "died"], Any]
"""How a job ended, with its value, its user's error, or its reason; `died` where it sent nothing."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """A process that was started for a job; it is there until `end`."""

    job: Job
    process: BaseProcess
    pipe: Connection
    output: IO[bytes] | None


def start(job: Job) -> Fresh:
    """Begin to run a job in a process of its own, which ends with this one."""
    # Spawned, not forked: a job may load a compiler or a runtime that does not survive a fork.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    # Without a name, so that it is gone with the last process that has it open, however that ends.
    output = tempfile.TemporaryFile() if job.isolated else None  # noqa: SIM115 (closed by end)
    place = output and f"/proc/{os.getpid()}/fd/{output.fileno()}"
    process = context.Process(target=_work, args=(job, theirs, place), daemon=True)
    # Ctrl-C is for the parent, which ends its children: one that is still starting would print a traceback of its own.
    resource_tracker.ensure_running()  # its first start would lift the mask
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    # Each start reaps what has ended of the children listed here; this one is ours to reap, once all it started is
    # ended. Nothing needs the list: `end` is for all of them, and they end by themselves when this one is gone.
    getattr(processes, "_children", set()).discard(process)
    theirs.close()
    return Fresh(job, process, ours, output)


def _work(job: Job, pipe: Connection, output: str | None) -> None:
    os.setsid()  # a group of its own, so that all it starts can be ended with it
    if output:
        _write_to(output)
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        sent = ("complete", job.work(*job.arguments))
    except AsapError as error:
        sent = ("error", error)
    except Exception as error:  # the border of the process: what went wrong is told, not lost
        sent = ("failed", told(error))
    try:
        pipe.send(sent)
    except Exception as error:  # pickle raises whatever the value's own methods raise
        reason = str(sent[1]) if sent[0] == "error" else f"its result cannot be sent back: {told(error)}"
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


def message(each: Fresh) -> Message | None:
    """What a job has sent, or that it died, while its process may still be at its end; None while it runs."""
    gone = _gone(each.process)  # before the pipe is looked at: what it sent last is there by now
    if not each.pipe.poll():
        return ("died", None) if gone else None
    try:
        return each.pipe.recv()
    except (EOFError, OSError):  # it died before or amid its message
        return "died", None
    except Exception as error:  # unpickling raises whatever the value's own methods raise
        return "failed", f"its result cannot be read: {told(error)}"


def perform(job: Job) -> Outcome:
    """Run one job to its outcome, one of a gang: it may need the others, which may not be done yet, to end well."""
    limit = math.inf if job.timeout_s is None else time.monotonic() + job.timeout_s
    process = start(job)
    try:
        while not (sent := message(process)) and time.monotonic() < limit:
            wait([process.pipe, process.process.sentinel], min(LOOK_S, max(0.0, limit - time.monotonic())))
        if sent:
            wait([process.process.sentinel], max(GRACE_S, min(END_S, limit - time.monotonic())))
    finally:
        output = end(process)[0]
    return outcome(process, sent, output) if sent else late(job, output)


def late(job: Job, output: str) -> Outcome:
    """The outcome of a job that was not done at its deadline."""
    return Outcome(job=job, status="timeout", reason=f"not done after {job.timeout_s:g} s", output=output)


def outcome(each: Fresh, message: Message, output: str) -> Outcome:
    """How a job ended, given its message and its output; its process has been ended."""
    kind, value = message
    if kind == "complete":
        return Outcome(job=each.job, status="complete", value=value, output=output)
    reason = _death(each.process) if kind == "died" else str(value)
    error = value if isinstance(value, AsapError) else None
    return Outcome(job=each.job, status="failed", reason=reason, error=error, output=output)


def _death(process: BaseProcess) -> str:
    code = process.exitcode
    if code is None:
        return "its process ended with no result; its status is lost"
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with status {code} and no result"


def let_end(*processes: Fresh) -> None:
    """Wait a little until processes have ended by themselves."""
    limit = time.monotonic() + GRACE_S
    for each in processes:
        wait([each.process.sentinel], max(0.0, limit - time.monotonic()))


def end(*processes: Fresh) -> list[str]:
    """End processes and all they have started: asked first, then forced. Returns the end of what each wrote."""
    for each in processes:
        _signal(each.process, signal.SIGTERM)
    let_end(*processes)
    for each in processes:
        _signal(each.process, signal.SIGKILL)
        each.process.join()
        each.pipe.close()
    return [_written(each.output) if each.output else "" for each in processes]


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

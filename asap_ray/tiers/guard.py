"""Starts a program and sees to it that nothing of it is left, whatever becomes of who asked for it.

Run as a program of its own with the standard library alone: `python -I -S guard.py LOG GRACE_S WORD…`. What the program
writes goes to LOG. It is ended where this standard input ends: at once where its owner just died, after GRACE_S where
the owner wrote a line first. How it ended is written to standard output, as its exit status (negative: a signal).

A trainer starts processes in sessions of their own and may leave them behind, so that a process group is not all of
it. Here every orphan becomes this process's own child (Linux: a subreaper), and all descendants are ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

ABRUPT_S = 1.0
"""What is left of a program is given so long where its owner is gone: others may be waiting for its devices."""
LOOK_S = 0.02
STUCK_S = 10.0
"""A process that SIGKILL does not end in this time waits for a driver, and is left."""
_SUBREAPER = 36


def main(log: str, grace: str, *command: str) -> None:
    """Run a command to its end, or to that of the standard input."""
    for each in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with open(log, "ab", buffering=0) as output:
        try:
            program = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=_as_usual
            )
        except OSError as error:
            output.write(f"{command[0]}: {error.strerror}\n".encode())
            _tell(127)
            return
    status, grace_s = None, ABRUPT_S
    while status is None:
        status = _reaped(program.pid)
        if status is None and select.select([0], [], [], LOOK_S)[0]:
            if os.read(0, 64):
                grace_s = float(grace)
                continue
            break
    ended = _end(grace_s, program.pid)
    _tell(status if status is not None else ended)


def _as_usual() -> None:
    os.setsid()
    for each in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)


def _tell(status: int | None) -> None:
    with contextlib.suppress(OSError):  # nobody is left to be told
        os.write(1, f"{'' if status is None else status}\n".encode())


def _reaped(pid: int) -> int | None:
    """Reap whatever has ended; the status of `pid` where that is among it."""
    found = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not ended:
            return found
        if ended == pid:
            found = os.waitstatus_to_exitcode(status)


def _end(grace_s: float, pid: int) -> int | None:
    """End all descendants: asked first, then forced. The status of `pid` where it ends here."""
    status, asked, limit = None, set[int](), time.monotonic() + grace_s
    while left := _descendants():
        late = time.monotonic() >= limit
        for each in left if late else left - asked:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL if late else signal.SIGTERM)
        asked |= left
        time.sleep(LOOK_S)
        found = _reaped(pid)
        status = found if found is not None else status
        if time.monotonic() >= limit + STUCK_S:
            break
    return status


def _descendants() -> set[int]:
    """All processes below this one."""
    children = dict[int, list[int]]()
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found, waiting = set[int](), [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting += below
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                # The name of the program, in brackets, may hold anything.
                yield int(name), int(file.read().rpartition(")")[2].split()[1])


if __name__ == "__main__":
    main(*sys.argv[1:])

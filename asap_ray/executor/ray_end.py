"""The certain end of all that runs below a host of Ray on this machine, and of its folder.

All of it inherits one variable of the environment, TMPDIR, and lives in the folder that it names. Whoever is left when
another was killed ends what has the variable, and removes the folder: the host where the command is gone, the command
where the host is.

The host does so as this module alone, run in its place: what Ray was doing in it, which might start a process or write
a file behind the sweep, is over by then.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

MARK = "TMPDIR"
"""What all that runs below a host on this machine has in its environment."""
BOOT = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv[1])
importlib.import_module(sys.argv[2]).main(json.loads(sys.argv[3]))
"""


def program(module: str, options: object) -> list[str]:
    """A command line that runs `main(options)` of a module of this package, found where this process found it."""
    path = [os.path.abspath(entry) for entry in sys.path]
    return [sys.executable, "-c", BOOT, json.dumps(path), module, json.dumps(options)]


def become_sweep(folder: Path) -> NoReturn:
    """Run `sweep` in place of all that this process does: its other threads end at once."""
    arguments = program(__name__, str(folder))
    os.execv(arguments[0], arguments)


def main(folder: str) -> None:
    """As `sweep`."""
    sweep(Path(folder))


def sweep(folder: Path) -> None:
    """End what was started below this folder's host, and remove the folder."""
    end(folder)
    shutil.rmtree(folder, ignore_errors=True)


def end(folder: Path) -> None:
    """End every process on this machine, but this one, that was started with this folder as its TMPDIR, however far
    below and in whatever session."""
    while pids := list(below(folder)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)  # until they are gone: a killed process may have started another just before


def ask(folder: Path, wait_s: float) -> None:
    """Ask the jobs that run below this folder's host to end, and give them so many seconds for it at most."""
    limit = time.monotonic() + wait_s
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

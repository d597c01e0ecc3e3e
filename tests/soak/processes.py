"""Commands under soak as processes: started, watched, and what of them is left."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.soak import command

MARK = "SOAK_OF"
"""What all that a study starts has in its environment, as far as it is a program of its own."""
HANG_S = 300.0
EXEC = "import sys; from tests.soak.command import run; sys.exit(run(sys.argv[1:]))"


@dataclass
class Running:
    """A command of a study; `log` and its `.err` have what it prints."""

    pid: int
    log: Path
    status: int | None = None
    """Its exit status, negative for a signal; None while it runs."""

    @property
    def ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status is not None

    def wait(self) -> bool:
        """Wait for its end; False where it hung, and was killed for that."""
        limit = time.monotonic() + HANG_S
        while not self.ended:
            if time.monotonic() > limit:
                self.kill()
                return False
            time.sleep(0.002)
        return True

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self.status = os.waitstatus_to_exitcode(status)

    def end_files_at(self, size: int) -> None:
        """No file of this process may grow beyond a size any more."""
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size, hard))

    @property
    def errors(self) -> str:
        return self.log.with_suffix(".err").read_text(errors="replace")


def start(words: Sequence[str], environ: Mapping[str, str], log: Path, *, forked: bool) -> Running:
    """Start a command: as a fork of this process, which has imported what it takes, or as a user does."""
    for path in (log, log.with_suffix(".err")):
        path.write_bytes(b"")  # it may be killed before it has opened them
    pid = os.fork()
    if pid:
        return Running(pid, log)
    status = 70
    try:
        os.setsid()
        for number, path in ((1, log), (2, log.with_suffix(".err"))):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.environ.clear()
        os.environ.update(environ)
        if not forked:
            os.execve(sys.executable, [sys.executable, "-c", EXEC, *words], dict(environ))
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        import tempfile

        tempfile.tempdir = None  # what this process found for itself
        status = command.run(words)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def marked(mark: str) -> Iterator[int]:
    """Processes that were started for a study, however far below."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # gone by now, or another user's
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def called(pid: int) -> str:
    """The command line of a process, or its title; empty where it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0

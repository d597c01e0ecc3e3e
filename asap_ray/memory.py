"""The memory on disk: `cases.jsonl` in one folder, one line a case, to which finished runs append.

It is derived: every case comes from the events of a run and can be added from them again. So nothing here is ever worth
a run: what cannot be read is passed over, what cannot be written is left out, and either is told in one line. Writers
take turns by a lock; a line that is torn, or is no case, is skipped by readers. Above `MOST_BYTES` the oldest half
goes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from asap_ray.cases import Case, read_case
from asap_ray.drafts import draft_of

NAME, LOCK = "cases.jsonl", "cases.lock"
MOST_BYTES = 8 * 2**20
"""Bytes that the file holds at most, some 7,000 trials, after a run has added its own."""
MOST_READ = 4 * MOST_BYTES
"""Bytes above which a file is not one of ours."""
LONGEST = 16 * 2**10
"""Bytes of a line at most."""
PATIENCE_S = 10.0
"""Seconds for which a writer waits for another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """What a memory holds, the oldest case first, each once; `complaint` says in one line what was passed over."""

    cases: tuple[Case, ...] = ()
    complaint: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Added:
    """How many cases were new; `complaint` says in one line why some or all could not be kept."""

    new: int = 0
    complaint: str = ""


def default_memory_dir() -> Path:
    """The user's own data folder: `$XDG_DATA_HOME/asap_ray/memory`, else `~/.local/share/asap_ray/memory`."""
    home = os.environ.get("XDG_DATA_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~")) / ".local" / "share"
    return base / "asap_ray" / "memory"


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory in a folder; nothing is made before the first case is added."""

    folder: Path

    @property
    def path(self) -> Path:
        """Where the cases are."""
        return self.folder / NAME

    def read(self) -> Read:
        """All cases that can be read; never raises."""
        try:
            data = self._bytes()
        except FileNotFoundError:
            return Read()
        except OSError as error:
            return Read(complaint=self._told(f"cannot be read ({error.strerror or error}) and is passed over"))
        found: dict[str, Case] = {}
        lines = [line for line in data.split(b"\n") if line.strip()]
        lost = 0
        for line in lines:
            try:
                case = _case(line)
            except ValueError:
                lost += 1
            else:
                found.setdefault(case.id, case)
        words = f"{lost:,} of {len(lines):,} lines are no cases and are passed over"
        return Read(cases=tuple(found.values()), complaint=self._told(words) if lost else "")

    def add(self, cases: Iterable[Case]) -> Added:
        """Keep the cases that are not there yet; never raises."""
        wanted = {case.id: case for case in cases}
        if not wanted:
            return Added()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder / LOCK):
                return self._add(wanted)
        except OSError as error:
            return Added(complaint=self._told(f"cannot be written ({error.strerror or error})"))

    def _add(self, wanted: dict[str, Case]) -> Added:
        before = self.read()
        known = {case.id for case in before.cases}
        fresh = [case for name, case in wanted.items() if name not in known]
        data = self._bytes() if self.path.exists() else b""
        tail = data.rpartition(b"\n")[2]
        if tail and not _is_case(tail):  # half of what a killed command was adding
            data = data[: -len(tail)]
            os.truncate(self.path, len(data))
        lines = b"".join(_line(case) for case in fresh)
        if len(data) + len(lines) > MOST_BYTES:
            self._replace(_newest([*before.cases, *fresh]))
        elif lines:
            unended = data and not data.endswith(b"\n")
            with self.path.open("ab", buffering=0) as file:
                file.write(b"\n" + lines if unended else lines)
                os.fsync(file.fileno())
        return Added(new=len(fresh), complaint=before.complaint)

    def _bytes(self) -> bytes:
        with open(self.path, "rb", opener=_without_waiting) as file:
            seen = os.fstat(file.fileno())
            if not stat.S_ISREG(seen.st_mode):
                raise OSError(None, "it is no file")
            if seen.st_size > MOST_READ:
                raise OSError(None, f"it has {seen.st_size:,} bytes, {MOST_READ:,} at most are read")
            return file.read(MOST_READ)

    def _replace(self, data: bytes) -> None:
        with draft_of(self.path) as draft:
            draft.write_bytes(data)

    def _told(self, words: str) -> str:
        return " ".join(f"agents.memory_dir={self.folder}: {NAME} {words}".split())


def _case(line: bytes) -> Case:
    if len(line) > LONGEST:
        raise ValueError("too long a line")
    try:
        return read_case(json.loads(line))
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _is_case(line: bytes) -> bool:
    try:
        _case(line)
    except ValueError:
        return False
    return True


def _line(case: Case) -> bytes:
    return json.dumps(case.as_dict(), allow_nan=False).encode() + b"\n"


def _newest(cases: list[Case]) -> bytes:
    """The lines of the newest cases, as many as fill half of what the file may hold."""
    kept, size = list[bytes](), 0
    for case in reversed(cases):
        line = _line(case)
        if size + len(line) > MOST_BYTES // 2:
            break
        kept.append(line)
        size += len(line)
    return b"".join(reversed(kept))


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe of that name must not hold up a run


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """While no other process writes.

    Raises:
        OSError: another one has not ended in time, or there is no such folder.
    """
    handle, until = os.open(path, os.O_RDWR | os.O_CREAT, 0o644), time.monotonic() + PATIENCE_S
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise OSError(None, "another command has been writing for too long") from None
                time.sleep(0.05)
            except OSError:
                break  # a network's file system that has no locks
        yield
    finally:
        os.close(handle)

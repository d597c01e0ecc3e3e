"""The one truth of a run: `events.jsonl` in its directory, one line an event, on disk before the next one starts.

Everything else a run leaves can be derived from it. A process that is killed while it writes leaves a torn last line:
readers pass over it, and the next writer cuts it off and keeps it in `events.torn`. A run has one writer at a time, who
claims the directory, and any number of readers.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from asap_ray.errors import AsapError, ConfigError, shown

NAME = "events.jsonl"
_CLAIMED: dict[tuple[int, int], int] = {}
"""Directories that this process writes to, by device and inode, with the handle whose lock says so."""


class Ledger:
    """Appends events to a run directory and reads them back."""

    def __init__(self, run_dir: Path) -> None:
        """Open the ledger of a run; nothing is written before the first event."""
        self.path = run_dir / NAME
        self._whole = False  # whether what is in the file is known to end with a whole line

    def claim(self) -> None:
        """Make this process the one writer until it is gone, however it ends.

        Raises:
            ConfigError: another command writes there now.
            OSError: the directory cannot be opened.
        """
        handle = os.open(self.path.parent, os.O_RDONLY)
        seen = os.fstat(handle)
        if (where := (seen.st_dev, seen.st_ino)) in _CLAIMED:  # by an earlier run of a sweep
            os.close(handle)
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _CLAIMED[where] = handle
        except BlockingIOError as error:
            os.close(handle)
            allowed = "a directory that no other command writes to now; wait for it, or give another"
            raise ConfigError("run_dir", self.path.parent, allowed) from error
        except OSError:
            pass  # a network's file system that has no locks on directories

    def append(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Write one event; it is on disk when this returns, and not there at all where this raises.

        Raises:
            AsapError: the disk is full or the file cannot be written.
        """
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"kind": kind, "at": at, **fields}, allow_nan=False, default=_plain).encode() + b"\n"
        try:
            if not self._whole:
                _mend(self.path)
            self._whole = False
            _write(self.path, line)
            self._whole = True
        except OSError as error:
            raise AsapError(f"run_dir={self.path.parent}: cannot write {NAME}: {error.strerror or error}") from error

    def events(self, kind: str | None = None) -> Iterator[dict[str, Any]]:
        """The events in order, all or of one kind, as far as they were whole when this started to read.

        Raises:
            ConfigError: the file cannot be read, or a line amid it is no event.
        """
        for number, line in enumerate(self._lines(), 1):
            event = self._event(number, line)
            if kind is None or event["kind"] == kind:
                yield event

    def _lines(self) -> Iterator[bytes]:
        """Whole lines, one at a time: a file of many trials is larger than what is made of it."""
        try:
            with self.path.open("rb") as file:
                left = os.fstat(file.fileno()).st_size
                while left and (line := file.readline(left)).endswith(b"\n"):
                    left -= len(line)
                    yield line
        except FileNotFoundError:
            return
        except OSError as error:
            raise self.unreadable(error.strerror or str(error)) from error

    def unreadable(self, why: str) -> ConfigError:
        """The error to raise where what the file holds cannot be used."""
        allowed = f"a directory whose {NAME} this version has written ({why}); give another, or move that file away"
        return ConfigError("run_dir", self.path.parent, allowed)

    @contextmanager
    def understood(self) -> Iterator[None]:
        """While events are made into what they tell of: lines that anything else wrote, another version too, lack it.

        Raises:
            ConfigError: an event has not the fields, or not the values, that it is written with now.
        """
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            if isinstance(error, AsapError) and not isinstance(error, ConfigError):
                raise
            raise self.unreadable(f"in an event: {type(error).__name__} {shown(error)}") from error

    def _event(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
            raise self.unreadable(f"line {number} is no event")
        return event


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else str(value)


def _write(path: Path, line: bytes) -> None:
    """Append one line and see it on disk; a line that cannot be written whole is taken back."""
    new = not path.exists()
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            if file.write(line) != len(line):
                raise OSError(None, "no space for a whole line")
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise
    if new:  # the name of a new file is on disk only when its directory is
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _mend(path: Path) -> None:
    data = path.read_bytes() if path.exists() else b""
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.with_suffix(".torn").open("ab") as kept:
            kept.write(data[whole:] + b"\n")
            kept.flush()
            os.fsync(kept.fileno())
        with path.open("r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())

"""The one truth of a run: `events.jsonl` in its directory, one line an event, on disk before the next one starts.

Everything else a run leaves can be derived from it. A process that is killed while it writes leaves a torn last line:
readers pass over it, and the next writer cuts it off and keeps it in `events.torn`. A run has one writer at a time and
any number of readers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from asap_ray.errors import AsapError

NAME = "events.jsonl"


class Ledger:
    """Appends events to a run directory and reads them back."""

    def __init__(self, run_dir: Path) -> None:
        """Open the ledger of a run; nothing is written before the first event."""
        self.path = run_dir / NAME
        self._whole = False  # whether what is in the file is known to end with a whole line

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
        """The events in order, all or of one kind, as far as they were whole when this started to read."""
        if not self.path.exists():
            return
        *lines, _torn = self.path.read_bytes().split(b"\n")
        for line in lines:
            event = json.loads(line)
            if kind is None or event["kind"] == kind:
                yield event


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

"""The one truth of a run: `events.jsonl` in its directory, one line an event, on disk before the next one starts.

Everything else a run leaves can be derived from it. A process that is killed while it writes leaves a torn last line;
it is cut off and kept in `events.torn` when the ledger is opened again, so nothing that was finished is lost.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asap_ray.errors import AsapError

NAME = "events.jsonl"


class Ledger:
    """Appends events to a run directory and reads them back."""

    def __init__(self, run_dir: Path) -> None:
        """Open (or start) the ledger of a run; mends a torn last line."""
        self.path = run_dir / NAME
        _mend(self.path)

    def append(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Write one event; it is on disk when this returns.

        Raises:
            AsapError: the disk is full or the file cannot be written.
        """
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"kind": kind, "at": at, **fields}, allow_nan=False, default=str)
        try:
            with self.path.open("ab") as file:
                file.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise AsapError(f"run_dir={self.path.parent}: cannot write {NAME}: {error.strerror}") from error

    def events(self, kind: str | None = None) -> Iterator[dict[str, Any]]:
        """The events in order, all or of one kind."""
        if not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if kind is None or event["kind"] == kind:
                yield event


def _mend(path: Path) -> None:
    data = path.read_bytes() if path.exists() else b""
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        path.with_suffix(".torn").write_bytes(data[whole:])
        with path.open("r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())

"""Files that are there whole or not at all: written beside their place, and renamed into it.

Several commands may write one file: a run, and whoever shows it meanwhile. They take turns by a lock on its draft,
which ends with the process that has it; what a killed one had written is written over by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Where to write a file to; it takes its place as the context ends, on disk, so that no reader sees half of it.

    Raises:
        OSError: it cannot be written or renamed; what was at its place is still there.
    """
    draft = path.with_name(f".{path.name}.draft")
    with _held(draft) as handle:
        try:
            yield draft
            os.fsync(handle)
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


@contextmanager
def _held(draft: Path) -> Iterator[int]:
    """An empty draft that nobody else has, and its handle."""
    while True:
        handle = os.open(draft, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            with contextlib.suppress(OSError):  # a network's file system that has no locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            if _is(draft, handle):
                os.ftruncate(handle, 0)
                yield handle
                return
        finally:
            os.close(handle)


def _is(draft: Path, handle: int) -> bool:
    """Whether a draft is still what was opened: whoever had it before may have renamed or removed that."""
    try:
        return os.path.samestat(os.stat(draft), os.fstat(handle))
    except FileNotFoundError:
        return False


def write_whole(path: Path, text: str) -> Path:
    """Write a text. Bytes of a path that are no text stand in it as escapes.

    Raises:
        OSError: as `draft_of`.
    """
    with draft_of(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
    return path

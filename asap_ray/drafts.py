"""Files that are there whole or not at all: written beside their place, and renamed into it.

A draft of a command that was killed is written over by the next one: what lies in one directory has one writer at a
time.
"""

from __future__ import annotations

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
    draft.unlink(missing_ok=True)
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> Path:
    """Write a text. Bytes of a path that are no text stand in it as escapes.

    Raises:
        OSError: as `draft_of`.
    """
    with draft_of(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
    return path

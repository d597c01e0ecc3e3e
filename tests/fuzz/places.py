"""A folder of this process in which inputs lie as files for readers that take a path."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _folder(process: int) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=f"asap-fuzz-{process}-")


def folder() -> Path:
    """The folder; it goes with the process."""
    return Path(_folder(os.getpid()).name)


def swept() -> None:
    """Take the folder away, where a process ends without its finalizers."""
    _folder(os.getpid()).cleanup()
    _folder.cache_clear()


def placed(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """A reader of bytes from a reader of a path: they are written under that name first."""

    def reads(data: bytes) -> Any:
        path = folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return read(path)

    return reads

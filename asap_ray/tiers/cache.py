"""Results of compilations by the hash of all that decides them; they survive runs, and several may share a folder."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from asap_ray.compiler.request import Build

MOST_BYTES = 2**28
"""Of a result's text: the largest programs have some tens of MB."""
DRAFT, OLD_S = ".new-", 3600.0
"""How results are named while they are written, and after how long nobody writes them any more, seconds."""
KEPT = ("complete", "infeasible")
"""What is kept: a crash may not come again, and a deadline says more of the machine than of the plan."""


def default_cache() -> Path:
    """Where results lie unless a user says otherwise: in the user's cache folder (XDG base directories)."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~/.cache"))
    return root / "asap_ray" / "compile"


@dataclass(frozen=True, slots=True)
class Cache:
    """One file for each result, in `folder`."""

    folder: Path

    def read(self, key: str) -> Build | None:
        """The result of a key; None where there is none, or none that can be read."""
        try:
            with gzip.open(self._path(key)) as file:
                text = file.read(MOST_BYTES + 1)
            return Build.from_dict(json.loads(text)) if len(text) <= MOST_BYTES else None
        except (OSError, EOFError, zlib.error, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return None

    def write(self, key: str, build: Build) -> None:
        """Keep a result, if it is one that would come again; a reader sees all of it or nothing.

        Raises:
            OSError: the folder cannot be written to, or the disk is full.
        """
        if build.status not in KEPT:
            return
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob(f"{DRAFT}*"):  # left by processes that were killed
            with contextlib.suppress(OSError):
                if time.time() - old.stat().st_mtime > OLD_S:
                    old.unlink()
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=DRAFT)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(gzip.compress(json.dumps(build.as_dict()).encode(), 6))
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json.gz"

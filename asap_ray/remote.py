"""A folder that is reached by a URI: S3, GCS, HDFS, Azure or a shared disk through pyarrow, all else through fsspec."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from asap_ray.errors import ConfigError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

SCHEME = re.compile(r"^([a-z][a-z0-9+.-]+)://")
ARROW = ("file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
"""Schemes that pyarrow reaches on its own."""
OBJECTS = ("s3", "gcs", "abfs")
"""Kinds of file systems, as pyarrow calls them, that have no folders, and on which a file appears once it is closed."""


def scheme_of(place: str | None) -> str | None:
    """The scheme of a URI; None of a path."""
    found = SCHEME.match(place or "")
    return found[1] if found else None


def local_side(uri: str) -> Path:
    """Where this machine keeps its side of a folder out there: in the user's cache folder (XDG base directories)."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~/.cache"))
    return root / "asap_ray" / "runs" / hashlib.sha256(uri.rstrip("/").encode()).hexdigest()[:16]


def check_scheme(key: str, uri: str) -> None:
    """The URI can be reached by what is installed; nothing is connected to.

    Raises:
        ConfigError: neither pyarrow nor fsspec knows its scheme.
    """
    scheme = scheme_of(uri)
    if scheme in ARROW:
        return
    allowed = f"a path, or a URI of {', '.join(f'{each}://' for each in ARROW)}, or of a file system that fsspec knows"
    import fsspec

    try:
        fsspec.get_filesystem_class(scheme)
    except (ValueError, ImportError) as error:
        raise ConfigError(key, uri, f"{allowed}: {error}") from error


@contextmanager
def _reaching() -> Iterator[None]:
    """While a client of a file system is at work: what it raises has any class, and is an OSError here."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # the border to clients that are not ours: it is told, not lost
        raise OSError(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A folder of a file system; names are relative to it and use `/`. All that fails is an OSError."""

    uri: str
    files: FileSystem
    root: str

    @classmethod
    @_reaching()
    def at(cls, uri: str) -> Remote:
        """Reach a folder; it need not exist.

        Raises:
            OSError: it cannot be reached.
        """
        from pyarrow import fs

        if scheme_of(uri) in ARROW:
            files, root = fs.FileSystem.from_uri(uri)
        else:
            import fsspec

            reached, root = fsspec.core.url_to_fs(uri)
            files = fs.PyFileSystem(fs.FSSpecHandler(reached))
        return cls(uri=uri, files=files, root=root.rstrip("/"))

    @_reaching()
    def names(self, folder: str = "") -> list[str]:
        """The files below a folder, sorted."""
        from pyarrow import fs

        base = "/".join(part for part in (self.root, folder.rstrip("/")) if part)
        found = self.files.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
        paths = [each.path for each in found if each.type == fs.FileType.File]
        root = self.root.lstrip("/")
        return sorted(path.lstrip("/").removeprefix(root).lstrip("/") for path in paths)

    @_reaching()
    def read(self, name: str) -> bytes | None:
        """A file; None where it is not there."""
        try:
            with self.files.open_input_stream(f"{self.root}/{name}") as file:
                return file.read()
        except FileNotFoundError:
            return None

    @_reaching()
    def write(self, name: str, data: bytes) -> None:
        """A whole file or none: where a file would be seen half written it is renamed into its place."""
        path = f"{self.root}/{name}"
        if self.files.type_name in OBJECTS:
            self._write(path, data)
            return
        folder, file = os.path.split(path)
        self.files.create_dir(folder, recursive=True)
        draft = f"{folder}/.{file}.{uuid.uuid4().hex[:8]}"
        self._write(draft, data)
        self.files.move(draft, path)

    def _write(self, path: str, data: bytes) -> None:
        with self.files.open_output_stream(path) as file:
            file.write(data)

    @_reaching()
    def delete(self, name: str) -> None:
        """Remove a file, where it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.files.delete_file(f"{self.root}/{name}")

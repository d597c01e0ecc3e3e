"""A run directory on another file system: what a command writes lies on this machine, and a mirror of it out there.

`run_dir=s3://bucket/run` works in a folder of this machine's cache. When it begins, what lies out there is fetched;
while it goes on, every ledger that grows is followed, and its new lines are put out there as a segment of their own
(`fetching`), whole or not at all, within `FLUSH_S` and the time of one upload; what agents have learnt follows every
`lease.RENEW_S`, and when the command ends all other files. A machine that dies takes with it the events of that moment
alone, and the same command on another machine goes on from there.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from asap_ray.config import Config
from asap_ray.errors import AsapError, ConfigError
from asap_ray.ledger import NAME
from asap_ray.memory import NAME as CASES
from asap_ray.remote import Remote
from asap_ray.tasks.fetching import FOLDER, Fetched, fetch, segment, segments_in
from asap_ray.tasks.lease import RENEW_S, Lock

FLUSH_S = 0.2
"""Seconds between two looks at what was written."""
SMALL_BYTES, MOST_SMALL = 2**20, 256
"""Segments smaller than this are put together into one, where there are so many, and when a command ends."""
READERS = ("show", "export", "remember")
"""Tasks that only read what a run has left there."""
NEITHER = ("doctor",)
"""Tasks that need nothing of what lies there."""


@contextmanager
def mirrored(config: Config) -> Iterator[None]:
    """While a task runs: its run directory is like the one out there, and kept so. Nothing is done where it is a path.

    Raises:
        ConfigError: the folder cannot be reached or written to, or another command writes there now.
        AsapError: what was found could not be put there; it lies on this machine.
    """
    if config.remote_dir is None or config.task in NEITHER:
        yield
        return
    remote, local = _reached(config.remote_dir), config.run_path
    lock = Lock(remote=remote)
    if config.task in READERS:
        with _told(remote, "read"):
            if not lock.is_held_here():  # else this folder is ahead of the one out there
                fetch(remote, local)
        yield
        return
    with _told(remote, "written to"):
        lock.take()
        mirror = Mirror(remote=remote, local=local, lock=lock, there=fetch(remote, local))
    mirror.start()
    try:
        yield
    except BaseException:
        if why := mirror.end():
            print(f"asap-ray: {why}", file=sys.stderr)
        raise
    if why := mirror.end():
        raise AsapError(why)


def _reached(uri: str) -> Remote:
    try:
        return Remote.at(uri)
    except OSError as error:
        raise ConfigError("run_dir", uri, f"a folder that can be reached ({_line(error)})") from error


@contextmanager
def _told(remote: Remote, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError("run_dir", remote.uri, f"a folder that can be {what} ({_line(error)})") from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


@dataclass(kw_only=True)
class Mirror:
    """Puts out what is written below a folder: ledgers as they grow, all else at the end. `there` is what lies out
    there as it lies here."""

    remote: Remote
    local: Path
    lock: Lock
    there: Fetched
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to follow the ledgers."""
        self._thread = threading.Thread(target=self._follow, name="mirror", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Put out the whole lines that are new.

        Raises:
            OSError: the folder out there cannot be written to.
        """
        for path in sorted(self.local.rglob(NAME)):
            name = path.relative_to(self.local).as_posix()
            bounds = self.there.bounds.setdefault(name, [0])
            data = _bytes(path, bounds[-1])
            if data := data[: data.rfind(b"\n") + 1]:
                self.remote.write(segment(name, bounds[-1]), data)
                bounds.append(bounds[-1] + len(data))
            if len(_small(bounds)) > MOST_SMALL:
                self._merge(name)

    def end(self) -> str:
        """Put out the last lines and all other files, and let the next command write; returns what went wrong, or
        ""."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        try:
            if self.lock.lost():
                raise OSError("another command has taken the folder over")
            self.flush()
            for name in self.there.bounds:
                self._merge(name)
            self._put_files()
            self.lock.give()
        except OSError as error:
            return f"run_dir={self.remote.uri}: not all could be put there ({_line(error)}); it lies in {self.local}"
        return ""

    def _merge(self, ledger: str) -> None:
        """Put the last segments of a ledger together: whoever reads meanwhile passes over those that are in it."""
        bounds = self.there.bounds[ledger]
        if len(small := _small(bounds)) < 2:
            return
        first, end = small[0], bounds[-1]
        self.remote.write(segment(ledger, first), _bytes(self.local / ledger, first)[: end - first])
        bounds[bounds.index(first) + 1 :] = [end]
        for each in segments_in(self.remote.names(f"{ledger.removesuffix(NAME)}{FOLDER}")).get(ledger, ()):
            if first < each < end:
                self.remote.delete(segment(ledger, each))

    def _put_files(self, only: Collection[str] = ()) -> None:
        """Put out files that were changed since they last were, all or those of some names."""
        for path in sorted(self.local.rglob("*")):
            name = path.relative_to(self.local)
            if path.name == NAME or any(part.startswith(".") for part in name.parts) or not path.is_file():
                continue
            changed = path.stat().st_mtime_ns
            if (not only or path.name in only) and self.there.changed.get(name.as_posix()) != changed:
                self.remote.write(name.as_posix(), path.read_bytes())
                self.there.changed[name.as_posix()] = changed

    def _follow(self) -> None:
        learnt = self.lock.now()
        while not self._over.wait(FLUSH_S):
            with contextlib.suppress(OSError):  # tried again at the next look, and told at the end
                if not self.lock.keep():
                    return
                self.flush()
                if abs(self.lock.now() - learnt) > RENEW_S:
                    self._put_files(only=(CASES,))
                    learnt = self.lock.now()


def _bytes(path: Path, first: int) -> bytes:
    """A file from a byte on."""
    if path.stat().st_size <= first:
        return b""
    with path.open("rb") as file:
        file.seek(first)
        return file.read()


def _small(bounds: list[int]) -> list[int]:
    """The bytes at which the last segments begin, as far back as they are small."""
    count = 0
    while count < len(bounds) - 1 and bounds[-1 - count] - bounds[-2 - count] < SMALL_BYTES:
        count += 1
    return bounds[-1 - count : -1]

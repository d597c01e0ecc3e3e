"""A run directory on another file system: what a command writes lies on this machine, and a mirror of it out there.

`run_dir=s3://bucket/run` works in a folder of this machine's cache. When it begins, what lies out there is fetched;
while it goes on, every ledger that grows is followed, and its new lines are put out there as a file of their own
(`events/<first byte>.jsonl`), whole or not at all, within `FLUSH_S` and the time of one upload; when it ends, so are
all other files. A machine that dies takes with it the events of that moment alone, and the same command on another
machine goes on from there.

`lock.json` keeps two commands from one folder: it says who writes there, and is renewed while they do. Object stores
have no locks: of two that start in the same `SETTLE_S` the one that wrote last has it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from asap_ray.config import Config
from asap_ray.drafts import draft_of
from asap_ray.errors import AsapError, ConfigError
from asap_ray.ledger import NAME
from asap_ray.remote import Remote

SEGMENTS, LOCK = "events", "lock.json"
FLUSH_S = 0.2
"""Seconds between two looks at what was written."""
RENEW_S, LEASE_S = 20.0, 120.0
"""Seconds after which a lock is renewed, and after which one that is not is nobody's."""
SETTLE_S = 0.5
READERS = ("show", "export", "remember")
"""Tasks that only read what a run has left there."""


@contextmanager
def mirrored(config: Config) -> Iterator[None]:
    """While a task runs: its run directory is like the one out there, and kept so. Nothing is done where it is a path.

    Raises:
        ConfigError: the folder cannot be reached or written to, or another command writes there now.
        AsapError: what was found could not be put there; it lies on this machine.
    """
    if config.remote_dir is None:
        yield
        return
    remote, local = _reached(config.remote_dir), config.run_path
    if config.task in READERS:
        with _told(remote):
            fetch(remote, local)
        yield
        return
    lock = Lock(remote=remote)
    with _told(remote):
        lock.take()
        mirror = Mirror(remote=remote, local=local, lock=lock, sent=fetch(remote, local))
    mirror.start()
    try:
        yield
    except BaseException:
        if why := mirror.end():
            print(f"asap-ray: {why}", file=sys.stderr)
        raise
    if why := mirror.end():
        raise AsapError(why)


def fetch(remote: Remote, local: Path) -> dict[str, int]:
    """Make a local folder like the one out there; events that lie here alone, since a machine died, stay.

    Returns how many bytes of each ledger lie out there.
    """
    local.mkdir(parents=True, exist_ok=True)
    ledgers: dict[str, bytes] = {}
    for name in remote.names():
        folder, _, file = name.rpartition("/")
        owner, _, last = folder.rpartition("/")
        if last == SEGMENTS and file.endswith(".jsonl"):
            ledger = f"{owner}/{NAME}".lstrip("/")
            before = ledgers.setdefault(ledger, b"")
            if int(file.removesuffix(".jsonl")) == len(before):  # what follows a gap has lost its place
                ledgers[ledger] = before + (remote.read(name) or b"")
        elif name != LOCK:
            _place(local / name, remote.read(name) or b"")
    for name, data in ledgers.items():
        path = local / name
        here = path.read_bytes() if path.exists() else b""
        if here.startswith(data):
            continue
        if here and not data.startswith(here):  # another machine has gone on from before these
            path.rename(path.with_suffix(f".aside-{uuid.uuid4().hex[:8]}"))
        _place(path, data)
    return {name: len(data) for name, data in ledgers.items()}


def _place(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with draft_of(path) as draft:
        draft.write_bytes(data)


def _reached(uri: str) -> Remote:
    try:
        return Remote.at(uri)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError("run_dir", uri, f"a folder that can be reached ({_line(error)})") from error


@contextmanager
def _told(remote: Remote) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError("run_dir", remote.uri, f"a folder that can be written to ({_line(error)})") from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


@dataclass(kw_only=True)
class Lock:
    """Who writes to a folder out there; `now` is this machine's clock, which others' may be off from by the lease."""

    remote: Remote
    now: Callable[[], float] = time.time
    settle_s: float = SETTLE_S
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def take(self) -> None:
        """Become the one writer.

        Raises:
            ConfigError: another command writes there now.
            OSError: nothing can be written there.
        """
        self._check(self._held())
        self.renew()
        time.sleep(self.settle_s)
        self._check(self._held())

    def renew(self) -> None:
        """Say that this command still writes."""
        told = {"token": self.token, "host": socket.gethostname(), "pid": os.getpid(), "at": self.now()}
        self.remote.write(LOCK, json.dumps(told).encode())

    def lost(self) -> bool:
        """Whether another command has taken it since."""
        held = self._held()
        return held is not None and held["token"] != self.token

    def give(self) -> None:
        """Let the next command write."""
        if not self.lost():
            self.remote.delete(LOCK)

    def _held(self) -> dict[str, object] | None:
        try:
            told = json.loads(self.remote.read(LOCK) or b"null")
            return told if isinstance(told, dict) and {"token", "host", "pid", "at"} <= told.keys() else None
        except ValueError:
            return None

    def _check(self, held: dict[str, object] | None) -> None:
        if held is None or held["token"] == self.token or not self._alive(held):
            return
        who = f"process {held['pid']} on {held['host']} does, or died less than {LEASE_S:.0f} s ago"
        raise ConfigError("run_dir", self.remote.uri, f"a folder that no other command writes to now ({who})")

    def _alive(self, held: dict[str, object]) -> bool:
        pid, at = held["pid"], held["at"]
        if held["host"] == socket.gethostname() and isinstance(pid, int) and pid != os.getpid():
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return False
            except OSError:
                pass
        return isinstance(at, int | float) and abs(self.now() - at) < LEASE_S


@dataclass(kw_only=True)
class Mirror:
    """Puts out what is written below a folder: ledgers as they grow, all else at the end. `sent` is how many bytes of
    each ledger lie out there."""

    remote: Remote
    local: Path
    lock: Lock
    sent: dict[str, int]
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
            first = self.sent.get(name, 0)
            if path.stat().st_size <= first:
                continue
            with path.open("rb") as file:
                file.seek(first)
                data = file.read()
            if data := data[: data.rfind(b"\n") + 1]:
                self.remote.write(f"{name.removesuffix(NAME)}{SEGMENTS}/{first:015d}.jsonl", data)
                self.sent[name] = first + len(data)

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
            self._put_files()
            self.lock.give()
        except OSError as error:
            return f"run_dir={self.remote.uri}: not all could be put there ({_line(error)}); it lies in {self.local}"
        return ""

    def _put_files(self) -> None:
        for path in sorted(self.local.rglob("*")):
            name = path.relative_to(self.local)
            if path.is_file() and path.name != NAME and not any(part.startswith(".") for part in name.parts):
                self.remote.write(name.as_posix(), path.read_bytes())

    def _follow(self) -> None:
        renewed = time.monotonic()
        while not self._over.wait(FLUSH_S):
            with contextlib.suppress(OSError):  # tried again at the next look, and told at the end
                if time.monotonic() - renewed > RENEW_S:
                    if self.lock.lost():
                        return
                    self.lock.renew()
                    renewed = time.monotonic()
                self.flush()

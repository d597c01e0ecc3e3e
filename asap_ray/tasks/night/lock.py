"""The lock of a night: a file that its owner keeps fresh, so that two nights never overlap in one run directory.

The claim on the directory (`Ledger.claim`) sees to it on one machine; this one also does so between machines, on file
systems that have no locks. An owner that is gone is known by its process where that was here, else by a file that
nobody has kept fresh.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asap_ray.errors import ConfigError

NAME = "night.lock"
BEAT_S = 20.0
LONGEST = 4096
"""Bytes of the file that are read; an owner writes a hundred."""
STALE_S = 180.0
"""A file so old is nobody's: its owner has missed nine beats."""
_HELD = set[str]()
"""Tokens of the locks that this process holds."""


@contextmanager
def night_lock(root: Path, beat_s: float = BEAT_S) -> Iterator[None]:
    """Hold the lock of a directory.

    Raises:
        ConfigError: another night goes on there.
        OSError: the file cannot be written.
    """
    path = root / NAME
    mine: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "token": secrets.token_hex(8)}
    if not _made(path, mine):
        _take_over(root, path, mine)
    _HELD.add(mine["token"])
    stop = threading.Event()
    thread = threading.Thread(target=_beat, args=(path, stop, beat_s), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        _HELD.discard(mine["token"])
        if _owner(_text(path) or b"") == mine:
            path.unlink(missing_ok=True)


def _take_over(root: Path, path: Path, mine: Mapping[str, Any]) -> None:
    """Become the owner after one that is gone.

    Several may see that at once. One alone can make the file that is named after the old owner, and that file becomes
    the lock: whoever makes it once more sees that there is another owner by then.
    """
    before = _text(path)
    if before is None:
        raise _taken(root, "another has just ended")
    owner = _owner(before)
    if not _gone(root, path, owner):
        raise _taken(root, f"process {owner.get('pid', '?')} on {owner.get('host', '?')} holds {NAME}")
    heir = _heir(path, before)
    if heir.exists() and _age_s(root, heir) > STALE_S:  # who made it died before the next lines
        heir.unlink(missing_ok=True)
    if not _made(heir, mine):
        raise _taken(root, f"another has just taken {NAME}")
    if _text(path) != before:
        heir.unlink(missing_ok=True)
        raise _taken(root, f"another has just taken {NAME}")
    os.replace(heir, path)


def _heir(path: Path, before: bytes) -> Path:
    return path.with_name(f".{NAME}.{hashlib.sha256(before).hexdigest()[:16]}")


def _taken(root: Path, who: str) -> ConfigError:
    return ConfigError("run_dir", root, f"a directory in which no night goes on: {who}")


def _made(path: Path, mine: Mapping[str, Any]) -> bool:
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        json.dump(mine, file)
        file.flush()
        os.fsync(file.fileno())
    return True


def _text(path: Path) -> bytes | None:
    """What a lock says; None where there is none."""
    try:
        with path.open("rb") as file:
            return file.read(LONGEST)
    except OSError:
        return None


def _owner(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _gone(root: Path, path: Path, owner: Mapping[str, Any]) -> bool:
    if owner.get("host") == socket.gethostname() and type(owner.get("pid")) is int:
        if owner["pid"] == os.getpid():  # a container that was started again has the name and the number of before
            return owner.get("token") not in _HELD
        try:
            os.kill(owner["pid"], 0)
        except (ProcessLookupError, OverflowError):  # no process has such a number
            return True
        except PermissionError:
            pass
    return _age_s(root, path) > STALE_S


def _age_s(root: Path, path: Path) -> float:
    """By the clock of the file system, which may not be this machine's."""
    probe = root / f".{NAME}.{secrets.token_hex(4)}"
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
    finally:
        probe.unlink(missing_ok=True)


def _beat(path: Path, stop: threading.Event, beat_s: float) -> None:
    while not stop.wait(beat_s):
        with contextlib.suppress(OSError):
            os.utime(path)

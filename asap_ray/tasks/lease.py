"""Who may write to a folder on another file system: a file there says who does, and is renewed while they do.

Object stores have no locks: of two commands that start in the same `SETTLE_S` the one that wrote last has it.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from asap_ray.errors import ConfigError, shown
from asap_ray.remote import Remote

NAME = "lock.json"
RENEW_S, LEASE_S = 20.0, 120.0
"""Seconds after which a lock is renewed, and after which one that is not is nobody's."""
SETTLE_S = 0.5


@dataclass(kw_only=True)
class Lock:
    """The lock of a folder out there; `now` is this machine's clock, which others' may be off from by the lease."""

    remote: Remote
    now: Callable[[], float] = time.time
    settle_s: float = SETTLE_S
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    _renewed: float = 0.0

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
        """Say that this command still writes.

        Raises:
            OSError: nothing can be written there.
        """
        at = self.now()
        told = {"token": self.token, "host": socket.gethostname(), "pid": os.getpid(), "at": at}
        self.remote.write(NAME, json.dumps(told).encode())
        self._renewed = at

    def keep(self) -> bool:
        """Renew the lock where it is time to; returns whether it is still this command's.

        By the wall clock: a machine that slept must look who writes there now before it writes on.

        Raises:
            OSError: the folder cannot be reached.
        """
        if abs(self.now() - self._renewed) > RENEW_S:
            if self.lost():
                return False
            self.renew()
        return True

    def lost(self) -> bool:
        """Whether another command has taken it since.

        Raises:
            OSError: the folder cannot be reached.
        """
        held = self._held()
        return held is not None and held["token"] != self.token

    def give(self) -> None:
        """Let the next command write.

        Raises:
            OSError: the folder cannot be reached.
        """
        if not self.lost():
            self.remote.delete(NAME)

    def is_held_here(self) -> bool:
        """Whether another process of this machine writes there now.

        Raises:
            OSError: the folder cannot be reached.
        """
        held = self._held()
        return held is not None and _is_here(held) and held["pid"] != os.getpid() and self._alive(held)

    def _held(self) -> dict[str, Any] | None:
        try:
            told = json.loads(self.remote.read(NAME) or b"null")
        except (ValueError, RecursionError):
            return None
        return told if isinstance(told, dict) and {"token", "host", "pid", "at"} <= told.keys() else None

    def _check(self, held: Mapping[str, Any] | None) -> None:
        if held is None or held["token"] == self.token or not self._alive(held):
            return
        who = f"process {shown(held['pid'])} on {shown(held['host'])} does, or died less than {LEASE_S:.0f} s ago"
        raise ConfigError("run_dir", self.remote.uri, f"a folder that no other command writes to now ({who})")

    def _alive(self, held: Mapping[str, Any]) -> bool:
        pid, at = held["pid"], held["at"]
        if _is_here(held) and isinstance(pid, int) and pid != os.getpid():
            try:
                os.kill(pid, 0)
            except (ProcessLookupError, OverflowError):  # no process has such a number
                return False
            except OSError:
                pass
        return isinstance(at, int | float) and abs(self.now() - at) < LEASE_S


def _is_here(held: Mapping[str, Any]) -> bool:
    return held["host"] == socket.gethostname()

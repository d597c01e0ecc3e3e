"""The line between the process that holds Ray and the command, as those who run jobs in Ray see it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from asap_ray.tiers.protocol import Gang

FIGURES = "figures"
"""What a message begins with that is no job: what the study stands at follows."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A job on its way: its number on the line, the pickled `Job`, and what must be known of it before it is read.

    `needs` is what it asks of Ray, on each host where it has a gang; `reserve_s` is how long the hosts of a gang may
    take to be free.
    """

    number: int
    needs: Mapping[str, float]
    job: bytes
    gang: Gang | None = None
    timeout_s: float | None = None
    reserve_s: float = 0.0


@dataclass(slots=True)
class Line:
    """What a runner sees of the command: jobs come in, and each is answered once."""

    _connection: Connection
    path: list[str] | None
    """Where the command imports from; None where workers may be on other machines."""
    retries: int = 1
    """How often a job is started again of which a worker or a node is lost."""
    shown: Callable[[Any], None] = lambda figures: None
    """What takes the figures of the study."""
    _jobs: queue.Queue[Sent] = field(default_factory=queue.Queue)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: dict[int, Sent] = field(default_factory=dict)

    def next(self, wait_s: float | None = None) -> Sent | None:
        """The next job; None where there is none within `wait_s` seconds, without end where that is None."""
        try:
            return self._jobs.get(timeout=wait_s) if wait_s is None or wait_s > 0 else self._jobs.get_nowait()
        except queue.Empty:
            return None

    def put(self, sent: Sent) -> None:
        """Give a job to who asks for the next."""
        self._jobs.put(sent)

    def receive(self) -> Sent:
        """The next job that the command sends; figures that come before it are shown.

        Raises:
            EOFError, OSError: the line is closed.
        """
        while (content := self._connection.recv())[0] == FIGURES:
            self.shown(content[1])
        sent = Sent(*content)
        self._open[sent.number] = sent
        return sent

    def answer(self, number: int, answer: bytes | str, *, lost: bool = False) -> None:
        """Say how a job ended: its pickled outcome, or in words why there is none, and whether that is no fault of the
        job's. What comes later is not said."""
        if self._open.pop(number, None) is not None:
            self.tell("ended", number, answer, lost)

    @property
    def lost(self) -> str:
        """That something was lost each time, in words."""
        times = self.retries + 1
        return {1: "lost", 2: "lost twice"}.get(times, f"lost {times} times")

    def open(self) -> list[Sent]:
        """The jobs without an answer."""
        return list(self._open.values())

    def tell(self, kind: str, *content: Any) -> None:
        """Send a message; one that comes too late is lost, as is who would have read it."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.send((kind, *content))


def options(needs: Mapping[str, float]) -> dict[str, Any]:
    """What a Ray task is to be given, as Ray's own names of it."""
    left = dict(needs)
    asked = {"num_cpus": left.pop("CPU", 0), "memory": left.pop("memory", None), "resources": left}
    if "GPU" in left:
        asked["num_gpus"] = left.pop("GPU")
    return asked

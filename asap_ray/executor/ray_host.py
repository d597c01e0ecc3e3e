"""The process that holds Ray: it starts or joins it, passes jobs on to a runner, and ends all when it is to end.

A runner is a module with `serve(line, folder)`, which takes jobs from the line and answers each, for ever.

It ends when the line to the command is closed, when the command is gone, and when a Ray of its own loses a part. There
is one way out for all of them, and it does not depend on Ray: a runner may be stuck in it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray.job_config import JobConfig

from asap_ray.executor.fresh import GRACE_S, told
from asap_ray.executor.ray_end import ask, become_sweep, end

STORE_BYTES = 100_000_000
"""Size of the object store, which only results go through; larger ones go to the disk. Ray takes 79 MB at least."""
QUIET: Mapping[str, Any] = {"log_to_driver": False, "logging_level": "error"}
JOIN_S = 120.0
"""How long it may take to join a cluster, on a machine that is busy."""
LOOK_S = 2.0
"""How often the nodes of a cluster are looked at."""
LEAVE_S = 5.0
"""How long it may take to leave a cluster."""
PARTS = ("raylet", "gcs_server")
"""Programs without which a Ray is lost; the others it starts anew, or does without."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A job on its way: its number on the line, what it asks of Ray, and the pickled `Job`."""

    number: int
    needs: Mapping[str, float]
    job: bytes


@dataclass(slots=True)
class Line:
    """What a runner sees of the command: jobs come in, and each is answered once."""

    _connection: Connection
    path: list[str] | None
    """Where the command imports from; None where workers may be on other machines."""
    _jobs: queue.Queue[Sent] = field(default_factory=queue.Queue)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: dict[int, Mapping[str, float]] = field(default_factory=dict)

    def next(self, wait_s: float | None = None) -> Sent | None:
        """The next job; None where there is none within `wait_s` seconds, without end where that is None."""
        try:
            return self._jobs.get(timeout=wait_s) if wait_s is None or wait_s > 0 else self._jobs.get_nowait()
        except queue.Empty:
            return None

    def answer(self, number: int, answer: bytes | str) -> None:
        """Say how a job ended: its pickled outcome, or in words why there is none. What comes later is not said."""
        if self._open.pop(number, None) is not None:
            self.tell("ended", number, answer)

    def open(self) -> list[tuple[int, Mapping[str, float]]]:
        """The jobs without an answer, by number, with what each asks of Ray."""
        return list(self._open.items())

    def tell(self, kind: str, *content: Any) -> None:
        """Send a message; one that comes too late is lost, as is who would have read it."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.send((kind, *content))

    def listen(self) -> None:
        """Take in jobs until the line is closed."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                sent = Sent(*self._connection.recv())
                self._open[sent.number] = sent.needs
                self._jobs.put(sent)


@dataclass(slots=True)
class _Host:
    """What is to end: the first who says so does it."""

    line: Line
    folder: Path
    own: bool
    _leaving: threading.Lock = field(default_factory=threading.Lock)

    def leave(self, kind: str = "", reason: str = "") -> NoReturn:
        """End this process and, on this machine, all that it has started: jobs are asked first, as elsewhere.

        Another thread may be starting Ray at this time, so this one puts the sweep in the place of all.

        Args:
            kind: lost or unreachable, where the command is to be told.
            reason: why, in one line.
        """
        if not self._leaving.acquire(blocking=False):
            threading.Event().wait()  # another thread is at it, and ends this process
        try:
            if kind:
                self.line.tell(kind, " ".join(reason.split())[:500])
            if self.own:
                ask(self.folder, GRACE_S)
            else:
                leaving = threading.Thread(target=ray.shutdown, daemon=True)  # the cluster ends what runs for us
                leaving.start()
                leaving.join(LEAVE_S)
            become_sweep(self.folder)
        finally:
            os._exit(1)  # not reached, unless something failed: the command, if there is one, sweeps too

    def leave_when(self, handles: list[int], kind: str = "", reason: str = "") -> None:
        """End as soon as one of these processes has ended."""
        threading.Thread(target=lambda: (wait(handles), self.leave(kind, reason)), daemon=True).start()


def main(options: dict[str, Any]) -> NoReturn:
    """Run until the end; `ray_start.started` has the options."""
    os.set_inheritable(options["line"], False)
    own = options["address"] is None
    line = Line(Connection(options["line"]), list(sys.path) if own else None)
    host = _Host(line, Path(options["folder"]), own)
    command = _handle(options["parent"])
    if command is None or os.getppid() != options["parent"]:
        host.leave()
    host.leave_when([command])
    silent = f"what answers there let this machine in to no Ray cluster within {JOIN_S:g} s"
    patience = threading.Timer(JOIN_S, host.leave, ("unreachable", silent))  # Ray would ask for ever
    patience.daemon = True
    if not own:
        patience.start()
    try:
        _connect(options)
    except Exception as error:  # whatever Ray raises: it is told, not lost
        host.leave("unreachable", str(error))
    patience.cancel()
    if own:
        parts = [handle for pid in _parts() if (handle := _handle(pid)) is not None]
        host.leave_when(parts, "lost", "its raylet or its gcs has ended")
    threading.Thread(target=lambda: (line.listen(), host.leave()), daemon=True).start()
    line.tell("ready", _nodes())
    if not own:
        threading.Thread(target=_answer_what_no_node_holds, args=(line,), daemon=True).start()
    try:
        importlib.import_module(options["runner"]).serve(line, host.folder)
    except Exception as error:  # of Ray, or ours: nobody else could tell it
        host.leave("lost", told(error))
    host.leave("lost", "it takes no more jobs")


def _nodes() -> list[Mapping[str, float]]:
    """What each node has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _answer_what_no_node_holds(line: Line) -> NoReturn:
    """Let jobs fail that only nodes could run which the cluster has lost: Ray would wait for such a node for ever."""
    before = set[int]()
    while True:
        time.sleep(LOOK_S)
        nodes = _nodes()
        lost = {
            number: needs
            for number, needs in line.open()
            if not any(all(node.get(name, 0.0) >= amount for name, amount in needs.items()) for node in nodes)
        }
        for number in lost.keys() & before:  # twice in a row: a node may only be slow to answer
            asked = ", ".join(f"{name}={amount:g}" for name, amount in lost[number].items())
            line.answer(number, f"its node was lost, and none that is left of the Ray cluster can hold it: {asked}")
        before = set(lost)


def _connect(options: Mapping[str, Any]) -> None:
    if options["address"]:
        ray.init(address=options["address"], **QUIET)
        return
    try:
        _begin(options)
    except Exception:  # Ray gives its raylet half a minute, which a machine that is busy on all cores may not do in
        end(Path(options["folder"]))
        _begin(options)


def _begin(options: Mapping[str, Any]) -> None:
    ray.init(
        address="local",
        num_cpus=options["cores"],
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        _memory=options["memory_bytes"],
        _temp_dir=options["folder"],
        # A worker puts each before the others.
        job_config=JobConfig(_py_driver_sys_path=sys.path[::-1]),
        **QUIET,
    )


def _handle(pid: int) -> int | None:
    """A file that becomes readable when a process ends; None where it is gone."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _parts() -> list[int]:
    """Processes of a Ray of our own that must live: they are children of this one."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError):
            if entry.name.isdigit():
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                if name in PARTS and int(rest.split()[1]) == os.getpid():
                    found.append(int(entry.name))
    return found

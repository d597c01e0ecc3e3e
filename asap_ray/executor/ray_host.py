"""The process that holds Ray: it starts or joins it, passes jobs on to a runner, and ends all when it is to end.

A runner is a module with `serve(line, folder)`, which takes jobs from the line and answers each, for ever.

It ends when the line to the command is closed, when the command is gone, and when a Ray of its own loses a part. There
is one way out for all of them, and it does not depend on Ray: a runner may be stuck in it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
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

from asap_ray.executor import ray_gangs, ray_slices
from asap_ray.executor.fresh import GRACE_S, told
from asap_ray.executor.ray_end import ask, become_sweep, end
from asap_ray.executor.ray_line import Line
from asap_ray.executor.ray_start import SEAT
from asap_ray.executor.room import missing, missing_for

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
    line = Line(Connection(options["line"]), list(sys.path) if own else None, options["retries"])
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
        url = _connect(options)
    except Exception as error:  # whatever Ray raises: it is told, not lost
        host.leave("unreachable", str(error))
    patience.cancel()
    if own:
        parts = [handle for pid in _parts() if (handle := _handle(pid)) is not None]
        host.leave_when(parts, "lost", "its raylet or its gcs has ended")
    if options["dashboard"]:
        from asap_ray.executor.ray_metrics import Metrics

        line.shown = Metrics().show
    threading.Thread(target=lambda: (_listen(line), host.leave()), daemon=True).start()
    try:
        runner = importlib.import_module(options["runner"])  # before it is ready: to import Tune takes a second
        line.tell("ready", ray_slices.nodes(), _places(url) if options["dashboard"] else {})
        if not own:
            threading.Thread(target=_answer_what_cannot_be_held, args=(line,), daemon=True).start()
        runner.serve(line, host.folder)
    except Exception as error:  # of Ray, or ours: nobody else could tell it
        host.leave("lost", told(error))
    host.leave("lost", "it takes no more jobs")


def _listen(line: Line) -> None:
    """Take in jobs until the line is closed: a gang is seen to here, any other job is the runner's."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            sent = line.receive()
            if sent.gang is None:
                line.put(sent)
            else:
                threading.Thread(target=ray_gangs.run, args=(line, sent), daemon=True).start()


def _answer_what_cannot_be_held(line: Line) -> NoReturn:
    """Let jobs fail that only nodes could run which the cluster has lost: Ray would wait for such nodes for ever."""
    before = set[int]()
    while True:
        time.sleep(LOOK_S)
        nodes, lost = ray_slices.nodes(), dict[int, str]()
        for sent in line.open():
            needs = sent.needs
            if reason := missing_for(sent.gang, needs, nodes) if sent.gang else missing(needs, nodes):
                lost[sent.number] = reason
        for number in lost.keys() & before:  # twice in a row: a node may only be slow to answer
            line.answer(number, f"its node was lost: {lost[number]}", lost=True)
        before = set(lost)


def _connect(options: Mapping[str, Any]) -> str | None:
    """Join or start Ray; returns where its dashboard is, None where it has none."""
    if options["address"]:
        return ray.init(address=options["address"], **QUIET).dashboard_url
    try:
        return _begin(options)
    except Exception:  # Ray gives its raylet half a minute, which a machine that is busy on all cores may not do in
        end(Path(options["folder"]))
        return _begin(options)


def _begin(options: Mapping[str, Any]) -> str | None:
    started = ray.init(
        address="local",
        num_cpus=options["cores"],
        resources={SEAT: 1000},
        include_dashboard=options["dashboard"],
        dashboard_host="127.0.0.1",
        object_store_memory=STORE_BYTES,
        _memory=options["memory_bytes"],
        _temp_dir=options["folder"],
        # A worker puts each before the others.
        job_config=JobConfig(_py_driver_sys_path=sys.path[::-1]),
        **QUIET,
    )
    return started.dashboard_url


def _places(url: str | None) -> dict[str, str]:
    """Where the dashboard is, and where the metrics of this node can be read."""
    here = ray.get_runtime_context().get_node_id()
    node = next(each for each in ray.nodes() if each["NodeID"] == here)
    found = {"metrics": f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"}
    return {**({"dashboard": f"http://{url}"} if url else {}), **found}


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

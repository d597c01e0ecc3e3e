"""The start of the process that holds Ray, with its folder, its line to the command and its environment."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from asap_ray.errors import ConfigError
from asap_ray.executor.memory import available_bytes
from asap_ray.executor.ray_end import MARK, program, sweep
from asap_ray.executor.room import Node

ADDRESSES = "auto, local, or HOST:PORT of a Ray cluster that this machine is a node of"
LONGEST_FOLDER = 30
"""Characters of the folder that temporary folders go to: the sockets of Ray lie 80 deeper, and may have 107."""
LAST_PORT = 65_535
ANSWER_S = 5.0
"""How long a cluster may take to answer at all."""
END_S = 30.0
"""How long the host may take to end what it has started, before it is ended itself."""
SEAT = "asap_ray_seat"
"""A resource that a Ray of our own has plenty of: what a host of a gang takes that takes nothing else."""
QUIET = {
    "SPT_NOENV": "1",  # Ray's processes give themselves titles, which would be written over their environment
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a job that asks for no accelerator sees what it would see without Ray
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1e9",
    "TUNE_MAX_PENDING_TRIALS_PG": "1000",  # no job comes here before there is room for it
    "TUNE_GLOBAL_CHECKPOINT_S": "1e9",  # the ledger is what a run is taken up from
}
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Has Ray open all of its sockets on loopback, and take a loopback address as it is given."""
PATIENT = {
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_gcs_server_port_wait_time_s": "300",
}
"""How long Ray waits for a part that does not answer: where all cores are busy one that lives may be slower than Ray
expects. A part that has ended is noticed without them."""


@dataclass(kw_only=True, slots=True)
class Host:
    """A host that was started; its nodes' resources are known once it is ready, and where its dashboard is."""

    process: subprocess.Popen[bytes]
    line: Connection
    folder: Path
    address: str | None
    nodes: list[Node] = field(default_factory=list)
    places: Mapping[str, str] = field(default_factory=dict)

    def end(self) -> None:
        """Have it end, by itself if it can, with all that runs for it; a second time does nothing."""
        self.line.close()  # which the host takes as its end
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        sweep(self.folder)


def cluster_of(address: str | None) -> str | None:
    """HOST:PORT of the cluster to join, given `ray.address`; None for a Ray of our own.

    Raises:
        ConfigError: the address is none, or nothing answers there.
    """
    key, given = "ray.address", address or "auto"
    if given == "auto":
        key, given = "RAY_ADDRESS", os.environ.get("RAY_ADDRESS") or "local"
    if given == "local":
        return None
    host, _, port = given.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > LAST_PORT or "/" in host:
        raise ConfigError(key, given, f"takes {ADDRESSES}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except (OSError, UnicodeError) as error:  # the latter of a name that no host can have
        raise ConfigError(key, given, f"no Ray cluster answers there ({error}); it takes {ADDRESSES}") from None
    return given


def started(runner: str, address: str | None, workers: int | None, retries: int, *, dashboard: bool = False) -> Host:
    """A host that has begun to start, or to join, Ray.

    Args:
        runner: the module that it passes jobs to.
        address: HOST:PORT of the cluster to join; None for a Ray of our own on this machine.
        workers: cores of a Ray of our own; None is as many as the machine has.
        retries: how often a job is started again whose worker or node is lost.
        dashboard: show metrics, and of a Ray of our own its dashboard, on loopback.
    """
    base = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="asap_ray_", dir=base if len(base) <= LONGEST_FOLDER else "/tmp"))
    ours, theirs = socket.socketpair()
    memory_bytes = available_bytes()
    options = {
        "line": theirs.fileno(),
        "parent": os.getpid(),
        "runner": runner,
        "address": address,
        "folder": str(folder),
        "cores": workers or os.cpu_count() or 1,
        "retries": retries,
        "dashboard": dashboard,
        "memory_bytes": memory_bytes if memory_bytes < float("inf") else None,
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            program("asap_ray.executor.ray_host", options),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(folder, address),
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the command, which ends its host
        )
    theirs.close()
    return Host(process=process, line=Connection(ours.detach()), folder=folder, address=address)


def joining(address: str) -> dict[str, str]:
    """Variables that a process must have before it imports Ray to join a cluster."""
    return {**QUIET, **(ON_LOOPBACK if _on_loopback_alone(address) else {})}


def _environment(folder: Path, address: str | None) -> dict[str, str]:
    environment = {**os.environ, **QUIET, MARK: str(folder)}
    if address is not None:
        environment |= joining(address)
    if address is None:
        environment |= {
            **PATIENT,
            **ON_LOOPBACK,
            # A socket on loopback is open to all who are on this machine: only who has the token is served.
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32),
        }
        environment.pop("RAY_ADDRESS", None)
    return environment


def _on_loopback_alone(address: str) -> bool:
    """Whether a cluster listens on loopback and not on this machine's own address, which Ray would ask instead."""
    host, _, port = address.rpartition(":")
    if host.strip("[]") not in ("127.0.0.1", "::1", "localhost"):
        return False
    try:
        socket.create_connection((_own_address(), int(port)), ANSWER_S).close()
    except OSError:
        return True
    return False


def _own_address() -> str:
    """The address under which this machine reaches others, as Ray finds it: nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("8.8.8.8", 80))
        return probe.getsockname()[0]

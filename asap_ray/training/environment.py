"""The process of a trial before JAX starts in it: its platform, its devices, its cores, its memory."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from asap_ray.errors import AsapError

OUT_OF_MEMORY = "asap_ray: out of host memory, bytes "
"""What a process writes, with the bytes that it holds, before it ends itself for them."""
LOOK_S = 0.05
"""How often the memory of a process is looked at."""
WAIT_S = 20.0
"""How long a trial waits for cores that are still held: by one that is ending."""
CACHE_BYTES = 4 * 2**30
"""What executables of all runs may take on the disk."""
THREADS_A_DEVICE = 4
"""Threads that XLA must believe in for each host device: with fewer a sharded program may wait for itself for ever."""


class NoCoreError(AsapError):
    """All cores of the machine are held by other trials."""


def prepare(environment: MutableMapping[str, str], platform: str, devices: int, cache: str = "") -> None:
    """Set the environment of a process that trains and does nothing else, before JAX is imported.

    What a user has set for their own runs must not decide what is measured, so it is taken out.

    Args:
        environment: of the process.
        platform: tpu, cuda or cpu.
        devices: that this process has of a machine's processor, where it is cpu.
        cache: the folder of JAX's cache of executables; empty for none.
    """
    for name in list(environment):
        if name.startswith("JAX_") or name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NPROC"):
            del environment[name]
    environment.update(JAX_PLATFORMS=platform, JAX_ENABLE_COMPILATION_CACHE="true" if cache else "false")
    if cache:
        environment.update(
            JAX_COMPILATION_CACHE_DIR=cache,
            JAX_COMPILATION_CACHE_MAX_SIZE=str(CACHE_BYTES),  # the least recently used go first
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0.5",
        )
    if platform == "cpu":
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
        environment["NPROC"] = str(THREADS_A_DEVICE * devices)
    if platform == "cuda":  # by default a quarter of the memory is kept back, and a plan that fits would not
        environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.95"


class Cores:
    """Cores of this machine that a process holds alone, by a name of the kernel's that is gone with the process.

    Two trials that share a core would measure each other; no file is left behind by one that is killed.
    """

    def __init__(self) -> None:
        self.held: dict[int, socket.socket] = {}

    def claim(self, count: int, among: Sequence[int] | None = None, wait_s: float = WAIT_S) -> tuple[int, ...]:
        """Hold so many cores, and pin this process (all threads to come) to them.

        Raises:
            NoCoreError: fewer are free after `wait_s` seconds.
        """
        wanted = sorted(os.sched_getaffinity(0)) if among is None else among
        limit = time.monotonic() + wait_s
        while len(self.held) < count:
            for core in wanted:
                if core not in self.held and len(self.held) < count and (name := _bound(core)):
                    self.held[core] = name
            if len(self.held) < count:
                if time.monotonic() > limit:
                    self.release()
                    raise NoCoreError(f"no {count} of the {len(wanted)} cores are free: other trials hold them")
                time.sleep(LOOK_S)
        os.sched_setaffinity(0, self.held)
        return tuple(sorted(self.held))

    def release(self) -> None:
        """Let go of them."""
        for name in self.held.values():
            name.close()
        self.held.clear()


def _bound(core: int) -> socket.socket | None:
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0asap_ray/{os.getuid()}/core/{core}")
    except OSError:
        name.close()
        return None
    return name


def limit_memory(limit_bytes: float) -> None:
    """End this process, with a word of why, once it holds more than so many bytes.

    The kernel would end whichever process it likes, the raylet perhaps, and say nothing.
    """
    threading.Thread(target=_watch, args=(limit_bytes,), daemon=True).start()


def _watch(limit_bytes: float) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    while True:
        held = int(Path("/proc/self/statm").read_text().split()[1]) * page
        if held > limit_bytes:
            os.write(2, f"\n{OUT_OF_MEMORY}{held} of {int(limit_bytes)}\n".encode())
            os._exit(137)
        time.sleep(LOOK_S)

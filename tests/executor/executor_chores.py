"""Jobs for the conformance suite, in a module that worker processes can import by name."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from asap_ray.errors import AsapError, ConfigError, DoesNotFitError
from asap_ray.tiers.protocol import Place


def add(a: int, b: int) -> int:
    return a + b


def own_pid() -> int:
    return os.getpid()


def large(size: int) -> bytes:
    return b"x" * size


def refuse() -> None:
    raise ConfigError("space.fix", "tensr", "no such field", ("tensor",))


def too_small() -> None:
    raise DoesNotFitError("12 bytes are missing")


def slip() -> None:
    raise IndexError("list index out of range")


def leave(status: int) -> None:
    os._exit(status)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def forks_and_dies() -> None:
    """Dies while a forked child still holds the pipe open."""
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    os._exit(3)


def unpicklable() -> object:
    return lambda: None


class UnpicklableError(AsapError):
    def __init__(self, a: str, b: str) -> None:
        super().__init__(f"{a} and {b}")
        self.held = lambda: None


def refuse_oddly() -> None:
    raise UnpicklableError("this", "that")


class _Explodes:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return int, ("no number",)


def explodes_when_read() -> object:
    return _Explodes()


def deaf(marker: str) -> None:
    """Ignores a polite request to end, and starts a child that does too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    _write(marker, f"{os.getpid()} {child.pid}")
    time.sleep(600)


def wait_forever(marker: str) -> int:
    _write(marker, str(os.getpid()))
    time.sleep(600)
    return os.getpid()


def waits_the_first_time(marker: str, second: str) -> int:
    """Waits until it is ended, unless a file says that this is the second time; returns its process."""
    if Path(second).exists():
        return os.getpid()
    return wait_forever(marker)


def kills_its_parent() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def meet(here: str, there: str) -> bool:
    """Returns once another job has arrived too: only jobs that run side by side get past it."""
    _write(here, "here")
    while not Path(there).exists():
        time.sleep(0.01)
    return True


def meet_and_name_parent(here: str, there: str) -> int:
    """As `meet`, and returns the process that started this one."""
    meet(here, there)
    return os.getppid()


def overlaps(folder: str, name: str) -> int:
    """How many jobs are at work in this moment."""
    mark = Path(folder) / name
    mark.touch()
    time.sleep(0.05)
    count = len(list(Path(folder).iterdir()))
    mark.unlink()
    return count


def loud() -> int:
    """Writes as Python does and as a library does; returns its process."""
    print("on stdout", flush=True)
    os.write(2, b"from a library\n")
    return os.getpid()


def environment() -> dict[str, object]:
    """What a job sees of where it runs, and whether it had to load what schedules it."""
    loaded = [name for name in ("ray", "jax") if name in sys.modules]
    return {"environ": dict(os.environ), "cwd": str(Path.cwd()), "loaded": loaded}


def complains_and_dies() -> None:
    os.write(2, b"x" * 10_000 + b"\nit ends here\n")
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(600)


def _write(path: str, text: str) -> None:
    Path(f"{path}.new").write_text(text)
    os.replace(f"{path}.new", path)


def place_of(folder: str, place: Place) -> tuple[int, int, str, int]:
    """Says where in its gang it is once all of it are there; its process is the last of what it returns."""
    _write(f"{folder}/{place.rank}", str(os.getpid()))
    while len([path for path in Path(folder).iterdir() if path.suffix != ".new"]) < place.hosts:
        time.sleep(0.01)
    return place.rank, place.hosts, place.coordinator, os.getpid()


def one_fails(folder: str, how: str, place: Place) -> None:
    """Of a gang that is all there rank 1 fails, and the others wait for ever."""
    place_of(folder, place)
    if place.rank == 1:
        {"killed": killed, "refuses": refuse, "slips": slip, "leaves": lambda: leave(3), "waits": lambda: None}[how]()
    if place.rank != 1 or how == "waits":
        time.sleep(600)


def last_to_end(folder: str, place: Place) -> str:
    """Rank 0 is done at once, and needs at its end what rank 1 does a while later, as a coordinator does."""
    if place.rank == 1:
        time.sleep(3.0)
        _write(f"{folder}/done", "")
        return ""
    atexit.register(_wait_for, f"{folder}/done", f"{folder}/ended well")
    return "rank 0"


def _wait_for(path: str, then: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)
    _write(then, "")


def summed(place: Place) -> dict[str, object]:
    """What JAX says of a gang of hosts with four devices each, and the sum of 0 to 7 over all of their devices."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "NPROC": "16"}
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(place.coordinator, place.hosts, place.rank, coordinator_bind_address=place.coordinator)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    numbers = np.arange(8.0)
    spread = jax.make_array_from_callback(
        (8,), NamedSharding(mesh, PartitionSpec("data")), lambda index: numbers[index]
    )
    total = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))(spread)
    return {
        "processes": jax.process_count(),
        "process": jax.process_index(),
        "devices": jax.device_count(),
        "local": jax.local_device_count(),
        "sum": float(total.addressable_data(0)),
    }


def loses_its_worker(folder: str, place: Place) -> None:
    """Rank 1 kills the worker that had it started, once all of the gang are there; the others wait for ever."""
    place_of(folder, place)
    if place.rank == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def seen(names: list[str], folder: str, *marks_and_place: Any) -> None:
    """Leaves for each rank what it finds in its environment; with marks, once another gang is at work too."""
    *marks, place = marks_and_place
    found = {name: os.environ.get(name) for name in names}
    _write(f"{folder}/{place.rank}", json.dumps({**found, "coordinator": place.coordinator}))
    if marks and place.rank == 0:
        meet(*marks)


def begun(place: Place) -> tuple[float, int]:
    """When it began, and which process has it run."""
    return time.time(), os.getppid()


def again_elsewhere(folder: str, second: str, place: Place) -> str | None:
    """Waits with its gang until it is ended, unless a file says that this is the second time; returns its slice."""
    if not Path(second).exists():
        place_of(folder, place)
        time.sleep(600)
    return os.environ.get("TPU_NAME")

"""What JAX finds on this machine: its devices, and whether a compiler knows a slice. Each is asked in a fresh process,
since JAX takes what it finds, and a runtime that waits for a chip may wait long."""

from __future__ import annotations

import os
from dataclasses import dataclass

from asap_ray.compiler import topology
from asap_ray.hardware import Slice


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The devices that JAX has: their platform (tpu, gpu, cpu), kind, number, and HBM of one in bytes where it says."""

    platform: str
    kind: str
    count: int
    memory_bytes: float | None


def own_devices(platform: str) -> Found:
    """The devices of this machine as JAX has them: the work of a job.

    Args:
        platform: what is looked for, as `JAX_PLATFORMS` has it: tpu, cuda or cpu.

    Raises:
        RuntimeError: JAX finds no such device.
    """
    topology.prepare(os.environ)
    os.environ["JAX_PLATFORMS"] = platform
    os.environ.pop("TPU_SKIP_MDS_QUERY")  # on a TPU host the metadata server says which slice it is of
    import jax

    devices = jax.local_devices()
    stats = devices[0].memory_stats() or {}
    memory = stats.get("bytes_limit")
    return Found(platform=devices[0].platform, kind=devices[0].device_kind, count=len(devices), memory_bytes=memory)


def known(slice_: Slice) -> int:
    """How many devices the compiler sees in a slice: the work of a job.

    Raises:
        NoTopologyError: it knows no such slice.
    """
    topology.prepare(os.environ)
    return len(topology.devices(slice_))

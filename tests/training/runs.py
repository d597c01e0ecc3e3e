"""A job small enough to be trained in a test, and requests for it."""

from __future__ import annotations

import os
import time
from typing import Any

from asap_ray.architecture import architecture_from_mapping
from asap_ray.hardware import Slice, parse_slice
from asap_ray.plan import Plan
from asap_ray.settings import load_group
from asap_ray.stack import stack_from_mapping
from asap_ray.tasks.machine import processor
from asap_ray.tiers.protocol import Place
from asap_ray.tiers.run import run_plan
from asap_ray.training.request import Ran, RunRequest
from asap_ray.workload import Workload

SMALL = {
    "name": "small",
    "layers": 2,
    "d_model": 32,
    "vocab": 64,
    "attention": {"heads": 4, "kv_heads": 4, "head_dim": 8},
    "ffn": {"d_ff": 64},
}
JOB = Workload(architecture=architecture_from_mapping(SMALL), global_batch=8, seq_len=16, precision="fp32")
LINE = "attention=unfused precision=fp32 remat=full accumulation=1"


def here(devices: int) -> Slice:
    """This machine as so many devices."""
    return parse_slice("local", {"local": processor(devices, 1, "flags : avx2", 8e9)})


def request(axes: str, devices: int = 4, **changes: Any) -> RunRequest:
    """A short run of a plan on devices of this processor."""
    plan = Plan.parse(f"{axes} {LINE}")
    stack = stack_from_mapping(load_group("stack")["ours"])
    given: dict[str, Any] = {"steps": 3, "timed_s": 0.0, "trace": False, **changes}
    return RunRequest(workload=JOB, plan=plan, slice=here(devices), stack=stack, platform="cpu", **given)


def sleeping(asked: RunRequest, path: str, place: Place | None = None) -> Ran:
    """A run that says that it has begun, and then hangs."""
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(600)
    return run_plan(asked, place)


def eating(asked: RunRequest, place: Place | None = None) -> Ran:
    """A run whose process takes memory without end."""
    from asap_ray.training.environment import limit_memory

    limit_memory(asked.memory_bytes)
    held = []
    while True:
        held.append(bytearray(20_000_000))
        time.sleep(0.01)

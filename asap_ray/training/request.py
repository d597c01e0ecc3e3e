"""What is asked of a short training and what comes back, as plain values that cross processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from asap_ray.hardware import Slice
from asap_ray.plan import Plan
from asap_ray.recipe import PLAIN, Recipe
from asap_ray.stack import Stack
from asap_ray.workload import Workload

Platform = Literal["tpu", "cuda", "cpu"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """One short training: a plan's step on the devices of a slice, a few times over.

    `steps` are timed after `warmup` others; fewer, but no less than `LEAST_STEPS`, where they come to `timed_s`
    seconds. `hopeless_s` is a step time that is not worth going on with: a run whose interval lies above it ends.
    `spread` is how far medians of separate processes lie apart (`step_times`). `flags` are the compiler's options.
    `cores` is how many of a machine's cores a process holds alone and is pinned to; 0 leaves it where it is.
    `memory_bytes` is what a process may take of the host; 0 is no limit. `trace` asks for a profile of one more step.
    `stands_for` is the plan of the whole job, where this is a smaller one that is run in its place.
    `cache` is a folder of JAX's own cache of executables, so that a plan that runs again is not compiled again.
    `recipe` is what the program has besides the plan.
    """

    workload: Workload
    plan: Plan
    slice: Slice
    stack: Stack
    platform: Platform
    flags: tuple[tuple[str, str], ...] = ()
    steps: int = 10
    warmup: int = 1
    timed_s: float = 20.0
    hopeless_s: float | None = None
    spread: float = 0.0
    cores: int = 0
    memory_bytes: float = 0.0
    trace: bool = True
    cache: str = ""
    stands_for: Plan | None = None
    recipe: Recipe = PLAIN


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What a short training came to.

    `steps_s` are seconds of each timed step, `losses` those of every step from the first, warm-up included, on the
    same batch. `needed_bytes`, `limit_bytes`, `over_bytes` are of a device where it ran out of memory, 0 where that is
    not known. `peak_bytes` is a device's peak as the runtime counts it, or as the compiler does where the runtime does
    not (`memory` are its parts by name, `arguments` bytes of the program's arguments). `hlo` is the program as gzipped
    text, `profile` what a trace showed (`Profile.as_dict`), `trace_fault` why there is none. `seconds` are by step of
    the trial, `began_s` is the wall clock (Unix) at which the process began its work, `first_step_s` at the end of the
    first step.
    """

    status: Literal["complete", "pruned", "infeasible", "failed"]
    reason: str = ""
    steps_s: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    dropped: float = 0.0
    needed_bytes: float = 0.0
    limit_bytes: float = 0.0
    over_bytes: float = 0.0
    peak_bytes: float = 0.0
    memory: Mapping[str, int] = field(default_factory=dict)
    arguments: Mapping[str, int] = field(default_factory=dict)
    hlo: bytes = b""
    profile: Mapping[str, Any] | None = None
    trace_fault: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    began_s: float = 0.0
    first_step_s: float = 0.0
    devices: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()

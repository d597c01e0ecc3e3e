"""A short training of a plan on real devices: compile, warm up, time a few steps, look at one of them.

It is meant for a fresh process, or one on each host. Every plan starts from the same weights and trains on the same
batch, whatever its mesh, so that losses of two plans can be held against each other.
"""

from __future__ import annotations

import gzip
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asap_ray.compiler.refusal import refusal
from asap_ray.step_times import interval_s
from asap_ray.training.environment import Cores, limit_memory, prepare
from asap_ray.training.request import Ran, RunRequest

if TYPE_CHECKING:
    from asap_ray.trainer.step import TrainStep

LEAST_STEPS = 3
"""Timed steps, at least, of any run that is not ended by a fault."""
SEED = 0
"""Of the weights and the batch: the same in every trial of every plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """Which of several processes this one is, and where they meet ("host:port"); one alone has no meeting."""

    rank: int = 0
    hosts: int = 1
    coordinator: str = ""


@dataclass(kw_only=True)
class _Trial:
    """What is known of a trial so far."""

    request: RunRequest
    began_s: float = field(default_factory=time.time)
    seconds: dict[str, float] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def taking(self, name: str) -> Iterator[None]:
        """Take the time of what is done inside."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = round(time.perf_counter() - started, 4)

    def ended(self, status: Any, reason: str = "") -> Ran:
        """How it ended, with all that is known."""
        return Ran(status=status, reason=reason, seconds=self.seconds, began_s=self.began_s, **self.told)


def train(request: RunRequest, host: Host | None = None) -> Ran:
    """Run a request; call it in a process that does nothing else, on every host of the slice at once.

    Raises:
        NoCoreError: other trials hold the cores that it wants.
        Exception: whatever the trainer or the runtime raises, besides a want of device memory.
    """
    host, trial = host or Host(), _Trial(request=request)
    cores = Cores()
    if request.cores:
        trial.told["cores"] = cores.claim(request.cores)
    if request.memory_bytes:
        limit_memory(request.memory_bytes)
    prepare(os.environ, request.platform, request.slice.devices // host.hosts, request.cache)
    with trial.taking("import"):
        import jax

        if host.hosts > 1:
            _meet(jax, host, request)
        from asap_ray.training.state import prepared
    try:
        with trial.taking("devices"):
            devices = jax.devices()
            trial.told["devices"] = f"{len(devices)} x {devices[0].device_kind}"
            trial.told["versions"] = {"jax": jax.__version__, "platform": _line(devices[0].client.platform_version)}
        with trial.taking("build"):
            step, program, state, batch = _built(trial, prepared, devices)
        return _steps(trial, step, program, state, batch)
    except jax.errors.JaxRuntimeError as error:
        return _out_of_memory(trial, str(error))
    finally:
        cores.release()


def _meet(jax: Any, host: Host, request: RunRequest) -> None:
    """Meet the other hosts; where this machine is all of them, on its own address alone."""
    here = {"coordinator_bind_address": host.coordinator} if host.coordinator.startswith("127.") else {}
    if request.platform == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(host.coordinator, host.hosts, host.rank, **here)


def _built(trial: _Trial, prepared: Any, devices: list[Any]) -> tuple[TrainStep, Any, Any, Any]:
    """The compiled program, with its first state and batch on the devices."""
    request = trial.request
    step, make, batch = prepared(request, devices, SEED)
    with trial.taking("compile"):
        program = step.jitted.lower(*step.arguments).compile(compiler_options=dict(request.flags) or None)
    stats = program.memory_analysis()
    if stats is not None:
        from asap_ray.compiler.lower import SIZES, argument_bytes

        trial.told["memory"] = {name: int(getattr(stats, place, 0) or 0) for name, place in SIZES.items()}
        trial.told["arguments"] = argument_bytes(step.arguments)
    trial.told["hlo"] = gzip.compress(program.as_text().encode(), 6, mtime=0)
    with trial.taking("state"):
        state = make()
    return step, program, state, batch


def _steps(trial: _Trial, step: TrainStep, program: Any, state: Any, batch: Any) -> Ran:
    """Warm up and time; every step is waited for, so that none runs beside the next."""
    import jax

    request, losses, taken = trial.request, list[float](), list[float]()
    for number in range(request.warmup + request.steps):
        started = time.perf_counter()
        state, metrics = program(state, *batch)
        jax.block_until_ready((state, metrics))
        spent = time.perf_counter() - started
        losses.append(float(metrics["loss"]))
        trial.told.setdefault("first_step_s", time.time())
        trial.told.update(losses=tuple(losses), dropped=float(metrics["dropped"]))
        if not math.isfinite(losses[-1]):
            return trial.ended("failed", f"diverged: the loss of step {number + 1} is {losses[-1]}")
        if number >= request.warmup:
            taken.append(spent)
            trial.told["steps_s"] = tuple(taken)
            if _hopeless(request, taken):
                return trial.ended("pruned", "its interval lies above the best trial's")
            if _all_agree(len(taken) >= LEAST_STEPS and sum(taken) >= request.timed_s):
                break
    trial.told["peak_bytes"] = _peak_bytes(trial)
    if request.trace:
        _profile(trial, program, state, batch)
    return trial.ended("complete")


def _hopeless(request: RunRequest, taken: list[float]) -> bool:
    if request.hopeless_s is None:
        return False
    return _all_agree(len(taken) >= LEAST_STEPS and interval_s(taken, request.spread)[0] > request.hopeless_s)


def _all_agree(mine: bool) -> bool:
    """What rank 0 finds: processes that disagree on a further step would wait for each other for ever."""
    import jax

    if jax.process_count() == 1:
        return mine
    from jax.experimental.multihost_utils import broadcast_one_to_all

    return bool(broadcast_one_to_all(mine))


def _peak_bytes(trial: _Trial) -> float:
    import jax

    held = [stats["peak_bytes_in_use"] for each in jax.local_devices() if (stats := each.memory_stats())]
    if held:
        return float(max(held))
    memory = trial.told.get("memory", {})
    return float(
        sum(memory.get(name, 0) for name in ("arguments", "outputs", "temporaries")) - memory.get("aliased", 0)
    )


def _profile(trial: _Trial, program: Any, state: Any, batch: Any) -> None:
    """Profile one more step; a trace that cannot be had or read costs the trial nothing but its profile."""
    import jax

    from asap_ray.profile import xplane

    chip = trial.request.slice.chip
    try:
        with trial.taking("profile"), tempfile.TemporaryDirectory(prefix="asap_ray_trace_") as folder:
            with xplane.capture(Path(folder)), xplane.step(0):
                jax.block_until_ready(program(state, *batch))
            text = gzip.decompress(trial.told["hlo"]).decode()
            found = xplane.profile_of(
                folder, hlo=text, plan=trial.request.plan, workload=trial.request.workload, chip=chip.name
            )
            trial.told["profile"] = replace(found, clock_hz=chip.clock_hz).as_dict()
    except Exception as error:  # the border to a profiler: what was timed holds all the same
        trial.told["trace_fault"] = f"{type(error).__name__}: {_line(str(error))}"


def _out_of_memory(trial: _Trial, text: str) -> Ran:
    """What becomes of an error of the runtime: one of memory is the plan's, any other is told as it is."""
    refused = refusal(text)
    reason = next((line for line in text.splitlines() if line.strip()), "no reason given")
    if refused is None:
        return trial.ended("failed", _line(reason))
    ran = trial.ended("infeasible", _line(reason))
    return replace(
        ran, needed_bytes=refused.needed_bytes, limit_bytes=refused.limit_bytes, over_bytes=refused.over_bytes
    )


def _line(text: str) -> str:
    return " ".join(text.split())

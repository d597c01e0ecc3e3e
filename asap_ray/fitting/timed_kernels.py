"""Small JAX programs and how long they take, on several devices at once, as in training.

Only a job imports this module, since it loads JAX. Each program repeats one step, on a state of its own on every
device, so that the steps depend on each other and none can be left out; it is made long enough that what the host needs
to start it does not count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from asap_ray.fitting.timings import Timing, timing_of

AXIS = "device"
TINY = 32
"""Side of a matmul that takes no longer than its launch."""
MOST_STEPS = 100_000
FORCED = "xla_force_host_platform_device_count"

Device: TypeAlias = Any  # jax.Device, which type checkers take for a variable
State: TypeAlias = Any  # a pytree of arrays, the first dimension of each over the devices


def devices_here(count: int, flags: str = "") -> list[Device]:
    """Devices of this machine; where it has no accelerator, CPU devices as many as asked for.

    Args:
        count: how many CPU devices to make; only before JAX starts its devices.
        flags: XLA_FLAGS as set, which may name another number of CPU devices.
    """
    if FORCED not in flags:
        jax.config.update("jax_num_cpu_devices", count)
    return jax.local_devices()


def described(devices: Sequence[Device]) -> tuple[str, dict[str, str]]:
    """What the devices are, and the versions of what runs on them."""
    first = devices[0]
    versions = {"jax": jax.__version__, "jaxlib": version("jaxlib")}
    return f"{len(devices)} x {first.device_kind}", versions | {first.platform: _line(first.client.platform_version)}


def _line(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopwatch:
    """Times programs on `devices`: each run takes `run_s` at least, and `repetitions` of them count."""

    devices: tuple[Device, ...]
    run_s: float
    repetitions: int

    def quick(self) -> Stopwatch:
        """For a first look: the shortest programs, timed twice."""
        return replace(self, run_s=0.0, repetitions=2)

    def of(self, count: int) -> Stopwatch:
        """On the first few of the devices."""
        return replace(self, devices=self.devices[:count])

    @property
    def sharding(self) -> NamedSharding:
        """The first dimension over the devices."""
        return NamedSharding(Mesh(np.array(self.devices), (AXIS,)), PartitionSpec(AXIS))

    def placed(self, make: Callable[[], jax.Array]) -> jax.Array:
        """The same array on every device, [devices, *shape]."""

        def everywhere() -> jax.Array:
            array = make()
            return jnp.broadcast_to(array, (len(self.devices), *array.shape))

        return jax.jit(everywhere, out_shardings=self.sharding)()

    def step_s(self, step: Callable[..., State], state: State, *constants: jax.Array) -> Timing:
        """Seconds of one `step(state, *constants) -> state` on each device, which sees its own part only."""
        steps, taken = 1, 0.0
        while True:
            # The state is given away, so that no run waits for new memory.
            program = jax.jit(self._repeated(step, steps), donate_argnums=0)
            samples = []
            for number in range(self.repetitions + 1):
                start = time.perf_counter()
                state = jax.block_until_ready(program(state, *constants))
                taken = time.perf_counter() - start
                if number:  # the first run compiles
                    samples.append(taken / steps)
                if number == 1 and taken < self.run_s / 2 and steps < MOST_STEPS:
                    break
            else:
                return timing_of(samples)
            steps = min(max(math.ceil(steps * self.run_s / taken), 2 * steps), MOST_STEPS)

    def _repeated(self, step: Callable[..., State], steps: int) -> Callable[..., State]:
        def on_device(state: State, *constants: jax.Array) -> State:
            own = jax.tree.map(lambda array: array[0], (state, constants))
            last = lax.fori_loop(0, steps, lambda _, now: step(now, *own[1]), own[0])
            return jax.tree.map(lambda array: array[None], last)

        return jax.shard_map(
            on_device,
            mesh=self.sharding.mesh,
            in_specs=PartitionSpec(AXIS),
            out_specs=PartitionSpec(AXIS),
            check_vma=False,
        )

    def matmul(self, m: int, k: int, n: int) -> Timing:
        """One bf16 matmul [m, k] x [k, n], of uneven numbers: on zeros chips draw less power and clock higher."""
        x = self.placed(lambda: _uneven(m, k))
        w = self.placed(lambda: _uneven(k, n) * k**-0.5)
        y = self.placed(lambda: jnp.zeros((m, n), jnp.bfloat16))

        def step(state: State, weights: jax.Array) -> State:
            rows, product = state
            rows = rows.at[0, 0].set(product[0, 0])  # one number, so that each matmul waits for the one before
            return rows, rows @ weights

        return self.step_s(step, (x, y), w)

    def triad(self, numbers: int) -> Timing:
        """Scale an array of fp32 numbers and add another: reads two arrays and writes one (as STREAM's triad)."""
        a, b = (self.placed(lambda: jnp.ones(numbers, jnp.float32)) for _ in range(2))
        return self.step_s(lambda state, other: 0.5 * state + other, a, b)

    def launches(self, kernels: int) -> Timing:
        """So many kernels, one after the other, that do next to nothing."""
        x, w = (self.placed(lambda: jnp.eye(TINY, dtype=jnp.float32)) for _ in range(2))

        def step(state: jax.Array, weights: jax.Array) -> jax.Array:
            for _ in range(kernels):
                state = lax.optimization_barrier(state @ weights)
            return state

        return self.step_s(step, x, w)

    def gather(self, numbers: int) -> Timing:
        """An all-gather of fp32 numbers over all devices: half of the time of one and of the reduce-scatter back."""
        shard = self.placed(lambda: jnp.zeros(numbers // len(self.devices), jnp.float32))

        def step(state: jax.Array) -> jax.Array:
            whole = lax.optimization_barrier(lax.all_gather(state, AXIS, tiled=True))
            return lax.psum_scatter(whole, AXIS, tiled=True)

        both = self.step_s(step, shard)
        return Timing(seconds=both.seconds / 2, error=both.error / 2)

    def copy_in(self, numbers: int) -> Timing:
        """A copy of fp32 numbers from the host's memory to every device at once, pinned where the platform pins."""
        kinds = {memory.kind for memory in self.devices[0].addressable_memories()}
        array: Any = np.ones((len(self.devices), numbers), np.float32)
        if "pinned_host" in kinds:
            array = jax.block_until_ready(jax.device_put(array, self.sharding.with_memory_kind("pinned_host")))
        samples = []
        for number in range(self.repetitions + 1):
            start = time.perf_counter()
            jax.block_until_ready(jax.device_put(array, self.sharding.with_memory_kind("device")))
            if number:
                samples.append(time.perf_counter() - start)
        return timing_of(samples)


def _uneven(rows: int, columns: int) -> jax.Array:
    """Numbers of about 1 whose bits differ, [rows, columns]; random ones would take longer to compile than to time."""
    return jnp.sin(1.7 * jnp.arange(rows)[:, None] + 0.3 * jnp.arange(columns)).astype(jnp.bfloat16)

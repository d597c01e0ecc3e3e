"""A plan's train step through the chip's compiler, without the chip: what fits, and the scheduled program.

It is meant for a fresh process, one for each compilation: the environment is set before JAX is imported, compilers keep
what they once loaded, and some end the process where they fail.
"""

from __future__ import annotations

import importlib
import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asap_ray.compiler import cuda, toolchain, topology
from asap_ray.compiler.refusal import refusal
from asap_ray.compiler.request import Build, Request, packed

LOCK = Path("/tmp/libtpu_lockfile")
"""What libtpu keeps one process at a time by; one that was killed may leave it behind."""
SIZES = {
    "arguments": "argument_size_in_bytes",
    "outputs": "output_size_in_bytes",
    "aliased": "alias_size_in_bytes",
    "temporaries": "temp_size_in_bytes",
    "code": "generated_code_size_in_bytes",
    "peak": "peak_memory_in_bytes",
    "host": "host_temp_size_in_bytes",
}
"""What is kept of the compiler's own account, by the name it has there."""


class Steps:
    """Seconds of each step of a compilation."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Take the time of what is done inside."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = round(time.perf_counter() - started, 3)


def compile_plan(request: Request) -> Build:
    """Compile the program of a plan; call it in a process that does nothing else.

    Raises:
        Exception: whatever the trainer or the compiler raises, besides a want of memory or of a topology.
    """
    if lacking := toolchain.missing(request.slice.chip):
        return Build(status="failed", reason=lacking)
    steps = Steps()
    topology.prepare(os.environ)
    clear_stale_lock(LOCK)
    with steps("import"):
        import jax

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_compilation_cache", False)
        program = _named(request.program)
        device_mesh = _named(request.mesh)
    try:
        with steps("topology"):
            devices = topology.devices(request.slice)
        return _compiled(request, program, device_mesh(request.plan, request.slice, devices), steps)
    except topology.NoTopologyError as error:
        return Build(status="failed", reason=str(error), seconds=steps.seconds)
    except jax.errors.JaxRuntimeError as error:
        refused = refusal(str(error))
        if refused is None:
            raise
        return Build(
            status="infeasible",
            reason=reason(error),
            needed_bytes=refused.needed_bytes,
            limit_bytes=refused.limit_bytes,
            over_bytes=refused.over_bytes,
            **_used(steps),
        )


def _compiled(request: Request, program: Any, mesh: Any, steps: Steps) -> Build:
    platform = request.platform
    with steps("trace"):
        # Routing is taken as even, as physics takes it: then experts need no room beyond their share.
        given = {"recipe": request.recipe} if request.recipe else {}
        step = program(request.workload, request.plan, request.stack, mesh, platform=platform, room=1.0, **given)
        traced = step.jitted.trace(*step.arguments)
    with steps("lower"):
        lowered = traced.lower(lowering_platforms=(platform,))
    options = {**(cuda.OPTIONS if platform == "cuda" else {}), **dict(request.flags)}
    with steps("compile"):
        executable = lowered.compile(compiler_options=options)
    with steps("print"):
        text = executable.as_text()
    return Build(
        status="complete",
        memory=_memory(executable.memory_analysis(), platform),
        arguments=argument_bytes(step.arguments),
        hlo=packed(text),
        **_used(steps),
    )


def argument_bytes(arguments: Any) -> dict[str, int]:
    """Bytes of one device by the part of the arguments that they belong to: a path such as `0.optimizer`, two deep."""
    import jax

    sizes: defaultdict[str, int] = defaultdict(int)
    for path, leaf in jax.tree_util.tree_flatten_with_path(arguments)[0]:
        shape = leaf.sharding.shard_shape(leaf.shape) if leaf.sharding else leaf.shape
        count = 1
        for size in shape:
            count *= size
        sizes[".".join(_word(key) for key in path[:2])] += count * leaf.dtype.itemsize
    return dict(sizes)


def _word(key: Any) -> str:
    for name in ("key", "idx", "name"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)


def _memory(stats: Any, platform: str) -> dict[str, int]:
    found = {name: int(getattr(stats, field, 0) or 0) for name, field in SIZES.items()}
    if platform == "cuda":  # there all that comes and goes is one block, taken whole when the program starts
        found["peak"] = found["arguments"] + found["outputs"] - found["aliased"] + found["temporaries"]
    return found


def reason(error: Exception) -> str:
    """The first line of what an error says, without a compiler's trace of its own sources."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[0].split()) if lines else type(error).__name__


def clear_stale_lock(path: Path) -> bool:
    """Remove libtpu's lock file if the process that held it is gone; says whether it did."""
    import fcntl

    try:
        with path.open("r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its owner lives
            path.unlink()
    except OSError:
        return False
    return True


def _named(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _used(steps: Steps) -> dict[str, Any]:
    """What the compilation took: its steps, the seconds of all cores together, and the most memory."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = steps.seconds | {"cores": round(used.ru_utime + used.ru_stime, 3)}
    return {"seconds": seconds, "peak_bytes": used.ru_maxrss * 1024}

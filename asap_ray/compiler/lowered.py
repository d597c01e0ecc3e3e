"""A program before it is compiled: the text that a compiler is given, free of where in the sources it comes from.

Two programs with one text are one program, so that what came of compiling one is true of the other. Mosaic kernels lie
in the text as bytecode that holds names and lines of source files: they are written out, without these.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import re
from collections.abc import MutableMapping
from typing import Any

from asap_ray.compiler import topology
from asap_ray.compiler.request import Request

_KERNEL = re.compile(r"\\22body\\22: \\22([A-Za-z0-9+/=]+)\\22")


def prepare(environment: MutableMapping[str, str]) -> None:
    """Let JAX lower for chips that are not there; called once, before JAX is used."""
    topology.prepare(environment)
    import jax

    jax.config.update("jax_platforms", "cpu")


def lowered_digest(request: Request) -> str:
    """The hash of a program's text, as its compiler is given it, in a process that is prepared for it."""
    return hashlib.sha256(bare(lowered_text(request)).encode()).hexdigest()


def lowered_text(request: Request) -> str:
    """A program's StableHLO, as `compile_plan` lowers it."""
    import jax

    program, device_mesh = (_named(name) for name in (request.program, request.mesh))
    mesh = device_mesh(request.plan, request.slice, topology.devices(request.slice))
    step = program(request.workload, request.plan, request.stack, mesh, platform=request.platform, room=1.0)
    text = step.jitted.trace(*step.arguments).lower(lowering_platforms=(request.platform,)).as_text()
    jax.clear_caches()
    return text


def bare(text: str) -> str:
    """A StableHLO text with its Mosaic kernels written out, without their source locations.

    What is no bytecode of this version stays as it is: two programs then count as one only where that is the same too.
    """
    return _KERNEL.sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    from jaxlib.mlir import ir

    try:
        return _kernel(base64.b64decode(found.group(1)))
    except (ValueError, ir.MLIRError):
        return found.group(0)


def _kernel(bytecode: bytes) -> str:
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    tpu = importlib.import_module("jax._src.lib").tpu  # the dialect has no public door
    context: Any = mlir.JaxIrContext()
    context.append_dialect_registry(mlir.upstream_dialects)
    context.load_all_available_dialects()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    with context:
        module = ir.Module.parse(bytecode)
        return str(module.operation.get_asm(enable_debug_info=False, print_generic_op_form=True))


def _named(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)

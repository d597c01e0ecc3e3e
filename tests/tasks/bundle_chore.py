"""Compiles a small sharded step with each bundle of flags, in a process that does nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from asap_ray.compiler import cuda, topology
from asap_ray.hardware import Slice

WIDTH = 256


def compile_each(slice_: Slice, bundles: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """What a compiler says to each bundle: nothing where it compiled, else the first line of its refusal."""
    topology.prepare(os.environ)
    import jax
    import numpy as np
    from jax.sharding import Mesh

    devices = topology.devices(slice_)
    cuda_options = cuda.OPTIONS if slice_.chip.kind == "gpu" else {}
    lowered = _lowered(Mesh(np.array(devices), ("fsdp",)), "cuda" if cuda_options else "tpu")
    said = {}
    for name, flags in bundles.items():
        try:
            lowered.compile(compiler_options={**cuda_options, **flags})
            said[name] = ""
        except jax.errors.JaxRuntimeError as error:
            said[name] = str(error).strip().splitlines()[0]
    return said


def _lowered(mesh: Any, platform: str) -> Any:
    """Two layers whose weights are gathered in a loop, with their gradients."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    def loss(weights: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> tuple[Any, None]:
            return jnp.tanh(x @ jax.lax.all_gather(w, "fsdp", axis=0, tiled=True)), None

        return (jax.lax.scan(layer, x, weights)[0].astype(jnp.float32) ** 2).sum()

    def step(weights: Any, x: Any) -> Any:
        return jax.grad(loss)(weights, x)

    over = (P(None, "fsdp"), P("fsdp"))
    jitted = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=over, out_specs=over[0], check_vma=False))
    shapes = ((2, WIDTH, WIDTH), (mesh.size * WIDTH, WIDTH))
    given = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, over, strict=True)
    ]
    return jitted.trace(*given).lower(lowering_platforms=(platform,))

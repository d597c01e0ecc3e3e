"""A small train step with the shape of a real one (scanned layers, donated state), in a module that workers import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from asap_ray.plan import AXES


@dataclass(frozen=True)
class Step:
    jitted: Any
    arguments: Any


def device_mesh(plan, slice_, devices) -> Mesh:
    return Mesh(np.array(devices).reshape(plan.sizes), AXES)


def train_step(workload, plan, stack, mesh, *, platform, room) -> Step:
    """Layers of two matmuls, plain SGD with momentum; every weight sharded over fsdp on its first dimension."""
    model, tokens = workload.architecture, workload.global_batch * workload.seq_len
    split = NamedSharding(mesh, PartitionSpec(None, "fsdp", None))
    batch = NamedSharding(mesh, PartitionSpec("fsdp", None))
    shapes = {
        "up": (model.layers, model.d_model, model.ffn.d_ff),
        "down": (model.layers, model.ffn.d_ff, model.d_model),
    }
    weights = {name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=split) for name, shape in shapes.items()}
    state = {"weights": weights, "optimizer": dict(weights)}
    inputs = jax.ShapeDtypeStruct((tokens, model.d_model), jnp.bfloat16, sharding=batch)

    def loss(weights, x):
        def layer(x, w):
            return x + jax.nn.relu(x @ w["up"].astype(x.dtype)) @ w["down"].astype(x.dtype), None

        out, _ = jax.lax.scan(jax.checkpoint(layer), x, weights)
        return jnp.mean(out.astype(jnp.float32) ** 2)

    def step(state, x):
        value, gradient = jax.value_and_grad(loss)(state["weights"], x)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["optimizer"], gradient)
        weights = jax.tree.map(lambda w, m: w - 0.1 * m, state["weights"], momentum)
        return {"weights": weights, "optimizer": momentum}, value

    return Step(jax.jit(step, donate_argnums=0), (state, inputs))


def hangs(*_, **__) -> Step:
    """Starts a child, tells both process ids, and never ends."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    marker = os.environ["STAND_IN_MARKER"]
    with open(f"{marker}.new", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    os.replace(f"{marker}.new", marker)
    time.sleep(600)
    raise AssertionError


def crashes(*_, **__) -> Step:
    os.write(2, b"F0000 a check of the compiler failed\n")
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def raises(*_, **__) -> Step:
    raise NotImplementedError("no such layer\nsecond line")

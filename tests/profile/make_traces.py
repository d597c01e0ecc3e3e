"""Makes the traces in tests/profile/traces: `python tests/profile/make_traces.py` (CPU, half a minute).

A model of two layers in a scan, with recomputation, is trained for a few steps: on four devices of one process (mesh
data=2, tensor=2), and on two processes of two devices each, joined by jax.distributed over gloo (mesh data=2 across
processes, tensor=2). Sizes are such that collectives and matmuls are there and files stay small.
"""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

TRACES = Path(__file__).parent / "traces"
STEPS = 4
BATCH, WIDTH, HIDDEN, LAYERS = 32, 64, 128, 2


def train(folder: str, index: int, processes: int, address: str) -> None:
    """One process's part of a run: two steps to warm up, then some that are traced."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={4 // processes}"
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    from asap_ray.profile import xplane

    jax.config.update("jax_hlo_source_file_canonicalization_regex", r".*/(?=tests/)")
    if processes > 1:
        jax.distributed.initialize(address, num_processes=processes, process_id=index)
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Auto, AxisType.Auto))

    def placed(shape: tuple[int, ...], *spec: str | None) -> jax.Array:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.jit(lambda: jnp.full(shape, 0.01), out_shardings=sharding)()

    weights = placed((LAYERS, WIDTH, HIDDEN), None, None, "tensor"), placed((LAYERS, HIDDEN, WIDTH), None, "tensor")
    batch = placed((BATCH, WIDTH), "data")

    def loss(weights, batch):
        def layer(x, both):
            return jnp.tanh(x @ both[0]) @ both[1], None

        out, _ = jax.lax.scan(jax.checkpoint(layer), batch, weights)
        return jnp.mean(out**2)

    @jax.jit
    def step(weights, batch):
        found, gradients = jax.value_and_grad(loss)(weights, batch)
        with jax.named_scope("optimizer"):
            return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), found

    for _ in range(2):
        weights, _ = jax.block_until_ready(step(weights, batch))
    with xplane.capture(folder):
        for number in range(STEPS):
            with xplane.step(number):
                weights, _ = jax.block_until_ready(step(weights, batch))


def make(name: str, processes: int) -> None:
    """Run the processes, and keep their files."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "NPROC": "16"}
    with tempfile.TemporaryDirectory() as folder:
        commands = [
            [sys.executable, __file__, str(Path(folder) / str(index)), str(index), str(processes), address]
            for index in range(processes)
        ]
        for each in [subprocess.Popen(command, env=environment) for command in commands]:
            assert each.wait(timeout=300) == 0
        for index in range(processes):
            (file,) = (Path(folder) / str(index)).rglob("*.xplane.pb")
            kept = TRACES / name / f"host{index}.xplane.pb.gz"
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(gzip.compress(file.read_bytes(), mtime=0))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        make("one_host", 1)
        make("two_hosts", 2)

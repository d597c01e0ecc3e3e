"""Small programs for real compilers, and the texts they made of them, in `dumps/`.

`python tests/compiler/programs.py` (from the root of a checkout, with libtpu and the CUDA plug-in installed) compiles
all of them again and writes the texts; tests read those that are kept.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

DUMPS = Path(__file__).with_name("dumps")
LAYERS, WIDTH, HIDDEN, BATCH, LENGTH = 4, 1024, 4096, 16, 2048
"""Of `layers`: scanned layers, d_model, d_ff, sequences and tokens of each in the global batch."""


@lru_cache(maxsize=32)
def dump(name: str) -> str:
    """The text of a kept program."""
    return gzip.decompress((DUMPS / f"{name}.txt.gz").read_bytes()).decode()


def layers(mesh: Any) -> Any:
    """Scanned, rematted layers of a feed-forward block, its weights gathered over (fsdp, context, expert), sequence
    parallel over tensor, with a plain gradient step: every collective explicit."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    shards, x_spec = ("fsdp", "context", "expert"), P(("data", "fsdp", "expert"), ("context", "tensor"), None)
    specs = (P(None, shards, "tensor"), P(None, "tensor", shards))

    def layer(x: Any, w: Any) -> Any:
        up = jax.lax.all_gather(w[0].astype(jnp.bfloat16), shards, axis=0, tiled=True)
        down = jax.lax.all_gather(w[1].astype(jnp.bfloat16), shards, axis=1, tiled=True)
        h = jax.lax.all_gather(x, "tensor", axis=1, tiled=True)
        with jax.named_scope("mlp"):
            h = jax.nn.gelu(h @ up) @ down
        return x + jax.lax.psum_scatter(h, "tensor", scatter_dimension=1, tiled=True), None

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            y, _ = jax.lax.scan(jax.checkpoint(layer), x, w)
            return (y.astype(jnp.float32) ** 2).sum() / 1e6

        value, gradients = jax.value_and_grad(loss)(w)
        gradients = jax.tree.map(lambda g: jax.lax.psum(g, "data"), gradients)
        with jax.named_scope("optimizer"):
            w = jax.tree.map(lambda a, b: a - 0.1 * b, w, gradients)
        return w, jax.lax.psum(value, mesh.axis_names)

    step = jax.shard_map(step, mesh=mesh, in_specs=(specs, x_spec), out_specs=(specs, P()), check_vma=False)
    weights = (
        _array(mesh, (LAYERS, WIDTH, HIDDEN), "float32", specs[0]),
        _array(mesh, (LAYERS, HIDDEN, WIDTH), "float32", specs[1]),
    )
    return jax.jit(step, donate_argnums=0), (weights, _array(mesh, (BATCH, LENGTH, WIDTH), "bfloat16", x_spec))


def ring(mesh: Any) -> Any:
    """A loop of 4 hops over context inside a scan of 4 layers, with exchanges over expert."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    w_spec = P(None, ("fsdp", "context", "expert"), None)
    x_spec = P(("data", "fsdp", "expert"), ("context", "tensor"), None)

    def hop(_: Any, carry: Any, q: Any) -> Any:
        k, o = carry
        scores = jnp.einsum("bsd,btd->bst", q, k)
        o = o + jnp.einsum("bst,btd->bsd", scores, k).astype(jnp.float32)
        return jax.lax.ppermute(k, "context", [(i, (i + 1) % 4) for i in range(4)]), o

    def layer(x: Any, w: Any) -> Any:
        w = jax.lax.all_gather(w.astype(jnp.bfloat16), ("fsdp", "context", "expert"), axis=0, tiled=True)
        q = x @ w
        _, o = jax.lax.fori_loop(0, 4, lambda i, c: hop(i, c, q), (q, jnp.zeros(q.shape, jnp.float32)))
        y = jax.lax.all_to_all(o.astype(jnp.bfloat16), "expert", 1, 0, tiled=True)
        return x + jax.lax.all_to_all(jax.nn.relu(y @ w), "expert", 0, 1, tiled=True), None

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            y, _ = jax.lax.scan(jax.checkpoint(layer), x, w)
            return (y.astype(jnp.float32) ** 2).sum() / 1e6

        value, gradient = jax.value_and_grad(loss)(w)
        return w - 0.1 * gradient, jax.lax.psum(value, mesh.axis_names)

    step = jax.shard_map(step, mesh=mesh, in_specs=(w_spec, x_spec), out_specs=(w_spec, P()), check_vma=False)
    arguments = _array(mesh, (4, 1024, 1024), "float32", w_spec), _array(mesh, (8, 4096, 1024), "bfloat16", x_spec)
    return jax.jit(step, donate_argnums=0), arguments


def collective_matmul(mesh: Any) -> Any:
    """Two matmuls that the compiler partitions, the second as a windowed einsum: a loop of permutes."""
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    def two(x: Any, w1: Any, w2: Any) -> Any:
        h = jax.lax.with_sharding_constraint(jax.nn.relu(x @ w1), NamedSharding(mesh, P("fsdp", None, "tensor")))
        return jax.lax.with_sharding_constraint(h @ w2, NamedSharding(mesh, P("fsdp", "tensor", None)))

    return jax.jit(two), (
        _array(mesh, (8, 4096, 4096), "bfloat16", P("fsdp", "tensor", None)),
        _array(mesh, (4096, 16384), "bfloat16", P(None, "tensor")),
        _array(mesh, (16384, 4096), "bfloat16", P("tensor", None)),
    )


def splash(mesh: Any) -> Any:
    """Splash attention and its gradients: 2 sequences of 2048 tokens, 8 heads of 128, on each device."""
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask
    from jax.sharding import PartitionSpec as P

    mask = splash_attention_mask.MultiHeadMask([splash_attention_mask.CausalMask((2048, 2048)) for _ in range(8)])
    kernel = splash_attention_kernel.make_splash_mha(mask, head_shards=1, q_seq_shards=1)

    def step(q: Any, k: Any, v: Any) -> Any:
        value, gradients = jax.value_and_grad(
            lambda q, k, v: (jax.vmap(kernel)(q, k, v).astype(jnp.float32) ** 2).sum(), argnums=(0, 1, 2)
        )(q, k, v)
        return jax.lax.psum(value + sum(g.astype(jnp.float32).sum() for g in gradients), mesh.axis_names)

    one = _array(mesh, (32, 8, 2048, 128), "bfloat16", P("fsdp"))
    step = jax.shard_map(step, mesh=mesh, in_specs=(P("fsdp"),) * 3, out_specs=P(), check_vma=False)
    return jax.jit(step), (one, one, one)


def grouped(mesh: Any) -> Any:
    """Two grouped matmuls, of Megablox and of the compiler: 4096 rows of 1024 to 2048, 8 groups, on each device."""
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.megablox import gmm
    from jax.sharding import PartitionSpec as P

    def step(x: Any, w: Any, sizes: Any) -> Any:
        return gmm(x, w, sizes, preferred_element_type=jnp.bfloat16) + jax.lax.ragged_dot(x, w, sizes)

    specs = (P("fsdp"), P(), P("fsdp"))
    step = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=P("fsdp"), check_vma=False)
    shapes = ((16 * 4096, 1024), "bfloat16"), ((8, 1024, 2048), "bfloat16"), ((16 * 8,), "int32")
    return jax.jit(step), tuple(_array(mesh, *shape, spec) for shape, spec in zip(shapes, specs, strict=True))


def batched(mesh: Any) -> Any:
    """Attention as two batched matmuls: 1 sequence of 1024 tokens, 8 heads of 128, on each device."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(jnp.bfloat16), v)

    one = _array(mesh, (16, 1024, 8, 128), "bfloat16", P("fsdp"))
    return jax.jit(attend), (one, one, one)


def across(mesh: Any) -> Any:
    """Each kind of collective over a context axis of 2 inside a slice and 2 across: 4 sequences of 1024 tokens of 1024
    on each device."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    def each(x: Any) -> Any:
        y = jax.lax.ppermute(x, "context", [(i, (i + 1) % 4) for i in range(4)])
        z = jax.lax.all_to_all(y, "context", 1, 0, tiled=True) * 2
        whole = jnp.cos(jax.lax.all_gather(z, "context", axis=0, tiled=True))
        s = jax.lax.psum_scatter(whole, "context", scatter_dimension=0, tiled=True)
        return jax.lax.all_to_all(s, "context", 0, 1, tiled=True) + y

    spec = P(("data", "fsdp", "expert"), ("context", "tensor"), None)
    each = jax.shard_map(each, mesh=mesh, in_specs=(spec,), out_specs=spec, check_vma=False)
    return jax.jit(each), (_array(mesh, (16, 8192, 1024), "bfloat16", spec),)


def partitioned(mesh: Any) -> Any:
    """The layers of `layers`, wider, with shardings for the compiler to find the collectives."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    def laid(*axes: Any) -> Any:
        return NamedSharding(mesh, P(*axes))

    def layer(x: Any, w: Any) -> Any:
        h = jax.nn.gelu(x @ w[0].astype(jnp.bfloat16))
        h = jax.lax.with_sharding_constraint(h, laid("fsdp", None, "tensor"))
        out = x + h @ w[1].astype(jnp.bfloat16)
        return jax.lax.with_sharding_constraint(out, laid("fsdp", None, None)), None

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return (jax.lax.scan(jax.checkpoint(layer), x, w)[0].astype(jnp.float32) ** 2).mean()

        value, gradients = jax.value_and_grad(loss)(w)
        return jax.tree.map(lambda a, b: a - 0.1 * b, w, gradients), value

    specs = (None, "fsdp", "tensor"), (None, "tensor", "fsdp")
    weights = (
        _array(mesh, (4, 2048, 8192), "float32", P(*specs[0])),
        _array(mesh, (4, 8192, 2048), "float32", P(*specs[1])),
    )
    out = ((laid(*specs[0]), laid(*specs[1])), laid())
    step = jax.jit(step, donate_argnums=0, out_shardings=out)
    return step, (weights, _array(mesh, (16, 2048, 2048), "bfloat16", P("fsdp")))


NAIVE = {"layers": 4, "d_model": 2048, "heads": 16, "kv_heads": 4, "head_dim": 128, "d_ff": 8192}
NAIVE_BATCH, NAIVE_LENGTH = 128, 2048


def naive(mesh: Any) -> Any:
    """Layers with attention as it is written first: queries, keys and values of one matrix whose columns lie on the
    tensor axis, cut and reshaped into heads wherever they are; fewer heads of keys than ranks."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    d, heads, kv, width = (NAIVE[name] for name in ("d_model", "heads", "kv_heads", "head_dim"))

    def split(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("fsdp", None, "tensor")))

    def attend(x: Any, w: Any) -> Any:
        b, s, _ = x.shape
        made = split(x @ w[0].astype(jnp.bfloat16))
        q, k, v = jnp.split(made, (heads * width, (heads + kv) * width), axis=-1)
        q = q.reshape(b, s, kv, heads // kv, width)
        k, v = (each.reshape(b, s, kv, width) for each in (k, v))
        scores = jnp.einsum("bsngd,btnd->bngst", q, k)
        mask = jnp.tril(jnp.ones((s, s), bool))
        probabilities = jax.nn.softmax(jnp.where(mask, scores, -1e9).astype(jnp.float32)).astype(jnp.bfloat16)
        out = split(jnp.einsum("bngst,btnd->bsngd", probabilities, v).reshape(b, s, heads * width))
        return out @ w[1].astype(jnp.bfloat16)

    def layer(x: Any, w: Any) -> Any:
        x = x + attend(x, w)
        gate, up = jnp.split(split(x @ w[2].astype(jnp.bfloat16)), 2, axis=-1)
        x = x + (jax.nn.silu(gate) * up) @ w[3].astype(jnp.bfloat16)
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("fsdp", "tensor"))), None

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return (jax.lax.scan(jax.checkpoint(layer), x, w)[0].astype(jnp.float32) ** 2).mean()

        value, gradients = jax.value_and_grad(loss)(w)
        return jax.tree.map(lambda a, b: a - 0.1 * b, w, gradients), value

    over, back = (None, "fsdp", "tensor"), (None, "tensor", "fsdp")
    sizes = ((d, (heads + 2 * kv) * width), (heads * width, d), (d, 2 * NAIVE["d_ff"]), (NAIVE["d_ff"], d))
    specs = (over, back, over, back)
    weights = tuple(
        _array(mesh, (NAIVE["layers"], *size), "float32", P(*spec)) for size, spec in zip(sizes, specs, strict=True)
    )
    out = (tuple(NamedSharding(mesh, P(*spec)) for spec in specs), NamedSharding(mesh, P()))
    x = _array(mesh, (NAIVE_BATCH, NAIVE_LENGTH, d), "bfloat16", P("fsdp", "tensor"))
    return jax.jit(step, donate_argnums=0, out_shardings=out), (weights, x)


def _array(mesh: Any, shape: tuple[int, ...], dtype: str, spec: Any) -> Any:
    import jax
    from jax.sharding import NamedSharding

    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


# Name of the dump: program, slice, sizes of the mesh inside a slice and across, compiler options.
ONES = (1,) * 6
PROGRAMS = {
    "layers": (layers, "v5e-16", (2, 2, 1, 1, 1, 4), ONES, {}),
    "layers_v5p": (layers, "v5p:2x2x4", (1, 4, 1, 1, 1, 4), ONES, {}),
    "layers_two_slices": (layers, "2xv5e-16", (2, 4, 1, 1, 1, 2), (1, 2, 1, 1, 1, 1), {}),
    "layers_h100": (layers, "h100x8", (1, 2, 1, 1, 1, 4), ONES, {}),
    "layers_two_nodes": (layers, "h100x16", (1, 2, 1, 1, 1, 4), (2, 1, 1, 1, 1, 1), {}),
    "ring": (ring, "v5e-16", (1, 2, 1, 4, 2, 1), ONES, {}),
    "collective_matmul": (
        collective_matmul,
        "v5p:2x2x4",
        (1, 2, 1, 1, 1, 8),
        ONES,
        {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "0"},
    ),
    "splash": (splash, "v5e-16", (1, 16, 1, 1, 1, 1), ONES, {}),
    "grouped": (grouped, "v5e-16", (1, 16, 1, 1, 1, 1), ONES, {}),
    "batched": (batched, "v5e-16", (1, 16, 1, 1, 1, 1), ONES, {}),
    "across": (across, "2xv5e-16", (1, 2, 1, 2, 2, 2), (1, 1, 1, 2, 1, 1), {}),
    "naive": (naive, "v5p:2x2x4", (1, 8, 1, 1, 1, 2), ONES, {}),
    "sparsecore": (partitioned, "tpu7x:2x2x4", (1, 16, 1, 1, 1, 2), ONES, {}),
}


def main(names: list[str]) -> None:
    """Compile and write the programs of some names, or all."""
    sys.path.insert(0, str(DUMPS.parents[2]))
    from asap_ray.compiler import cuda, topology

    topology.prepare(os.environ)
    import jax
    import numpy as np

    from asap_ray.hardware import parse_slice
    from asap_ray.plan import AXES
    from tests.problems import CHIPS

    for name in names or PROGRAMS:
        program, slice_name, ici, dcn, options = PROGRAMS[name]
        slice_ = parse_slice(slice_name, CHIPS)
        found = topology.devices(slice_)
        by_slice = sorted(found, key=lambda d: getattr(d, "slice_index", 0) if slice_.chip.kind == "tpu" else d.id)
        order = [axis for pair in zip(range(6), range(6, 12), strict=True) for axis in pair]
        sizes = [a * b for a, b in zip(ici, dcn, strict=True)]
        mesh = jax.sharding.Mesh(np.array(by_slice).reshape(dcn + ici).transpose(order).reshape(sizes), AXES)
        platform = "tpu" if slice_.chip.kind == "tpu" else "cuda"
        step, arguments = program(mesh)
        lowered = step.trace(*arguments).lower(lowering_platforms=(platform,))
        text = lowered.compile(options | (dict(cuda.OPTIONS) if platform == "cuda" else {})).as_text()
        text = re.sub(r'"[^"]*/(?=tests/|site-packages/)', '"', text)
        (DUMPS / f"{name}.txt.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        print(name, len(text))


if __name__ == "__main__":
    main(sys.argv[1:])

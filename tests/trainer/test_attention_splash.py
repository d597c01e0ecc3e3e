"""Splash blocks: the same numbers as plain JAX, interpreted on the host; and what the TPU compiler makes of them."""

from __future__ import annotations

import functools
import os
import re
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from asap_ray.trainer import splash, unfused
from asap_ray.trainer.attention import AttentionShape, attend
from asap_ray.trainer.blocks import Mask, Rows

TOLERANCE = 1e-5  # float32 on both sides: another order of sums


@pytest.mark.parametrize(
    ("mask", "queries", "keys", "kv", "qk", "v", "first"),
    [
        (Mask(causal=True), 256, 256, 2, 192, 128, None),
        (Mask(), 128, 256, 1, 64, 64, None),
        (Mask(causal=True, window=130), 128, 256, 1, 64, 64, 40),
        (Mask(causal=True), 1408, 1408, 2, 64, 64, None),  # 11 tiles of 128: a kernel of its own for q's gradient
        (Mask(causal=True), 96, 96, 2, 64, 64, None),  # no multiple of 128: plain JAX
    ],
)
def test_a_splash_block_is_the_reference_block(mask, queries, keys, kv, qk, v, first) -> None:
    rng = np.random.default_rng(0)
    shapes = [(1, 2, queries, qk), (1, kv, keys, qk), (1, kv, keys, v), (1, 2, queries, v)]
    q, k, value, gradient = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
    first = None if first is None else jnp.int32(first)
    out, lse = unfused.forward(q, k, value, mask, 0.1, first)
    rows = Rows(out, gradient, lse, (out * gradient).sum(-1))
    want = (out, lse, *unfused.backward(q, k, value, rows, mask, 0.1, first))
    found = (
        *splash.INTERPRETED.forward(q, k, value, mask, 0.1, first),
        *splash.INTERPRETED.backward(q, k, value, rows, mask, 0.1, first),
    )
    for one, other in zip(found, want, strict=True):
        np.testing.assert_allclose(one, other, atol=TOLERANCE, rtol=TOLERANCE)


def test_tiles_divide_the_sequence_and_few_partial_sums_are_kept() -> None:
    even, odd = splash.block_sizes(4096, 4096), splash.block_sizes(8192, 8192)
    assert (even.block_q, even.block_kv, even.block_kv_compute, even.use_fused_bwd_kernel) == (1024, 1024, 512, True)
    assert (odd.block_q_dq, odd.use_fused_bwd_kernel) == (1024, False)  # 8 partial sums of q's gradient are too many
    assert splash.tile(1408, 1024) == 128
    assert splash.tile(1152, 1024) == 576 - 192


needs_libtpu = pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not installed")


@functools.cache
def compiled(context: int, seq_len: int, window: int = 0) -> str:
    """HLO of attention and its gradients on 4 v5e chips: 1 sequence, 2 heads that share keys of 128 numbers."""
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}  # read when libtpu is loaded
    devices = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices
    mesh = Mesh(np.array(devices).reshape(4 // context, context), ("data", "context"))
    how = AttentionShape(window=window, scale=0.1, context=context, kernel="splash")
    spec = P("data", "context")

    def gradients(q, k, v, weights):
        out, pull = jax.vjp(lambda *x: attend(*x, how), q, k, v)
        return out, *pull(weights)

    run = jax.shard_map(gradients, mesh=mesh, in_specs=(spec,) * 4, out_specs=(spec,) * 4, check_vma=False)
    shapes = [(4 // context, seq_len, heads, 128) for heads in (2, 1, 1, 2)]
    sharding = NamedSharding(mesh, spec)
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding) for shape in shapes]
    return jax.jit(run).trace(*arguments).lower(lowering_platforms=("tpu",)).compile().as_text()


@needs_libtpu
def test_causal_attention_compiles_to_two_kernels_that_say_what_they_cost() -> None:
    text = compiled(context=1, seq_len=512)
    kernels = re.findall(r"%(splash_\w+?)(?:\.\d+)? = ", text)
    assert sorted(kernels) == ["splash_mha_dkv_no_residuals", "splash_mha_fwd_residuals"]
    # One tile of 512 × 512 scores for each of 2 heads; products over 128 + 128 forward, 3 × 128 + 2 × 128 backward.
    costs = [int(flops) for flops in re.findall(r'"cost_estimate":\{"flops":"(\d+)"', text)]
    assert costs == [2 * 2 * 512 * 512 * 256, 2 * 2 * 512 * 512 * 640]
    assert set(re.findall(r"/pairs=(\d+)/", text)) == {str(512 * 513 // 2)}


def schedules(text: str) -> dict[str, list[str]]:
    """The kernels and the two ends of permutes of each computation, as they are scheduled."""
    found: dict[str, list[str]] = {}
    computation = ""
    for line in text.splitlines():
        if header := re.match(r"(?:ENTRY )?%(\S+) \(.*\{$", line):
            computation = header[1]
        elif step := re.match(
            r"\s+(?:ROOT )?%(splash_mha_(?:fwd|dkv)|collective-permute-(?:start|done))[\w.]* = ", line
        ):
            found.setdefault(computation, []).append(step[1])
    return found


@needs_libtpu
def test_the_ring_hides_its_permutes_behind_kernels() -> None:
    text = compiled(context=4, seq_len=2048)
    assert not re.search(r"all-gather|all-reduce|all-to-all|collective-permute\(", text)
    loops = [steps for name, steps in schedules(text).items() if "main" not in name]
    start, done = "collective-permute-start", "collective-permute-done"
    assert [start, start, "splash_mha_fwd", "splash_mha_fwd", done, done] in loops


@needs_libtpu
def test_a_window_over_the_context_axis_compiles_to_kernels() -> None:
    text = compiled(context=2, seq_len=2048, window=128)
    assert len(re.findall(r"%splash_mha_fwd_segmented[\w.]* = ", text)) == 2
    assert "all-gather" in text
    assert "all-to-all" not in text

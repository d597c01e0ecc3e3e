"""cuDNN blocks: what goes into the kernels and comes out, and what XLA's CUDA compiler makes of them without a GPU."""

from __future__ import annotations

import re
from importlib.util import find_spec
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from asap_ray.compiler import cuda, hlo
from asap_ray.compiler.kernels import kernel_work, target
from asap_ray.hardware import make_slice
from asap_ray.trainer import cudnn, unfused
from asap_ray.trainer.attention import AttentionShape, attend
from asap_ray.trainer.blocks import Mask, Rows
from tests.problems import CHIPS

library = cudnn.cudnn


def stand_in_forward(q, k, v, *absent, scale, mask_type, layout, sliding_window_length, is_training, **_):
    """cuDNN's forward kernel as documented: [b, s, heads, width] in and out, log-sum-exps [b, heads, s]."""
    assert layout == library.AttentionLayout.BTNH.value
    assert is_training
    assert len(absent) == 7
    mask = Mask(mask_type is library.MaskType.CAUSAL, sliding_window_length or 0)
    out, lse = unfused.forward(*(x.swapaxes(1, 2) for x in (q, k, v)), mask, scale)
    return out.swapaxes(1, 2), lse


def stand_in_backward(q, k, v, *others, scale, mask_type, layout, sliding_window_length, **_):
    *absent, lse, out, gradient = others
    assert layout == library.AttentionLayout.BTNH.value
    assert len(absent) == 7
    mask = Mask(mask_type is library.MaskType.CAUSAL, sliding_window_length or 0)
    out, gradient = out.swapaxes(1, 2), gradient.swapaxes(1, 2)
    rows = Rows(out, gradient, lse, (out.astype(jnp.float32) * gradient).sum(-1))
    grads = unfused.backward(*(x.swapaxes(1, 2) for x in (q, k, v)), rows, mask, scale)
    return [x.swapaxes(1, 2) for x in grads]


@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True), Mask(causal=True, window=3)])
def test_a_cudnn_block_takes_and_gives_what_a_block_does(mask: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_dot_product_attention_fwd_p", SimpleNamespace(bind=stand_in_forward))
    monkeypatch.setattr(library, "_dot_product_attention_bwd_p", SimpleNamespace(bind=stand_in_backward))
    rng = np.random.default_rng(0)
    shapes = [(2, 4, 16, 24), (2, 2, 16, 24), (2, 2, 16, 16), (2, 4, 16, 16)]
    q, k, v, gradient = (jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in shapes)
    out, lse = unfused.forward(q, k, v, mask, 0.2)
    rows = Rows(out, gradient, lse, (out.astype(jnp.float32) * gradient).sum(-1))
    want = (out, lse, *unfused.backward(q, k, v, rows, mask, 0.2))
    found = (*cudnn.forward(q, k, v, mask, 0.2), *cudnn.backward(q, k, v, rows, mask, 0.2))
    for one, other in zip(found, want, strict=True):
        np.testing.assert_array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32))


def test_what_cudnn_does_not_do_runs_in_plain_jax() -> None:
    def fits(mask=Mask(), queries=8, width=64, dtype=jnp.bfloat16):  # noqa: B008
        q, k = (jax.ShapeDtypeStruct((1, 1, s, width), dtype) for s in (queries, 8))
        return cudnn.fits(q, k, k, mask)

    assert fits()
    assert fits(queries=4)
    assert fits(Mask(causal=True, window=2))
    assert not fits(Mask(causal=True), queries=4)
    assert not fits(Mask(window=2))
    assert not fits(width=264)
    assert not fits(width=60)
    assert not fits(dtype=jnp.float32)


@pytest.mark.skipif(find_spec("jax_cuda12_plugin") is None, reason="JAX's CUDA plug-in is not installed")
@pytest.mark.parametrize("context", [1, 4])
def test_attention_compiles_for_gpus_that_are_not_there(context: int) -> None:
    jax.devices()  # lets JAX find its plug-ins
    devices = cuda.devices(make_slice(CHIPS["h100"], (8,)))
    mesh = Mesh(np.array(devices[:4]).reshape(4 // context, context), ("data", "context"))
    how = AttentionShape(scale=0.1, context=context, kernel="cudnn")
    spec = P("data", "context")

    def gradients(q, k, v, weights):
        out, pull = jax.vjp(lambda *x: attend(*x, how), q, k, v)
        return out, *pull(weights)

    run = jax.shard_map(gradients, mesh=mesh, in_specs=(spec,) * 4, out_specs=(spec,) * 4, check_vma=False)
    shapes = [(4 // context, 512, heads, width) for heads, width in ((4, 192), (2, 192), (2, 128), (4, 128))]
    sharding = NamedSharding(mesh, spec)
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding) for shape in shapes]
    lowered = jax.jit(run).trace(*arguments).lower(lowering_platforms=("cuda",))
    text = lowered.compile(compiler_options=dict(cuda.OPTIONS)).as_text()
    assert "__cudnn$fmhaSoftmaxBackward" in text
    assert not re.search(r"all-gather|all-reduce|all-to-all", text)
    if context == 1:
        assert set(re.findall(r"/pairs=(\d+)/", text)) == {str(512 * 513 // 2)}
        assert not re.search(r" (copy|transpose)\(", text)
        module = hlo.parse(text)
        calls = [(c, i) for c in module.computations.values() for i in c.instructions if "fmha" in target(i)]
        forward, backward = (kernel_work(*call) for call in calls)
        # 4 heads: products of each pair over 192 and 128 forward; over 192 twice and 128 twice backward, and the
        # scores, over 192, once more.
        pairs = 4 * 512 * 513 // 2
        assert (forward.flops, forward.redone_flops) == (2 * pairs * 320, 0)
        assert (backward.flops, backward.redone_flops) == (2 * pairs * 640, 2 * pairs * 192)

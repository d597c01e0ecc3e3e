"""Where matrices are cut: by hand for each way, and never so that a shard is no whole number of rows or columns."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from asap_ray.trainer.layers import BENDS, activated
from asap_ray.trainer.sharding import Rules

SHARDS = ("fsdp", "context")


def rules(fsdp: int, context: int, tensor: int) -> Rules:
    axes = {"embed": SHARDS, "heads": ("tensor",), "mlp": ("tensor",), "vocab": ("tensor",)}
    return Rules(mesh_axes=axes, sizes={"fsdp": fsdp, "context": context, "tensor": tensor})


@pytest.mark.parametrize(
    ("shape", "lies", "gathered"),
    [
        # 32,768 rows over tensor=2 and 64 ranks: 256 rows each, whole tiles of 16.
        ((32768, 5120), (("tensor", "fsdp", "context"), None), (SHARDS, None)),
        # 1,000 rows over 2 and 64 are none; 5,120 columns over 64 are 80.
        ((1000, 5120), (("tensor",), SHARDS), (None, SHARDS)),
        # Neither 1,000 rows nor 100 columns can be cut in 64.
        ((1000, 100), (("tensor",), None), (None, None)),
        # 1,280 rows over 2 and 64 are 10 each, no whole tile, but the only way.
        ((1280, 100), (("tensor", "fsdp", "context"), None), (SHARDS, None)),
        # An odd number of rows stays whole over tensor.
        ((999, 5120), (None, SHARDS), (None, SHARDS)),
    ],
)
def test_a_matrix_is_cut_into_whole_tiles_of_rows_else_columns(shape, lies, gathered) -> None:
    found = rules(32, 2, 2).of_matrix(("mlp", "embed"), shape)
    assert found == (PartitionSpec(*lies), PartitionSpec(*gathered))


def named(spec: PartitionSpec) -> list[tuple[str, ...]]:
    """The axes of each dimension."""
    return [(axes,) if isinstance(axes, str) else tuple(axes or ()) for axes in spec]


def test_every_shard_is_whole_and_nothing_is_cut_twice() -> None:
    for sizes in itertools.product((1, 3, 4), (1, 2), (1, 2, 8)):
        made = rules(*sizes)
        for shape in itertools.product((7, 96, 256, 1536), (5, 96, 640)):
            lies, gathered = made.of_matrix(("mlp", "embed"), shape)
            cut, together = named(lies), named(gathered)
            assert len(set(sum(cut, ()))) == len(sum(cut, ()))
            for size, axes in zip(shape, cut, strict=True):
                assert size % np.prod([made.sizes[axis] for axis in axes], dtype=int) == 0
            assert [set(axes) for axes in together] == [set(axes) & set(SHARDS) for axes in cut]


def test_activations_are_those_of_their_names() -> None:
    gate, up = jnp.array([-2.0, 0.5, 3.0]), jnp.array([1.0, 2.0, -1.0])
    assert activated([gate], BENDS["relu"]).tolist() == [0.0, 0.5, 3.0]
    assert activated([gate], BENDS["relu2"]).tolist() == [0.0, 0.25, 9.0]
    silu = np.asarray(gate) / (1.0 + np.exp(-np.asarray(gate)))
    np.testing.assert_allclose(activated([gate, up], BENDS["silu"]), silu * np.asarray(up), rtol=1e-6)
    tanh = 0.5 * np.asarray(gate) * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * np.asarray(gate) ** 3)))
    np.testing.assert_allclose(jax.jit(BENDS["gelu"])(gate), tanh, rtol=1e-5)

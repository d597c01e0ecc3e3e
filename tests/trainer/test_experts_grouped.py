"""Grouped matmuls and the moving of rows, against loops over groups and rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asap_ray.trainer.grouped import Kernel, _tile, grouped_matmul
from asap_ray.trainer.row_moves import Moves, by_owner, collect, of_tokens, spread, windows


@pytest.mark.parametrize("kernel", ["ragged_dot", "megablox_interpreted"])
def test_each_run_of_rows_meets_its_own_groups_weights(kernel: Kernel) -> None:
    """An empty group, groups that end inside a tile, and rows after the last one."""
    sizes, m, k, n = [50, 0, 130, 60], 300, 128, 256
    rng = np.random.default_rng(3)
    rows, weights, pull = rng.normal(size=(m, k)), rng.normal(size=(len(sizes), k, n)), rng.normal(size=(m, n))
    ends = np.cumsum(sizes)
    runs = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    used = ends[-1]

    def loss(rows: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = grouped_matmul(rows, weights, jnp.array(sizes, jnp.int32), kernel)[:used]
        return (out * pull[:used].astype(np.float32)).sum(), out

    arguments = jnp.asarray(rows, jnp.float32), jnp.asarray(weights, jnp.float32)
    (_, out), (to_rows, to_weights) = jax.value_and_grad(loss, (0, 1), has_aux=True)(*arguments)
    close = {"rtol": 0, "atol": 2e-4}  # of numbers around 10
    for group, run in enumerate(runs):
        np.testing.assert_allclose(out[run], rows[run] @ weights[group], **close)
        np.testing.assert_allclose(to_rows[run], pull[run] @ weights[group].T, **close)
        np.testing.assert_allclose(to_weights[group], rows[run].T @ pull[run], **close)


@pytest.mark.parametrize(
    ("size", "tile"),
    [
        (768, 768),  # one tile, whatever its size
        (2048, 1024),
        (14336, 1024),
        (1408, 768),  # two tiles pad 128 columns; 11 tiles of 128 would read all else eleven times
    ],
)
def test_a_tile_pads_little_and_is_not_small(size: int, tile: int) -> None:
    assert _tile(size) == tile


def test_windows_hold_an_owners_first_rows_and_empty_slots_none() -> None:
    # Tokens 0, 1, 2 choose owners 1, 0, 1 first, then 0, 1, 0; there is room for two rows each.
    ids = jnp.array([1, 0, 1, 0, 1, 0])
    rows = by_owner(ids, 3)
    assert rows.order.tolist() == [1, 3, 5, 0, 2, 4]
    assert rows.counts.tolist() == [3, 3, 0]
    moves = windows(rows, ids, rows.counts, 2)
    assert moves.sources.tolist() == [1, 3, 0, 2, 6, 6]
    assert moves.places[:, 0].tolist() == [2, 0, 3, 1, 6, 6]
    tokens = of_tokens(moves, 3)
    assert tokens.sources.tolist() == [1, 0, 0, 2, 3, 3]
    assert tokens.places.tolist() == [[2, 1], [0, 6], [3, 6]]

    x = jnp.array([[1.0], [2.0], [4.0]])
    assert spread(x, tokens)[:4, 0].tolist() == [2.0, 1.0, 1.0, 4.0]
    assert collect(jnp.array([[1.0], [10.0], [100.0], [1000.0], [jnp.nan], [jnp.nan]]), tokens)[:, 0].tolist() == [
        110.0,
        1.0,
        1000.0,
    ]


def test_moving_there_and_back_are_each_others_gradients() -> None:
    moves = Moves(jnp.array([2, 0, 0, 1]), jnp.array([[1, 2], [3, 4], [0, 4]]))
    x, pull = jnp.array([[1.0], [2.0], [3.0]]), jnp.array([[1.0], [2.0], [4.0], [8.0]])
    there = jax.grad(lambda x: (spread(x, moves) * pull).sum())(x)
    assert there[:, 0].tolist() == [6.0, 8.0, 1.0]
    back = jax.grad(lambda slots: (collect(slots, moves) * x).sum())(pull)
    assert back[:, 0].tolist() == [3.0, 1.0, 1.0, 2.0]

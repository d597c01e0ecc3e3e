"""Experts against a plain loop over tokens: every way to spread them, capacity and dropless, values and gradients.

What they are held against multiplies every token by every expert and masks, or goes token by token in NumPy; it sorts
nothing and exchanges nothing. Arithmetic is float32, sums differ in order only: 1e-5 of the largest number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from asap_ray.trainer.experts import Choice, ExpertMetrics, ExpertShape, ExpertWeights, apply_experts, route

EXPERTS, TOPK, D, D_FF, BATCH, LENGTH = 8, 2, 16, 24, 4, 16
CLOSE = 1e-5  # of the largest number of an array
SHARDS = PartitionSpec("expert", "tensor")


class Problem(NamedTuple):
    x: jax.Array  # [batch, length, d]
    router: jax.Array
    gate_up: jax.Array  # [experts, d, wide, d_ff]
    down: jax.Array
    wanted: jax.Array  # what the output is multiplied with to make a loss


def problem(wide: int = 2) -> Problem:
    """Random tokens and weights; the routers' choices are far from even."""
    draw = np.random.default_rng(7).normal
    shapes = (BATCH, LENGTH, D), (D, EXPERTS), (EXPERTS, D, wide, D_FF), (EXPERTS, D_FF, D), (BATCH, LENGTH, D)
    return Problem(*(jnp.asarray(draw(size=s) / np.sqrt(s[-2]) ** (len(s) > 2), jnp.float32) for s in shapes))


def masked(x: jax.Array, router: jax.Array, gate_up: jax.Array, down: jax.Array, kept: np.ndarray) -> jax.Array:
    """Every token through every expert, weighed by its renormalised score where `kept` [batch, length, experts]."""
    scores = jax.nn.softmax(x @ router)
    chosen = scores >= jnp.sort(scores)[..., -TOPK, None]
    gates = jnp.where(chosen, scores, 0)
    gates = gates / gates.sum(-1, keepdims=True) * kept
    hidden = jnp.einsum("bsd,edwf->bsewf", x, gate_up)
    act = (
        jax.nn.silu(hidden[..., 0, :]) * hidden[..., 1, :] if gate_up.shape[2] == 2 else jax.nn.gelu(hidden[..., 0, :])
    )
    return jnp.einsum("bsef,efd,bse->bsd", act, down, gates)


def token_by_token(given: Problem) -> np.ndarray:
    """The output in float64, one token after another."""
    x, router, gate_up, down, _ = (np.asarray(part, np.float64) for part in given)
    out = np.zeros_like(x)
    for at in np.ndindex(BATCH, LENGTH):
        scores = np.exp(x[at] @ router)
        best = np.argsort(-scores)[:TOPK]
        for expert in best:
            gate, up = x[at] @ gate_up[expert, :, 0], x[at] @ gate_up[expert, :, 1]
            act = gate / (1 + np.exp(-gate)) * up
            out[at] += scores[expert] / scores[best].sum() * (act @ down[expert])
    return out


def choices(given: Problem) -> np.ndarray:
    """Each token's experts, best first [batch, length, topk]."""
    return np.argsort(-np.asarray(given.x @ given.router), axis=-1, kind="stable")[..., :TOPK]


def sources(how: ExpertShape) -> Iterator[list[tuple[int, int]]]:
    """The tokens (sequence, position) of each source of rows, in its order: a rank, or a tensor group that gathers."""
    rows, columns = BATCH // how.expert, LENGTH // how.tensor
    ranks = [
        [(e * rows + b, t * columns + s) for b in range(rows) for s in range(columns)]
        for e, t in product(range(how.expert), range(how.tensor))
    ]
    yield from ranks if how.expert > 1 else [[token for rank in ranks for token in rank]]


def admitted(given: Problem, how: ExpertShape) -> np.ndarray:
    """Which choices find room [batch, length, experts]: first choices first, then by position in the source."""
    kept, ids = np.zeros((BATCH, LENGTH, EXPERTS), bool), choices(given)
    for tokens in sources(how):
        asked = [(int(ids[at][choice]), at) for choice in range(TOPK) for at in tokens]
        if how.capacity:
            room, owner = how.slots(len(tokens)), lambda expert: expert
        else:
            # A rank's bucket is filled by expert.
            room, owner = how.bucket(len(tokens)), lambda expert: expert // how.held
            asked.sort(key=lambda ask: ask[0])
        taken = dict.fromkeys(range(EXPERTS), 0)
        for expert, at in asked:
            taken[owner(expert)] += 1
            kept[at][expert] = taken[owner(expert)] <= room
    return kept if how.capacity or how.expert > 1 else np.ones_like(kept)


def spread_over_ranks(
    given: Problem, how: ExpertShape, shared: Callable[[jax.Array], jax.Array] | None = None
) -> tuple[jax.Array, tuple[jax.Array, ...], ExpertMetrics]:
    """Output, gradients of x and weights, and metrics by rank, as the trainer computes them: inside a shard_map, each
    rank differentiating its own share of the loss."""
    mesh = Mesh(
        np.array(jax.devices()[: how.expert * how.tensor]).reshape(how.expert, how.tensor), ("expert", "tensor")
    )
    specs = (SHARDS, PartitionSpec(), PartitionSpec("expert", None, None, "tensor"), PartitionSpec("expert", "tensor"))

    def rank(*parts: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...], ExpertMetrics]:
        def loss(*arguments: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ExpertMetrics]]:
            x, router, gate_up, down = arguments
            y, metrics = apply_experts(x, ExpertWeights(router, gate_up, down), how, shared)
            return (y * parts[4]).sum(), (y, metrics)

        (_, (y, metrics)), grads = jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(*parts[:4])
        router = jax.lax.psum(grads[1], ("expert", "tensor"))  # the only weight that every rank has
        return y, (grads[0], router, *grads[2:]), jax.tree.map(lambda metric: metric[None], metrics)

    outs = (SHARDS, specs, PartitionSpec(("expert", "tensor")))
    run = jax.shard_map(rank, mesh=mesh, in_specs=(*specs, SHARDS), out_specs=outs, check_vma=False)
    return jax.jit(run)(*given)


def assert_close(ours: jax.Array, theirs: jax.Array | np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=CLOSE * float(np.abs(theirs).max()))


def shape(expert: int, tensor: int, **fields: float | bool | str) -> ExpertShape:
    return ExpertShape(experts=EXPERTS, topk=TOPK, expert=expert, tensor=tensor, **fields)  # pyright: ignore


CASES = [
    *(({"room": 8.0}, layout) for layout in [(1, 1), (1, 2), (2, 1), (4, 1), (2, 2), (4, 2)]),
    *(({"room": 1.0}, layout) for layout in [(4, 1), (2, 2)]),
    *(({"capacity": 1.0}, layout) for layout in [(1, 1), (1, 2), (4, 1), (4, 2)]),
    ({"capacity": 8.0}, (2, 2)),
    # Its rows beyond the last group are NaN here, and must reach nothing.
    ({"room": 8.0, "kernel": "megablox_interpreted"}, (2, 1)),
]


@pytest.mark.parametrize(("fields", "layout"), CASES, ids=str)
def test_values_and_gradients_are_those_of_every_token_through_every_expert(
    fields: dict[str, float | str], layout: tuple[int, int]
) -> None:
    given, how = problem(), shape(*layout, **fields)
    kept = admitted(given, how)
    ids = choices(given)
    lost = TOPK * BATCH * LENGTH - np.take_along_axis(kept, ids, axis=-1).sum()
    assert (lost > 0) == (1.0 in fields.values())

    y, grads, metrics = spread_over_ranks(given, how)
    assert metrics.dropped.sum() == lost
    assert_close(y, masked(*given[:4], kept))
    expected = jax.grad(lambda *parts: (masked(*parts, kept) * given.wanted).sum(), (0, 1, 2, 3))(*given[:4])
    for ours, theirs in zip(grads, expected, strict=True):
        assert_close(ours, theirs)


def test_what_all_is_held_against_is_the_sum_over_each_tokens_experts() -> None:
    given = problem()
    assert_close(masked(*given[:4], np.ones((BATCH, LENGTH, EXPERTS))), token_by_token(given))


@pytest.mark.parametrize(("expert", "capacity"), [(1, 0.0), (2, 0.0), (2, 8.0)])
def test_experts_that_are_not_gated_use_a_gelu(expert: int, capacity: float) -> None:
    given = problem(wide=1)
    y, _, _ = spread_over_ranks(given, shape(expert, 2, gated=False, capacity=capacity, room=8.0))
    assert_close(y, masked(*given[:4], np.ones((BATCH, LENGTH, EXPERTS))))


@pytest.mark.parametrize("expert", [1, 2])
def test_shared_experts_see_the_whole_sequence_and_their_shares_are_summed(expert: int) -> None:
    given = problem()

    def share(tokens: jax.Array) -> jax.Array:
        assert tokens.shape == (BATCH * LENGTH // expert, D)
        return tokens * (1.0 + jax.lax.axis_index("tensor"))  # 1 + 2 over the two ranks

    y, _, _ = spread_over_ranks(given, shape(expert, 2, room=8.0), share)
    assert_close(y, masked(*given[:4], np.ones((BATCH, LENGTH, EXPERTS))) + 3 * given.x)


def routed(logits: list[float], bias: list[float] | None = None, **fields: bool) -> tuple[Choice, jax.Array]:
    """The choice of 2 experts for one token with these logits."""
    how = ExpertShape(experts=len(logits), topk=2, **fields)
    weights = ExpertWeights(
        jnp.eye(len(logits)), jnp.zeros(()), jnp.zeros(()), None if bias is None else jnp.array(bias)
    )
    return route(jnp.array([logits]), weights, how)


def test_weights_of_a_tokens_experts_are_a_softmax_over_these_alone() -> None:
    choice, _ = routed([0.0, np.log(3.0), -5.0, 0.0 + np.log(2.0)])
    assert choice.ids[:, 0].tolist() == [1, 3]
    np.testing.assert_allclose(choice.gates[:, 0], [0.6, 0.4], rtol=1e-6)


def test_a_routers_bias_decides_who_is_chosen_and_not_with_which_weight() -> None:
    choice, _ = routed([0.0, np.log(3.0), np.log(2.0), -9.0], [0.5, 0.0, 0.0, 0.0])
    assert choice.ids[:, 0].tolist() == [0, 1]  # scores of 1/6 + 0.5, 3/6, 2/6
    np.testing.assert_allclose(choice.gates[:, 0], [0.25, 0.75], rtol=1e-3)


def test_the_balance_loss_is_one_where_all_is_even_and_grows_with_what_is_not() -> None:
    assert routed([0.0] * 4)[1] == 0.0, "off unless asked for"
    np.testing.assert_allclose(routed([0.0] * 4, balance=True)[1], 1.0)
    # Scores 0.4, 0.4, 0.1, 0.1, and the first two experts take all: 4 (0.5 * 0.4 + 0.5 * 0.4).
    np.testing.assert_allclose(routed([np.log(4.0), np.log(4.0), 0.0, 0.0], balance=True)[1], 1.6, rtol=1e-6)


def test_outputs_have_the_type_of_the_tokens() -> None:
    given = Problem(*(part.astype(jnp.bfloat16) for part in problem()))
    y, grads, _ = spread_over_ranks(given, shape(2, 2, room=8.0))
    assert {part.dtype for part in (y, *grads)} == {jnp.dtype(jnp.bfloat16)}
    exact = masked(*(part.astype(jnp.float32) for part in given[:4]), np.ones((BATCH, LENGTH, EXPERTS)))  # type: ignore
    # Rounding to 8 bits a handful of times; a token whose choice turns on it is rare.
    off = np.abs(np.asarray(y, np.float32) - exact).max(-1) > 0.03 * np.abs(exact).max()
    assert off.mean() < 0.05


def test_a_bucket_never_has_more_room_than_can_come() -> None:
    assert shape(4, 1, room=4.0).bucket(100) == 200  # all of 100 tokens' 2 choices
    assert ExpertShape(experts=8, topk=4, expert=4, room=4.0).bucket(100) == 200  # a rank has only 2 of their 4
    assert shape(4, 1, room=1.25).bucket(100) == 63  # 100 * 2 / 4 * 1.25, rounded up
    assert shape(1, 1, capacity=1.25).slots(100) == 32  # 100 * 2 / 8 * 1.25, rounded up

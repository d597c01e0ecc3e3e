"""What must move, by hand. The trainer's own program is the other check: tests/compiler/test_wire_traced.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asap_ray.architecture import Architecture
from asap_ray.layers import Attention, Experts, FeedForward
from asap_ray.physics.wire import Wire, predicted_collectives
from asap_ray.plan import Plan
from tests.problems import make_problem

ATTENTION = Attention(heads=8, kv_heads=4, head_dim=8)
DENSE = Architecture(name="dense", layers=4, d_model=64, vocab=128, attention=ATTENTION, ffn=FeedForward(d_ff=96))
MOE = Architecture(
    name="moe", layers=4, d_model=64, vocab=128, attention=ATTENTION, experts=Experts(experts=8, topk=2, d_ff=32)
)
QUERY_OUT, KEY_VALUE, UP_DOWN = 2 * 64 * 64, 64 * 64, 64 * 96 * 3
LAYER = QUERY_OUT + KEY_VALUE + UP_DOWN
EDGES = 2 * 128 * 64


def predicted(slice_: str, line: str, model: Architecture = DENSE, seq_len: int = 128, capacity: float = 0.0) -> Wire:
    problem = make_problem(slice_, "ours", model=model, batch=64, seq_len=seq_len)
    problem = replace(problem, workload=replace(problem.workload, expert_capacity=capacity))
    return predicted_collectives(problem, Plan.parse(line))


def test_weights_are_gathered_twice_and_scattered_once_a_micro_batch() -> None:
    found = predicted("v5e-16", "fsdp=16 micro_batch=1 accumulation=3 remat=full")
    assert found["all_gather", ("fsdp",), "ici"] == 3 * (2 * 4 * LAYER + EDGES) * 2 * 15 / 16
    assert found["reduce_scatter", ("fsdp",), "ici"] == 3 * (4 * LAYER + EDGES) * 2 * 15 / 16
    # Gains of two norms a layer, and of the last, are whole everywhere.
    assert found["all_reduce", ("fsdp",), "ici"] == 9 * 64 * 2 * 2 * 15 / 16


def test_one_device_sends_nothing() -> None:
    assert predicted("v5e:1x1", "micro_batch=1 remat=full") == {}


def test_replicas_sum_once_a_step() -> None:
    found = predicted("v5e-16", "data=16 micro_batch=1 accumulation=4 remat=full")
    parameters = 4 * LAYER + EDGES + 9 * 64
    assert found == {("all_reduce", ("data",), "ici"): parameters * 2 * 2 * 15 / 16}


def test_zero_scatters_gradients_and_gathers_updates() -> None:
    found = predicted("v5e-16", "data=16 micro_batch=1 accumulation=4 zero=1 remat=full")
    parameters = 4 * LAYER + EDGES + 9 * 64
    assert found == {(kind, ("data",), "ici"): parameters * 2 * 15 / 16 for kind in ("reduce_scatter", "all_gather")}


@pytest.mark.parametrize(("remat", "scatters"), [("full", 5), ("save_dots", 4)])
def test_blocks_gather_and_scatter_over_tensor(remat: str, scatters: int) -> None:
    found = predicted("v5e:2x2", f"tensor=4 micro_batch=2 sequence_parallel=true remat={remat}")
    block = 2 * 128 * 64 * 2 * 3 / 4
    assert found["all_gather", ("tensor",), "ici"] == (6 * 4 + 2) * block
    assert found["reduce_scatter", ("tensor",), "ici"] == (scatters * 4 + 2) * block


@pytest.mark.parametrize(("remat", "rounds"), [("full", 4), ("save_dots", 3)])
def test_keys_go_round_the_context_axis(remat: str, rounds: int) -> None:
    # Forward, again where the output is not kept, backward, and the gradients' own way.
    found = predicted("v5e:2x2", f"context=4 micro_batch=1 remat={remat}")
    assert found["permute", ("context",), "ici"] == rounds * 3 * 4 * (32 * 4 * 16 * 2)


def test_a_window_gathers_keys_instead() -> None:
    model = replace(DENSE, attention=replace(ATTENTION, window=16))
    found = predicted("v5e:2x2", "context=4 micro_batch=1 remat=full", model)
    keys = 4 * (128 * 4 * 16 * 2) * 3 / 4
    weights = (2 * 4 * LAYER + EDGES) * 2 * 3 / 4
    assert not any(kind == "permute" for kind, _, _ in found)
    assert found["all_gather", ("context",), "ici"] == 2 * keys + weights


def test_a_pipeline_hands_on_in_each_tick() -> None:
    found = predicted("v5e:2x2", "pipeline=4 micro_batch=1 accumulation=8 schedule=gpipe remat=full")
    ticks = 8 + 3
    assert found["permute", ("pipeline",), "ici"] == 2 * (2 * ticks + 1) * 128 * 64 * 2
    # Embedding, head and the last norm are on every stage, each for its own micro-batches.
    assert found["all_reduce", ("pipeline",), "ici"] == (EDGES + 64) * 2 * 2 * 3 / 4


def test_tokens_go_to_their_experts_and_back() -> None:
    # 128 tokens, 2 copies each, room for 1.25 times the even share of 8 experts: 40 slots each.
    found = predicted("v5e:2x2", "expert=4 micro_batch=1 remat=full", MOE, capacity=1.25)
    rows = 8 * 40
    # Four ways a step and the first once more, since nothing is kept; gates go one way, in float32.
    assert found["all_to_all", ("expert",), "ici"] == 4 * (5 * rows * 64 * 2 + 3 * rows * 4) * 3 / 4
    dense = QUERY_OUT + KEY_VALUE + 64 * 8
    assert found["all_gather", ("expert",), "ici"] == (2 * 4 * dense + EDGES) * 2 * 3 / 4


def test_slices_bring_together_inside_what_comes_across() -> None:
    found = predicted("2xv5e-16", "fsdp=16x2 micro_batch=1 remat=full")
    whole = (2 * 4 * LAYER + EDGES) * 2
    assert found["all_gather", ("fsdp",), "ici"] == whole * 15 / 16
    assert found["all_gather", ("fsdp",), "dcn"] == whole / 16 / 2


def test_a_torus_gathers_over_three_link_axes_in_two_phases() -> None:
    # 4x4x4: of fsdp=16 on the first two link axes and context=4 on the third, context is gathered first, and makes a
    # sixteenth; then fsdp brings all together. Keys and values go round the context axis besides.
    found = predicted("v5p:4x4x4", "fsdp=16@4.4.1 context=4@1.1.4 micro_batch=1 remat=full")
    whole = (2 * 4 * LAYER + EDGES) * 2
    assert found["all_gather", ("context",), "ici"] == whole / 16 * 3 / 4
    assert found["all_gather", ("fsdp",), "ici"] == whole * 15 / 16
    assert ("all_gather", ("fsdp", "context"), "ici") not in found
    # Gradients go back along one link axis at a time, the outermost first: 3/4 of all, 3/4 of what is left, …
    gradients = (4 * LAYER + EDGES) * 2
    assert found["reduce_scatter", ("fsdp",), "ici"] == pytest.approx(gradients * (3 / 4 + 3 / 16))
    assert found["reduce_scatter", ("context",), "ici"] == pytest.approx(gradients / 16 * 3 / 4)
    # One mesh axis over all three is split inside, and sends what one gather would: 63 shards.
    found = predicted("v5p:4x4x4", "fsdp=64@4.4.4 micro_batch=1 remat=full")
    assert found["all_gather", ("fsdp",), "ici"] == pytest.approx(whole * 63 / 64)
    assert found["reduce_scatter", ("fsdp",), "ici"] == pytest.approx(gradients * 63 / 64)


def test_nodes_of_gpus_run_one_collective_for_all_ranks() -> None:
    found = predicted("h100x16", "fsdp=8x2 micro_batch=1 remat=full")
    assert found["all_gather", ("fsdp",), "dcn"] == (2 * 4 * LAYER + EDGES) * 2 * 15 / 16
    assert ("all_gather", ("fsdp",), "ici") not in found


@pytest.mark.parametrize(
    ("line", "scatters"),
    [
        ("fsdp=4 micro_batch=1 remat=full", 1),
        ("fsdp=2 pipeline=2 micro_batch=1 accumulation=2 schedule=gpipe remat=full", 2),
    ],
)
def test_one_table_for_embedding_and_head(line: str, scatters: int) -> None:
    tied, untied = predicted("v5e:2x2", line, replace(DENSE, tied=True)), predicted("v5e:2x2", line)
    away = 1 - 1 / Plan.parse(line).axes["fsdp"]
    table = EDGES / 2 * 2 * away
    assert untied["all_gather", ("fsdp",), "ici"] - tied["all_gather", ("fsdp",), "ici"] == table
    less = untied["reduce_scatter", ("fsdp",), "ici"] - tied["reduce_scatter", ("fsdp",), "ici"]
    assert less == (2 - scatters) * table

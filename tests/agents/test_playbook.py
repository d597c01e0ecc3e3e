"""Each card that is carried changes a proposal where it fires: without it the round is another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from asap_ray.agents.analyzer import Analysis
from asap_ray.agents.brief import Brief
from asap_ray.agents.facts import facts_of_result
from asap_ray.agents.moves import reached
from asap_ray.agents.playbook import Playbook
from asap_ray.agents.verifier import refusal
from asap_ray.diagnosis import diagnose
from asap_ray.knowledge import XLA, Card, load_cards
from asap_ray.plan import AXES, Plan
from asap_ray.problem import coding
from asap_ray.recipe import Genes
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Candidate, Result
from tests.agents.doubles import Double, agents, play, small_pool
from tests.problems import MOE

CARDS = {card.name: card for card in load_cards()}
DENSE = {"slice_": "v5e-8"}
PIPED = {"slice_": "h100x16", "stack": "megatron"}
EXPERTS = {"slice_": "v5e-8", "model": MOE, "batch": 24}
LONG = {"slice_": "v5e-8", "seq_len": 9216}
SLICES = {"slice_": "4xv5e-4", "batch": 48}
SPLIT = {"slice_": "2xv5e-4", "model": MOE, "batch": 48}
WIDE = {"slice_": "v5e-16", "model": "llama3_8b", "batch": 128, "seq_len": 4096}
OPENED = {"numerics": ("precision",)}
GENES = Genes(flags=("async", "collective_matmul", "data_parallel"))
"""Bundles of flags that the search has."""


@cache
def pool_named(words: tuple[tuple[str, Any], ...]) -> Pool:
    return small_pool(**dict(words))


# For each card a problem, and what of a base plan and its diagnosis makes it fire.
FIRES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "compute_context_to_data": (DENSE, {"context": 2}, {"bound": "compute"}),
    "hbm_more_tensor": (DENSE, {"tensor": 1}, {"bound": "hbm"}),
    "ici_tensor_to_data": (DENSE, {"tensor": 2}, {"bound": "ici"}),
    "memory_more_recomputation": (DENSE, {"remat": "minimal"}, {"bound": "memory"}),
    "memory_smaller_micro_batch": (DENSE, {"micro_batch": 2}, {"bound": "memory"}),
    "memory_shard_optimizer": (DENSE, {"data": 2, "zero": 0, "fsdp": 1}, {"bound": "memory"}),
    "memory_shard_weights": (DENSE, {"data": 2}, {"bound": "memory"}),
    "less_recomputation": (DENSE, {"remat": "full"}, {"redundant": 0.3, "hbm": 0.5}),
    "weights_gathered_less_often": (DENSE, {"fsdp": 2, "accumulation": 2}, {"bound": "ici", "share.fsdp": 0.2}),
    "fsdp_traffic_to_tensor": (DENSE, {"fsdp": 4, "tensor": 1}, {"share.fsdp": 0.3}),
    "bubble_more_micro_batches": (PIPED, {"pipeline": 2, "micro_batch": 2}, {"bound": "bubble"}),
    "bubble_interleave": (PIPED, {"pipeline": 2, "schedule": "1f1b"}, {"bound": "bubble"}),
    "bubble_more_chunks": (PIPED, {"pipeline": 2, "schedule": "interleaved", "virtual": 2}, {"bound": "bubble"}),
    "bubble_zero_bubble": ({**PIPED, "stack": "torchtitan"}, {"pipeline": 2, "schedule": "1f1b"}, {"bound": "bubble"}),
    "bubble_fewer_stages": (PIPED, {"pipeline": 2}, {"bound": "bubble"}),
    "dcn_weights_stay_inside": (SLICES, {"fsdp_dcn": 4}, {"bound": "dcn"}),
    "dcn_pipeline_across": (PIPED, {"data_dcn": 2}, {"bound": "dcn"}),
    "tensor_inside_a_node": (PIPED, {"tensor_dcn": 2}, {"bound": "dcn"}),
    "split_norms_over_tensor": (PIPED, {"tensor": 2, "sequence_parallel": 0}, {}),
    "tensor_traffic_to_context": (LONG, {"tensor": 2, "context": 1}, {"bound": "ici", "share.tensor": 0.3}),
    "experts_instead_of_tensor": (EXPERTS, {"tensor": 2, "expert": 1}, {"share.expert": 0.0}),
    "expert_traffic_to_data": (EXPERTS, {"expert": 2}, {"share.expert": 0.3}),
    "matmuls_with_more_rows": (DENSE, {"accumulation": 6, "micro_batch": 1}, {"bound": "hbm"}),
    "fused_attention": ({"slice_": "h100x8", "stack": "megatron"}, {"attention": "unfused"}, {}),
    "v5e_tokens_hide_gathers": (DENSE, {"fsdp": 2, "accumulation": 2}, {"share.fsdp": 0.06}),
    "v5p_tokens_hide_gathers": ({"slice_": "v5p-16"}, {"fsdp": 2, "accumulation": 2}, {"share.fsdp": 0.06}),
    "v6e_tokens_hide_gathers": ({"slice_": "v6e-8"}, {"fsdp": 2, "accumulation": 2}, {"share.fsdp": 0.06}),
    "tpu7x_tokens_hide_gathers": ({"slice_": "tpu7x-8"}, {"fsdp": 2, "accumulation": 2}, {"share.fsdp": 0.06}),
    "v6e_rows_above_the_ridge": ({"slice_": "v6e-8"}, {"context": 2}, {"bound": "hbm", "hbm": 0.5}),
    "tpu7x_tensor_over_dies": ({"slice_": "tpu7x-8"}, {"tensor": 1, "fsdp": 4}, {"share.fsdp": 0.06}),
    "line_context_to_batch": (DENSE, {"context": 2}, {"share.context": 0.06}),
    "line_tensor_to_batch": (DENSE, {"tensor": 2}, {"share.tensor": 0.2}),
    "dcn_context_stays_inside": (SLICES, {"context_dcn": 2}, {"bound": "dcn"}),
    "dcn_experts_stay_inside": (SPLIT, {"expert_dcn": 2}, {"bound": "dcn"}),
    "dcn_stages_instead_of_shards": (SLICES, {"fsdp_dcn": 2}, {"bound": "dcn"}),
    "shards_within_replicas": (DENSE, {"fsdp": 4}, {"share.fsdp": 0.2, "hbm": 0.3}),
    "gradients_to_tensor": (DENSE, {"data": 2, "tensor": 1}, {"share.gradient": 0.2}),
    "tensor_beyond_its_width": (WIDE, {"tensor": 8}, {"share.tensor": 0.2}),
    "long_sequences_share_memory": (LONG, {"fsdp": 2}, {"bound": "memory"}),
    "context_traffic_to_batch": (DENSE, {"context": 2}, {"share.context": 0.2}),
    "short_sequences_stay_whole": (DENSE, {"context": 2}, {"share.context": 0.03}),
    "experts_share_memory": (EXPERTS, {"expert": 1, "fsdp": 2}, {"bound": "memory"}),
    "experts_stay_where_they_are": (EXPERTS, {"expert": 1, "fsdp": 2}, {"share.fsdp": 0.2, "share.expert": 0.0}),
    "memory_over_stages": (PIPED, {"pipeline": 1, "data": 2}, {"bound": "memory"}),
    "memory_one_f_one_b": ({**PIPED, "stack": "torchtitan"}, {"schedule": "gpipe"}, {"bound": "memory"}),
    "memory_of_zero_bubble": ({**PIPED, "stack": "torchtitan"}, {"schedule": "zero_bubble"}, {"bound": "memory"}),
    "interleaving_costs_traffic": (PIPED, {"schedule": "interleaved"}, {"bound": "ici", "share.pipeline": 0.06}),
    "stages_to_replicas": (PIPED, {"pipeline": 2}, {"hbm": 0.3}),
    "tensor_before_stages": (PIPED, {"pipeline": 2, "tensor": 1}, {"hbm": 0.7, "share.tensor": 0.0}),
    "tensor_wider_than_it_pays": (PIPED, {"tensor": 2, "pipeline": 1}, {"share.tensor": 0.2}),
    "optimizer_over_replicas": (DENSE, {"data": 2, "zero": 0}, {"share.optimizer": 0.05}),
    "gradients_once_a_step": (
        {"slice_": "h100x8", "stack": "foundry", "batch": 48},
        {"zero": 2, "accumulation": 2},
        {"share.gradient": 0.1, "hbm": 0.3},
    ),
    "offload_instead_of_recomputing": (DENSE, {"remat": "full"}, {"redundant": 0.3, "hbm": 0.8, "bound": "compute"}),
    "recompute_instead_of_offloading": (DENSE, {"remat": "minimal_offloaded"}, {"bound": "pcie"}),
    "shard_to_recompute_less": (DENSE, {"remat": "full", "data": 2}, {"redundant": 0.3, "hbm": 0.9}),
    "room_for_more_rows": (DENSE, {"accumulation": 2}, {"hbm": 0.3}),
    "fewer_launches": (DENSE, {"accumulation": 2}, {"bound": "host"}),
    "fp8_matmuls": ({"slice_": "h100x8", "stack": "megatron", **OPENED}, {"precision": "bf16"}, {"bound": "compute"}),
    "fp8_on_tpu7x": ({"slice_": "tpu7x-8", **OPENED}, {"precision": "bf16"}, {"bound": "compute"}),
    "head_over_tensor": (DENSE, {"tensor": 1, "data": 2}, {"share.head": 0.2}),
    "least_tensor_that_fits": (PIPED, {"tensor": 2}, {"hbm": 0.3, "share.tensor": 0.05}),
    "overlap_exposed_gathers": (DENSE, {"fsdp": 2}, {"share.fsdp": 0.2, "overlap": 0.2}),
    "collective_matmul": (DENSE, {"tensor": 2}, {"share.tensor": 0.2}),
    "gradients_beside_backward": (SLICES, {"data_dcn": 4}, {"share.gradient": 0.2}),
}


def base_of(pool: Pool, wanted: dict[str, Any], card: Card) -> int:
    """The first plan that has what is wanted and from which the card's move leads anywhere."""
    mask = np.ones(len(pool), bool)
    for name, value in wanted.items():
        names = coding(pool.problem).get(name)
        mask &= pool.columns[name] == (names.index(value) if names else value)
    for row in np.flatnonzero(mask)[:400]:
        ways = (reached(pool, int(row), move, pool.recomputed).any() for move in card.moves if XLA not in move)
        if flagging(card) or any(ways):
            return int(row)
    raise AssertionError(f"no plan of the pool has {wanted} and a way to go")


def flagging(card: Card) -> bool:
    """Whether a card moves flags and not the plan."""
    return all(XLA in move for move in card.moves)


def brief_of(pool: Pool, row: int) -> tuple[Brief, Result]:
    """A trial of one plan that was slow, after which all others are expected to be much faster."""
    priced = pool.estimate(row)
    candidate = Candidate(number=0, plan=pool.plan(row), author="test")
    result = Result(
        candidate=candidate,
        status="complete",
        step_time_s=100 * float(pool.step_s.max()),
        estimate=priced,
        roofline=priced,
        diagnosis=diagnose(priced),
    )
    brief = agents(pool, cards=()).brief()
    open_ = np.ones(len(pool), bool)
    open_[row] = False
    return replace(brief, results=(result,), best=result, open=open_, tried={row: 0}, genes=GENES), result


@pytest.mark.parametrize("name", sorted(CARDS))
def test_a_card_changes_a_proposal_where_it_fires(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words, wanted, facts = FIRES[name]
    pool, card = pool_named(tuple(words.items())), CARDS[name]
    brief, base = brief_of(pool, base_of(pool, wanted, card))

    def told(problem: Any, result: Result) -> dict[str, Any]:
        return {**facts_of_result(problem, result), **facts}

    monkeypatch.setattr("asap_ray.agents.playbook.facts_of_result", told)
    with_card = Playbook(cards=(card,)).propose(brief, 3)
    without = Playbook(cards=()).propose(brief, 3)
    (fired,) = [each for each in with_card if each.card == name]
    assert [each.card for each in without] == ["", "", ""]
    assert len({each.plan for each in with_card}) == 3
    assert card.why in fired.hypothesis
    assert fired.mechanism.startswith(f"{name}: ")
    assert fired.base == 0
    assert pool.row(fired.plan) is not None
    if flagging(card):
        assert fired.plan == base.candidate.plan
        assert {"xla": fired.recipe.flags} in card.moves
        assert refusal(brief, fired) is None
        return
    assert not fired.recipe
    assert moved(card, base.candidate.plan, fired.plan)


def moved(card: Card, before: Plan, after: Plan) -> bool:
    """Whether one of a card's moves, read by hand, leads from one plan to the other."""
    acts: dict[str, Callable[[Any, Any], bool]] = {
        "half": lambda a, b: a == 2 * b,
        "double": lambda a, b: b == 2 * a,
        "lower": lambda a, b: b < a,
        "higher": lambda a, b: b > a,
        "free": lambda a, b: True,
        "lighter": lambda a, b: a != b,
        "heavier": lambda a, b: a != b,
    }

    def size(plan: Plan, name: str) -> Any:
        axis, _, level = name.partition("_")
        axes = dict(zip(plan.axes, plan.ici if level == "ici" else plan.dcn, strict=True))
        return plan.axes[name] if name in plan.axes else axes[axis] if level in ("ici", "dcn") else getattr(plan, name)

    def held(name: str, action: str) -> bool:
        a, b = size(before, name), size(after, name)
        return acts[action](a, b) if action in acts else str(b).lower() == action

    return any(all(held(name, action) for name, action in move.items()) for move in card.moves)


@pytest.mark.parametrize(
    ("base", "after"),
    [
        ({"context": 2, "fsdp": 4}, {"fsdp": 8}),  # weights are sharded and stay so
        ({"context": 2, "data": 4}, {"data": 8}),
        ({"context": 2, "data": 2, "fsdp": 2}, {"data": 4, "fsdp": 2}),  # the card's own order
        ({"context": 2, "tensor": 4}, {"data": 2, "tensor": 4}),  # neither is begun
    ],
)
def test_a_plan_doubles_the_axis_that_it_has(
    base: dict[str, int], after: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_named(tuple(EXPERTS.items()))
    assert meshes_by_card(pool, "compute_context_to_data", base, {"bound": "compute"}, monkeypatch)[0] == after


def test_a_card_that_reaches_further_takes_the_next_step_once_the_first_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = pool_named(tuple(EXPERTS.items()))
    found = meshes_by_card(pool, "hbm_more_tensor", {"data": 4, "context": 2}, {"bound": "hbm"}, monkeypatch)
    steps = list(dict.fromkeys(tuple(sorted(each.items())) for each in found))
    assert [dict(each) for each in steps] == [
        {"context": 2, "data": 2, "tensor": 2},
        {"context": 2, "tensor": 4},
    ]
    once = meshes_by_card(pool, "ici_tensor_to_data", {"tensor": 4, "data": 2}, {"bound": "ici"}, monkeypatch)
    assert once[0] == {"tensor": 2, "data": 4}
    assert {"data": 8} not in once


def meshes_by_card(
    pool: Pool, name: str, base: dict[str, int], facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, int]]:
    """Meshes that one card leads to from a plan on a mesh, one after the other, each once the ones before are taken."""
    sizes = {axis: base.get(axis, 1) for axis in AXES}
    brief, result = brief_of(pool, base_of(pool, sizes, CARDS[name]))
    monkeypatch.setattr("asap_ray.agents.playbook.facts_of_result", lambda *given: {**facts_of_result(*given), **facts})
    brain, taken, found = Playbook(cards=(CARDS[name],)), set[Plan](), list[dict[str, int]]()
    while proposals := brain.by_cards(brief, result, taken):
        taken.add(proposals[0].plan)
        found.append({axis: size for axis, size in proposals[0].plan.axes.items() if size > 1})
    return found


def test_without_diagnosis_no_card_fires() -> None:
    pool = pool_named(tuple(DENSE.items()))
    brief, base = brief_of(pool, 0)
    brain = Playbook(cards=tuple(CARDS.values()))
    assert brain.by_cards(brief, base)
    assert brain.by_cards(replace(brief, diagnosing=False), base) == []


def test_a_card_whose_plan_is_expected_to_be_much_slower_has_no_place() -> None:
    pool = pool_named(tuple(DENSE.items()))
    brief, base = brief_of(pool, 0)
    fast = replace(base, step_time_s=0.5 * float(pool.step_s.min()))
    assert Playbook(cards=tuple(CARDS.values())).by_cards(replace(brief, best=fast), fast) == []


def test_the_ranking_spreads_over_meshes_and_policies() -> None:
    pool = pool_named(tuple(DENSE.items()))
    flat = replace(agents(pool, cards=()).brief(), expected_s=np.ones(len(pool)))
    found = Playbook(cards=()).propose(flat, 8)
    kinds = {(each.plan.sizes, each.plan.remat) for each in found}
    assert len(kinds) == 8


def test_an_analysis_of_nothing_expects_what_the_roofline_says() -> None:
    pool = pool_named(tuple(DENSE.items()))
    analysis: Analysis = agents(pool).analysis
    assert analysis.expected_s == pytest.approx(pool.step_s)
    assert (analysis.faults, analysis.memory) == ((), 1.0)


def test_what_did_not_fit_is_what_cards_free_memory_for() -> None:
    # Nothing without full recomputation fits: cards start from a trial that did not, and lead to plans that need less.
    pool = small_pool("v5e-16", model="llama3_8b", batch=128, seq_len=4096)
    double = Double(pool, too_big=lambda plan: plan.remat != "full")
    searcher = agents(pool, share=0.0)
    found = play(searcher, double, rounds=3)
    told = [each.fields for each in searcher.drain() if each.kind == "proposal"]
    memory = [each for each in told if each["card"].startswith("memory_")]
    assert memory
    for each in memory:
        base, after = found[each["base"]], found[each["trial"]]
        assert base.status == "infeasible"
        assert "bound memory" in each["hypothesis"]
        before = pool.hbm_bytes[pool.row(base.candidate.plan) or 0]
        assert pool.hbm_bytes[pool.row(after.candidate.plan) or 0] < before - base.over_bytes
        assert each["prediction"]["field"] == "step_time_s"
        assert each["prediction"]["low"] < each["expected_s"] < each["prediction"]["high"]
    without = [each.candidate.plan for each in play(agents(pool, cards=(), share=0.0), double, rounds=3)]
    assert [each.candidate.plan for each in found] != without

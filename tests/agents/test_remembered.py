"""Cases lead to proposals, contradicted ones do not, and without a memory the playbook is what it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asap_ray.agents.playbook import Playbook
from asap_ray.agents.remembered import NEAR, distance, from_cases, nearest, scaled
from asap_ray.cases import Case, Situation, situation_of
from asap_ray.plan import Plan
from asap_ray.recall import Recall, Record, Tally, recalled
from asap_ray.search.pool import Pool
from tests.agents.doubles import Double, agents, play, slow_link, small_pool
from tests.agents.test_playbook import CARDS, DENSE, base_of, brief_of, pool_named


@pytest.fixture(scope="module")
def pool() -> Pool:
    return pool_named(tuple(DENSE.items()))


def case_of(pool: Pool, plan: Plan, situation: Situation | None = None, **changes: Any) -> Case:
    row = pool.row(plan)
    priced = float(pool.step_s[row]) if row is not None else 1.0
    case = Case(
        situation=situation or situation_of(pool.problem),
        source="compile",
        evidence="ours@1",
        bundle="default",
        plan=plan.line,
        status="complete",
        roofline_s=priced,
        step_time_s=1.25 * priced,
    )
    return replace(case, **changes)


def slow_plan(pool: Pool) -> Plan:
    """A plan that the ranking would not propose, though it is expected to be nearly as fast as the best."""
    order = np.argsort(pool.step_s, kind="stable")
    return pool.plan(int(order[12]))


def test_a_case_of_this_very_situation_is_proposed_as_it_was_in_the_first_round(pool: Pool) -> None:
    plan = slow_plan(pool)
    case = case_of(pool, plan)
    recall = recalled([case], situation_of(pool.problem))
    brief = replace(agents(pool, cards=()).brief(), recall=recall)
    without = Playbook(cards=()).propose(replace(brief, recall=Recall()), 3)
    first, second, third = Playbook(cards=()).propose(brief, 3)
    assert second.plan == plan
    assert plan not in {each.plan for each in without}
    assert [first.plan, third.plan] == [each.plan for each in without[:2]]
    assert (second.mechanism, second.cites) == (f"case:{case.id}", (f"case:{case.id}",))
    assert second.hypothesis.startswith(f"case:{case.id} was dense (dense, ")
    assert "its plan, at 1.25 times what the roofline says, as then" in second.hypothesis
    estimate = pool.estimate(pool.row(plan) or 0)
    assert second.expected_s == pytest.approx(1.25 * estimate.step_time_s)
    assert second.prediction.field == "step_time_s"
    assert (second.prediction.low, second.prediction.high) == pytest.approx(
        tuple(1.25 * end for end in estimate.interval_s)
    )


def test_cases_are_for_the_first_round_alone(pool: Pool) -> None:
    recall = recalled([case_of(pool, slow_plan(pool))], situation_of(pool.problem))
    brief, _ = brief_of(pool, 0)
    assert from_cases(replace(brief, recall=recall), set(), 3) == []


@pytest.mark.parametrize("change", [{"chip": "v5p"}, {"family": "moe"}, {"seq_len": 72}, {"parameters": 10**9}])
def test_a_case_of_another_class_is_not_proposed(pool: Pool, change: dict[str, Any]) -> None:
    other = replace(situation_of(pool.problem), **change)
    recall = recalled([case_of(pool, slow_plan(pool), other)], situation_of(pool.problem))
    brief = replace(agents(pool, cards=()).brief(), recall=recall)
    assert from_cases(brief, set(), 3) == []


def test_a_contradicted_case_is_not_proposed_again(pool: Pool) -> None:
    case = case_of(pool, slow_plan(pool))
    against = case_of(pool, slow_plan(pool), by=f"case:{case.id}", verdict="refuted", step_time_s=9.0, told="it is 9 s")
    recall = recalled([case, against], situation_of(pool.problem))
    assert from_cases(replace(agents(pool).brief(), recall=recall), set(), 3) == []
    assert "it is 9 s" in recall.records[f"case:{case.id}"].text("")


def test_what_is_proposed_already_or_closed_is_left_to_the_next_case(pool: Pool) -> None:
    plan = slow_plan(pool)
    brief = replace(agents(pool).brief(), recall=recalled([case_of(pool, plan)], situation_of(pool.problem)))
    (as_it_was,) = from_cases(brief, set(), 3)
    (other,) = from_cases(brief, {plan}, 3)
    assert as_it_was.plan == plan != other.plan
    assert "the plan nearest to its" in other.hypothesis
    assert from_cases(replace(brief, open=np.zeros(len(pool), bool)), set(), 3) == []


@pytest.mark.parametrize(
    ("axes", "ratio", "wanted"),
    [
        ({"fsdp": 16, "tensor": 4}, 4.0, {"fsdp": 64, "tensor": 4}),
        ({"data": 8, "fsdp": 2}, 0.5, {"data": 4, "fsdp": 2}),
        ({"fsdp": 4, "data": 4}, 2.0, {"fsdp": 8, "data": 4}),
        ({"tensor": 8}, 2.0, {"tensor": 8, "fsdp": 2}),
        ({"fsdp": 2, "tensor": 8}, 0.25, {"fsdp": 1, "tensor": 8}),
    ],
)
def test_a_mesh_is_scaled_by_the_axis_that_splits_the_batch(
    axes: dict[str, int], ratio: float, wanted: dict[str, int]
) -> None:
    names = ("data", "fsdp", "pipeline", "context", "expert", "tensor")
    sizes = tuple(axes.get(name, 1) for name in names)
    found = scaled(Plan(ici=sizes), ratio)  # pyright: ignore[reportArgumentType]
    assert found == {name: wanted.get(name, 1) for name in names}


def test_distance_counts_doublings_and_knobs(pool: Pool) -> None:
    row = int(np.flatnonzero((pool.columns["fsdp"] == 4) & (pool.columns["tensor"] == 2))[0])
    plan = pool.plan(row)
    far = distance(pool, plan, pool.problem.slice.devices)
    assert far[row] == 0.0
    columns = pool.columns
    for other in range(0, len(pool), 97):
        axes = sum(abs(np.log2(columns[a][other] / columns[a][row])) for a in ("data", "fsdp", "context", "tensor"))
        axes += abs(np.log2(columns["pipeline"][other] / columns["pipeline"][row]))
        knobs = 0.25 * abs(np.log2(columns["micro_batch"][other] / columns["micro_batch"][row]))
        knobs += 0.25 * abs(np.log2(columns["virtual"][other] / columns["virtual"][row]))
        knobs += 1.0 * (columns["remat"][other] != columns["remat"][row])
        knobs += 0.5 * (columns["schedule"][other] != columns["schedule"][row])
        knobs += 0.5 * (columns["attention"][other] != columns["attention"][row])
        knobs += 0.25 * (columns["sequence_parallel"][other] != columns["sequence_parallel"][row])
        knobs += 0.25 * (columns["zero"][other] != columns["zero"][row])
        assert far[other] == pytest.approx(axes + knobs)


def test_a_plan_of_a_smaller_slice_is_found_again_on_a_larger_one(pool: Pool) -> None:
    small = small_pool("v5e-4")
    row = int(np.flatnonzero((small.columns["fsdp"] == 2) & (small.columns["tensor"] == 2))[0])
    found = nearest(pool, small.plan(row), 4, np.ones(len(pool), bool), np.ones(len(pool)))
    assert found is not None
    assert {axis: size for axis, size in pool.plan(found).axes.items() if size > 1} == {"fsdp": 4, "tensor": 2}
    assert pool.plan(found).remat == small.plan(row).remat


def test_what_has_nothing_of_the_case_is_not_near(pool: Pool) -> None:
    plan = Plan(ici=(1, 1, 1, 1, 1, 8), dcn=(1, 1, 1, 1, 1, 8), remat="full")  # 64 ranks of tensor on 8 devices
    assert distance(pool, plan, 64).min() > NEAR
    assert nearest(pool, plan, 64, np.ones(len(pool), bool), pool.step_s) is None


def test_a_plan_that_is_expected_to_be_much_slower_is_no_place_to_begin(pool: Pool) -> None:
    slowest = int(np.argmax(pool.step_s))
    found = nearest(pool, pool.plan(slowest), 8, np.ones(len(pool), bool), pool.step_s)
    assert found is None or pool.step_s[found] <= 1.5 * pool.step_s.min()


def test_another_stacks_words_are_no_hindrance(pool: Pool) -> None:
    plan = replace(pool.plan(3), remat="selective_of_another_stack")
    assert nearest(pool, plan, 8, np.ones(len(pool), bool), np.ones(len(pool))) is not None


def fared(name: str, **counts: int) -> Recall:
    tally = Tally(fired=sum(counts.values()), **counts)
    return Recall(records={name: Record(kind="tpu", here={"ici": tally}, contradicted="case:0123, refuted: no")})


def test_a_card_that_was_contradicted_loses_its_place_and_says_why(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("ici_tensor_to_data", "line_tensor_to_batch")
    cards = tuple(CARDS[name] for name in names)
    brief, base = brief_of(pool, base_of(pool, {"tensor": 2, "data": 1}, cards[0]))
    facts = {"bound": "ici", "wrapped": "false", "share.tensor": 0.2, "tensor": 2, "chip": "tpu"}
    monkeypatch.setattr("asap_ray.agents.playbook.facts_of_result", lambda *given: facts)
    brain = Playbook(cards=cards)
    before = brain.by_cards(brief, base)
    loser = before[0].card
    after = brain.by_cards(replace(brief, recall=fared(loser, refuted=8)), base)
    assert [each.card for each in after] == [each.card for each in reversed(before)]
    told = next(each for each in after if each.card == loser)
    assert "Its rank 0.10 (on tpu bound by ici: 8 fired, 0 confirmed, 8 refuted, 0 no-op" in told.hypothesis
    assert "against it case:0123, refuted: no" in told.hypothesis
    winner = brain.by_cards(replace(brief, recall=fared(loser, confirmed=8)), base)
    assert [each.card for each in winner] == [each.card for each in before]


def test_a_doubted_card_may_hope_for_less(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    card = CARDS["ici_tensor_to_data"]
    brief, base = brief_of(pool, base_of(pool, {"tensor": 2, "data": 1}, card))
    facts = {"bound": "ici", "tensor": 2}
    monkeypatch.setattr("asap_ray.agents.playbook.facts_of_result", lambda *given: facts)
    brain = Playbook(cards=(card,))
    (found,) = brain.by_cards(brief, base)
    # The best trial is as fast as leaves the card's plan at 1.03 times it: within 1.05, not within 1.05 over 1.08.
    best = replace(base, step_time_s=found.expected_s / 1.03)
    others = np.where(np.arange(len(pool)) == pool.row(found.plan), brief.expected_s, np.inf)
    brief = replace(brief, best=best, expected_s=others)
    assert len(brain.by_cards(brief, best)) == 1
    assert brain.by_cards(replace(brief, recall=fared(card.name, refuted=8)), best) == []


def test_without_a_memory_proposals_are_exactly_what_they_were(pool: Pool) -> None:
    # A memory of something quite else has no say either.
    other = replace(situation_of(pool.problem), family="moe", chip="h100", kind="gpu", parameters=10**12, seq_len=9)
    strange = recalled([case_of(pool, slow_plan(pool), other)], situation_of(pool.problem))
    plain, told = agents(pool), agents(pool)
    told.recall = strange
    double = Double(pool)
    first, second = play(plain, double, rounds=4), play(told, double, rounds=4)
    assert [each.candidate.proposal for each in first] == [each.candidate.proposal for each in second]
    assert [(each.kind, each.fields) for each in plain.drain()] == [(each.kind, each.fields) for each in told.drain()]


def test_what_one_slice_has_taught_the_next_one_begins_with() -> None:
    """FSDP is the roofline's favourite, and its links are sick: what 16 chips have found out, 32 need not again."""
    job = {"model": "llama3_8b", "batch": 64, "seq_len": 4096}
    small, large, fault = small_pool("v5e-16", **job), small_pool("v5e-32", **job), slow_link("fsdp", "fsdp")
    results = play(agents(small), Double(small, faults=(fault,)), rounds=3)
    done = [each for each in results if each.status == "complete"]
    cases = [case_of(small, each.candidate.plan, step_time_s=each.step_time_s) for each in done]
    told, plain = agents(large), agents(large)
    told.recall = recalled(cases, situation_of(large.problem))
    with_memory, without = (
        [each.step_time_s or np.inf for each in play(one, Double(large, faults=(fault,)), rounds=2)]
        for one in (told, plain)
    )
    assert min(with_memory[:3]) == min(without[3:])  # a round earlier
    assert min(without[:3]) > 1.5 * min(with_memory[:3])

"""Recipes as moves of agents: one at a time around the winner, verified, and no part of what is learnt of plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asap_ray.agents.coordinator import Coordinator, Rules
from asap_ray.agents.playbook import Playbook
from asap_ray.agents.proposal import Proposal, predict_step
from asap_ray.agents.varied import Varied
from asap_ray.agents.verifier import refusal
from asap_ray.knowledge import card_from_mapping
from asap_ray.recipe import PLAIN, Genes, Recipe
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Candidate, Result
from asap_ray.search.study import Study
from asap_ray.tasks.varying import prices_of
from tests.agents.doubles import small_pool
from tests.search.test_pool import tier_of

GENES = Genes(flags=("vmem", "sync"), about={"vmem": "more memory"})


@pytest.fixture(scope="module")
def pool() -> Pool:
    return small_pool()


def searcher_of(pool: Pool, genes: Genes = GENES) -> Coordinator:
    return Coordinator(
        pool=pool,
        brain=Varied(inner=Playbook(cards=())),
        study=Study(pool, "random", 0),
        rules=Rules(share=0.0),
        genes=genes,
    )


def came_to(candidate: Candidate, pool: Pool, gain: float = 1.0) -> Result:
    """As the roofline says, with flags by a factor of it."""
    priced = pool.estimate(pool.row(candidate.plan) or 0)
    step = 1.2 * priced.step_time_s * (gain if candidate.recipe else 1.0)
    return Result(
        candidate=candidate, status="complete", step_time_s=step, estimate=replace(priced, step_time_s=step),
        roofline=priced, evidence="x", digest=f"{candidate.recipe.line} {candidate.plan.line}",
    )  # fmt: skip


def rounds(searcher: Coordinator, count: int, gain: float) -> list[Candidate]:
    asked = []
    for _ in range(count):
        now = searcher.ask(3)
        searcher.tell([came_to(each, searcher.pool, gain) for each in now])
        asked += now
    return asked


def test_each_bundle_is_tried_once_around_the_winner_in_order(pool: Pool) -> None:
    asked = rounds(searcher_of(pool), 5, gain=1.1)
    varied = [each for each in asked if each.recipe]
    assert [each.recipe.line for each in varied] == ["vmem", "sync"]
    assert [each.number for each in varied] == [5, 8], "one place a round, from the second round on"
    assert {each.author for each in varied} == {"recipes"}
    best = min((each for each in asked if not each.recipe), key=lambda each: came_to(each, pool).step_time_s or 0)
    assert varied[0].plan == best.plan


def test_a_bundle_that_gains_becomes_what_others_start_from(pool: Pool) -> None:
    searcher = searcher_of(pool)
    asked = rounds(searcher, 4, gain=0.5)
    assert [each.recipe.line for each in asked if each.recipe] == ["vmem", "sync"]
    winner = searcher.brief().winner
    assert winner is not None
    assert winner.candidate.recipe == Recipe(flags="vmem")
    verdicts = [each.fields for each in searcher.drain() if each.kind == "verdict"]
    assert verdicts[5]["status"] == "refuted", "half the step is more than any bundle was predicted to gain"


def test_what_flags_gain_is_not_laid_to_plans(pool: Pool) -> None:
    with_flags, without = searcher_of(pool), searcher_of(pool, Genes())
    rounds(with_flags, 3, gain=0.5)
    rounds(without, 3, gain=0.5)
    assert with_flags.analysis.ratios == pytest.approx(without.analysis.ratios, rel=0.01)
    assert all(not each.candidate.recipe for each in with_flags.brief().results)


def test_the_verifier_refuses_other_bundles_and_repeats(pool: Pool) -> None:
    searcher = searcher_of(pool)
    rounds(searcher, 2, gain=1.1)
    brief = searcher.brief()
    (done,) = brief.varied
    given = Proposal(
        plan=done.candidate.plan, hypothesis="", mechanism="", prediction=predict_step(1, 1, 1), expected_s=1.0
    )
    assert "tried before, as trial 5" in (refusal(brief, replace(given, recipe=done.candidate.recipe)) or "")
    assert "the search has vmem, sync" in (refusal(brief, replace(given, recipe=Recipe(flags="evil"))) or "")
    assert refusal(brief, replace(given, recipe=Recipe(flags="sync"))) is None


def test_the_record_names_the_recipe(pool: Pool) -> None:
    searcher = searcher_of(pool)
    rounds(searcher, 2, gain=1.1)
    told = [each.fields for each in searcher.drain() if each.kind == "proposal"]
    assert [each["recipe"] for each in told] == ["", "", "", "", "", "vmem"]
    assert searcher.study.optuna.trials[5].user_attrs["recipe"] == "vmem"


def test_a_bundle_that_a_card_proposes_is_not_proposed_twice(pool: Pool) -> None:
    card = card_from_mapping("mine", {"when": ["fsdp above 0"], "moves": [{"xla": "vmem"}], "why": "w", "source": "s"})
    searcher = searcher_of(pool)
    searcher.brain = Varied(inner=Playbook(cards=(card,)))
    asked = rounds(searcher, 4, gain=1.1)
    assert [each.recipe.line for each in asked if each.recipe] == ["vmem", "sync"]
    assert searcher.refused == 0
    (told,) = [each for each in asked if each.recipe.flags == "vmem"]
    assert told.proposal.card == "mine"
    assert told.proposal.mechanism == "mine: flags as usual to vmem"


def test_where_no_plan_is_left_recipes_are_still_tried(pool: Pool) -> None:
    """A single plan: each hold that is priced to gain comes first, then tiles, until nothing is left."""
    ours = small_pool("v5e-16", stack="ours", model="llama3_8b", batch=16, seq_len=512)
    row = next(row for row in range(len(ours)) if ours.plan(row).line.startswith("fsdp=16"))
    one = ours.only(np.array([row]))
    searcher = Coordinator(
        pool=one,
        brain=Varied(inner=Playbook(cards=())),
        study=Study(one, "random", 0),
        genes=Genes(others=("hold", "blocks")),
        price=prices_of(one.problem, tier_of("v5e-16", "ours").calibration),
    )
    asked = []
    while searcher.finished() is None:
        now = searcher.ask(2)
        assert now
        searcher.tell([came_to(each, one) for each in now])
        asked += now
    assert asked[0].recipe == PLAIN
    assert {each.plan for each in asked} == {one.plan(0)}
    assert {each.recipe.block_q for each in asked} == {0, 256, 512}
    assert len({each.recipe for each in asked}) == len(asked) > 3
    assert "every plan that is legal and fits was tried" in (searcher.finished() or "")

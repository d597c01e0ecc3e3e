"""No plan reaches a tier unless it is legal and fits, whatever a brain says; refusals say why, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from asap_ray.agents.brief import Brief
from asap_ray.agents.coordinator import Coordinator, Rules
from asap_ray.agents.proposal import Proposal, predict_step
from asap_ray.agents.verifier import refusal
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.plan import Plan, six
from asap_ray.rules import broken
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Candidate, Result
from asap_ray.search.study import Study
from asap_ray.settings import load_group
from asap_ray.tiers.roofline import Roofline
from tests.agents.doubles import Double, agents, play, resharding, small_pool
from tests.brute_force import is_legal


@pytest.fixture(scope="module")
def pool() -> Pool:
    return small_pool()


def proposed(plan: Plan) -> Proposal:
    return Proposal(
        plan=plan, hypothesis="chance", mechanism="", prediction=predict_step(1.0, 0.5, 2.0), expected_s=1.0
    )


@dataclass
class Scripted:
    """A brain that proposes what it is given."""

    plans: list[Plan]
    revised: list[tuple[Plan, str]] = field(default_factory=list)
    name: str = "scripted"

    def propose(self, brief: Brief, count: int) -> list[Proposal]:
        taken, self.plans = self.plans[:count], self.plans[count:]
        return [proposed(plan) for plan in taken]

    def revise(self, brief: Brief, refused: Proposal, reason: str, others: Sequence[Proposal]) -> Proposal | None:
        self.revised.append((refused.plan, reason))
        return None


def coordinator(pool: Pool, brain: Scripted) -> Coordinator:
    return Coordinator(pool=pool, brain=brain, study=Study(pool, "random", 0), rules=Rules(share=0.0))


def why(pool: Pool, plan: Plan) -> str | None:
    return refusal(agents(pool).brief(), proposed(plan))


def test_each_reason_is_named(pool: Pool) -> None:
    plan = pool.plan(0)
    assert why(pool, plan) is None
    assert "rule batch" in (why(pool, replace(plan, micro_batch=5)) or "")
    assert "rule devices" in (why(pool, replace(plan, ici=(1, 1, 1, 1, 1, 1), layout=())) or "")
    assert "remat" in (why(pool, replace(plan, remat="no_such_policy")) or "")
    assert "not legal" in (why(pool, replace(plan, schedule="no_such_schedule")) or "")
    alone = next(pool.plan(row) for row in range(len(pool)) if pool.columns["data"][row] == 1)
    assert "no real change" in (why(pool, replace(alone, zero=1)) or "")


def test_a_layout_that_a_brain_makes_up_is_replaced_by_the_fastest(pool: Pool) -> None:
    plan = pool.plan(3)
    searcher = coordinator(pool, Scripted([replace(plan, layout=((9, 9),) * 6)]))
    assert [each.plan for each in searcher.ask(1)] == [plan]


def test_what_was_tried_or_cannot_win_or_does_not_fit_any_more_is_refused(pool: Pool) -> None:
    searcher = agents(pool, share=0.0)
    found = play(searcher, Double(pool), rounds=1)
    tried = found[0].candidate.plan
    assert refusal(searcher.brief(), proposed(tried)) == "tried before, as trial 0"
    floors, steps = pool.floor_s, [each.step_time_s or 0.0 for each in found]
    row = int(np.argmax(floors))
    best = replace(found[0], step_time_s=float(floors[row]))
    assert (best.step_time_s or 0.0) < min(steps)
    assert "its floor" in (refusal(replace(searcher.brief(), best=best), proposed(pool.plan(row))) or "")
    brief = searcher.brief()
    more = float(pool.problem.slice.chip.usable_hbm_bytes / pool.hbm_bytes.min()) * 1.01
    heavy = replace(brief, analysis=replace(brief.analysis, memory=more))
    assert "do not fit" in (refusal(heavy, proposed(pool.plan(int(np.argmin(pool.hbm_bytes))))) or "")


def test_a_refusal_goes_back_once_with_its_reason_and_costs_no_trial(pool: Pool) -> None:
    bad = replace(pool.plan(0), micro_batch=7)
    brain = Scripted([bad, pool.plan(1)])
    searcher = coordinator(pool, brain)
    asked = searcher.ask(2)
    assert [(plan, "batch" in reason) for plan, reason in brain.revised] == [(bad, True)]
    assert asked[0].plan == pool.plan(1)
    assert asked[1].author == "sampler", "a place that no brain fills is the sampler's"
    refused = [each.fields for each in searcher.drain() if each.kind == "refusal"]
    assert [each["plan"] for each in refused] == [bad.line]
    assert (searcher.proposals, searcher.refused) == (2, 1)


def test_one_plan_twice_in_a_round_is_tried_once(pool: Pool) -> None:
    searcher = coordinator(pool, Scripted([pool.plan(1), pool.plan(1)]))
    asked = searcher.ask(2)
    assert len({each.plan for each in asked}) == 2
    assert [each.fields["reason"] for each in searcher.drain() if each.kind == "refusal"] == [
        "proposed in this round already"
    ]


def mutated(rng: np.random.Generator, pool: Pool) -> Plan:
    """A plan of the pool with some of its fields set to something that plans may have somewhere."""
    plan = pool.plan(int(rng.integers(len(pool))))
    sizes = list(plan.ici)
    for _ in range(int(rng.integers(3))):
        sizes[int(rng.integers(6))] = int(rng.choice([1, 2, 3, 4, 8]))
    changes = {
        "micro_batch": int(rng.choice([1, 2, 3, 5, 12])),
        "accumulation": int(rng.choice([1, 2, 3, 4, 12])),
        "zero": int(rng.integers(3)),
        "remat": str(rng.choice([*pool.problem.stack.remat_names, "all"])),
        "schedule": str(rng.choice(["none", "1f1b", "gpipe", "interleaved"])),
        "virtual": int(rng.integers(1, 4)),
        "sequence_parallel": bool(rng.integers(2)),
        "attention": str(rng.choice(["flash", "unfused"])),
        "precision": str(rng.choice(["bf16", "fp8"])),
    }
    kept = {name: changes[name] for name in changes if rng.random() < 0.15}
    return replace(plan, ici=six(sizes), layout=plan.layout if sizes == list(plan.ici) else (), **kept)


def test_of_ten_thousand_random_rounds_no_illegal_plan_reaches_a_tier(pool: Pool) -> None:
    rng, reached, brief = np.random.default_rng(5), list[Plan](), agents(pool).brief()
    for _ in range(10_000):
        plan = mutated(rng, pool)
        if refusal(brief, proposed(plan)) is None:
            reached.append(plan)
        elif not reached or len(reached) < 300:
            assert broken(pool.problem, plan) is not None or pool.row(plan) is None
    assert 500 < len(reached) < 9_500
    known = calibrations_from_mappings(load_group("calibration"))
    tier = Roofline(problem=pool.problem, calibration=calibration_of(pool.problem.slice.chip, "maxtext", known))
    distinct = list({replace(plan, layout=()) for plan in reached})
    assert all(is_legal(pool.problem, plan) for plan in distinct)
    assert all(each.fits for each in tier.estimates(distinct))


@dataclass
class Wild(Scripted):
    """A brain that proposes whatever comes to its mind, and again where it is refused."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(9))

    def propose(self, brief: Brief, count: int) -> list[Proposal]:
        return [proposed(mutated(self.rng, brief.pool)) for _ in range(count)]

    def revise(self, brief: Brief, refused: Proposal, reason: str, others: Sequence[Proposal]) -> Proposal | None:
        return proposed(mutated(self.rng, brief.pool))


def test_whatever_a_wild_brain_says_and_trials_come_to_all_that_is_released_is_legal_and_new(pool: Pool) -> None:
    rng, asked = np.random.default_rng(11), list[Candidate]()
    searcher = Coordinator(pool=pool, brain=Wild([]), study=Study(pool, "tpe", 0), rules=Rules(share=0.3))
    double = Double(pool, [resharding("fsdp")], memory=1.02, too_big=lambda plan: bool(rng.random() < 0.2))
    for _ in range(60):
        released = searcher.ask(4)
        asked += released
        found = double.run(released)
        lost = rng.random(len(found)) < 0.2
        searcher.tell([lose(each) if gone else each for each, gone in zip(found, lost, strict=True)])
    assert {each.author for each in asked} == {"scripted", "sampler"}
    plans = [replace(each.plan, layout=()) for each in asked]
    assert len(set(plans)) == len(plans) == 240
    assert all(is_legal(pool.problem, plan) for plan in plans)
    assert [each.number for each in asked] == list(range(240))


def lose(result: Result) -> Result:
    """A trial whose worker was lost."""
    return Result(candidate=result.candidate, status="failed", roofline=result.roofline, reason="lost")

"""Evolution finds what interacts, keeps an archive of kinds, and is the same for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from asap_ray.agents.coordinator import Coordinator, Rules
from asap_ray.agents.evolution import AUTHOR, Evolution, archive, cell_of, crossed, mutated, varied
from asap_ray.agents.playbook import Playbook
from asap_ray.agents.verifier import refusal, row_of
from asap_ray.diagnosis import Diagnosis, diagnose
from asap_ray.genes import broken_gene, gene_moves
from asap_ray.plan import AXES
from asap_ray.recipe import PLAIN, Genes, Recipe
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Candidate, Result
from asap_ray.search.study import Study
from tests.agents.doubles import small_pool

GENES = Genes(flags=("vmem", "sync"), others=("hold",))


@pytest.fixture(scope="module")
def pool() -> Pool:
    return small_pool("v5e-16", stack="ours", model="llama3_8b", batch=32, seq_len=2048)


def searcher_of(pool: Pool, seed: int = 0, size: int = 6) -> Coordinator:
    return Coordinator(
        pool=pool,
        brain=Evolution(inner=Playbook(cards=()), size=size, seed=seed),
        study=Study(pool, "random", seed),
        rules=Rules(share=0.0),
        genes=GENES,
    )


def planted(pool: Pool, row: int, recipe: Recipe) -> float:
    """A step that the roofline knows nothing of: some kinds of plan are slow, and flags and a number of layers that are
    held gain much together and little apart, and only where plans recompute all and shard over fsdp alone."""
    plan = pool.plan(row)
    step = 1.5 * float(pool.step_s[row])
    if plan.axes["tensor"] > 1 or plan.axes["pipeline"] > 1:
        step *= 1.6
    if plan.remat == "full" and plan.axes["fsdp"] == 16:
        gains = {("vmem", True): 0.7, ("vmem", False): 0.97, ("", True): 0.97, ("", False): 1.0}
        step *= gains.get((recipe.flags, recipe.hold == 16), 1.1)
    elif recipe:
        step *= 1.1
    return step


def result(pool: Pool, candidate: Candidate) -> Result:
    row = row_of(pool, candidate.plan)
    assert row is not None
    priced, step = pool.estimate(row), planted(pool, row, candidate.recipe)
    estimate = replace(priced, step_time_s=step, time_parts={})  # a clock: the parts that are priced are not its own
    digest = f"{candidate.recipe.line}{candidate.plan.line}"
    return Result(
        candidate=candidate, status="complete", step_time_s=step,
        estimate=estimate,
        roofline=priced, hbm_bytes=priced.hbm_bytes, evidence="x", digest=digest, diagnosis=diagnose(priced),
    )  # fmt: skip


def play(pool: Pool, searcher: Coordinator, rounds: int) -> list[Candidate]:
    asked = []
    for _ in range(rounds):
        now = searcher.ask(6)
        searcher.tell([result(pool, each) for each in now])
        asked += now
    return asked


def best_of_all(pool: Pool) -> float:
    """By exhaustion: every plan with every recipe of flags and a hold."""
    recipes = [Recipe(flags=flags, hold=hold) for flags in ("", *GENES.flags) for hold in (0, 8, 16, 24, 32)]
    return min(planted(pool, row, each) for row in range(len(pool)) for each in recipes)


def test_it_mostly_reaches_the_optimum_that_exhaustion_knows(pool: Pool) -> None:
    best, reached = best_of_all(pool), 0
    for seed in range(4):
        asked = play(pool, searcher_of(pool, seed), 45)
        assert len(asked) < 0.022 * 15 * len(pool), "a small part of what exhaustion tries"
        found = min(planted(pool, row_of(pool, each.plan) or 0, each.recipe) for each in asked)
        reached += found == pytest.approx(best, rel=0.001)
    assert reached >= 3


def test_it_is_the_same_for_the_same_seed(pool: Pool) -> None:
    first, again, other = (play(pool, searcher_of(pool, seed), 6) for seed in (0, 0, 7))
    lines = [[f"{each.plan.line} {each.recipe.line}" for each in asked] for asked in (first, again, other)]
    assert lines[0] == lines[1]
    assert lines[0] != lines[2]


def test_every_child_is_legal_new_and_of_the_pool(pool: Pool) -> None:
    asked = play(pool, searcher_of(pool), 10)
    bred = [each for each in asked if each.author == AUTHOR]
    assert len(bred) >= 20
    assert len({(each.plan, each.recipe) for each in asked}) == len(asked)
    for each in bred:
        assert not each.recipe or broken_gene(pool.problem, each.plan, each.recipe, GENES) is None
    told = {each.proposal.mechanism for each in bred}
    assert told == {f"evolution: island {n}" for n in (1, 2, 3)}


def of(pool: Pool, row: int, number: int, step: float, bound: str, share: float) -> Result:
    """A trial with a bound and a share of the chip's usable memory."""
    told = Diagnosis(bound=bound, evidence=(), next_wall="", headroom=0.0, overlap=None, redundant=0.0, abstains=None)
    return Result(
        candidate=Candidate(number=number, plan=pool.plan(row), author="x"), status="complete", step_time_s=step,
        hbm_bytes=share * pool.problem.slice.chip.usable_hbm_bytes, diagnosis=told,
    )  # fmt: skip


def test_a_cell_keeps_the_fastest_of_its_kind(pool: Pool) -> None:
    brief = searcher_of(pool).brief()
    trials = [
        of(pool, 0, 0, 2.0, "compute", 0.3),
        of(pool, 1, 1, 1.5, "compute", 0.4),
        of(pool, 2, 2, 1.2, "compute", 0.6),
        of(pool, 3, 3, 9.0, "ici", 0.8),
        of(pool, 4, 4, 9.5, "ici", 0.75),
    ]
    assert [cell_of(brief, each) for each in trials] == [
        ("compute", 0), ("compute", 0), ("compute", 1), ("ici", 2), ("ici", 2),
    ]  # fmt: skip
    kept = archive(brief, trials)
    assert {cell: each.candidate.number for cell, each in kept.items()} == {
        ("compute", 0): 1, ("compute", 1): 2, ("ici", 2): 3,
    }  # fmt: skip


def differing(pool: Pool, one: int, two: int) -> Sequence[str]:
    return [name for name in AXES if pool.columns[name][one] != pool.columns[name][two]]


def test_children_take_after_their_parents(pool: Pool) -> None:
    brief, rng = searcher_of(pool).brief(), np.random.default_rng(0)
    one, two = (0, Recipe(flags="vmem")), (len(pool) - 1, Recipe(flags="sync"))
    for _ in range(20):
        child = crossed(brief, one, two, rng)
        assert child is not None
        assert child[1].flags in ("vmem", "sync")
    for _ in range(20):
        child = mutated(brief, (0, Recipe(flags="vmem")), rng)
        assert child is not None
        assert child[0] != 0
        assert child[1] == Recipe(flags="vmem")
    near = set(gene_moves(pool.problem, pool.plan(0), PLAIN, GENES))
    further = {after for each in near for after in gene_moves(pool.problem, pool.plan(0), each, GENES)}
    for _ in range(20):
        child = varied(brief, (0, PLAIN), rng)
        assert child is None or child[1] in near | further


def test_a_child_with_a_recipe_that_does_not_fit_its_plan_is_refused(pool: Pool) -> None:
    searcher = searcher_of(pool)
    brief = searcher.brief()
    (first,) = Playbook(cards=()).propose(brief, 1)
    told = refusal(brief, replace(first, recipe=Recipe(hold=33)))
    assert told is not None
    assert "rule hold" in told

"""Evolution: a brain that breeds plans with recipes, on islands, over an archive of what kinds of plan there are.

An archive has a cell for each behaviour, the bound class of a trial by how much of the memory it uses, and each cell
keeps the fastest trial of its kind (MAP-Elites, arXiv 1504.04909): so that a good plan of another kind is not lost to
many alike. Islands breed apart, in turn, and every few generations each takes over the best of the one before (as
AlphaEvolve and FunSearch keep theirs, arXiv 2506.13131).

A child is a mutation of a trial of its island (a plan near by, or another recipe), or a cross of two: each knob and
gene of one parent or the other's, and the open plan nearest to that. One with another plan is the best of a brood by
what trials let expect of it, the cheapest tier; what recipes do that tier hardly knows. Children go on to the dearer
tiers beside the inner brain's own proposal, and as any other they are verified, predicted and judged. Nothing here is
random but by the run's seed and what was tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from asap_ray.agents.brief import Brain, Brief
from asap_ray.agents.moves import FOLLOWING, KEPT
from asap_ray.agents.proposal import Proposal, predict_step
from asap_ray.agents.verifier import refusal, row_of
from asap_ray.genes import broken_gene, gene_moves
from asap_ray.plan import AXES
from asap_ray.recipe import PLAIN, Recipe
from asap_ray.search.protocol import Result, trial_seed

ISLANDS = 3
MIGRATION = 3
"""Generations after which each island takes over the best of the one before it."""
BROOD = 8
"""Children bred for each place of a round; the cheapest tier screens them."""
MOST_GENES = 2
NEAR = 16
"""Plans that are near enough to one to be its mutation."""
LEVELS = (0.5, 0.75)
"""Shares of the memory that part the cells: little, some and most of it."""
KNOBS = (*AXES, *KEPT, *FOLLOWING)
AUTHOR = "evolution"
Cell = tuple[str, int]
Genome = tuple[int, Recipe]
"""A row of the pool and a recipe."""


@dataclass(kw_only=True)
class Evolution:
    """`inner` says what it can of each generation; the rest is bred from up to `size` parents on each island."""

    inner: Brain
    size: int
    seed: int
    generation: int = 0
    _home: dict[Genome, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The inner brain's, which founds the population and goes on proposing."""
        return self.inner.name

    def propose(self, brief: Brief, count: int) -> list[Proposal]:
        """Children for all places but one, which is the inner brain's; all are its own until there are parents."""
        trials = _trials(brief)
        if len(trials) < 2 or count < 2:
            return self.inner.propose(brief, count)
        first = self.inner.propose(brief, 1)
        children = self._children(brief, trials, count - len(first), first)
        self.generation += 1
        others = self.inner.propose(brief, count)[len(first) :] if len(children) < count - len(first) else []
        return [*first, *children, *others][:count]

    def revise(self, brief: Brief, refused: Proposal, reason: str, others: Sequence[Proposal]) -> Proposal | None:
        """Another plan by the inner brain; a child that is refused is dropped."""
        return None if refused.author == AUTHOR else self.inner.revise(brief, refused, reason, others)

    def island(self, genome: Genome) -> int:
        """Where a genome lives: where it was bred, or, of those that others proposed, by its row."""
        return self._home.get(genome, genome[0] % ISLANDS)

    def _children(self, brief: Brief, trials: Sequence[Result], count: int, others: Sequence[Proposal]) -> list:
        rng = np.random.default_rng(trial_seed(self.seed, len(trials)))
        taken = {(row_of(brief.pool, each.plan), each.recipe) for each in others}
        found: list[Proposal] = []
        for place in range(count):
            island = (self.generation * count + place) % ISLANDS
            parents = self._parents(brief, trials, island)
            brood = {}
            # Of genes the cheapest tier knows little, so that a child of another recipe is not screened by it.
            genes = bool(brief.genes) and rng.random() < 0.5
            for genome, how in (self._bred(brief, parents, genes, rng) for _ in range(1 if genes else BROOD)):
                if genome is not None and genome not in taken:
                    brood.setdefault(genome, how)
            expected = {genome: _expected(brief, trials, genome) for genome in brood}
            for genome in sorted(brood, key=lambda each: (expected[each], each[0], each[1].line)):
                child = _proposal(brief, genome, expected[genome], brood[genome], island)
                if refusal(brief, child) is None:
                    found.append(child)
                    taken.add(genome)
                    self._home[genome] = island
                    break
        return found

    def _parents(self, brief: Brief, trials: Sequence[Result], island: int) -> list[Result]:
        """The fastest of each cell of an island, then its fastest others; now and then with the best of the one
        before."""
        here = [each for each in trials if self.island(_genome(brief, each)) == island]
        if self.generation % MIGRATION == MIGRATION - 1:
            before = [each for each in trials if self.island(_genome(brief, each)) == (island - 1) % ISLANDS]
            here += sorted(before, key=_step)[:1]
        kept = sorted(archive(brief, here or trials).values(), key=_step)
        others = [each for each in sorted(here or trials, key=_step) if each not in kept]
        return [*kept, *others][: self.size]

    def _bred(
        self, brief: Brief, parents: Sequence[Result], genes: bool, rng: np.random.Generator
    ) -> tuple[Genome | None, str]:
        """A child of one or two parents, each the fastest of two, and how it was made."""
        one, two = (parents[int(rng.integers(len(parents), size=2).min())] for _ in range(2))
        first, second = _genome(brief, one), _genome(brief, two)
        if genes:
            return varied(brief, first, rng), f"{one.candidate.words} with another recipe"
        if first != second and rng.random() < 0.5:
            return crossed(brief, first, second, rng), f"{one.candidate.words} crossed with {two.candidate.words}"
        return mutated(brief, first, rng), f"{one.candidate.words} mutated"


def archive(brief: Brief, trials: Sequence[Result]) -> dict[Cell, Result]:
    """The fastest trial of each cell."""
    found: dict[Cell, Result] = {}
    for each in sorted(trials, key=_step):
        found.setdefault(cell_of(brief, each), each)
    return found


def cell_of(brief: Brief, result: Result) -> Cell:
    """What binds a trial, and which level of the memory it uses."""
    row = row_of(brief.pool, result.candidate.plan)
    assert row is not None, "trials are of plans of the pool"
    bound = result.diagnosis.bound if result.diagnosis else "unknown"
    used = (result.hbm_bytes or brief.pool.hbm_bytes[row]) / brief.pool.problem.slice.chip.usable_hbm_bytes
    return bound, sum(used >= level for level in LEVELS)


def varied(brief: Brief, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """One gene of the recipe changed, or two: what gains only together is found together."""
    row, recipe = genome
    plan, now = brief.pool.plan(row), recipe
    for _ in range(int(rng.integers(1, MOST_GENES + 1))):
        moves = list(gene_moves(brief.trained, plan, now, brief.genes))
        now = moves[int(rng.integers(len(moves)))] if moves else now
    return (row, now) if now != recipe else None


def mutated(brief: Brief, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """A plan near by, with the recipe as far as it is legal there; None where no plan is left."""
    row, recipe = genome
    near = _nearest(brief, {row}, _values(brief, row), rng, some=NEAR)
    return None if near is None else (near, _fitted(brief, near, recipe))


def crossed(brief: Brief, one: Genome, two: Genome, rng: np.random.Generator) -> Genome | None:
    """The plan nearest to a mixture of both parents' knobs, with a mixture of their genes."""
    a, b = _values(brief, one[0]), _values(brief, two[0])
    wanted = {name: (a if rng.random() < 0.5 else b)[name] for name in KNOBS}
    row = _nearest(brief, set(), wanted, rng)
    pick = [one[1] if rng.random() < 0.5 else two[1] for _ in range(4)]
    recipe = Recipe(
        flags=pick[0].flags,
        hold=pick[1].hold,
        save=pick[2].save,
        save_layers=pick[2].save_layers,
        block_q=pick[3].block_q,
        block_kv=pick[3].block_kv,
    )
    return None if row is None else (row, _fitted(brief, row, recipe))


def _fitted(brief: Brief, row: int, recipe: Recipe) -> Recipe:
    """A recipe as far as it is legal for a plan: its flags at least."""
    plan = brief.pool.plan(row)
    for each in _less(recipe):
        if not each or broken_gene(brief.trained, plan, each, brief.genes) is None:
            return each
    return PLAIN


def _less(recipe: Recipe) -> Iterator[Recipe]:
    yield recipe
    yield replace(recipe, save=(), save_layers=0)
    yield replace(recipe, hold=0)
    yield Recipe(flags=recipe.flags)


def _values(brief: Brief, row: int) -> dict[str, int]:
    return {name: int(brief.pool.columns[name][row]) for name in KNOBS}


def _nearest(
    brief: Brief, but: set[int], wanted: dict[str, int], rng: np.random.Generator, some: int = 1
) -> int | None:
    """A plan whose knobs differ in the fewest places from what is wanted; of `some` that do so least, one by chance."""
    columns = brief.pool.columns
    rows = np.setdiff1d(np.flatnonzero(brief.open), list(but))
    if not len(rows):
        return None
    apart = np.sum([columns[name][rows] != value for name, value in wanted.items()], axis=0)
    order = np.lexsort((rng.random(len(rows)), apart))
    return int(rows[order[int(rng.integers(min(some, len(rows))))]])


def _trials(brief: Brief) -> list[Result]:
    """Trials that came to a step, in order: what a population is made of."""
    told = [each for each in (*brief.results, *brief.varied) if each.status == "complete" and each.step_time_s]
    return sorted(told, key=lambda each: each.candidate.number)


def _step(result: Result) -> tuple[float, int]:
    return result.step_time_s or 0.0, result.candidate.number


def _genome(brief: Brief, result: Result) -> Genome:
    row = row_of(brief.pool, result.candidate.plan)
    assert row is not None, "trials are of plans of the pool"
    return row, result.candidate.recipe


def _expected(brief: Brief, trials: Sequence[Result], genome: Genome) -> float:
    """The step of a child: that of the fastest trial of its plan, by the change of its price, or what trials let expect
    of it."""
    row, recipe = genome
    plan = brief.pool.plan(row)
    best = min((each for each in trials if each.candidate.plan == plan), key=_step, default=None)
    if best is None:
        return brief.expected(row, recipe)
    return (best.step_time_s or 0.0) * brief.price_s(row, recipe) / brief.price_s(row, best.candidate.recipe)


def _proposal(brief: Brief, genome: Genome, expected: float, how: str, island: int) -> Proposal:
    row, recipe = genome
    wide = float(brief.pool.step_s[row] / brief.pool.low_s[row])
    return Proposal(
        plan=brief.pool.plan(row),
        recipe=recipe,
        hypothesis=f"{how}, on island {island + 1}",
        mechanism=f"{AUTHOR}: island {island + 1}",
        prediction=predict_step(expected, expected / wide, expected * wide),
        expected_s=expected,
        author=AUTHOR,
    )

"""What a brain is told before it proposes, and the protocol that brains share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from asap_ray.agents.analyzer import Analysis
from asap_ray.agents.proposal import Proposal
from asap_ray.narrowing import Narrowing
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.recall import Recall
from asap_ray.recipe import Genes, Recipe
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Result, Told, best_of

Price = Callable[[Plan, Recipe], Estimate]


@dataclass(frozen=True, kw_only=True)
class Brief:
    """The pool and what is known of it.

    `expected_s` are steps as the trials let expect them, `open` the plans that may be proposed [plans]; `tried` says
    for a row which trial it was. `closed` counts the plans that are not open by what closes them. `program` is the
    problem as the trainer sees it that must have a program for a plan; None where all have one. `recall` is what the
    memory had to say when the search began.

    All that is of trials of plans alone: what a recipe gains says nothing of other plans. `varied` are the trials with
    a recipe, `genes` is what recipes may vary, `price` what the roofline says of a plan with a recipe (None:
    nothing beyond what it says of the plan).
    """

    pool: Pool
    results: tuple[Result, ...]
    best: Result | None
    analysis: Analysis
    expected_s: np.ndarray
    open: np.ndarray
    tried: Mapping[int, int]
    narrowings: tuple[Narrowing, ...]
    closed: Mapping[str, int]
    diagnosing: bool = True
    program: Problem | None = None
    varied: tuple[Result, ...] = ()
    genes: Genes = field(default_factory=Genes)
    price: Price | None = None
    recall: Recall = field(default_factory=Recall)

    @property
    def winner(self) -> Result | None:
        """The fastest trial of all, with a recipe or without."""
        return best_of([*([self.best] if self.best else []), *self.varied])

    @property
    def trained(self) -> Problem:
        """The problem as the trainer sees it."""
        return self.program or self.pool.problem

    def priced(self, row: int, recipe: Recipe) -> Estimate:
        """What the roofline says of a plan with a recipe; flags it knows nothing of."""
        if not recipe.program or self.price is None:
            return self.pool.estimate(row)
        return self.price(self.pool.plan(row), recipe.program)

    def price_s(self, row: int, recipe: Recipe) -> float:
        """The roofline's step of a plan with a recipe, in seconds."""
        known = not recipe.program or self.price is None
        return float(self.pool.step_s[row]) if known else self.priced(row, recipe).step_time_s

    def expected(self, row: int, recipe: Recipe) -> float:
        """The step that trials let expect of a plan with a recipe, in seconds."""
        return float(self.expected_s[row]) * self.price_s(row, recipe) / float(self.pool.step_s[row])

    def tried_with(self, plan: Plan) -> dict[Recipe, int]:
        """Recipes that a plan of the pool was tried with, and as which trial."""
        return {each.candidate.recipe: each.candidate.number for each in self.varied if each.candidate.plan == plan}

    @property
    def likely(self) -> np.ndarray:
        """Plans whose interval, moved as trials correct it, begins below the best trial's step [plans]."""
        if self.best is None or self.best.step_time_s is None:
            return np.ones(len(self.pool), bool)
        return self.pool.low_s / self.pool.step_s * self.expected_s < self.best.step_time_s


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What an adviser makes of all trials so far; the Coordinator decides what of it is followed.

    `stop` is why nothing more is worth a trial, or nothing. `last` are plans to be tried after all others; `explore`
    asks for more trials of the sampler in the next round.
    """

    stop: str = ""
    explore: bool = False
    last: tuple[Narrowing, ...] = ()


class Adviser(Protocol):
    """Thinks along: hears of each trial as it ends, and advises between rounds."""

    def seen(self, result: Result) -> None:
        """A trial has ended; others of its round may still run."""
        ...

    def advise(self, brief: Brief) -> Advice:
        """What to do next, once a round is over."""
        ...

    def drain(self) -> list[Told]:
        """What happened since this was last asked, for the record."""
        ...


class Brain(Protocol):
    """Makes proposals. A brain sees the whole record and decides nothing: what it proposes is verified first."""

    @property
    def name(self) -> str:
        """What its proposals name as their author."""
        ...

    def propose(self, brief: Brief, count: int) -> list[Proposal]:
        """Up to `count` proposals, the one to try first in front."""
        ...

    def revise(self, brief: Brief, refused: Proposal, reason: str, others: Sequence[Proposal]) -> Proposal | None:
        """Another proposal in the place of one that was refused, given what else is proposed; None for none."""
        ...

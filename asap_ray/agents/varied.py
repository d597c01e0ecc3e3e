"""A brain that leaves plans to another one, and varies what the best trial has besides its plan.

It takes one place of a round of several, from the second round on, for the recipe around the fastest trial that is
expected to gain most: a single gene is changed, so that what comes of it can be laid to that gene. Of compiler flags
and tiles nobody knows the price: each is tried once around the winner, after what is priced to gain, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asap_ray.agents.brief import Brain, Brief
from asap_ray.agents.proposal import STEP, SURE, UNCHANGED, UNSURE, Prediction, Proposal
from asap_ray.agents.verifier import refusal, row_of
from asap_ray.genes import gene_moves
from asap_ray.recipe import Recipe
from asap_ray.search.protocol import Result

GAIN = 0.8
"""Of the step: the least that a bundle of flags is predicted to leave."""
AUTHOR = "recipes"


@dataclass(frozen=True, kw_only=True)
class Varied:
    """`inner` with recipes around the winner."""

    inner: Brain

    @property
    def name(self) -> str:
        """The inner brain's."""
        return self.inner.name

    def propose(self, brief: Brief, count: int) -> list[Proposal]:
        """The inner brain's proposals, the last one's place given to a recipe where there is one to try."""
        if count < 2 or variation(brief) is None:
            return self.inner.propose(brief, count)
        found = self.inner.propose(brief, count - 1)
        varied = variation(brief, found)
        return [*found, varied] if varied else found

    def revise(self, brief: Brief, refused: Proposal, reason: str, others: Sequence[Proposal]) -> Proposal | None:
        """Another plan by the inner brain; a recipe that is refused is dropped."""
        return None if refused.recipe else self.inner.revise(brief, refused, reason, others)


def variation(brief: Brief, others: Sequence[Proposal] = ()) -> Proposal | None:
    """The recipe to try next around the fastest trial, besides what is proposed already; None where none is left."""
    base = brief.winner
    if base is None or (step := base.step_time_s) is None:
        return None
    row = row_of(brief.pool, base.candidate.plan)
    assert row is not None, "trials are of plans of the pool"
    around = gene_moves(brief.trained, base.candidate.plan, base.candidate.recipe, brief.genes)
    found = sorted((proposed(brief, base, row, each) for each in around), key=lambda each: each.expected_s)
    taken = [(each.plan, each.recipe) for each in others]
    hopeful = (each for each in found if each.expected_s <= step and (each.plan, each.recipe) not in taken)
    return next((each for each in hopeful if refusal(brief, each) is None), None)


def proposed(brief: Brief, base: Result, row: int, recipe: Recipe) -> Proposal:
    """A recipe for the plan of a trial that came to a step, with what it is expected to change."""
    step, before = base.step_time_s or 0.0, base.candidate.recipe
    ratio = brief.price_s(row, recipe) / brief.price_s(row, before)
    if ratio == 1.0:  # nobody knows the price of what is changed
        about = brief.genes.about.get(recipe.flags, "the roofline knows nothing of it")
        low, high = GAIN * step, (1.0 - UNCHANGED) * step
        why = f"{base.candidate.words} may gain from {recipe.line or 'the usual flags'}: {about}"
    else:
        low, high = sorted((step * ratio**SURE, step * ratio**UNSURE))
        why = f"{base.candidate.words} is expected at {step * ratio:.3g} s with {recipe.line or 'no recipe'}"
    return Proposal(
        plan=base.candidate.plan,
        recipe=recipe,
        hypothesis=why,
        mechanism=f"{before.line or 'the plan alone'} to {recipe.line or 'the plan alone'}",
        prediction=Prediction(field=STEP, direction="up" if ratio > 1.0 else "down", base=step, low=low, high=high),
        expected_s=step * ratio,
        base=base.candidate.number,
        author=AUTHOR,
    )

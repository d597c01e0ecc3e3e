"""A brain that leaves plans to another one, and varies what the best trial has besides its plan.

It takes one place of a round of several, from the second round on, for the recipe around the fastest trial that is
expected to gain most: a single gene is changed, so that what comes of it can be laid to that gene. Of compiler flags
nobody knows the price: each bundle is tried once around the winner, in the order of `compile.xla`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asap_ray.agents.brief import Brain, Brief
from asap_ray.agents.proposal import STEP, UNCHANGED, Prediction, Proposal
from asap_ray.agents.verifier import refusal
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
    if base is None or base.step_time_s is None:
        return None
    found = (_proposal(brief, base, recipe) for recipe in brief.genes.moves(base.candidate.recipe))
    taken = [(each.plan, each.recipe) for each in others]
    fresh = (each for each in found if (each.plan, each.recipe) not in taken)
    return next((each for each in fresh if refusal(brief, each) is None), None)


def _proposal(brief: Brief, base: Result, recipe: Recipe) -> Proposal:
    step = base.step_time_s or 0.0
    about = brief.genes.about.get(recipe.flags, "the bundle that every plan is tried with")
    return Proposal(
        plan=base.candidate.plan,
        recipe=recipe,
        hypothesis=f"{base.candidate.words} may gain from other flags, {recipe.flags or 'the usual ones'}: {about}",
        mechanism=f"flags {base.candidate.recipe.flags or 'as usual'} to {recipe.flags or 'as usual'}",
        prediction=Prediction(field=STEP, direction="down", base=step, low=GAIN * step, high=(1.0 - UNCHANGED) * step),
        expected_s=step,
        base=base.candidate.number,
        author=AUTHOR,
    )

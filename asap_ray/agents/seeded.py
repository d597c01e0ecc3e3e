"""A brain whose first round are the plans that a cheaper tier found fastest; all else is another brain's.

Each is predicted to take what that tier said, within its interval: so the verdicts of the first round say how far that
tier can be believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from asap_ray.agents.brief import Brain, Brief
from asap_ray.agents.proposal import Proposal, predict_step
from asap_ray.tiers.finding import Finding

MECHANISM = "cascade"


@dataclass(frozen=True, kw_only=True)
class Seeded:
    """`inner` after a first round of `seeds`, the fastest first."""

    inner: Brain
    seeds: tuple[Finding, ...]

    @property
    def name(self) -> str:
        """The inner brain's."""
        return self.inner.name

    def propose(self, brief: Brief, count: int) -> list[Proposal]:
        """The seeds where nothing was tried yet, and where there are too few of them the inner brain's."""
        if brief.results:
            return self.inner.propose(brief, count)
        first = list(self._seeds(brief))[:count]
        plans = {each.plan for each in first}
        others = [each for each in self.inner.propose(brief, count) if each.plan not in plans]
        return [*first, *others][:count]

    def revise(self, brief: Brief, refused: Proposal, reason: str, others: Sequence[Proposal]) -> Proposal | None:
        """Another plan by the inner brain."""
        return self.inner.revise(brief, refused, reason, others)

    def _seeds(self, brief: Brief) -> Iterator[Proposal]:
        for place, each in enumerate(self.seeds, start=1):
            row = brief.pool.row(each.plan)
            if each.estimate is None or row is None:
                continue
            step, (low, high) = each.estimate.step_time_s, each.estimate.interval_s
            yield Proposal(
                plan=brief.pool.plan(row),
                hypothesis=f"#{place} of the tier before ({each.source}): {step:.3g} s, by {each.evidence}",
                mechanism=MECHANISM,
                prediction=predict_step(step, low, high),
                expected_s=step,
                author=each.source,
            )

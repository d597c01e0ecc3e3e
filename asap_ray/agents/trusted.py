"""A brain that has learnt, while its gambles pay: one taught by runs of another kind may rank first what fails.

What it proposes against what trials let expect is counted as for a language model (`trust`): where more than its share
of these gambles came to nothing, `rules` have the turn until that share has grown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from asap_ray.agents.brief import Brain, Brief
from asap_ray.agents.proposal import Proposal
from asap_ray.agents.trust import gamble, wasted
from asap_ray.plan import Plan


@dataclass(kw_only=True)
class Trusted:
    """`inner`, with `rules` behind it; `share` of the trials, or one round, may be lost on its gambles."""

    inner: Brain
    rules: Brain
    share: float
    _gambles: set[Plan] = field(default_factory=set)
    _width: int = 1

    @property
    def name(self) -> str:
        """The inner brain's."""
        return self.inner.name

    def propose(self, brief: Brief, count: int) -> list[Proposal]:
        """The inner brain's proposals, or where it has lost its turn those of the rules, in their name."""
        self._width = max(count, self._width)
        if self._lost(brief):
            return [replace(each, author=each.author or self.rules.name) for each in self.rules.propose(brief, count)]
        found = self.inner.propose(brief, count)
        self._gambles |= {each.plan for each in found if gamble(brief, each)}
        return found

    def revise(self, brief: Brief, refused: Proposal, reason: str, others: Sequence[Proposal]) -> Proposal | None:
        """Another plan by whoever has the turn."""
        brain = self.rules if self._lost(brief) else self.inner
        found = brain.revise(brief, refused, reason, others)
        if found is None or brain is self.inner:
            self._gambles |= {found.plan} if found and gamble(brief, found) else set()
            return found
        return replace(found, author=found.author or self.rules.name)

    def _lost(self, brief: Brief) -> bool:
        return bool(wasted(brief, self._gambles, self.share, self._width))

"""What a model proposes, made into proposals that code can verify: plans found, predictions bounded, citations checked.

A model may go wrong in every field. What is wrong with an answer is told to it once; of the answer that comes back,
whatever is sound is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from asap_ray.agents.answers import Idea, Ideas, Narrow
from asap_ray.agents.brief import Brief
from asap_ray.agents.figures import Figures, cited, sentence
from asap_ray.agents.options import Option, known_knob, resolve
from asap_ray.agents.proposal import GROUPS, STEP, Evidence, Prediction, Proposal, observed
from asap_ray.agents.verifier import refusal, row_of
from asap_ray.errors import ConfigError
from asap_ray.narrowing import Narrowing, forbidden

IDEAS = 3
WIDEST = 1.5
"""Times the lower end that the upper end of a prediction may be: what cannot be wrong says nothing."""
MOST_LAST = 2
MOST_CITES = 4


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong with one idea: `plan` is it in words."""

    plan: str
    reason: str


@dataclass(kw_only=True)
class Reader:
    """Reads answers of one round; `figures` are all that was shown, by source, and `author` whose ideas they are.

    `sound` and `faults` are of the answer that was read last; `said` collects the faults of all of them.
    """

    brief: Brief
    base: int
    options: Sequence[Option]
    figures: Mapping[str, Figures]
    ids: frozenset[str]
    author: str
    sound: list[Proposal] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    said: list[Fault] = field(default_factory=list)

    def check(self, answer: Ideas) -> str | None:
        """What is wrong with an answer, for the model to mend; None where it may be taken.

        The first answer must be right in all; of one that was mended, one sound idea is enough.
        """
        again = bool(self.said)
        self.sound, self.faults = [], []
        for idea in answer.ideas[:IDEAS]:
            found = self._read(idea)
            if isinstance(found, Fault):
                self.faults.append(found)
            else:
                self.sound.append(found)
        if len(answer.ideas) != IDEAS:
            self.faults.append(Fault(plan=f"{len(answer.ideas)} proposals", reason=f"exactly {IDEAS} are asked for"))
        self.said += self.faults
        if not self.faults or (again and self.sound):
            return None
        return "; ".join(f"{each.plan}: {each.reason}" for each in self.faults)

    def _read(self, idea: Idea) -> Proposal | Fault:
        name = sentence(idea.option or " ".join(f"{each.knob}={each.value}" for each in idea.changes), 120)
        try:
            proposal = self._proposal(idea)
        except ConfigError as error:
            return Fault(plan=name or "no plan", reason=sentence(str(error)))
        if proposal.plan in {each.plan for each in self.sound}:
            return Fault(plan=proposal.plan.line, reason="proposed in this answer already")
        reason = refusal(self.brief, proposal) or self._unlikely(proposal) or self._false(idea)
        return Fault(plan=proposal.plan.line, reason=reason) if reason else proposal

    def _proposal(self, idea: Idea) -> Proposal:
        if idea.option:
            known = {each.name: each for each in self.options}
            if idea.option not in known:
                raise ConfigError("option", sentence(idea.option, 40), f"allowed: {', '.join(known)}", tuple(known))
            plan, card = self.brief.pool.plan(known[idea.option].row), known[idea.option].card
        else:
            for change in idea.changes:
                known_knob(change.knob.strip())
            if not idea.changes:
                raise ConfigError("option", "''", "an option, or changes to the base")
            plan, card = resolve(self.brief, self.base, idea.changes), ""
        row = row_of(self.brief.pool, plan)
        base = self.brief.best
        return Proposal(
            plan=plan,
            hypothesis=sentence(idea.hypothesis),
            mechanism=sentence(idea.mechanism, 200),
            prediction=self._prediction(idea),
            expected_s=float(self.brief.expected_s[row]) if row is not None else math.nan,
            card=card,
            base=base.candidate.number if base else None,
            author=self.author,
            trade_off=sentence(idea.trade_off, 200),
            cites=tuple(each for each in idea.cites[:MOST_CITES] if each in self.ids),
            evidence=tuple(Evidence(**each.model_dump()) for each in idea.evidence[:MOST_CITES]),
        )

    def _prediction(self, idea: Idea) -> Prediction:
        """What is predicted, if it can be wrong.

        Raises:
            ConfigError: an unknown figure, or a range that is none or too wide.
        """
        parts = {STEP: STEP, **{f"{name}_s": name for name in GROUPS}}
        if idea.figure not in parts:
            raise ConfigError("figure", sentence(idea.figure, 40), f"allowed: {', '.join(parts)}", tuple(parts))
        if not 0 <= idea.low <= idea.high < math.inf:
            raise ConfigError("low", idea.low, "not below 0, and not above high, in seconds")
        if idea.high > WIDEST * idea.low + 0.02 * idea.high:
            raise ConfigError("high", idea.high, f"at most {WIDEST} times low: what cannot be wrong says nothing")
        name, best = parts[idea.figure], self.brief.best
        middle = (idea.low + idea.high) / 2.0
        base = (observed(best, name) if best else None) or middle
        way = "same" if idea.low <= base <= idea.high else "down" if middle < base else "up"
        return Prediction(field=name, direction=way, base=base, low=idea.low, high=idea.high)

    def _unlikely(self, proposal: Proposal) -> str | None:
        """Why a plan that may be tried is not worth it: not even the low end of its interval beats the best trial."""
        row = self.brief.pool.row(proposal.plan)
        if row is None or self.brief.likely[row]:
            return None
        return f"{proposal.expected_s:.3g} s are expected, and its interval begins above the best trial's step"

    def _false(self, idea: Idea) -> str | None:
        if not idea.evidence:
            return "it cites no figure"
        told = (cited(self.figures, each.source, each.figure, each.value) for each in idea.evidence[:MOST_CITES])
        return next((reason for reason in told if reason), None)


def come_last(brief: Brief, given: Sequence[Narrow], author: str) -> tuple[list[Narrowing], list[Fault]]:
    """Narrowings that a model asks for, as plans to be tried after all others, and what is wrong with the rest.

    None deletes a plan: one whose floor lies below the best trial's step could still be the optimum.
    """
    found, faults = list[Narrowing](), list[Fault]()
    for each in given[:MOST_LAST]:
        sign = {"is": "", "above": ">", "below": "<"}[each.comparison]
        words = sentence(f"{each.knob} {each.comparison} {each.value}", 80)
        try:
            known_knob(each.knob)
            (narrowing,) = forbidden(brief.pool.problem, [{each.knob: f"{sign}{each.value.strip()}"}], author)
        except ConfigError as error:
            faults.append(Fault(plan=words, reason=sentence(str(error))))
            continue
        found.append(replace(narrowing, name=words, reason=sentence(each.reason)))
    return found, faults

"""The playbook brain: rules read from cards, and the roofline's ranking as the trials correct it.

Most proposals are the plans that are expected to be fastest, spread over meshes and recomputation policies, since the
roofline is wrong in much the same way for plans of one kind. A card that applies to the best trial, or to one that did
not fit and else might have been the best, takes a place among them with the best plan that its move leads to, if that
plan is expected about as fast as the best trial. In the first round a case of the memory may take such a place. Cards
that trials have contradicted count as slower, those that they have confirmed as faster (`recall`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np

from asap_ray.agents.brief import Brief
from asap_ray.agents.facts import facts_of_result
from asap_ray.agents.moves import moves_from, reached
from asap_ray.agents.proposal import STEP, UNCHANGED, Prediction, Proposal, predict_change, predict_step
from asap_ray.agents.remembered import from_cases
from asap_ray.agents.varied import GAIN
from asap_ray.agents.verifier import row_of
from asap_ray.knowledge import XLA, Card, Fact, fired
from asap_ray.plan import AXES, Plan
from asap_ray.recall import RANKING
from asap_ray.recipe import Recipe
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Result

ALIKE = 0.03
"""How much slower a plan counts for each one of its mesh and policy that was tried or is proposed."""
HOPE = 1.05
"""How much slower than the best trial a card's plan may be expected: cards know what the roofline does not."""


@dataclass(frozen=True, kw_only=True)
class Playbook:
    """Proposes by cards; `card_share` of a round's places, at most, are theirs."""

    cards: tuple[Card, ...]
    card_share: float = 0.5
    name: str = "playbook"

    def propose(self, brief: Brief, count: int) -> list[Proposal]:
        """The fastest plan that is expected first, then what cards say of trials, then the ranking's others."""
        ranked = _ranked(brief, set())
        found = [proposal for proposal in [next(ranked, None)] if proposal][:count]
        places = min(int(self.card_share * count), count - len(found))
        remembered = from_cases(brief, {each.plan for each in found}, places)
        found, places = [*found, *remembered], places - len(remembered)
        taken = {each.plan for each in found}
        for proposal in self._by_all_cards(brief, taken):
            if places <= 0:
                break
            if proposal.plan not in {each.plan for each in found}:
                found.append(proposal)
                places -= 1
        return [*found, *_first(_ranked(brief, {each.plan for each in found}), count - len(found))]

    def _by_all_cards(self, brief: Brief, taken: AbstractSet[Plan]) -> list[Proposal]:
        """What cards propose from the best trial and from one that did not fit, the most promising first."""
        found = [
            (each.expected_s * doubt, each)
            for base in (brief.best, _too_big(brief))
            for doubt, each in self._weighed(brief, base, taken)
        ]
        return [each for _, each in sorted(found, key=lambda pair: pair[0])]

    def by_cards(self, brief: Brief, base: Result | None, taken: AbstractSet[Plan] = frozenset()) -> list[Proposal]:
        """What cards propose from a trial, of plans that are not taken: one a card, the most promising first."""
        found = sorted(self._weighed(brief, base, taken), key=lambda pair: pair[0] * pair[1].expected_s)
        return [each for _, each in found]

    def _weighed(self, brief: Brief, base: Result | None, taken: AbstractSet[Plan]) -> Iterator[tuple[float, Proposal]]:
        """What cards propose from a trial, each with the doubt that the card's record casts on what is expected."""
        row = brief.pool.row(base.candidate.plan) if base else None
        if base is None or row is None or not brief.diagnosing:
            return
        facts, free = facts_of_result(brief.pool.problem, base), np.ones(len(brief.pool), bool)
        free[[given for plan in taken if (given := row_of(brief.pool, plan)) is not None]] = False
        for card in fired(self.cards, facts):
            if found := self._by_card(brief, card, base, row, facts, free):
                yield brief.recall.doubt(card.name, _bound(facts)), found

    def revise(self, brief: Brief, refused: Proposal, reason: str, others: Sequence[Proposal]) -> Proposal | None:
        """The next plan of the same card, or else of the ranking."""
        taken = {each.plan for each in (*others, refused)}
        if card := next((each for each in self.cards if each.name == refused.card), None):
            base = next((each for each in brief.results if each.candidate.number == refused.base), None)
            row = brief.pool.row(base.candidate.plan) if base else None
            if base is not None and row is not None:
                facts = facts_of_result(brief.pool.problem, base)
                again = self._by_card(brief, card, base, row, facts, brief.open)
                if again and again.plan not in taken:
                    return again
        return next(_ranked(brief, taken), None)

    def _by_card(
        self,
        brief: Brief,
        card: Card,
        base: Result,
        row: int,
        facts: Mapping[str, Fact],
        among: np.ndarray,
    ) -> Proposal | None:
        """The best plan among some [plans] that a card's first possible move leads to."""
        pool, limit = brief.pool, _limit(brief) / brief.recall.doubt(card.name, _bound(facts))
        if base.status == "infeasible":
            among = among & (pool.hbm_bytes < pool.hbm_bytes[row] - base.over_bytes)
        if flagged := flags_of(brief, base, card.moves):
            return _with_flags(_from_card(brief, card, base, row, row, facts), base, flagged)
        for move, times in moves_from(pool, row, [each for each in card.moves if XLA not in each], card.times):
            mask = reached(pool, row, move, pool.recomputed, times) & (brief.expected_s <= limit) & among
            if mask.any():
                rows = np.flatnonzero(mask)
                best = int(rows[np.argmin(brief.expected_s[rows])])
                return _from_card(brief, card, base, row, best, facts)
        return None


def _limit(brief: Brief) -> float:
    """How long a card's plan may be expected to take, in seconds."""
    return HOPE * ((brief.best.step_time_s if brief.best else None) or np.inf)


def _too_big(brief: Brief) -> Result | None:
    """The last trial that did not fit and was expected to be about as fast as the best, or faster."""
    lost = (each for each in reversed(brief.results) if each.status == "infeasible")
    rows = ((each, row) for each in lost if (row := brief.pool.row(each.candidate.plan)) is not None)
    return next((each for each, row in rows if brief.expected_s[row] <= _limit(brief)), None)


def flags_of(brief: Brief, base: Result, moves: Sequence[Mapping[str, str]]) -> str:
    """The first bundle of flags that moves name, that this search has and a trial's plan was not tried with, or ""."""
    named = [move[XLA] for move in moves if XLA in move and base.step_time_s]
    done = {each.flags for each in brief.tried_with(base.candidate.plan)} if named else set()
    return next((name for name in named if name in brief.genes.flags and name not in done), "")


def _with_flags(proposal: Proposal, base: Result, flags: str) -> Proposal:
    """A card's proposal for the plan of its base, with a bundle of flags; nobody knows what that gains."""
    step = base.step_time_s or 0.0
    return replace(
        proposal,
        recipe=Recipe(flags=flags),
        mechanism=f"{proposal.card}: flags {base.candidate.recipe.flags or 'as usual'} to {flags}",
        prediction=Prediction(field=STEP, direction="down", base=step, low=GAIN * step, high=(1.0 - UNCHANGED) * step),
        expected_s=step,
    )


def _from_card(brief: Brief, card: Card, base: Result, row: int, best: int, facts: Mapping[str, Fact]) -> Proposal:
    pool = brief.pool
    because = ", ".join(f"{each.field} {_shown(facts[each.field])}" for each in card.when)
    record = brief.recall.record_text(card.name, _bound(facts))
    return Proposal(
        plan=pool.plan(best),
        hypothesis=f"{base.candidate.words} has {because}: {card.why}{f' Its {record}.' if record else ''}",
        mechanism=f"{card.name}: {changes(pool, row, best)}",
        prediction=predict_change(base, pool.estimate(row), pool.estimate(best))
        if base.step_time_s
        else _as_expected(brief, best),
        expected_s=float(brief.expected_s[best]),
        card=card.name,
        base=base.candidate.number,
    )


def _bound(facts: Mapping[str, Fact]) -> str:
    return str(facts.get("bound", ""))


def _shown(fact: Fact) -> str:
    return fact if isinstance(fact, str) else f"{fact:.3g}"


def changes(pool: Pool, before: int, after: int) -> str:
    """What tells two plans apart, in words."""
    names = (
        *AXES,
        "micro_batch",
        "zero",
        "schedule",
        "virtual",
        "sequence_parallel",
        "remat",
        "precision",
        "attention",
    )
    told = [
        f"{name} {pool.value(before, name)} to {pool.value(after, name)}"
        for name in names
        if pool.columns[name][before] != pool.columns[name][after]
    ]
    return ", ".join(told) or "another layout"


def _ranked(brief: Brief, taken: AbstractSet[Plan]) -> Iterator[Proposal]:
    return (_from_ranking(brief, row) for row in open_rows(brief, taken))


def open_rows(brief: Brief, taken: AbstractSet[Plan]) -> Iterator[int]:
    """Open plans by the steps that are expected, those of a kind that has been tried a little later."""
    pool = brief.pool
    kinds, left = pool.kinds, brief.open.copy()
    counts = np.zeros(int(kinds.max(initial=0)) + 1)
    given = [row for plan in taken if (row := row_of(pool, plan)) is not None]
    left[given] = False
    for row in (*brief.tried, *given):
        counts[kinds[row]] += 1
    while left.any():
        rows = np.flatnonzero(left)
        row = int(rows[np.argmin(brief.expected_s[rows] * (1.0 + ALIKE * counts[kinds[rows]]))])
        left[row] = False
        counts[kinds[row]] += 1
        yield row


def _from_ranking(brief: Brief, row: int) -> Proposal:
    expected, trials = float(brief.expected_s[row]), brief.analysis.trials
    corrected = f", corrected by {trials} trial{'' if trials == 1 else 's'}," if trials else ""
    return Proposal(
        plan=brief.pool.plan(row),
        hypothesis=f"the roofline{corrected} expects {expected:.3g} s, the least of what is open and not alike",
        mechanism=RANKING,
        prediction=_as_expected(brief, row),
        expected_s=expected,
    )


def _as_expected(brief: Brief, row: int) -> Prediction:
    """That a plan's step is as the trials let expect it, within the roofline's interval."""
    estimate, expected = brief.pool.estimate(row), float(brief.expected_s[row])
    low, high = (expected * end / estimate.step_time_s for end in estimate.interval_s)
    return predict_step(expected, low, high)


def _first(proposals: Iterator[Proposal], count: int) -> list[Proposal]:
    return [proposal for proposal, _ in zip(proposals, range(count), strict=False)]

"""The Coordinator: releases rounds of verified proposals, narrows and prunes what is open, and says when to stop.

What is open are the plans not yet tried whose floor is below the best trial's step, which fit by what trials needed,
and which no narrowing closes. A narrowing closes the plans that share the mechanism of a fault, with author and reason;
it is lifted as soon as one of those plans is expected to be faster than every other after all. Between proposals the
sampler takes its share of the trials among the open plans that could still win.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from asap_ray.agents.analyzer import Analysis, Mechanism, analyse
from asap_ray.agents.brief import Advice, Adviser, Brain, Brief, Price
from asap_ray.agents.proposal import Proposal, confidence, judge
from asap_ray.agents.varied import variation
from asap_ray.agents.verifier import fitting, row_of, verified
from asap_ray.narrowing import Narrowing
from asap_ray.problem import Problem
from asap_ray.recall import Recall
from asap_ray.recipe import Genes
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Candidate, Result, Told, best_of
from asap_ray.search.study import Study

ANALYZER = "analyzer"
KNOWN = 1000
"""Trials that are looked at, the latest and the fastest: what more of them say, these say too."""
PATIENCE = 2
"""Rounds without a gain before an adviser may end a search."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """How a search is run: `share` of the trials are the sampler's; it stops where no plan left can be more than `gap`
    faster by its floor. Without `diagnosing` profiles are not looked at."""

    share: float = 0.2
    gap: float = 0.0
    diagnosing: bool = True


@dataclass(kw_only=True)
class Coordinator:
    """A searcher made of agents: `brain` proposes, the Verifier checks, the study samples in between.

    `program` is the problem as the trainer sees it that must have a program for a plan, `recall` what the memory has to
    say to this search. An `adviser` may ask for an end, which is followed where nothing open is expected to be faster
    and rounds bring nothing, and for plans to come last, which the sampler then does.
    """

    pool: Pool
    brain: Brain
    study: Study
    adviser: Adviser | None = None
    genes: Genes = field(default_factory=Genes)
    price: Price | None = None
    rules: Rules = field(default_factory=Rules)
    program: Problem | None = None
    recall: Recall = field(default_factory=Recall)
    name: str = "agents"
    results: list[Result] = field(default_factory=list)
    rounds: int = 0
    proposals: int = 0
    refused: int = 0
    _tried: dict[int, int] = field(default_factory=dict)
    _sampled: int = 0
    _narrowed: dict[Mechanism, Narrowing] = field(default_factory=dict)
    _analysis: Analysis | None = None
    _told: list[Told] = field(default_factory=list)
    _record: dict[str, list[int]] = field(default_factory=dict)
    _since_gain: int = 0
    _best: Result | None = None
    _fastest: Result | None = None
    _varied: list[Result] = field(default_factory=list)
    _untried: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is tried yet; a baseline may be there."""
        self._untried = np.ones(len(self.pool), bool)
        self._best = self._fastest = best_of(self.results)

    _advice: Advice | None = None

    def ask(self, count: int) -> list[Candidate]:
        """A round: verified proposals, and the sampler's share."""
        brief = self.brief()
        if not brief.open.any() and not self._recipe_left:
            return []
        self.rounds += 1
        # Of what was tried, so that the first rounds are the agents': a sampler has nothing to learn from yet.
        wanted = int(self.rules.share * len(self._tried)) - self._sampled + self.advice.explore
        sampled = min(max(wanted, 0), count)
        self._tell("round", round=self.rounds, open=int(brief.open.sum()), closed=dict(brief.closed))
        candidates = [self._release(each) for each in self._verified(brief, count - sampled)]
        candidates += self._sample(brief, count - len(candidates))
        return candidates

    def tell(self, results: Sequence[Result]) -> None:
        """Judge the predictions of a round, look for faults, and learn."""
        before, self.results = self._best, [*self.results, *results][-KNOWN:]
        self._best = best_of([*([before] if before else []), *results])
        plain = [each for each in results if not each.candidate.recipe]
        self._varied += [each for each in results if each.candidate.recipe]
        self._fastest = best_of([*([self._fastest] if self._fastest else []), *plain])
        by_number = {each.candidate.number: each for each in (*self._leaders, *self.results)}
        self._since_gain = self._since_gain + 1 if self._best is before else 0
        self._analysis = self._advice = None
        for each in results:
            self.study.tell(each)
            if (proposal := each.candidate.proposal) is not None:
                verdict = judge(proposal.prediction, each, by_number.get(proposal.base))
                self._tell("verdict", trial=each.candidate.number, **asdict(verdict))
                record = self._record.setdefault(each.candidate.author, [0, 0])
                if verdict.status in ("confirmed", "refuted"):
                    record[verdict.status == "refuted"] += 1
        self._name_faults(results)
        self._narrow()

    def finished(self) -> str | None:
        """Why nothing that is left is worth a trial."""
        return None if (reason := self._plans_end()) and self._recipe_left else reason

    @property
    def _recipe_left(self) -> bool:
        """Whether another program of the fastest trial's plan may gain; flags are tried once more after a search."""
        return bool(self.genes.others) and variation(self.brief()) is not None

    def _plans_end(self) -> str | None:
        """Why no plan that is left is worth a trial."""
        best, left = self._best, self._untried
        if not left.any():
            return "every plan that is legal and fits was tried"
        if best is None or best.step_time_s is None:
            return None if fitting(self.pool, self.analysis.memory)[left].any() else "no plan left fits"
        step, floor = best.step_time_s, float(self.pool.floor_s[left].min())
        if floor >= step:
            return "nothing legal that is left can win: every floor is above the best trial's step"
        if step / floor - 1.0 <= self.rules.gap:
            return f"no plan left can be more than {step / floor - 1.0:.1%} faster by its floor"
        if not (left & self.brief().likely).any():
            return "no plan left is likely to win: every interval, as trials correct it, begins above the best step"
        return self._advised_end(step)

    def seen(self, result: Result) -> None:
        """A trial of a round has ended; others may still run."""
        if self.adviser is not None:
            self.adviser.seen(result)

    def drain(self) -> list[Told]:
        """What happened since this was last asked."""
        self._hear()
        told, self._told = self._told, []
        return told

    @property
    def advice(self) -> Advice:
        """What the adviser makes of all rounds so far."""
        if self._advice is None:
            self._advice = self.adviser.advise(self.brief()) if self.adviser and self.results else Advice()
            self._hear()
        return self._advice

    def _hear(self) -> None:
        """Pass on what the adviser has to tell; refusals are counted, whoever made them."""
        for each in self.adviser.drain() if self.adviser else ():
            refused = each.kind == "refusal"
            self.refused, self.proposals = self.refused + refused, self.proposals + refused
            self._told.append(each)

    def _advised_end(self, best_step_s: float) -> str | None:
        """The end that the adviser asks for, where the trials bear it out."""
        stop = self.advice.stop
        if not stop:
            return None
        brief = self.brief()
        hopeful = brief.open.any() and float(brief.expected_s[brief.open].min()) < best_step_s
        if hopeful or self._since_gain < PATIENCE:
            why = "a plan is expected to be faster" if hopeful else f"the last {PATIENCE} rounds brought a gain"
            self._tell("refusal", plan="stop", author=self.brain.name, card="", reason=f"{why}; it said: {stop}")
            self._advice = replace(self.advice, stop="")
            return None
        return f"the {self.brain.name} ends it: {stop}"

    @property
    def analysis(self) -> Analysis:
        """What all trials so far come to."""
        if self._analysis is None:
            self._analysis = analyse(self.pool, self._plain, diagnosing=self.rules.diagnosing)
        return self._analysis

    def brief(self) -> Brief:
        """What a brain is told now."""
        best, plain = self._best, self._plain
        closed, open_ = {}, np.ones(len(self.pool), bool)
        for name, mask in self._masks(best).items():
            closed[name] = int((open_ & ~mask).sum())
            open_ &= mask
        return Brief(
            pool=self.pool,
            results=tuple(plain),
            best=self._fastest,
            analysis=self.analysis,
            expected_s=self.analysis.expected_s,
            open=open_,
            tried=MappingProxyType(self._tried),
            narrowings=tuple(self._narrowed.values()),
            closed=closed,
            diagnosing=self.rules.diagnosing,
            program=self.program,
            varied=tuple(self._varied),
            genes=self.genes,
            price=self.price,
            recall=self.recall,
        )

    @property
    def _plain(self) -> list[Result]:
        """Trials of plans alone."""
        return [each for each in self._known if not each.candidate.recipe]

    @property
    def _leaders(self) -> list[Result]:
        """The fastest trial, and the fastest of plans alone."""
        return [each for each in (self._best, self._fastest) if each is not None]

    @property
    def _known(self) -> list[Result]:
        """The latest trials, and the fastest where they are older."""
        first = self.results[0].candidate.number if self.results else 0
        older = {each.candidate.number: each for each in self._leaders if each.candidate.number < first}
        return [*(older[number] for number in sorted(older)), *self.results]

    def _masks(self, best: Result | None) -> dict[str, np.ndarray]:
        """What leaves which plans open [plans], by name."""
        masks = {"tried": self._untried.copy(), "memory": fitting(self.pool, self.analysis.memory)}
        if best is not None and best.step_time_s is not None:
            masks["floor"] = self.pool.floor_s < best.step_time_s
        if self._narrowed:
            masks["narrowed"] = np.logical_and.reduce(
                [each.open(self.pool.columns) for each in self._narrowed.values()]
            )
        return masks

    def _take(self, row: int, number: int) -> None:
        self._tried[row] = number
        self._untried[row] = False

    def _verified(self, brief: Brief, count: int) -> list[Proposal]:
        """Proposals that may be tried; why others may not is told."""
        accepted, refused = verified(self.brain, brief, count)
        self._hear()
        self.proposals += len(accepted) + len(refused)
        self.refused += len(refused)
        for each, reason in refused:
            author = each.author or self.brain.name
            self._tell("refusal", plan=_words(each), author=author, card=each.card, reason=reason)
        return accepted

    def _release(self, proposal: Proposal) -> Candidate:
        row = row_of(self.pool, proposal.plan)
        assert row is not None, "the Verifier lets only plans of the pool pass"
        number = self.study.enqueue(row, proposal.recipe)
        if not proposal.recipe:
            self._take(row, number)
        author = proposal.author or self.brain.name
        proposal = replace(proposal, author=author, confidence=self._confidence(proposal, row))
        self._tell("proposal", round=self.rounds, trial=number, **_told(proposal))
        plan, recipe = self.pool.plan(row), proposal.recipe
        return Candidate(number=number, plan=plan, author=author, proposal=proposal, recipe=recipe)

    def _confidence(self, proposal: Proposal, row: int) -> float | None:
        """How likely a proposal beats the best trial; None before there is one."""
        best = self._best
        if best is None or best.step_time_s is None:
            return None
        confirmed, refuted = self._record.get(proposal.author, (0, 0))
        step, ends = float(self.pool.step_s[row]), self.pool.estimate(row).interval_s
        held = (confirmed + 9.0) / (confirmed + refuted + 10.0)  # as the interval says, until the record says else
        expected = float(self.analysis.expected_s[row])
        return confidence(best.step_time_s, expected, (ends[0] / step, ends[1] / step), held)

    def _sample(self, brief: Brief, count: int) -> list[Candidate]:
        """The sampler's trials, among the open plans that could still win."""
        open_ = brief.open & brief.likely & self._untried
        first = open_ & np.logical_and.reduce([open_, *(each.open(self.pool.columns) for each in self.advice.last)])
        found = []
        for _ in range(count):
            if (asked := self.study.sample(first if first.any() else open_)) is None:
                break
            number, row = asked
            open_[row] = first[row] = False
            self._take(row, number)
            self._sampled += 1
            candidate = Candidate(number=number, plan=self.pool.plan(row), author="sampler")
            self._tell("sample", round=self.rounds, trial=number, plan=candidate.plan.line)
            found.append(candidate)
        return found

    def _name_faults(self, results: Sequence[Result]) -> None:
        numbers = {each.candidate.number for each in results}
        for fault in self.analysis.faults:
            if fault.trial in numbers:
                fields = {"fault": fault.kind, "mechanism": fault.mechanism.name, "text": fault.text}
                self._tell("fault", trial=fault.trial, seconds=fault.seconds, share=fault.share, **fields)

    def _narrow(self) -> None:
        """Close the plans that share a fault, costliest first, where others that are open are expected to be faster."""
        analysis, expected = self.analysis, self.analysis.expected_s
        masks = self._masks(self._best)
        left = np.logical_and.reduce([mask for name, mask in masks.items() if name != "narrowed"])
        wanted: dict[Mechanism, Narrowing] = {}
        closed: dict[Mechanism, int] = {}
        for mechanism, penalty in sorted(analysis.penalties.items(), key=lambda each: -each[1]):
            sick = mechanism.holds(self.pool.columns)
            inside, outside = expected[left & sick], expected[left & ~sick]
            if penalty > 0 and len(outside) and (not len(inside) or outside.min() <= inside.min()):
                wanted[mechanism] = self._narrowed.get(mechanism) or _narrowing(mechanism, analysis)
                closed[mechanism] = len(inside)
                left &= ~sick
        for mechanism in [each for each in wanted if each not in self._narrowed]:
            self._tell("narrowing", **asdict(wanted[mechanism]), plans=closed[mechanism])
        for mechanism in [each for each in self._narrowed if each not in wanted]:
            why = "one of its plans is expected to be faster than every other"
            opened = int((left & mechanism.holds(self.pool.columns)).sum())
            self._tell("lifted", name=self._narrowed[mechanism].name, author=ANALYZER, reason=why, plans=opened)
        self._narrowed = wanted

    def _tell(self, kind: str, **fields: Any) -> None:
        self._told.append(Told(kind=kind, fields=fields))


def _words(proposal: Proposal) -> str:
    """A plan with its recipe, in one line."""
    return f"{proposal.plan.line} {proposal.recipe.line}".strip()


def _told(proposal: Proposal) -> dict[str, Any]:
    """A proposal as the record has it."""
    return {**asdict(proposal), "plan": proposal.plan.line, "recipe": proposal.recipe.line}


def _narrowing(mechanism: Mechanism, analysis: Analysis) -> Narrowing:
    fault = next(each for each in analysis.faults if each.mechanism == mechanism)
    return Narrowing(
        name=mechanism.name,
        tests=mechanism.tests,
        keep=False,
        author=ANALYZER,
        reason=f"trial {fault.trial}: {fault.text}",
    )

"""The loop: a searcher asks, trials run, results are told, until a budget is spent or nothing left is worth a trial.

Each round is a barrier: its trials run side by side and are told together in their order. So what is decided depends on
results alone, never on which trial was faster to run, and the same command decides the same again from its record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from asap_ray.diagnosis import diagnose, diagnose_observed
from asap_ray.report.answer import Tried
from asap_ray.report.told import words_of
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Candidate, Result, Searcher, best_of
from asap_ray.tasks.trials import Clock, Trials, Wanted

ATTEMPTS = 3
"""Trials for each plan that is wanted, at most: a slice where nothing works must not take the night."""
FAILURES = 3
"""Failures and timeouts, with nothing complete, after which the tier or our program is at fault."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a search may spend, besides the clock's time: None is no limit of its own.

    `complete` counts trials that come to a step time, `trials` all of them; `minutes` is what was given.
    """

    trials: int | None = None
    complete: int | None = None
    minutes: float | None = None
    chip_hours: float | None = None


class Listener(Protocol):
    """Is told what a search decides, and how it stands."""

    def told(self, where: str, kind: str, fields: dict[str, Any]) -> None:
        """Something was decided or found."""
        ...

    def stands(self, where: str, round_: int, best_s: float | None, gap: float | None, left_s: float) -> None:
        """A round begins: the best step so far, how much faster a plan could be by its floor, the time left."""
        ...


@dataclass(kw_only=True)
class Loop:
    """Searches one slice; `width` trials are released at once. `heard` is told of each result as its trial ends.

    `ended` counts how many trials have ended in each way.
    """

    where: str
    pool: Pool
    searcher: Searcher
    trials: Trials
    budget: Budget
    clock: Clock
    listener: Listener
    width: int
    heard: Callable[[Result], None] = lambda result: None
    tried: list[Tried] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    rounds: int = 0
    numbers: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    _best: Result | None = None
    _chip_hours: float = 0.0

    def run(self) -> str:
        """Search; returns why nothing more is tried."""
        asked: list[Candidate] = []
        while (reason := self._spent() or (None if asked else self.searcher.finished())) is None:
            asked = asked or self._ask()
            if not asked:
                reason = "no plan is left to try"
                break
            # A budget may end a round early; what the round is does not hang on it, so that more budget goes on there.
            room = self._room()
            now, asked = asked[:room], asked[room:]
            by_number = {each.number: each for each in now}
            found = self.trials.run(
                [self._wanted(each) for each in now],
                lambda tried, by=by_number: self.heard(result_of(by[tried.number], tried)),
            )
            self._take(now, found)
            if now and not found and not self.clock.over:
                reason = "too little time is left for another trial"
                break
            self._pass_on()
        words = f"{self._plans()}{self._count_words()}: {reason}"
        self.listener.told(self.where, "stop", {"reason": reason, "rounds": self.rounds, "trials": dict(self.ended)})
        return words

    def first(self) -> list[Candidate]:
        """What would be tried first; nothing is."""
        candidates = self.searcher.ask(self.width)
        self._pass_on()
        return candidates

    def _ask(self) -> list[Candidate]:
        """A round of candidates, told to whoever listens."""
        candidates = self.searcher.ask(self.width)
        if candidates:
            self.rounds += 1
            self.numbers = max(each.number for each in candidates) + 1
            self.listener.stands(self.where, self.rounds, self._best_s, self._gap, self.clock.left_s)
        self._pass_on()
        return candidates

    def _take(self, candidates: Sequence[Candidate], found: Sequence[Tried]) -> None:
        by_number = {each.number: each for each in found}
        results = [result_of(each, by_number[each.number]) for each in candidates if each.number in by_number]
        self.tried += found
        self.results += results
        self.ended.update(each.status for each in results)
        self._best = best_of([*([self._best] if self._best else []), *results])
        self._chip_hours += sum(each.chip_hours for each in results)
        self.searcher.tell(results)

    def _wanted(self, candidate: Candidate) -> Wanted:
        row = self.pool.row(candidate.plan)
        assert row is not None, f"{candidate.author} asks for a plan that is not in the pool: {candidate.plan.line}"
        return Wanted(
            number=candidate.number, author=candidate.author, roofline=self.pool.estimate(row), recipe=candidate.recipe
        )

    def _pass_on(self) -> None:
        for each in self.searcher.drain():
            self.listener.told(self.where, each.kind, each.fields)

    @property
    def _timed(self) -> int:
        """Trials that came to a step time, those that were ended as clearly slower among them."""
        return self.ended["complete"] + self.ended["pruned"]

    @property
    def _best_s(self) -> float | None:
        return self._best.step_time_s if self._best else None

    @property
    def _gap(self) -> float | None:
        """How much faster than the best trial the plan with the lowest floor could be."""
        if self._best_s is None or not len(self.pool):
            return None
        return max(self._best_s / float(self.pool.floor_s.min()) - 1.0, 0.0)

    def _room(self) -> int:
        """Trials of a round that may run now."""
        complete, all_, done = self.budget.complete, self.budget.trials, len(self.results)
        left = [self.width]
        left += [] if complete is None else [complete - self._timed, ATTEMPTS * complete - done]
        return min([*left, *([] if all_ is None else [all_ - done])])

    def _spent(self) -> str | None:
        """Which budget is spent, or that nothing comes of it."""
        ended, budget = self.ended, self.budget
        failed = ended["failed"] + ended["timeout"]
        if budget.complete is not None and self._timed >= budget.complete:
            return "as many as wanted"
        if self.clock.over:
            return f"budget.minutes={budget.minutes:g} is over" if budget.minutes else "time is over"
        if budget.trials is not None and len(self.results) >= budget.trials:
            return f"budget.trials={budget.trials} are done"
        if budget.chip_hours is not None and self._chip_hours >= budget.chip_hours:
            return f"budget.chip_hours={budget.chip_hours:g} are spent"
        tired = budget.complete is not None and len(self.results) >= ATTEMPTS * budget.complete
        if tired or (failed >= FAILURES and not ended["complete"]):
            return "given up"
        return None

    def _plans(self) -> str:
        done = self._timed
        return f"{done} plan{'' if done == 1 else 's'} {words_of(self.trials.tier.name).done}"

    def _count_words(self) -> str:
        ended = self.ended
        failed = ended["failed"] + ended["timeout"]
        told = [f"{ended['pruned']} clearly slower"] if ended["pruned"] else []
        told += [f"{ended['infeasible']} did not fit"] if ended["infeasible"] else []
        told += [f"{failed} failed or ran out of time"] if failed else []
        return f", {' and '.join(told)}" if told else ""


def result_of(candidate: Candidate, tried: Tried) -> Result:
    """What a searcher is told of a trial."""
    found, seen = tried.finding, tried.observed
    estimate = found.estimate
    diagnosis = diagnose_observed(seen) if seen else diagnose(estimate) if estimate and estimate.time_parts else None
    return Result(
        candidate=candidate,
        # A program that is made but cannot be read has a size and no time.
        status="failed" if found.status == "complete" and estimate is None else found.status,
        step_time_s=estimate.step_time_s if estimate else None,
        interval_s=estimate.interval_s if estimate else None,
        hbm_bytes=found.hbm_bytes,
        over_bytes=found.over_bytes,
        reason=found.reason,
        source=found.source,
        evidence=found.evidence,
        chip_hours=found.chip_hours,
        estimate=estimate,
        roofline=tried.roofline,
        observation=seen,
        diagnosis=diagnosis,
        digest=found.digest,
    )

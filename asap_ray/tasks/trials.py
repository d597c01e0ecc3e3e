"""Trials of plans, side by side: what ran before is found again, and nothing starts once time is over.

A trial that an earlier run of the same command has finished is taken from its record, and counts with the time it took
then: so a command that was killed goes on where it was, and one that had spent its minutes has nothing left to spend.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from asap_ray.executor.protocol import Executor
from asap_ray.physics.calibration import Calibration
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.recipe import PLAIN, Recipe
from asap_ray.redaction import hidden
from asap_ray.report.answer import Tried
from asap_ray.tiers.finding import Finding
from asap_ray.tiers.protocol import Job, Outcome

HARDLY = 0.5
"""Of what trials take in the median: with less time left none is started, since half of them would be cut."""
LATEST = 100
"""Trials whose median that is."""
LIMIT = "limit_s"
"""Among the facts of a trial that ran out of time: the seconds that it had."""
OUT_OF_TIME = "still going on when budget.minutes was over"
Key = tuple[str, str, str, str]


class TrialTier(Protocol):
    """A tier whose trials an executor runs, as far as it is needed here."""

    @property
    def problem(self) -> Problem:
        """The problem as the trainer sees it that is tried."""
        ...

    @property
    def calibration(self) -> Calibration:
        """The constants that the roofline has for it."""
        ...

    @property
    def name(self) -> str:
        """What its figures name as their source."""
        ...

    @property
    def timeout_s(self) -> float:
        """Seconds after which a trial is given up."""
        ...

    @property
    def evidence(self) -> str:
        """What its results are evidence for: a trainer, and what runs it."""
        ...

    def job(self, plan: Plan, recipe: Recipe = PLAIN) -> Job:
        """The work of the trial of a plan with a recipe; its flags are the tier's own."""
        ...

    def known(self, plan: Plan, recipe: Recipe = PLAIN) -> Finding | None:
        """What was said of a plan that was tried before with all the same; None where it was not."""
        ...

    def read(self, outcome: Outcome) -> Finding:
        """What is said of a plan, from how its job ended."""
        ...


class Watcher(Protocol):
    """Is told what happens."""

    def started(self, wanted: Wanted, where: str, bundle: str) -> None:
        """A trial begins."""
        ...

    def ended(self, tried: Tried) -> None:
        """A trial ended, or was found again."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A trial to run: its number, whose it is, what the roofline says of its plan, and what it changes besides."""

    number: int
    author: str
    roofline: Estimate
    recipe: Recipe = PLAIN


@dataclass(kw_only=True, slots=True)
class Clock:
    """Seconds that a search has spent, those of earlier runs included whose trials it finds again, and its limit."""

    limit_s: float = float("inf")
    now: Callable[[], float] = time.monotonic
    begun: float | None = None
    found_s: float = 0.0

    def start(self) -> None:
        """Begin to count."""
        self.begun = self.now()

    @property
    def spent_s(self) -> float:
        """Seconds spent so far."""
        return self.found_s + (self.now() - self.begun if self.begun is not None else 0.0)

    @property
    def left_s(self) -> float:
        """Seconds left; inf where there is no limit."""
        return self.limit_s - self.spent_s

    @property
    def over(self) -> bool:
        """Whether nothing may start any more."""
        return self.left_s <= 0

    def find(self, elapsed_s: float) -> None:
        """A trial is found again that ended when so much was spent."""
        self.found_s += max(elapsed_s - self.spent_s, 0.0)


@dataclass(kw_only=True)
class Trials:
    """Runs trials on one slice, with one bundle of flags unless a recipe names another.

    `tier` is that of the bundle, `others` are those of further bundles by name.

    `read` completes what came of a trial (its observation) before anybody is told; `before` holds the trials that
    earlier runs have finished, by `key_of`.
    """

    where: str
    bundle: str
    tier: TrialTier
    executor: Executor
    clock: Clock
    watcher: Watcher
    others: Mapping[str, TrialTier] = field(default_factory=dict)
    read: Callable[[Tried], Tried] = lambda tried: tried
    before: Mapping[Key, Tried] = field(default_factory=dict)
    _took: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))

    def run(self, wanted: Sequence[Wanted], heard: Callable[[Tried], None] = lambda tried: None) -> list[Tried]:
        """Run trials and return what came of them, in their order; those that time left no room for are missing.

        `heard` is told of each as it ends, while others may still run.
        """
        waiting, running = list(wanted), dict[str, Wanted]()
        found = dict[int, Tried]()

        def source() -> Job | None:
            while waiting:
                each = waiting[0]
                if (known := self._known(each)) is not None:
                    found[each.number] = known
                    self.watcher.ended(known)
                    heard(known)
                elif self.clock.over or self._too_late:
                    return None
                else:
                    job = self._job(each)
                    running[job.name] = each
                    waiting.pop(0)
                    self.watcher.started(each, self.where, self._bundle(each))
                    return job
                waiting.pop(0)
            return None

        for outcome in self.executor.stream(source):
            each = running.pop(outcome.job.name)
            found[each.number] = tried = self._ended(each, outcome)
            self.watcher.ended(tried)
            heard(tried)
        return [found[each.number] for each in wanted if each.number in found]

    def _tier(self, wanted: Wanted) -> TrialTier:
        return self.others[wanted.recipe.flags] if wanted.recipe.flags else self.tier

    def _bundle(self, wanted: Wanted) -> str:
        """What a trial has besides its plan, as the record names it."""
        return wanted.recipe.under(self.bundle)

    def _job(self, wanted: Wanted) -> Job:
        job, left = self._tier(wanted).job(wanted.roofline.plan, **_besides(wanted)), self.clock.left_s
        limit = job.timeout_s if left == float("inf") else min(left, job.timeout_s or left)
        return replace(job, name=f"trial {wanted.number} {self._bundle(wanted)} {job.name}", timeout_s=limit)

    def _ended(self, wanted: Wanted, outcome: Outcome) -> Tried:
        found = without_secrets(finite(self._tier(wanted).read(outcome)))
        cut = found.status == "timeout" and self.clock.over
        if found.status == "timeout":
            found = replace(found, facts={**found.facts, LIMIT: outcome.job.timeout_s})
        if found.status == "complete":
            self._took.append(sum(found.seconds.values()))
        return self._tried(wanted, replace(found, reason=OUT_OF_TIME) if cut else found, cut=cut)

    def _tried(self, wanted: Wanted, found: Finding, *, cut: bool = False) -> Tried:
        return self.read(
            Tried(
                where=self.where,
                bundle=self._bundle(wanted),
                roofline=wanted.roofline,
                finding=found,
                number=wanted.number,
                author=wanted.author,
                elapsed_s=self.clock.spent_s,
                cut=cut,
            )
        )

    def _known(self, wanted: Wanted) -> Tried | None:
        """What an earlier run has on its record, or the cache has; a trial that time cut short is run again where there
        is more time now."""
        plan, tier = wanted.roofline.plan, self._tier(wanted)
        before = self.before.get((self.where, self._bundle(wanted), plan.line, tier.evidence))
        if before is not None and not self._deserves_more(before):
            self.clock.find(before.elapsed_s)
            found = replace(before.finding, cached=True)
            return replace(before, roofline=wanted.roofline, finding=found, number=wanted.number, author=wanted.author)
        found = tier.known(plan, **_besides(wanted))
        return self._tried(wanted, found) if found else None

    def _deserves_more(self, before: Tried) -> bool:
        """Whether a trial ran out of time that there is more of now, or was lost and not to blame for it."""
        if before.finding.lost:
            return True
        if before.cut:
            return before.elapsed_s < self.clock.limit_s
        had = before.finding.facts.get(LIMIT) or 0.0
        return before.finding.status == "timeout" and self.tier.timeout_s > had

    @property
    def _too_late(self) -> bool:
        """Whether a trial that starts now would hardly end: the clock leaves too little of what others took."""
        return bool(self._took) and self.clock.left_s < HARDLY * statistics.median(self._took)


def _besides(wanted: Wanted) -> dict[str, Recipe]:
    """What a tier is asked for besides the plan; only our own trainer's have programs for it."""
    return {"recipe": wanted.recipe.program} if wanted.recipe.program else {}


def finite(found: Finding) -> Finding:
    """The finding, or, where its step or its memory is no number, that it failed for that."""
    step = found.estimate.step_time_s if found.estimate else 0.0
    for name, value in (("step time", step), ("memory", found.hbm_bytes or 0.0)):
        if not math.isfinite(value) or value < 0:
            reason = f"its {name} is {value}, which is no measurement"
            return replace(found, status="failed", reason=reason, estimate=None, hbm_bytes=None, facts={})
    return found


def without_secrets(found: Finding) -> Finding:
    """The finding, with what a trainer or a compiler wrote free of the secrets of this process."""
    return replace(
        found,
        reason=hidden(found.reason, os.environ),
        output=hidden(found.output, os.environ),
        facts=hidden(found.facts, os.environ),
    )


def key_of(tried: Tried) -> Key:
    """What a finished trial is found by: a trial of another trainer or compiler is another trial."""
    return tried.where, tried.bundle, tried.finding.plan.line, tried.finding.evidence

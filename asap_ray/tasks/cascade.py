"""The roofline's best few go through a compiler: which next, side by side, until enough have compiled.

A plan that does not fit, or whose compilation fails, is replaced by the next of its slice's shortlist. With several
slices each gets as many plans as another, the fastest slice first, so that their best plans rest on the same evidence.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_changes
from typing import Protocol

from asap_ray.executor import local
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.report.answer import Tried
from asap_ray.tiers.compiled import Compiled
from asap_ray.tiers.protocol import Job, Outcome

ATTEMPTS = 3
"""Compilations for each plan that is wanted, at most: a slice where nothing compiles must not take the night."""
FAILURES = 3
"""Failures and timeouts of a slice, with nothing compiled, after which its compiler or our program is at fault."""


class Compiler(Protocol):
    """The compile tier, as far as it is needed here."""

    def job(self, plan: Plan) -> Job:
        """The work that compiles a plan."""
        ...

    def known(self, plan: Plan) -> Compiled | None:
        """What was said of a plan that was compiled before."""
        ...

    def read(self, outcome: Outcome) -> Compiled:
        """What is said of a plan, from how its job ended."""
        ...


class Watcher(Protocol):
    """Is told what happens."""

    def started(self, where: str, bundle: str, estimate: Estimate) -> None:
        """A plan begins to compile."""
        ...

    def ended(self, tried: Tried) -> None:
        """A compilation ended, or was found in the cache."""
        ...


@dataclass(kw_only=True, slots=True)
class Queue:
    """What is left to compile on one slice with one bundle of flags; `wanted` are to come out complete."""

    where: str
    bundle: str
    compiler: Compiler
    waiting: list[Estimate]
    wanted: int
    running: int = 0
    ended: Counter[str] = field(default_factory=Counter)

    @property
    def missing(self) -> int:
        """How many more are to be started now."""
        failed = self.ended["failed"] + self.ended["timeout"]
        if not self.waiting or (failed >= FAILURES and not self.ended["complete"]):
            return 0
        left = ATTEMPTS * self.wanted - self.ended.total() - self.running
        return min(self.wanted - self.ended["complete"] - self.running, left)

    @property
    def taken(self) -> int:
        """Plans that are compiled or on their way."""
        return self.ended["complete"] + self.running


@dataclass(kw_only=True, slots=True)
class Cascade:
    """Compiles what queues hold; the watcher is told what came of each plan as soon as it is known.

    `deadline` is a time of `time.monotonic`; nothing is started after it, and what still runs then is ended.
    """

    queues: Sequence[Queue]
    workers: int
    watcher: Watcher
    deadline: float = float("inf")
    clock: Callable[[], float] = time.monotonic
    tried: list[Tried] = field(default_factory=list)
    _jobs: dict[str, tuple[Queue, Estimate]] = field(default_factory=dict)

    def run(self) -> list[Tried]:
        """Compile until each queue has what it wants, or nothing is left, or time is over; returns what came of it.

        Which plans are compiled depends on neither workers nor speed: of each queue it is the shortest beginning that
        has as many complete ones as are wanted.
        """
        for outcome in local.stream(self._next, self.workers):
            queue, estimate = self._jobs.pop(outcome.job.name)
            queue.running -= 1
            found = queue.compiler.read(outcome)
            if found.status == "timeout" and self.out_of_time:
                found = with_changes(found, reason="still compiling when budget.minutes was over")
            self._tell(queue, estimate, found)
        return self.tried

    @property
    def out_of_time(self) -> bool:
        """Whether the deadline has passed."""
        return self.clock() >= self.deadline

    def _next(self) -> Job | None:
        while not self.out_of_time:
            open_ = [queue for queue in self.queues if queue.missing > 0]
            if not open_:
                return None
            queue = min(open_, key=lambda each: each.taken)  # of equals the first: queues come fastest first
            estimate = queue.waiting.pop(0)
            if known := queue.compiler.known(estimate.plan):
                self._tell(queue, estimate, known)
                continue
            queue.running += 1
            self.watcher.started(queue.where, queue.bundle, estimate)
            job = queue.compiler.job(estimate.plan)
            job = with_changes(job, name=f"{queue.bundle} {job.name}", timeout_s=self._limit(job.timeout_s))
            self._jobs[job.name] = (queue, estimate)
            return job
        return None

    def _limit(self, timeout_s: float | None) -> float | None:
        left = self.deadline - self.clock()
        return timeout_s if left == float("inf") else min(left, timeout_s or left)

    def _tell(self, queue: Queue, estimate: Estimate, found: Compiled) -> None:
        queue.ended[found.status] += 1
        tried = Tried(where=queue.where, bundle=queue.bundle, roofline=estimate, compiled=found)
        self.tried.append(tried)
        self.watcher.ended(tried)

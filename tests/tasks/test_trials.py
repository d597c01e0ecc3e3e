"""Trials with a compiler and an executor that only pretend: found again, cut by time, told in order; and the loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from asap_ray.physics.calibration import Calibration
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.report.answer import Tried
from asap_ray.search.blackbox import InOrder, by_roofline
from asap_ray.search.pool import Pool
from asap_ray.tasks.loop import ATTEMPTS, FAILURES, Budget, Loop
from asap_ray.tasks.trials import OUT_OF_TIME, Clock, Trials, Wanted, key_of, without_secrets
from asap_ray.tiers.finding import Finding
from asap_ray.tiers.protocol import Job, Outcome
from tests.agents.doubles import small_pool


@pytest.fixture(scope="module")
def pool() -> Pool:
    return small_pool("v5e-4")


@dataclass
class Scripted:
    """A compiler whose verdict on the n-th plan that it is asked for is set; some plans were compiled before."""

    ends: Callable[[int], str] = lambda n: "complete"
    cached: frozenset[str] = frozenset()
    asked: list[str] = field(default_factory=list)
    evidence: str = "ours@1"
    estimate: Estimate | None = None
    name: str = "compile"
    timeout_s: float = 900.0
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def problem(self) -> Problem:
        raise NotImplementedError

    @property
    def calibration(self) -> Calibration:
        raise NotImplementedError

    def known(self, plan: Plan) -> Finding | None:
        return replace(self._made(plan, "complete"), cached=True) if plan.line in self.cached else None

    def job(self, plan: Plan) -> Job:
        self.asked.append(plan.line)
        return Job(
            name=plan.line, work=self._made, arguments=(plan, self.ends(len(self.asked) - 1)), timeout_s=self.timeout_s
        )

    def read(self, outcome: Outcome) -> Finding:
        if outcome.status == "complete":
            return outcome.value
        return Finding(plan=outcome.job.arguments[0], status=outcome.status, evidence=self.evidence)

    def _made(self, plan: Plan, status: str) -> Finding:
        estimate = self.estimate if status == "complete" else None
        return Finding(plan=plan, status=status, estimate=estimate, evidence=self.evidence, seconds=self.seconds)  # pyright: ignore[reportArgumentType]


@dataclass
class Slots:
    """An executor on a virtual clock: each job takes `seconds`, and the last one started ends first."""

    workers: int = 1
    seconds: float = 10.0
    now: float = 0.0
    limits: list[float | None] = field(default_factory=list)

    def stream(self, source: Callable[[], Job | None]) -> Iterator[Outcome]:
        running: list[Job] = []
        while True:
            while len(running) < self.workers and (job := source()):
                running.append(job)
            if not running:
                return
            job = running.pop()
            self.limits.append(job.timeout_s)
            if job.timeout_s is not None and job.timeout_s < self.seconds:
                self.now += job.timeout_s
                yield Outcome(job=job, status="timeout", reason="late")
            else:
                self.now += self.seconds
                yield Outcome(job=job, status="complete", value=job.work(*job.arguments))


@dataclass
class Watching:
    seen: list[tuple[str, Any]] = field(default_factory=list)

    def started(self, wanted: Wanted, where: str, bundle: str) -> None:
        self.seen.append(("started", wanted.number))

    def ended(self, tried: Tried) -> None:
        self.seen.append(("ended", tried.number))

    def told(self, where: str, kind: str, fields: dict[str, Any]) -> None:
        self.seen.append((kind, fields))

    def stands(self, where: str, round_: int, best_s: float | None, gap: float | None, left_s: float) -> None:
        self.seen.append(("stands", (round_, left_s)))


def trials_of(compiler: Scripted, slots: Slots, before: Sequence[Tried] = (), limit: float = float("inf")) -> Trials:
    clock = Clock(limit_s=limit, now=lambda: slots.now)
    clock.start()
    return Trials(
        where="v5e-4",
        bundle="default",
        tier=compiler,
        executor=slots,
        clock=clock,
        watcher=Watching(),
        before={key_of(each): each for each in before},
    )


def wanted(pool: Pool, count: int) -> list[Wanted]:
    return [Wanted(number=n, author="test", roofline=pool.estimate(n)) for n in range(count)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_come_in_the_order_asked_for_however_they_ran(pool: Pool, workers: int) -> None:
    compiler = Scripted()
    found = trials_of(compiler, Slots(workers)).run(wanted(pool, 5))
    assert [each.number for each in found] == [0, 1, 2, 3, 4]
    assert [each.finding.plan for each in found] == [pool.plan(n) for n in range(5)]
    assert compiler.asked == [pool.plan(n).line for n in range(5)]


def test_what_was_compiled_before_is_told_without_a_job(pool: Pool) -> None:
    compiler = Scripted(cached=frozenset({pool.plan(0).line, pool.plan(2).line}))
    found = trials_of(compiler, Slots(2)).run(wanted(pool, 4))
    assert compiler.asked == [pool.plan(1).line, pool.plan(3).line]
    assert [each.finding.cached for each in found] == [True, False, True, False]


def test_finished_trials_are_found_again_with_the_time_they_took(pool: Pool) -> None:
    first = trials_of(Scripted(lambda n: "failed" if n == 1 else "complete"), Slots(), limit=35.0)
    before = first.run(wanted(pool, 5))
    # By hand: trials end at 10, 20, 30 and 35 s, the fourth because time is over; the fifth never starts.
    assert [each.elapsed_s for each in before] == [10.0, 20.0, 30.0, 35.0]
    assert [each.finding.status for each in before] == ["complete", "failed", "complete", "timeout"]
    assert (before[3].cut, before[3].finding.reason) == (True, OUT_OF_TIME)

    compiler = Scripted()
    again = trials_of(compiler, Slots(), before, limit=35.0)
    found = again.run(wanted(pool, 5))
    assert compiler.asked == []
    assert [each.finding.status for each in found] == [each.finding.status for each in before]
    assert all(each.finding.cached for each in found)
    assert again.clock.over


def test_with_more_time_what_time_cut_short_runs_again_and_nothing_else(pool: Pool) -> None:
    before = trials_of(Scripted(), Slots(), limit=35.0).run(wanted(pool, 5))
    compiler = Scripted()
    found = trials_of(compiler, Slots(), before, limit=60.0).run(wanted(pool, 5))
    assert compiler.asked == [pool.plan(3).line, pool.plan(4).line]
    assert [each.elapsed_s for each in found] == [10.0, 20.0, 30.0, 40.0, 50.0]


def test_a_trial_that_was_lost_and_not_to_blame_runs_again_and_one_that_failed_does_not(pool: Pool) -> None:
    before = trials_of(Scripted(lambda n: "failed"), Slots()).run(wanted(pool, 2))
    before[1] = replace(before[1], finding=replace(before[1].finding, lost=True))
    compiler = Scripted()
    found = trials_of(compiler, Slots(), before).run(wanted(pool, 2))
    assert compiler.asked == [pool.plan(1).line]
    assert [each.finding.status for each in found] == ["failed", "complete"]


def test_trials_of_another_compiler_run_again(pool: Pool) -> None:
    before = trials_of(Scripted(), Slots()).run(wanted(pool, 2))
    compiler = Scripted(evidence="ours@2")
    trials_of(compiler, Slots(), before).run(wanted(pool, 2))
    assert len(compiler.asked) == 2


def test_a_trial_that_ran_out_of_its_own_time_runs_again_only_with_more_of_it(pool: Pool) -> None:
    before = trials_of(Scripted(lambda n: "timeout"), Slots()).run(wanted(pool, 1))
    for limit, runs in ((600.0, 0), (900.0, 0), (1800.0, 1)):
        compiler = Scripted(timeout_s=limit)  # the first had 900 s
        trials_of(compiler, Slots(), before).run(wanted(pool, 1))
        assert len(compiler.asked) == runs


@pytest.mark.parametrize("step", [math.nan, math.inf, -1.0])
def test_a_step_time_that_is_no_number_is_a_failure(pool: Pool, step: float) -> None:
    compiler = Scripted(estimate=replace(pool.estimate(0), step_time_s=step))
    (found,) = trials_of(compiler, Slots()).run(wanted(pool, 1))
    assert (found.finding.status, found.finding.estimate) == ("failed", None)
    assert found.finding.reason == f"its step time is {step}, which is no measurement"


def test_nothing_starts_that_would_hardly_end(pool: Pool) -> None:
    """Trials take 30 s; with 14 s left, less than half of that, the fourth does not start."""
    for limit, ran in ((104.0, 3), (106.0, 4)):
        slots = Slots(seconds=30.0)
        compiler = Scripted(seconds={"compile": 30.0})
        loop = loop_of(pool, compiler, slots, limit=limit)
        words = loop.run()
        assert len(compiler.asked) == ran
        assert words.endswith("too little time is left for another trial" if ran == 3 else "time is over")


def test_no_job_outlasts_the_time_that_is_left(pool: Pool) -> None:
    slots = Slots(seconds=30.0)
    trials_of(Scripted(), slots, limit=100.0).run(wanted(pool, 9))
    assert slots.limits == [100.0, 70.0, 40.0, 10.0]
    assert slots.now == 100.0


def loop_of(pool: Pool, compiler: Scripted, slots: Slots, limit: float = float("inf"), **budget: Any) -> Loop:
    trials = trials_of(compiler, slots, limit=limit)
    compiler.estimate = pool.estimate(0)
    return Loop(
        where="v5e-4",
        pool=pool,
        searcher=InOrder(pool, "roofline", by_roofline(pool).tolist()),
        trials=trials,
        budget=Budget(**budget),
        clock=trials.clock,
        listener=trials.watcher,  # pyright: ignore[reportArgumentType]
        width=3,
    )


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_as_many_complete_as_are_wanted_whatever_does_not_fit(pool: Pool, workers: int) -> None:
    ends = {0: "infeasible", 2: "failed", 3: "timeout"}
    compiler = Scripted(lambda n: ends.get(n, "complete"))
    loop = loop_of(pool, compiler, Slots(workers), complete=4)
    assert loop.run() == "4 plans compiled, 1 did not fit and 2 failed or ran out of time: as many as wanted"
    assert len(compiler.asked) == 7


def test_trials_are_counted_however_they_end(pool: Pool) -> None:
    loop = loop_of(pool, Scripted(lambda n: "infeasible" if n % 2 else "complete"), Slots(), trials=5)
    assert loop.run() == "3 plans compiled, 2 did not fit: budget.trials=5 are done"


def test_time_ends_a_search_amid_a_round(pool: Pool) -> None:
    loop = loop_of(pool, Scripted(), Slots(), limit=45.0, minutes=0.75)
    assert loop.run() == "4 plans compiled, 1 failed or ran out of time: budget.minutes=0.75 is over"
    assert loop.rounds == 2


def test_a_slice_where_nothing_fits_is_given_up(pool: Pool) -> None:
    compiler = Scripted(lambda n: "infeasible")
    assert "given up" in loop_of(pool, compiler, Slots(), complete=4).run()
    assert len(compiler.asked) == ATTEMPTS * 4


def test_a_compiler_that_only_fails_is_given_up_sooner(pool: Pool) -> None:
    compiler = Scripted(lambda n: "failed")
    assert "given up" in loop_of(pool, compiler, Slots(), complete=40).run()
    assert len(compiler.asked) == FAILURES


def test_a_short_list_ends(pool: Pool) -> None:
    small = small_pool("v5e-4")
    loop = loop_of(small, Scripted(), Slots())
    loop.searcher = InOrder(small, "roofline", [4, 2])
    assert loop.run().startswith("2 plans compiled: every plan")


def test_the_dry_run_tries_nothing(pool: Pool) -> None:
    compiler = Scripted()
    loop = loop_of(pool, compiler, Slots(), trials=0)
    assert len(loop.first()) == 3
    assert compiler.asked == []


def test_what_a_trainer_writes_is_kept_without_the_secrets_of_this_process(pool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    said = "wandb: login with 0123456789abcdef failed; hf_abcdefghijklmnopqrstuvwxyz"
    found = without_secrets(Finding(plan=pool.plan(0), status="failed", reason=said, output=f"log\n{said}\n"))
    assert found.reason == "wandb: login with [redacted] failed; [redacted]"
    assert found.output == f"log\n{found.reason}\n"

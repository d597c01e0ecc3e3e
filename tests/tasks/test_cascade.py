"""Which plans go to a compiler, in which order, and until when: with a compiler and an executor that only pretend."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from asap_ray.executor import local
from asap_ray.physics.calibration import Calibration, calibration_of, calibrations_from_mappings
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.report.answer import Tried
from asap_ray.settings import load_group
from asap_ray.tasks.cascade import ATTEMPTS, FAILURES, Cascade, Queue
from asap_ray.tasks.shortlist import shortlist
from asap_ray.tiers.compiled import Compiled
from asap_ray.tiers.protocol import Job, Outcome
from asap_ray.tiers.roofline import Roofline
from tests.problems import make_problem
from tests.tasks.pretend import at_once


def calibration(chip: Any) -> Calibration:
    return calibration_of(chip, "ours", calibrations_from_mappings(load_group("calibration")))


def estimates(*lines: str) -> list[Estimate]:
    problem = make_problem("v5e-4", "ours")
    (base,) = Roofline(problem=problem, calibration=calibration(problem.slice.chip)).estimates(
        [Plan.parse("fsdp=4 micro_batch=3 accumulation=1 remat=full")]
    )
    return [replace(base, plan=Plan.parse(line), step_time_s=1.0 + n) for n, line in enumerate(lines)]


def plans(count: int) -> list[Estimate]:
    return estimates(*(f"fsdp=4 micro_batch={n + 1} accumulation=1 remat=full" for n in range(count)))


@dataclass
class Scripted:
    """A compiler whose verdict on the n-th plan of a list is set; a plan in `cached` was compiled before."""

    ends: Callable[[int], str]
    cached: frozenset[int] = frozenset()
    asked: list[int] = field(default_factory=list)

    def known(self, plan: Plan) -> Compiled | None:
        number = plan.micro_batch - 1
        return replace(self._made(plan), cached=True) if number in self.cached else None

    def job(self, plan: Plan) -> Job:
        self.asked.append(plan.micro_batch - 1)
        return Job(name=plan.line, work=self._made, arguments=(plan,), timeout_s=900.0)

    def read(self, outcome: Outcome) -> Compiled:
        return outcome.value

    def _made(self, plan: Plan) -> Compiled:
        return Compiled(plan=plan, status=self.ends(plan.micro_batch - 1))  # pyright: ignore[reportArgumentType]


@dataclass
class Watching:
    seen: list[tuple[str, str]] = field(default_factory=list)

    def started(self, where: str, bundle: str, estimate: Estimate) -> None:
        self.seen.append(("started", estimate.plan.line))

    def ended(self, tried: Tried) -> None:
        self.seen.append((tried.compiled.status, tried.compiled.plan.line))


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "stream", at_once)


def cascade(*queues: Queue, workers: int = 1, **changes: Any) -> Cascade:
    return Cascade(queues=queues, workers=workers, watcher=Watching(), **changes)


def queue(compiler: Scripted, waiting: list[Estimate], wanted: int, where: str = "v5e-4") -> Queue:
    return Queue(where=where, bundle="default", compiler=compiler, waiting=list(waiting), wanted=wanted)


def complete(number: int) -> str:
    return "complete"


def test_as_many_compile_as_are_wanted() -> None:
    compiler = Scripted(complete)
    tried = cascade(queue(compiler, plans(9), 4)).run()
    assert [each.compiled.plan.micro_batch for each in tried] == [1, 2, 3, 4]
    assert compiler.asked == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_what_does_not_fit_or_fails_is_replaced_by_the_next_however_many_workers(workers: int) -> None:
    ends = {0: "infeasible", 2: "failed", 3: "timeout"}
    compiler = Scripted(lambda n: ends.get(n, "complete"))
    tried = cascade(queue(compiler, plans(12), 4), workers=workers).run()
    assert sorted(compiler.asked) == [0, 1, 2, 3, 4, 5, 6]
    assert sum(each.compiled.status == "complete" for each in tried) == 4


def test_what_was_compiled_before_is_told_without_a_job() -> None:
    compiler = Scripted(complete, cached=frozenset({0, 2}))
    watcher = Watching()
    run = Cascade(queues=[queue(compiler, plans(5), 3)], workers=2, watcher=watcher)
    tried = run.run()
    assert compiler.asked == [1]
    assert [each.compiled.cached for each in sorted(tried, key=lambda t: t.compiled.plan.micro_batch)] == [
        True, False, True,
    ]  # fmt: skip
    assert [kind for kind, _ in watcher.seen].count("started") == 1


def test_a_slice_where_nothing_fits_is_given_up() -> None:
    compiler = Scripted(lambda n: "infeasible")
    cascade(queue(compiler, plans(40), 4), workers=3).run()
    assert len(compiler.asked) == ATTEMPTS * 4


def test_a_compiler_that_only_fails_is_given_up_sooner() -> None:
    compiler = Scripted(lambda n: "failed")
    cascade(queue(compiler, plans(40), 6)).run()
    assert len(compiler.asked) == FAILURES


def test_a_short_list_ends() -> None:
    compiler = Scripted(lambda n: "infeasible" if n else "complete")
    tried = cascade(queue(compiler, plans(3), 6), workers=2).run()
    assert len(tried) == 3


def test_slices_take_turns_the_fastest_first() -> None:
    one, other = Scripted(complete), Scripted(complete)
    run = cascade(queue(one, plans(5), 2, "fast"), queue(other, plans(5), 2, "slow"))
    assert [each.where for each in run.run()] == ["fast", "slow", "fast", "slow"]


def test_nothing_is_started_once_time_is_over_and_what_runs_ends_with_it() -> None:
    ticks = itertools.count(0.0, 10.0)
    compiler = Scripted(complete)
    limits: list[float | None] = []

    def looking(source: Callable[[], Job | None], workers: int) -> Iterator[Outcome]:
        while job := source():
            limits.append(job.timeout_s)
            yield Outcome(job=job, status="complete", value=job.work(*job.arguments))

    run = cascade(queue(compiler, plans(9), 9), deadline=100.0, clock=lambda: next(ticks))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "stream", looking)
        run.run()
    assert 0 < len(compiler.asked) < 9
    assert all(limit is not None and limit < 100.0 for limit in limits)
    assert run.out_of_time


def test_the_fastest_of_each_mesh_and_policy_comes_first_and_twins_are_left_out() -> None:
    lines = [
        "fsdp=4@2.2 micro_batch=1 accumulation=4 remat=full",
        "fsdp=4@4.1 micro_batch=1 accumulation=4 remat=full",  # only lies otherwise
        "fsdp=4@2.2 micro_batch=2 accumulation=2 remat=full",  # same mesh and policy
        "fsdp=2@2.1 tensor=2@1.2 micro_batch=1 accumulation=8 sequence_parallel=true remat=full",
        "fsdp=4@2.2 micro_batch=1 accumulation=4 remat=none",
    ]
    listed = shortlist(estimates(*lines))
    assert [each.plan.line for each in listed] == [lines[0], lines[3], lines[4], lines[2]]

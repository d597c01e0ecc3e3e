"""Tiers that compile and run nothing, with what each plan comes to set by the test, and an executor beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from asap_ray.compiler import toolchain
from asap_ray.physics.calibration import Calibration
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.tiers.compile import CompileOptions
from asap_ray.tiers.finding import Finding
from asap_ray.tiers.protocol import Job, Outcome
from asap_ray.tiers.roofline import Roofline
from asap_ray.tiers.run import Run

WITH = "ours@12345678, jax 0.10.2, libtpu 0.0.42"
Verdict = Callable[[Plan, Mapping[str, str]], Mapping[str, Any]]


def slower(plan: Plan, flags: Mapping[str, str]) -> Mapping[str, Any]:
    """Every plan fits and takes a tenth longer than the roofline says."""
    return {"step": 1.1}


@dataclass(frozen=True, kw_only=True)
class Pretend:
    """Stands for `Compile`; `verdict` says of a plan and flags what differs from a plan that compiles as priced."""

    problem: Problem
    calibration: Calibration
    options: CompileOptions = field(default_factory=CompileOptions)
    verdict: ClassVar[Verdict] = staticmethod(slower)
    cache: ClassVar[dict[Any, Finding]] = {}
    lacking: ClassVar[str] = ""
    compiled: ClassVar[list[str]] = []
    name: str = "compile"

    @property
    def missing(self) -> str:
        chip = self.problem.slice.chip
        return self.lacking or (toolchain.missing(chip) if chip.vendor == "amd" or chip.name == "v3" else "")

    @property
    def timeout_s(self) -> float:
        return self.options.timeout_s

    @property
    def evidence(self) -> str:
        return WITH

    def known(self, plan: Plan) -> Finding | None:
        found = self.cache.get(self._key(plan))
        return replace(found, cached=True) if found else None

    def job(self, plan: Plan) -> Job:
        return Job(name=plan.line, work=self._compile, arguments=(plan,), timeout_s=self.options.timeout_s)

    def read(self, outcome: Outcome) -> Finding:
        return outcome.value if outcome.status == "complete" else _undone(outcome)

    def _key(self, plan: Plan) -> Any:
        return self.problem.slice.name, plan, tuple(sorted(self.options.flags.items()))

    def _compile(self, plan: Plan) -> Finding:
        self.compiled.append(plan.line)
        told = dict(type(self).verdict(plan, self.options.flags))
        scale, memory, status = told.pop("step", 1.0), told.pop("memory", 1.0), told.get("status", "complete")
        priced = Roofline(problem=self.problem, calibration=self.calibration).estimates([plan])[0]
        needed = memory * priced.hbm_bytes
        made = Finding(
            plan=plan,
            status="complete",
            hbm_bytes=needed,
            limit_bytes=priced.hbm_limit_bytes,
            estimate=_scaled(priced, scale, memory) if status == "complete" else None,
            memory_parts={name: memory * value for name, value in priced.memory_parts.items()},
            seconds={"lower": 5.0, "compile": 30.0},
            evidence=WITH,
            digest=f"{plan.line} {told.pop('program', sorted(self.options.flags))}",
        )
        made = replace(made, **told)
        if made.status in ("complete", "infeasible"):
            self.cache[self._key(plan)] = made
        return made


@dataclass(kw_only=True)
class PretendRun(Run):
    """Stands for `Run`; `verdict` says of a plan what differs from one that runs as priced."""

    verdict: ClassVar[Verdict] = staticmethod(slower)
    ran: ClassVar[list[str]] = []

    def job(self, plan: Plan) -> Job:
        return Job(name=plan.line, work=self._ran, arguments=(plan,), timeout_s=self.options.timeout_s)

    def read(self, outcome: Outcome) -> Finding:
        return self.learn(outcome.value) if outcome.status == "complete" else _undone(outcome)

    def _ran(self, plan: Plan) -> Finding:
        self.ran.append(plan.line)
        told = dict(type(self).verdict(plan, {}))
        priced, scale, memory = self._roofline.estimates([plan])[0], told.pop("step", 1.0), told.pop("memory", 1.0)
        estimate = replace(_scaled(priced, scale, memory), source="run", time_parts={}, memory_parts={})
        works = told.get("status", "complete") == "complete"
        made = Finding(
            plan=plan,
            status="complete",
            source="run",
            evidence=self.evidence,
            estimate=estimate if works else None,
            hbm_bytes=estimate.hbm_bytes if works else None,
            seconds={"steps": 10.0},
        )
        return replace(made, **told)


def _undone(outcome: Outcome) -> Finding:
    (plan,) = outcome.job.arguments
    return Finding(plan=plan, status=outcome.status, reason=outcome.reason, evidence=WITH, lost=outcome.lost)


def _scaled(priced: Estimate, scale: float, memory: float) -> Estimate:
    step = scale * priced.step_time_s
    return replace(
        priced,
        step_time_s=step,
        interval_s=(0.8 * step, 1.2 * step),
        time_parts={name: scale * value for name, value in priced.time_parts.items()},
        hbm_bytes=memory * priced.hbm_bytes,
        memory_parts={name: memory * value for name, value in priced.memory_parts.items()},
        source="compile",
    )


def at_once(source: Callable[[], Job | None], workers: int, *, first: bool = False) -> Iterator[Outcome]:
    """Stands for `local.stream`: runs as many as there are workers, and ends the last one first, or the `first`."""
    running: list[Job] = []
    while True:
        while len(running) < workers and (job := source()):
            running.append(job)
        if not running:
            return
        job = running.pop(0 if first else -1)
        yield Outcome(job=job, status="complete", value=job.work(*job.arguments))

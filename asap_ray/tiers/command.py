"""The command tier: a plan's step time by the user's own trainer, as its log has it.

The step is the median of the steps that are timed; its interval is that of `step_times`, with the spread between
processes that is known of the platform, and half of what the last digit in the log stands for on either side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from asap_ray.physics.calibration import Calibration
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.recipe import PLAIN, Recipe
from asap_ray.step_times import PROCESS_SPREAD, interval_s, median_s
from asap_ray.tiers.finding import Finding, Status
from asap_ray.tiers.following import Step
from asap_ray.tiers.launch import Order, Ran, profiled
from asap_ray.tiers.protocol import Job, Outcome
from asap_ray.tiers.roofline import Roofline
from asap_ray.tiers.run import platform_of
from asap_ray.tiers.template import Template
from asap_ray.tiers.trainer_process import GRACE_S

LEAST_STEPS = 2
"""Timed steps below which nothing is said of a step's time."""
START_S = 30.0
"""What a job may take besides its trainer: a process starts before it, and is ended after it."""
SHOWN_LINES = 3
"""Last lines of a log that a reason quotes."""
Verdict = tuple[Status, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandOptions:
    """How trainers are run: by whose interpreter (and, in `trainer`, what is installed there), which
    script of the user's, how many steps are
    timed, a deadline, where trials have their folders (None: temporary ones), where the trainer starts, and which
    variables it gets by name."""

    python: str
    script: str = ""
    trainer: str = ""
    steps: int = 10
    timeout_s: float = 900.0
    folder: str | None = None
    cwd: str | None = None
    pass_env: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Command:
    """Evaluates plans of one problem by the user's trainer, each in processes of its own.

    An executor runs `job(plan)`, `read(outcome)` says what came of it. Plans that `expressible` refuses have no job.
    """

    problem: Problem
    calibration: Calibration
    template: Template
    options: CommandOptions
    name: str = "command"

    @property
    def timeout_s(self) -> float:
        """Seconds after which a trial is given up."""
        return self.options.timeout_s

    @property
    def evidence(self) -> str:
        """What its results are evidence for: the template by its hash, and the trainer as it is installed."""
        return f"command {self.template.name}@{self.template.digest}, {self.options.trainer or self.options.python}"

    @property
    def spread(self) -> float:
        """Standard deviation between processes of one plan, in the logarithm of the step, as far as it is known."""
        return PROCESS_SPREAD[platform_of(self.problem.slice.chip)]

    def expressible(self, plan: Plan) -> str | None:
        """Why the trainer's command cannot say a plan, in one line; None where it can."""
        return self.template.refusal(self.problem, plan)

    def job(self, plan: Plan, recipe: Recipe = PLAIN) -> Job:
        """The work that runs the trainer with a plan."""
        assert self.expressible(plan) is None, f"{plan.line}: {self.expressible(plan)}"
        options = self.options
        order = Order(
            plan=plan,
            template=self.template,
            values=self.template.values(self.problem, plan),
            tokens_per_step=self.problem.workload.tokens_per_step,
            python=options.python,
            script=options.script,
            steps=options.steps,
            timeout_s=options.timeout_s,
            folder=options.folder,
            cwd=options.cwd,
            pass_env=options.pass_env,
        )
        return Job(
            name=f"{self.problem.slice.name} {plan.line}",
            work=profiled,
            arguments=(order,),
            timeout_s=options.timeout_s + 2 * GRACE_S + START_S,
            isolated=True,
        )

    def known(self, plan: Plan, recipe: Recipe = PLAIN) -> Finding | None:
        """Nothing is known before it has run: a time measured elsewhere is no evidence here."""
        return None

    def read(self, outcome: Outcome) -> Finding:
        """What is said of a plan, from how its job ended."""
        (order,) = outcome.job.arguments
        found = Finding(
            plan=order.plan, status="failed", source=self.name, evidence=self.evidence, output=outcome.output
        )
        if outcome.status != "complete":
            reason = " ".join(outcome.reason.split())
            return replace(found, status=outcome.status, reason=reason, lost=outcome.lost)
        return self._of(outcome.value, order, found)

    def _of(self, run: Ran, order: Order, found: Finding) -> Finding:
        status, reason = verdict(run, order)
        first = run.first_s if run.first_s is not None else run.wall_s
        found = replace(
            found,
            status=status,
            reason=reason,
            hbm_bytes=run.peak_bytes or None,
            seconds={"start": first, "steps": run.wall_s - first},
            output="\n".join(run.tail),
            chip_hours=self.problem.slice.chips * run.wall_s / 3600.0,
            facts=facts_of(run, order),
        )
        if status == "infeasible":
            return replace(found, **memory_of(run))
        if status != "complete":
            return found
        estimate = self._estimate(found.plan, timed(run, order), run.peak_bytes)
        return replace(
            found,
            estimate=estimate,
            limit_bytes=estimate.hbm_limit_bytes if run.peak_bytes else None,
            memory_parts={"peak": run.peak_bytes} if run.peak_bytes else {},
            profile=run.profile,
        )

    def _estimate(self, plan: Plan, steps: list[Step], peak_bytes: float) -> Estimate:
        """The measured step; where its time goes is as the roofline shares it out, for a log does not say."""
        priced = Roofline(problem=self.problem, calibration=self.calibration).estimates([plan])[0]
        step, (low, high) = step_time(steps, self.spread)
        scale = step / priced.step_time_s
        return replace(
            priced,
            step_time_s=step,
            interval_s=(low, high),
            mfu=self.problem.mfu(step),
            tokens_per_s=self.problem.workload.tokens_per_step / step,
            hbm_bytes=peak_bytes or priced.hbm_bytes,
            memory_parts=priced.memory_parts if not peak_bytes else {"peak": peak_bytes},
            time_parts={part: scale * seconds for part, seconds in priced.time_parts.items()},
            source="command",
        )


def timed(run: Ran, order: Order) -> list[Step]:
    """The steps that count: all but the template's first ones."""
    return list(run.steps[order.template.skip :])


def step_time(steps: list[Step], spread: float) -> tuple[float, tuple[float, float]]:
    """Median of some steps and where 90% of such medians lie, seconds; `spread` as of `step_times.interval_s`."""
    seconds = [step.seconds for step in steps]
    low, high = interval_s(seconds, spread)
    rounding = max(step.rounding_s for step in steps)
    return median_s(seconds), (max(low - rounding, 0.0), high + rounding)


def verdict(run: Ran, order: Order) -> Verdict:
    """How a trial ended, and why in one line."""
    if run.other:
        shown = ", ".join(f"{name}={value}" for name, value in run.other.items())
        wanted = ", ".join(order.template.translated(name, order.values[name]) for name in run.other)
        return "failed", f"the trainer ran {shown}; the plan says {wanted}"
    if run.ended == "memory":
        return "infeasible", f"out of memory: {run.oom_line.strip()}"
    if run.killed_for_memory and run.status is not None and run.status != 0 and run.ended == "exited":
        return "infeasible", "the machine ran out of memory, and its kernel ended a process of the trainer"
    if run.ended == "diverged":
        return "failed", f"diverged: its loss is no finite number: {run.diverged.strip()}"
    if run.ended == "deadline":
        return "timeout", f"{run.reason}, with {len(run.steps)} of {order.total_steps} steps; {_last(run)}"
    if run.ended in ("slow pattern", "long log"):
        return "failed", run.reason
    if run.ended == "exited" and run.status:
        return "failed", f"the trainer ended {_by(run.status)}; {_last(run)}"
    if len(run.steps) == 0:
        return "failed", f"its log has no step times; {_last(run)}"
    if run.unseen:
        return "failed", f"its log does not show the plan: no line matches {run.unseen[0]}"
    if (count := len(timed(run, order))) < LEAST_STEPS:
        skip = order.template.skip
        return "failed", f"steps in its log after the first {skip}: {count}, and {LEAST_STEPS} are needed"
    return "complete", ""


def facts_of(run: Ran, order: Order) -> dict[str, object]:
    """What is kept of a trial besides its verdict: timed steps, losses from the first step on, what it showed of its
    plan, and where its log and its profile lie."""
    losses = [step.loss for step in run.steps if step.loss is not None and math.isfinite(step.loss)]
    found = {
        "steps_s": [step.seconds for step in timed(run, order)],
        "losses": losses,
        "shown": dict(run.shown),
        "log": run.log,
        "trace": run.trace,
        "trace_fault": run.trace_fault,
    }
    return {name: value for name, value in found.items() if value}


def memory_of(run: Ran) -> dict[str, float | None]:
    """What a log says of memory that ran out: bytes needed, there, and missing."""
    said = run.oom or {}
    needed, limit = said.get("needed"), said.get("limit")
    over = needed - limit if needed and limit else said.get("tried", 0.0) - said.get("free", 0.0)
    if needed is None and limit and "free" in said:
        needed = limit - said["free"] + said.get("tried", 0.0)
    return {"hbm_bytes": needed, "limit_bytes": limit, "over_bytes": max(over, 0.0)}


def _by(status: int) -> str:
    return f"by signal {-status}" if status < 0 else f"with status {status}"


def _last(run: Ran) -> str:
    lines = " | ".join(line.strip() for line in run.tail[-SHOWN_LINES:])
    return f"last lines: {lines}" if lines else "it wrote nothing"

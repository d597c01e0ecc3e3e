"""The run tier: a plan is trained for a few steps on real devices, and a clock says how long a step takes.

What is measured is asap_ray's own trainer: evidence for it alone. Medians of separate processes differ more than steps
of one do, so intervals count both; a run whose loss is not that of the others has bought its speed with wrong numbers.
"""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from asap_ray.chip import Chip
from asap_ray.compiler import toolchain
from asap_ray.compiler.request import program_digest
from asap_ray.physics.calibration import Calibration
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.profile.table import Profile
from asap_ray.recipe import PLAIN, Recipe
from asap_ray.step_times import PROCESS_SPREAD, interval_s, median_s
from asap_ray.tiers.finding import Finding
from asap_ray.tiers.parts import time_parts
from asap_ray.tiers.protocol import Gang, Job, Outcome, Place
from asap_ray.tiers.proxy import Proxy, carried
from asap_ray.tiers.roofline import Roofline
from asap_ray.training.environment import OUT_OF_MEMORY
from asap_ray.training.request import Platform, Ran, RunRequest

LOSS_TOLERANCE = 0.01
"""How far a loss may be off that of the first trial, relatively: bfloat16 sums in another order move one of six by less
than a thousandth (docs/trials.md), a wrong mask or a lost gradient by more than this within a few steps."""
SHARED = "devices take turns on the cores they share: what one waits for in a collective is others' work too"
PROCESS_BYTES = 1.5e9
"""What a process holds that compiles and runs a small step on a processor, at most; 0.6 to 1.2 GB seen."""
PROXY = "proxy run"
"""What an estimate names as its source that a proxy's run was carried to."""
_OUT_OF_MEMORY = re.compile(rf"{OUT_OF_MEMORY}(\d+) of (\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """How plans are run; see `RunRequest` for the first six.

    `hosts` is how many processes share the devices, one a host; `memory_bytes` what each may take of its host (0: no
    limit). `resources` is what a cluster sets aside on each host, `topology` and `accelerator` those of a TPU slice.
    """

    steps: int = 10
    warmup: int = 1
    timed_s: float = 5.0
    cores: int = 0
    trace: bool = True
    cache: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0
    memory_bytes: float = 0.0
    hosts: int = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    topology: str = ""
    accelerator: str = ""


@dataclass(kw_only=True)
class Run:
    """Evaluates plans of one problem by training them for a few steps, each in fresh processes.

    It keeps the best step so far, which ends runs that cannot beat it, and the losses of the first run, which all
    others are held against: `learn` takes them from runs that were made before.
    """

    problem: Problem
    calibration: Calibration
    options: RunOptions = field(default_factory=RunOptions)
    name: str = "run"
    proxy: Proxy | None = None
    hopeless_s: float | None = None
    losses: tuple[float, ...] = ()

    @property
    def timeout_s(self) -> float:
        """Seconds after which a trial is given up."""
        return self.options.timeout_s

    @property
    def evidence(self) -> str:
        """The trainer and the devices that its results are evidence for."""
        return (
            f"{toolchain.trained_with()}, on {self.problem.slice.name}{f', {self.proxy.words}' if self.proxy else ''}"
        )

    @property
    def platform(self) -> Platform:
        """The platform as JAX names it."""
        return platform_of(self.problem.slice.chip)

    @property
    def spread(self) -> float:
        """How far medians of separate processes lie apart: their standard deviation, in the logarithm."""
        return PROCESS_SPREAD[self.platform]

    def expressible(self, plan: Plan) -> str | None:
        """Why no proxy can stand for a plan, in one line; None where one can, or plans are run themselves."""
        small = self.proxy.plan(self.problem, plan) if self.proxy else plan
        return small if isinstance(small, str) else None

    def job(self, plan: Plan, recipe: Recipe = PLAIN) -> Job:
        """The work that runs a plan with a recipe, or the proxy that stands for it."""
        options, chip = self.options, self.problem.slice.chip
        small = self.proxy.plan(self.problem, plan) if self.proxy else plan
        assert not isinstance(small, str), small
        request = RunRequest(
            workload=self._run.workload,
            plan=small,
            slice=self._run.slice,
            stack=self._run.stack,
            stands_for=plan if self.proxy else None,
            platform=self.platform,
            flags=tuple(sorted(options.flags.items())),
            steps=options.steps,
            warmup=options.warmup,
            timed_s=options.timed_s,
            hopeless_s=None if self.proxy else self.hopeless_s,
            spread=self.spread,
            cores=options.cores,
            memory_bytes=options.memory_bytes,
            trace=options.trace,
            cache=options.cache,
            recipe=recipe.program,
        )
        gang = Gang(
            hosts=options.hosts,
            per_host={"CPU": 1.0, **options.resources},
            topology=options.topology,
            accelerator=options.accelerator,
        )
        return Job(
            name=f"{self.problem.slice.name} ({chip.name}) {plan.line}",
            work=run_plan,
            arguments=(request,),
            timeout_s=options.timeout_s,
            memory_bytes=self._host_bytes(plan) if options.memory_bytes else 0.0,
            isolated=True,
            cores=max(float(options.cores), 1.0),
            resources={} if options.hosts > 1 else options.resources,
            gang=gang if options.hosts > 1 else None,
        )

    def _host_bytes(self, plan: Plan) -> float:
        """What a process is expected to hold of its host, where its devices' memory is the host's."""
        devices = self._run.slice.devices / self.options.hosts
        held = PROCESS_BYTES + devices * self._roofline.estimates([plan])[0].hbm_bytes
        return min(held, self.options.memory_bytes)

    def known(self, plan: Plan, recipe: Recipe = PLAIN) -> Finding | None:
        """Nothing: a run is measured anew, but for those that the record of the same command holds."""
        return None

    def read(self, outcome: Outcome) -> Finding:
        """What is said of a plan, from how its job ended."""
        request: RunRequest = outcome.job.arguments[0]
        plan = request.stands_for or request.plan
        told = Finding(plan=plan, status="failed", source=self.name, evidence=self.evidence, output=outcome.output)
        if outcome.status == "complete":
            return self.learn(self._read(told, outcome.value))
        told = replace(told, status=outcome.status, reason=" ".join(outcome.reason.split()), lost=outcome.lost)
        if found := _OUT_OF_MEMORY.search(outcome.output):
            held, limit = map(float, found.groups())
            reason = f"out of host memory: it held {held / 1e9:.2f} GB of the {limit / 1e9:.2f} GB that it may take"
            return replace(told, status="infeasible", reason=reason, over_bytes=held - limit)
        return told

    def _of_proxy(self, told: Finding) -> Finding:
        """What is true of the whole of how its proxy ended: its memory is another."""
        why = f"{self.proxy.words if self.proxy else ''}: {told.reason}"
        status = "failed" if told.status == "infeasible" else told.status
        return replace(told, status=status, reason=why if told.reason else "", hbm_bytes=None, over_bytes=0.0)

    def learn(self, finding: Finding) -> Finding:
        """Take account of a finished run, also one that was made before; returns it as it is."""
        if finding.status == "complete" and finding.estimate is not None:
            self.losses = self.losses or tuple(finding.facts.get("losses", ()))
            top = finding.estimate.interval_s[1]
            self.hopeless_s = top if self.hopeless_s is None else min(self.hopeless_s, top)
        return finding

    def _read(self, told: Finding, ran: Ran) -> Finding:
        chip_hours = sum(ran.seconds.values()) * self._run.slice.chips / 3600
        told = replace(
            told,
            status=ran.status,
            reason=ran.reason,
            seconds=ran.seconds,
            chip_hours=chip_hours,
            over_bytes=ran.over_bytes,
            limit_bytes=ran.limit_bytes or self.problem.slice.chip.usable_hbm_bytes,
            hbm_bytes=ran.needed_bytes or ran.peak_bytes or None,
            digest=program_digest(gzip.decompress(ran.hlo).decode()) if ran.hlo else "",
            facts=facts_of(ran),
            output="" if ran.status in ("complete", "pruned") else told.output,
        )
        told = self._of_proxy(told) if self.proxy else told
        if ran.status == "complete" and (fault := self._wrong_loss(ran)):
            return replace(told, status="failed", reason=fault)
        if not ran.steps_s or ran.status not in ("complete", "pruned"):
            return told
        profile = Profile.from_dict(ran.profile) if ran.profile else None
        if profile is not None and self.platform == "cpu":
            profile = replace(profile, flags=(*profile.flags, SHARED))
        return replace(told, profile=profile, estimate=self._estimate(told, ran, profile))

    def _wrong_loss(self, ran: Ran) -> str:
        """How the losses differ from those of the first run, by more than numbers of a few bits explain."""
        for number, (loss, other) in enumerate(zip(ran.losses, self.losses, strict=False), start=1):
            if abs(loss - other) > LOSS_TOLERANCE * abs(other):
                return (
                    f"wrong numbers: the loss of step {number} is {loss:.4f}, and {other:.4f} in the first trial, from "
                    f"the same weights and batch ({LOSS_TOLERANCE:.0%} is allowed)"
                )
        return ""

    def _estimate(self, told: Finding, ran: Ran, profile: Profile | None) -> Estimate:
        """What the clock says, beside what physics alone can: the floor and the serial time."""
        step = median_s(ran.steps_s)
        priced, ends = self._roofline.estimates([told.plan])[0], interval_s(ran.steps_s, self.spread)
        if self.proxy:
            small = self.proxy.plan(self.problem, told.plan)
            assert not isinstance(small, str), small
            proxy = Roofline(problem=self._run, calibration=self.calibration).estimates([small])[0]
            step, ends = carried(step, ends, (proxy.step_time_s, priced.step_time_s))
        return replace(
            priced,
            step_time_s=step,
            interval_s=ends,
            mfu=self.problem.mfu(step),
            tokens_per_s=self.problem.workload.tokens_per_step / step,
            hbm_bytes=told.hbm_bytes or priced.hbm_bytes,
            time_parts=self._parts(profile, step),
            memory_parts={},
            source=PROXY if self.proxy else self.name,
        )

    def _parts(self, profile: Profile | None, step_s: float) -> dict[str, float]:
        """The profiled step's parts as those of the step that was timed; none of a processor, whose devices take turns
        on its cores, so that what one waits for is another's work."""
        if profile is None or self.platform == "cpu":
            return {}
        return _scaled(time_parts(profile), step_s)

    @cached_property
    def _run(self) -> Problem:
        """The problem that is run."""
        return self.proxy.problem(self.problem) if self.proxy else self.problem

    @cached_property
    def _roofline(self) -> Roofline:
        return Roofline(problem=self.problem, calibration=self.calibration)


def platform_of(chip: Chip) -> Platform:
    """The platform as JAX names it; what is neither a TPU nor of NVIDIA stands for the machine's processor."""
    if chip.kind == "tpu":
        return "tpu"
    return "cuda" if chip.vendor == "nvidia" else "cpu"


def run_plan(request: RunRequest, place: Place | None = None) -> Ran:
    """Run a request in this process, or its part on this host: the work of a job."""
    from asap_ray.training.short import Host, train

    host = Host(rank=place.rank, hosts=place.hosts, coordinator=place.coordinator) if place else None
    return train(request, host)


def facts_of(ran: Ran) -> dict[str, Any]:
    """What is kept of a run besides its estimate."""
    return {
        "steps_s": list(ran.steps_s),
        "losses": list(ran.losses),
        "dropped": ran.dropped,
        "devices": ran.devices,
        "versions": dict(ran.versions),
        "cores": list(ran.cores),
        "trace_fault": ran.trace_fault,
        "began_s": ran.began_s,
        "first_step_s": ran.first_step_s,
    }


def _scaled(parts: Mapping[str, float], step_s: float) -> dict[str, float]:
    """Parts of a profiled step as parts of the step that was timed: a profiler slows what it looks at."""
    total = math.fsum(parts.values())
    return {name: value * step_s / total for name, value in parts.items()} if total else {}

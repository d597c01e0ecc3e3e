"""The compile tier: a plan's program goes through the chip's own compiler, which needs no chip for it.

What comes back is exact in memory and in the operations that run; their times are the compiler's estimate of cycles for
compute, and physics for what it has no figure for. Results are kept by the hash of all that decides them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from asap_ray.compiler import toolchain
from asap_ray.compiler.lower import compile_plan
from asap_ray.compiler.request import MESH, PROGRAM, Build, Request
from asap_ray.physics.calibration import Calibration
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.recipe import PLAIN, Recipe
from asap_ray.tiers.cache import Cache, default_cache
from asap_ray.tiers.finding import Finding
from asap_ray.tiers.protocol import Job, Outcome
from asap_ray.tiers.reading import Reader

COMPILE_BYTES = 4.0e9
"""Memory that a compilation is expected to need, bytes; assumed, of 1 to 6 GB seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileOptions:
    """How plans are compiled: the compiler's flags (a bundle of conf/xla), a deadline, and where results are kept.

    `cache` is None where nothing is kept.
    """

    flags: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0
    cache: Path | None = field(default_factory=default_cache)
    memory_bytes: float = COMPILE_BYTES
    program: str = PROGRAM
    mesh: str = MESH


@dataclass(frozen=True, kw_only=True)
class Compile:
    """Evaluates plans of one problem by compiling them, each in a fresh process.

    An executor runs `job(plan)`, `read(outcome)` says what came of it; `known(plan)` says it at once where the plan was
    compiled before.
    """

    problem: Problem
    calibration: Calibration
    options: CompileOptions = field(default_factory=CompileOptions)
    name: str = "compile"

    @property
    def missing(self) -> str:
        """Why this machine cannot compile for the chip, in one line with the command that cures it; empty if it can."""
        return toolchain.missing(self.problem.slice.chip)

    @property
    def timeout_s(self) -> float:
        """Seconds after which a trial is given up."""
        return self.options.timeout_s

    @property
    def evidence(self) -> str:
        """The trainer and the compiler that its results are evidence for."""
        return self._reader.evidence

    def job(self, plan: Plan, recipe: Recipe = PLAIN) -> Job:
        """The work that compiles a plan with a recipe; an executor must run it in a fresh process."""
        request, options = self._request(plan, recipe), self.options
        folder = str(options.cache) if options.cache else None
        return Job(
            name=f"{self.problem.slice.name} {plan.line}",
            work=compiled,
            arguments=(request, self._key(request), folder),
            timeout_s=options.timeout_s,
            memory_bytes=options.memory_bytes,
            isolated=True,
        )

    def known(self, plan: Plan, recipe: Recipe = PLAIN) -> Finding | None:
        """What is said of a plan that was compiled before with all the same; None where it was not."""
        if self.options.cache is None:
            return None
        build = Cache(self.options.cache).read(self._key(self._request(plan, recipe)))
        return self._reader.read(plan, build, cached=True) if build else None

    def read(self, outcome: Outcome) -> Finding:
        """What is said of a plan, from how its job ended."""
        plan = outcome.job.arguments[0].plan
        if outcome.status == "complete":
            return self._reader.read(plan, outcome.value, output=outcome.output)
        return Finding(
            plan=plan,
            status=outcome.status,
            reason=" ".join(outcome.reason.split()),
            evidence=self._reader.evidence,
            output=outcome.output,
            lost=outcome.lost,
        )

    def _request(self, plan: Plan, recipe: Recipe = PLAIN) -> Request:
        problem, options = self.problem, self.options
        return Request(
            workload=problem.workload,
            plan=plan,
            slice=problem.slice,
            stack=problem.stack,
            flags=tuple(sorted(options.flags.items())),
            program=options.program,
            mesh=options.mesh,
            recipe=recipe.program,
        )

    def _key(self, request: Request) -> str:
        return request.key(toolchain.source_hash(), toolchain.versions(request.slice.chip))

    @cached_property
    def _reader(self) -> Reader:
        return Reader(problem=self.problem, calibration=self.calibration)


def compiled(request: Request, key: str, folder: str | None) -> Build:
    """Compile a request and keep the result: the work of a job."""
    build = compile_plan(request)
    if folder is not None:
        with contextlib.suppress(OSError):  # a full disk costs the next run a compilation, not this one its result
            Cache(Path(folder)).write(key, build)
    return build

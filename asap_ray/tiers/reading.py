"""What a build means: memory part by part, whether it fits, and the estimate that its profile makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from asap_ray.compiler import toolchain
from asap_ray.compiler.hlo import HloError, parse
from asap_ray.compiler.live import largest
from asap_ray.compiler.request import Build
from asap_ray.compiler.timeline import profile_of
from asap_ray.physics.calibration import Calibration
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.profile.table import Profile
from asap_ray.tiers.finding import Finding
from asap_ray.tiers.parts import time_parts
from asap_ray.tiers.roofline import Roofline

SLOWEST, FASTEST = 1.12, 1.27
"""How much longer and how much shorter than compiled a measured step may be: of 21 public runs whose plans were
compiled with our trainer none lies outside (docs/accuracy.md, the compile tier)."""
STATE = ("weights", "optimizer")
"""Parts of a train state that are told apart in memory; the rest (batch, step count) is `arguments`."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads builds of one problem's plans."""

    problem: Problem
    calibration: Calibration

    @cached_property
    def evidence(self) -> str:
        """The trainer and the compiler that results are evidence for."""
        return toolchain.compiled_with(self.problem.slice.chip)

    @property
    def limit_bytes(self) -> float:
        """What a device has for a program: on a GPU what its context and libraries leave."""
        chip = self.problem.slice.chip
        return chip.usable_hbm_bytes - (0.0 if chip.kind == "tpu" else self.calibration.workspace_bytes)

    def read(self, plan: Plan, build: Build, *, cached: bool = False, output: str = "") -> Finding:
        """What a build says of its plan."""
        told = Finding(
            plan=plan,
            status=build.status,
            reason=build.reason,
            limit_bytes=build.limit_bytes or self.limit_bytes,
            seconds=build.seconds,
            cached=cached,
            evidence=self.evidence,
            digest=build.digest,
        )
        if build.status == "failed":
            return replace(told, limit_bytes=None, output=output)
        if build.status == "infeasible":
            return replace(told, hbm_bytes=build.needed_bytes or None, over_bytes=build.over_bytes)
        parts = memory_parts(build)
        told = replace(told, memory_parts=parts, hbm_bytes=sum(parts.values()))
        return self._within(told, build)

    def _within(self, told: Finding, build: Build) -> Finding:
        """A program that was made; whether it fits is left to us where the compiler knows no limit."""
        needed, limit = told.hbm_bytes or 0.0, told.limit_bytes or 0.0
        try:
            profile = self._profile(told, build)
        except HloError as error:  # a compiler may write what no reader knows yet; its memory holds all the same
            profile, told = None, replace(told, reason=f"its program cannot be read: {error}")
        told = replace(told, profile=profile)
        if needed > limit and self.problem.slice.chip.kind != "tpu":
            reason = f"it needs {needed / 1e9:.2f} GB of the {limit / 1e9:.2f} GB that a device has for it"
            return replace(told, status="infeasible", reason=reason, over_bytes=needed - limit)
        if profile is None:
            return told
        return replace(told, estimate=self.estimate(told, profile))

    def _profile(self, told: Finding, build: Build) -> Profile:
        """The profile of a program.

        Raises:
            HloError: its text cannot be read.
        """
        module = parse(build.text)
        parts, buffers = told.memory_parts, largest(module)
        return profile_of(module, self.problem, told.plan, self.calibration, parts, buffers)

    def estimate(self, told: Finding, profile: Profile) -> Estimate:
        """What the compiler says of a plan, beside what physics alone can: its floor and its serial time."""
        problem, step = self.problem, float(profile.step_time_s)
        priced = Roofline(problem=problem, calibration=self.calibration).estimates([told.plan])[0]
        low, high = step / FASTEST, step * SLOWEST
        return replace(
            priced,
            step_time_s=step,
            interval_s=(max(low, min(priced.floor_s, step)), high),
            mfu=problem.mfu(step),
            tokens_per_s=problem.workload.tokens_per_step / step,
            hbm_bytes=told.hbm_bytes or 0.0,
            hbm_limit_bytes=told.limit_bytes or 0.0,
            time_parts=time_parts(profile),
            memory_parts=told.memory_parts,
            source="compile",
        )


def memory_parts(build: Build) -> Mapping[str, float]:
    """Bytes of one device by part: the state by its kind, other arguments, what comes and goes, and the program.

    Temporaries are what is alive with all that at the peak, by which the compiler decides; its sum of them counts bytes
    that others use before or after. Where tensors are offloaded its peak is the host's, and the sum is all there is: no
    less than what is needed. Its sum of the arguments is scaled over the parts, since its layouts pad. Outputs
    that lie where arguments lay (donated state) take no room.
    """
    memory, given = build.memory, build.arguments
    whole = sum(given.values()) or 1
    parts: dict[str, float] = dict.fromkeys((*STATE, "arguments"), 0.0)
    for path, size in given.items():
        name = next((each for each in STATE if each in path.split(".")), "arguments")
        parts[name] += memory["arguments"] * size / whole
    outputs = memory["outputs"] - memory["aliased"]
    return parts | {
        "outputs": float(outputs),
        "temporaries": float(
            memory["temporaries"] if memory.get("host") else max(0, memory["peak"] - memory["arguments"] - outputs)
        ),
        "code": float(memory["code"]),
    }

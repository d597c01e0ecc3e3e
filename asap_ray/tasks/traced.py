"""`task=explain profile=PATH`: what a trace shows, by itself, or beside the plan that was run."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

from asap_ray.config import Config
from asap_ray.drafts import write_whole
from asap_ray.errors import shown
from asap_ray.observation import Observation, observe
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.profile import xplane, xprof
from asap_ray.profile.verdict import verdict
from asap_ray.report.outline import Block
from asap_ray.report.summary import finite
from asap_ray.report.traced import Traced, traced_blocks, traced_fields
from asap_ray.tasks.running import begin, tell, versions, write_files
from asap_ray.workload import Workload


def run(config: Config) -> int:
    """Explain a trace by itself; returns the exit status.

    Raises:
        AsapError: the trace cannot be read.
    """
    started = time.monotonic()
    told = read(config)
    ledger = begin(config)
    fields: dict[str, Any] = finite(
        {
            "task": config.task,
            "profile": told.path,
            "traced": traced_fields(told),
            "wall_s": time.monotonic() - started,
            "versions": versions(compiling=True),
        }
    )
    ledger.append("explained", fields)
    path = config.run_path / "explanation.json"
    write_files(config, lambda: write_whole(path, json.dumps(fields, indent=2, allow_nan=False) + "\n"))
    tell(config, fields, [*traced_blocks(told), Block(facts=(("file", str(path)),))])
    return 0


def read(config: Config, plan: Plan | None = None, workload: Workload | None = None) -> Traced:
    """The trace that a configuration names, told; a plan gives collectives their axes.

    Raises:
        AsapError: it cannot be read.
    """
    found = xplane.read(config.profile or "", plan=plan, workload=workload)
    profile, summary = found.profile(), found.summary
    return Traced(
        path=shown(config.profile),
        files=tuple(str(file) for file in found.files),
        chip=found.chip,
        summary=summary,
        profile=profile,
        verdict=verdict(summary, profile, found.peaks),
        xprof=xprof.says(found.files),
    )


def observed(told: Traced, problem: Problem, estimate: Estimate) -> Observation:
    """The trace beside the plan that was run: floor, redundant work, what was predicted to move."""
    chip, devices = problem.slice.chip, len(told.summary.devices)
    profile = replace(told.profile, chip=chip.name, clock_hz=chip.clock_hz)
    if devices != problem.slice.devices:
        doubt = f"the trace is of {devices} devices, {problem.slice.name} has {problem.slice.devices}"
        profile = replace(profile, flags=(*profile.flags, doubt))
    return observe(profile, problem, estimate, {})

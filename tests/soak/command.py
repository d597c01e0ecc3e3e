"""The main command as it is under soak: a compiler that only pretends, an executor by name, a clock that can be set.

`run` is for a process that was forked or started for it. The environment says how:

    SOAK_EXECUTOR  here (trials in the command's own process), local (a process each) or ray
    SOAK_TRIAL_S   seconds that each trial takes
    SOAK_MEASURED  a file that gets a line for each trial that is really run
    SOAK_CLOCK     a file with the seconds by which the clock of the wall is off; it is read each time
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self

from asap_ray import ledger
from asap_ray.__main__ import main
from asap_ray.executor.local import Local
from asap_ray.plan import Plan
from asap_ray.recipe import PLAIN, Recipe
from asap_ray.report import files
from asap_ray.tasks import compiling
from asap_ray.tiers.finding import Finding
from asap_ray.tiers.protocol import Job, Outcome
from tests.tasks.pretend import Pretend

EXECUTOR, TRIAL_S, MEASURED, CLOCK = "SOAK_EXECUTOR", "SOAK_TRIAL_S", "SOAK_MEASURED", "SOAK_CLOCK"
WORKERS = 2


def uneven(plan: Plan, flags: Mapping[str, str]) -> Mapping[str, Any]:
    """Every plan fits, and takes up to a third more or less than the roofline says: always the same for one plan."""
    return {"step": 0.67 + 0.66 * zlib.crc32(plan.line.encode()) / 2**32}


class Measured(Pretend):
    """Each trial takes a while, and writes down that it began."""

    verdict = staticmethod(uneven)

    @property
    def missing(self) -> str:
        return ""

    def job(self, plan: Plan, recipe: Recipe = PLAIN) -> Job:
        return replace(super().job(plan), isolated=True)

    def _compile(self, plan: Plan) -> Finding:
        with open(os.environ[MEASURED], "a") as file:
            file.write(f"{plan.line}\n")
        time.sleep(float(os.environ[TRIAL_S]))
        return super()._compile(plan)


class Here:
    """Runs jobs one by one in this process, and ends the last of each pair first."""

    def stream(self, source: Callable[[], Job | None]) -> Iterator[Outcome]:
        """As `protocol.Executor.stream`."""
        running: list[Job] = []
        while True:
            while len(running) < WORKERS and (job := source()):
                running.append(job)
            if not running:
                return
            job = running.pop()
            yield Outcome(job=job, status="complete", value=job.work(*job.arguments))


class Skewed(datetime):
    """The date and time by a clock that is off."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) + timedelta(seconds=_off())


def _off() -> float:
    with contextlib.suppress(OSError, ValueError):
        return float(Path(os.environ[CLOCK]).read_text())
    return 0.0


def run(words: Sequence[str]) -> int:
    """Run what a command line says; returns the exit status."""
    sys.argv = ["asap-ray", *words]
    compiling.Compile = Measured  # type: ignore[misc]
    compiling.installed = lambda setting, ours: True
    files.page = lambda answer: f"<!doctype html><title>{answer.model}</title></html>\n"
    executors = {"here": Here(), "local": Local(workers=WORKERS)}
    if (wanted := os.environ[EXECUTOR]) in executors:
        compiling.executor_of = lambda config, workers: contextlib.nullcontext(executors[wanted])  # type: ignore[assignment]
    right = time.time
    time.time = lambda: right() + _off()
    ledger.datetime = Skewed  # type: ignore[misc]
    return main(words)

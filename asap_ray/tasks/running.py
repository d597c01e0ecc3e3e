"""What tasks share while they run: the record of the command, the run directory, and jobs through the executor."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any, TextIO, TypeVar

from asap_ray import __version__
from asap_ray.config import Config
from asap_ray.errors import AsapError, ConfigError
from asap_ray.executor import local
from asap_ray.ledger import Ledger
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.redaction import hidden
from asap_ray.report.outline import Block
from asap_ray.report.progress import progress
from asap_ray.report.terminal import print_blocks
from asap_ray.space import Space
from asap_ray.tiers.protocol import Job, Tier
from asap_ray.tiers.roofline import Roofline, Sweep

Result = TypeVar("Result")
COMPILERS = ("jax", "jaxlib", "libtpu", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12")
PRICED_AT_ONCE = 3_000_000
"""Plans that are priced before a reader wonders whether anything happens."""


def command_line() -> str:
    """The command as it was typed, for the record; a secret in it is not."""
    return shlex.join(["python", "-m", "asap_ray", *hidden(sys.argv[1:], os.environ)])


def versions(*, compiling: bool = False) -> Mapping[str, str]:
    """Versions that the figures depend on; with those of compilers that are installed where plans were compiled."""
    found = {"asap_ray": __version__, "python": platform.python_version(), "numpy": metadata.version("numpy")}
    for package in COMPILERS if compiling else ():
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def takes_a_while(*spaces: Space) -> bool:
    """Whether pricing these spaces takes longer than a reader cares to look at nothing."""
    return sum(space.total for space in spaces) > PRICED_AT_ONCE


def output_of(config: Config) -> tuple[str, TextIO]:
    """How to print, and where to print what comes before the answer: with JSON, stdout is for the object alone."""
    if config.output == "json":
        return "plain" if not sys.stderr.isatty() else "rich", sys.stderr
    wanted = config.output
    if wanted == "auto":
        wanted = "rich" if sys.stdout.isatty() else "plain"
    return wanted, sys.stdout


def open_run(config: Config) -> Ledger:
    """Make the run directory and open its ledger, to be its one writer.

    Raises:
        ConfigError: the directory cannot be made or written to, another command writes there now, or its events.jsonl
            is none of ours.
    """
    try:
        config.run_path.mkdir(parents=True, exist_ok=True)
        ledger = Ledger(config.run_path)
        ledger.claim()
        next(ledger.events(), None)  # what another program has written there is no record to go on with
        return ledger
    except OSError as error:
        raise _not_written(config, error) from error


def begin(config: Config) -> Ledger:
    """Open the run of a task that needs no model, with the event that says how it was started.

    Raises:
        ConfigError: as `open_run`.
    """
    ledger = open_run(config)
    ledger.append(
        "start", {"task": config.task, "command": command_line(), "config": hidden(asdict(config), os.environ)}
    )
    return ledger


def tell(config: Config, fields: Mapping[str, Any], blocks: Iterable[Block]) -> None:
    """Print what a task found: one JSON object, or blocks for a reader."""
    if config.output == "json":
        sys.stdout.write(json.dumps(fields, allow_nan=False) + "\n")
    else:
        print_blocks(blocks, *output_of(config))


def write_files(config: Config, write: Callable[[], Result]) -> Result:
    """Write a run's files, and return what the writing does.

    Raises:
        ConfigError: a file cannot be written: the disk is full, or the directory is not ours.
    """
    try:
        return write()
    except OSError as error:
        raise _not_written(config, error) from error


def _not_written(config: Config, error: OSError) -> ConfigError:
    return ConfigError("run_dir", config.run_path, f"a directory that can be written to ({error.strerror or error})")


def results(jobs: Sequence[Job]) -> list[Any]:
    """What jobs of different names return, in their order; several run side by side on as many cores as there are.

    Raises:
        AsapError: of the first job that does not complete.
    """
    values: dict[str, Any] = {}
    for outcome in local.run(jobs, workers=os.cpu_count() or 1):
        if outcome.error:
            raise outcome.error
        if outcome.status != "complete":
            raise AsapError(f"{outcome.job.name} {outcome.status}: {outcome.reason}")
        values[outcome.job.name] = outcome.value
    return [values[job.name] for job in jobs]


def evaluated(tier: Tier, plans: Sequence[Plan]) -> list[Estimate]:
    """What a tier says of given plans, in their order.

    Raises:
        AsapError: its job does not complete.
    """
    (result,) = results([tier.job(plans)])
    return tier.read(result)


def fastest_layout(tier: Roofline, plan: Plan, key: str = "plan") -> Estimate:
    """A plan that a user wrote, on the fastest of its layouts where it names none.

    Raises:
        ConfigError: the plan is not legal, or its layout is not a useful one.
    """
    return min(evaluated(tier, tier.on_each_layout(plan, key)), key=lambda each: each.step_time_s)


def swept(tier: Roofline, space: Space, top: int) -> Sweep:
    """Price one slice's space in this process, with a bar on the terminal if it is large.

    Raises:
        AsapError: as the sweep does.
    """
    with progress(f"pricing {tier.problem.slice.name}", sys.stderr, wanted=takes_a_while(space)) as told:
        (sweep,) = results([tier.sweep_job(space, top, told)])
    return sweep

"""`task=tune`: price every legal plan of the workload on each slice and report the fastest that fits.

With the roofline alone, tuning is an exact argmin: there is nothing to search for, and no trial behind the answer. The
output says so.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import TextIO

from asap_ray import __version__
from asap_ray.config import Config
from asap_ray.diagnosis import compare, diagnose
from asap_ray.errors import AsapError, ConfigError
from asap_ray.executor import local
from asap_ray.ledger import Ledger
from asap_ray.physics.estimate import Estimate
from asap_ray.report.answer import Answer, SliceAnswer
from asap_ray.report.files import write_report
from asap_ray.report.progress import progress
from asap_ray.report.summary import summary
from asap_ray.report.terminal import announce, show
from asap_ray.space import Space
from asap_ray.tasks.nothing import explain_nothing
from asap_ray.tasks.setting import Setting, baseline_plan, load
from asap_ray.tiers.protocol import Job
from asap_ray.tiers.roofline import Roofline, Sweep

PRICED_AT_ONCE = 3_000_000
STOP_REASON = "exact: the roofline priced every legal plan"


def run(config: Config) -> int:
    """Run the task; returns the exit status.

    Raises:
        AsapError: something for the user to change.
    """
    started = time.monotonic()
    if config.plan is not None:
        raise ConfigError("plan", config.plan, "for task=explain only; task=tune is pinned by space.fix")
    setting = load(config)
    baseline = _baseline(config, setting)
    output, stream = output_of(config)
    # A large space takes a while, so its heading comes first; a small one is priced before, and an error stands alone.
    # Either way it is there before the report is drawn, which takes longer than pricing a small space.
    early = takes_a_while(*setting.spaces)
    if early:
        announce(config.model_name, setting.workload, setting.slices, output, stream)
    ledger = open_run(config)
    slices = _swept(config, setting, ledger)
    if not early and config.output != "json":
        announce(config.model_name, setting.workload, setting.slices, output, stream)
    answer = _answer(config, setting, slices, baseline, started)
    write_files(config, lambda: write_report(answer, config.run_path))
    ledger.append("answer", {"best": summary(answer)["best"], "wall_s": answer.wall_s})
    show(answer, "json" if config.output == "json" else output, sys.stdout, announced=True)
    return 0


def _swept(config: Config, setting: Setting, ledger: Ledger) -> tuple[SliceAnswer, ...]:
    """What `sweep_slices` finds, with an event for all that happens."""
    ledger.append("start", {"task": config.task, "command": command_line(), "versions": versions()})
    try:
        slices = sweep_slices(config, setting)
    except AsapError as error:
        ledger.append("error", {"text": str(error)})
        raise
    for found in slices:
        counts = {"slice": found.slice.name, "total": found.total, "legal": found.legal, "fitting": found.fitting}
        ledger.append("swept", {**counts, "removed": dict(found.removed)})
    return slices


def _answer(
    config: Config, setting: Setting, slices: tuple[SliceAnswer, ...], baseline: Estimate | None, started: float
) -> Answer:
    return Answer(
        task=config.task,
        model=config.model_name,
        workload=setting.workload,
        stack=config.stack_name,
        seed=config.seed,
        slices=slices,
        baseline=baseline,
        wall_s=time.monotonic() - started,
        versions=versions(),
        run_dir=config.run_path,
        stop_reason=STOP_REASON,
        command=command_line(),
    )


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
    """Make the run directory and open its ledger.

    Raises:
        ConfigError: the directory cannot be made or written to.
    """
    try:
        config.run_path.mkdir(parents=True, exist_ok=True)
        return Ledger(config.run_path)
    except OSError as error:
        raise _not_written(config, error) from error


def write_files(config: Config, write: Callable[[], object]) -> None:
    """Write a run's files.

    Raises:
        ConfigError: a file cannot be written: the disk is full, or the directory is not ours.
    """
    try:
        write()
    except OSError as error:
        raise _not_written(config, error) from error


def _not_written(config: Config, error: OSError) -> ConfigError:
    return ConfigError("run_dir", config.run_path, f"a directory that can be written to ({error.strerror or error})")


def priced(tier: Roofline, space: Space, top: int) -> Sweep:
    """Price one slice's space in this process, with a bar on the terminal if it is large.

    Raises:
        AsapError: as the sweep does.
    """
    with progress(f"pricing {tier.problem.slice.name}", sys.stderr, wanted=takes_a_while(space)) as told:
        return tier.sweep(space, top, progress=told)


def sweep_slices(config: Config, setting: Setting) -> tuple[SliceAnswer, ...]:
    """Price each slice, several side by side on as many cores as there are.

    Raises:
        ConfigError: no slice has a legal plan.
        DoesNotFitError: plans are legal but none fits.
    """
    pairs = list(zip(setting.tiers, setting.spaces, strict=True))
    sweeps = [priced(*pairs[0], config.top)] if len(pairs) == 1 else _side_by_side(pairs, config.top)
    answers = tuple(slice_answer(tier, sweep) for (tier, _), sweep in zip(pairs, sweeps, strict=True))
    if not any(answer.ranked for answer in answers):
        raise explain_nothing(config, *pairs[0], sweeps[0])
    return answers


def _side_by_side(pairs: Sequence[tuple[Roofline, Space]], top: int) -> list[Sweep]:
    jobs = [Job(name=str(i), work=tier.sweep, arguments=(space, top)) for i, (tier, space) in enumerate(pairs)]
    sweeps: dict[int, Sweep] = {}
    for outcome in local.run(jobs, workers=os.cpu_count() or 1):
        if outcome.error:
            raise outcome.error
        place = int(outcome.job.name)
        if outcome.status != "complete":
            name = pairs[place][0].problem.slice.name
            raise AsapError(f"hardware={name}: pricing it {outcome.status}: {outcome.reason}")
        sweeps[place] = outcome.value
    return [sweeps[place] for place in range(len(pairs))]


def slice_answer(tier: Roofline, sweep: Sweep) -> SliceAnswer:
    """A sweep with its reasons."""
    best = sweep.ranked[0] if sweep.ranked else None
    return SliceAnswer(
        slice=tier.problem.slice,
        total=sweep.total,
        legal=sweep.legal,
        fitting=sweep.fitting,
        removed=sweep.removed,
        ranked=sweep.ranked,
        reasons=tuple(compare(estimate, best) for estimate in sweep.ranked) if best else (),
        diagnosis=diagnose(best) if best else None,
        too_big=sweep.too_big,
        sample=sweep.sample,
    )


def _baseline(config: Config, setting: Setting) -> Estimate | None:
    if config.baseline is None:
        return None
    plan = baseline_plan(config.baseline)
    return setting.tiers[0].best_layout(plan, "baseline")


def command_line() -> str:
    """The command as it was typed, for the record."""
    return shlex.join(["python", "-m", "asap_ray", *sys.argv[1:]])


def versions() -> Mapping[str, str]:
    """Versions that the figures depend on."""
    return {"asap_ray": __version__, "python": platform.python_version(), "numpy": metadata.version("numpy")}

"""The compile tier as tasks use it: checked before anything starts, and what is kept of its results."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from asap_ray.compiler import toolchain
from asap_ray.config import Config
from asap_ray.errors import AsapError, ConfigError
from asap_ray.executor.local import Local
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.physics.estimate import Estimate
from asap_ray.report.answer import Tried
from asap_ray.settings import load_group
from asap_ray.stack import Stack, stack_from_mapping
from asap_ray.tasks.bundles import AUTO, load_bundles
from asap_ray.tasks.commanding import maxtext_compiler
from asap_ray.tasks.setting import Setting
from asap_ray.tasks.trial_tiers import OURS, TrialTiers, in_our_trainer
from asap_ray.tasks.trials import Clock, Trials, Wanted, Watcher
from asap_ray.tiers.cache import default_cache
from asap_ray.tiers.compile import Compile, CompileOptions

if TYPE_CHECKING:
    from asap_ray.executor.ray_tune import RayTune


def compilers(config: Config, setting: Setting) -> TrialTiers | None:
    """The compilers that a command needs, checked before anything starts.

    None where none is asked for and not all chips of the command have one that is installed.

    Raises:
        ConfigError: a chip has no compiler here, or a bundle of flags does not exist or is not for it.
        AsapError: the compiler of a chip is not installed; the text says how it is.
    """
    ours = stack_from_mapping(load_group("stack")[OURS])
    theirs = config.compile.trainer != OURS
    if not config.compiles and not theirs and not installed(setting, ours):
        return None
    calibrations = calibrations_from_mappings(load_group("calibration", config.config_dir))
    # Flags that trainers set with our libtpu may be refused by theirs: without a word theirs are its own.
    wanted = ["default" if theirs and name == AUTO else name for name in config.compile.xla]
    bundles = load_bundles(wanted, [each.chip for each in setting.slices], config.config_dir)
    tiers, problems = {}, {}
    for tier in setting.tiers:
        where, chip = tier.problem.slice.name, tier.problem.slice.chip
        problem = problems[where] = tier.problem if theirs else in_our_trainer(tier.problem, ours, "compile")
        for bundle in bundles:
            options = compile_options(config, bundle.flags_for(chip) or {})
            if theirs:
                made = maxtext_compiler(config, tier, options)
            else:
                made = Compile(problem=problem, calibration=calibration_of(chip, OURS, calibrations), options=options)
            if missing := made.missing:
                raise AsapError(f"tiers=compile: {missing}")
            tiers[where, bundle.name] = made
    return TrialTiers(bundles=tuple(bundles), tiers=tiers, problems=problems, workers=workers(config))


def installed(setting: Setting, ours: Stack) -> bool:
    """Whether our trainer has the workload's precision, and each chip a compiler that is installed."""
    known = setting.workload.precision in ours.precisions
    return known and not any(toolchain.missing(each.chip) for each in setting.slices)


def compile_options(config: Config, flags: Mapping[str, str]) -> CompileOptions:
    """How plans are compiled with some flags, by what was asked for.

    Raises:
        ConfigError: the folder for results that was asked for cannot be written to; each would be lost unseen.
    """
    folder = config.compile.cache
    cache = default_cache() if folder is None else Path(os.path.expanduser(folder)).absolute()
    if folder is not None:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=cache).close()
        except OSError as error:
            allowed = f"a folder that can be written to ({error.strerror or error})"
            raise ConfigError("compile.cache", folder, allowed) from error
    return CompileOptions(flags=flags, timeout_s=config.compile.timeout_s, cache=cache)


def workers(config: Config) -> int:
    """How many compilations may run at once; memory may allow fewer, which the executor sees to."""
    return config.compile.workers or os.cpu_count() or 1


def executor_of(config: Config, workers: int) -> RayTune:
    """Where the trials of a search run, a context: Ray Tune, on this machine unless `ray.address` names a cluster.

    Ray starts with the first trial that really runs.
    """
    from asap_ray.executor.ray_tune import RayTune

    given = config.ray
    return RayTune(
        address=given.address or "auto",
        workers=workers,
        reserve_s=given.reserve_s,
        retries=given.retries,
        dashboard=given.dashboard,
    )


def compile_one(config: Config, found: TrialTiers, where: str, estimate: Estimate, watcher: Watcher) -> Tried:
    """What a compiler says of one plan, with its profile.

    Raises:
        AsapError: our trainer has no program for the plan.
    """
    if fault := found.refusal(where, estimate.plan):
        text = f"asap_ray's own trainer has no program for this plan, rule {fault[0]}: {fault[1]}"
        raise ConfigError("tiers", "compile", text)
    trials = Trials(
        where=where,
        bundle=found.base,
        tier=found.tiers[where, found.base],
        executor=Local(workers=found.workers),
        clock=Clock(),
        watcher=watcher,
    )
    (tried,) = trials.run([Wanted(number=0, author="user", roofline=estimate)])
    return tried

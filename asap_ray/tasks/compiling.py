"""The compile tier as tasks use it: checked before anything starts, and what is kept of its results."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from asap_ray.compiler import toolchain
from asap_ray.config import Config
from asap_ray.errors import AsapError, ConfigError
from asap_ray.executor.local import Local
from asap_ray.observation import Observation, observe
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.report.answer import Tried
from asap_ray.rules import broken
from asap_ray.settings import load_group
from asap_ray.stack import Stack, stack_from_mapping
from asap_ray.tasks.bundles import AUTO, Bundle, load_bundles
from asap_ray.tasks.commanding import maxtext_compiler
from asap_ray.tasks.setting import Setting
from asap_ray.tasks.trials import Clock, Trials, Wanted, Watcher
from asap_ray.tiers.cache import default_cache
from asap_ray.tiers.compile import Compile, CompileOptions
from asap_ray.tiers.compile_with import CompileWith

if TYPE_CHECKING:
    from asap_ray.executor.ray_tune import RayTune

OURS = "ours"


@dataclass(frozen=True, kw_only=True, slots=True)
class Compilers:
    """A compile tier for each slice and bundle of flags, and the description of the trainer that is compiled."""

    bundles: tuple[Bundle, ...]
    tiers: Mapping[tuple[str, str], Compile | CompileWith]
    problems: Mapping[str, Problem]

    @property
    def base(self) -> str:
        """The bundle with which every plan is compiled."""
        return self.bundles[0].name

    def refusal(self, where: str, plan: Plan) -> tuple[str, str] | None:
        """The rule by which our trainer has no program for a plan of a slice, with its sentence; None where it has."""
        tier = self.tiers[where, self.base]
        unspoken = tier.expressible(plan) if isinstance(tier, CompileWith) else None
        return ("words", unspoken) if unspoken else broken(self.problems[where], plan)


def compilers(config: Config, setting: Setting) -> Compilers | None:
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
        problem = problems[where] = tier.problem if theirs else in_our_trainer(tier.problem, ours)
        for bundle in bundles:
            options = compile_options(config, bundle.flags_for(chip) or {})
            if theirs:
                made = maxtext_compiler(config, tier, options)
            else:
                made = Compile(problem=problem, calibration=calibration_of(chip, OURS, calibrations), options=options)
            if missing := made.missing:
                raise AsapError(f"tiers=compile: {missing}")
            tiers[where, bundle.name] = made
    return Compilers(bundles=tuple(bundles), tiers=tiers, problems=problems)


def installed(setting: Setting, ours: Stack) -> bool:
    """Whether our trainer has the workload's precision, and each chip a compiler that is installed."""
    known = setting.workload.precision in ours.precisions
    return known and not any(toolchain.missing(each.chip) for each in setting.slices)


def in_our_trainer(problem: Problem, ours: Stack) -> Problem:
    """The problem as our trainer sees it, so that its rules say which plans of another stack it has a program for.

    It takes from each recomputation policy which tensors are saved, so the stack's own policies are at hand; all else
    is as in our trainer.

    Raises:
        ConfigError: our trainer does not have the workload's precision.
    """
    precision = problem.workload.precision
    if precision not in ours.precisions:
        wanted = f"with tiers=compile: {', '.join(ours.precisions)}, which asap_ray's own trainer has"
        raise ConfigError("workload.precision", precision, wanted, ours.precisions)
    return replace(problem, stack=replace(ours, remat=problem.stack.remat))


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


def executor_of(config: Config) -> RayTune:
    """Where the trials of a search run, a context: Ray Tune, on this machine unless `ray.address` names a cluster.

    Ray starts with the first trial that really runs.
    """
    from asap_ray.executor.ray_tune import RayTune

    return RayTune(address=config.ray.address or "auto", workers=workers(config))


def read_trial(found: Compilers, tried: Tried) -> Tried:
    """A trial with what its program shows, in place of its profile."""
    return without_profile(replace(tried, observed=observed(found, tried)))


def observed(found: Compilers, tried: Tried | None) -> Observation | None:
    """What the program of a plan shows, where it compiled and its text could be read."""
    found_ = tried.finding if tried else None
    if tried is None or found_ is None or found_.profile is None or found_.estimate is None:
        return None
    return observe(found_.profile, found.problems[tried.where], found_.estimate, found_.memory_parts)


def without_profile(tried: Tried) -> Tried:
    """What is kept of a compilation: a profile has thousands of ops, and lies in the cache."""
    return replace(tried, finding=replace(tried.finding, profile=None))


def compile_one(config: Config, found: Compilers, where: str, estimate: Estimate, watcher: Watcher) -> Tried:
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
        executor=Local(workers=workers(config)),
        clock=Clock(),
        watcher=watcher,
    )
    (tried,) = trials.run([Wanted(number=0, author="user", roofline=estimate)])
    return tried

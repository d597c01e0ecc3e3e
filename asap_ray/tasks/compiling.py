"""The compile tier as tasks use it: checked before anything starts, then run over what the roofline ranked."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from asap_ray.config import COMPILED, Config
from asap_ray.errors import AsapError, ConfigError
from asap_ray.observation import Observation, observe
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.report.answer import Compilation, SliceAnswer, Tried
from asap_ray.rules import broken
from asap_ray.settings import load_group
from asap_ray.stack import Stack, stack_from_mapping
from asap_ray.tasks.bundles import Bundle, load_bundles
from asap_ray.tasks.cascade import Cascade, Queue, Watcher
from asap_ray.tasks.setting import Setting
from asap_ray.tasks.shortlist import shortlist
from asap_ray.tiers.cache import default_cache
from asap_ray.tiers.compile import Compile, CompileOptions

OURS = "ours"
FLAGGED = 2
"""Plans that are compiled with each further bundle of flags."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compilers:
    """A compile tier for each slice and bundle of flags, and the description of the trainer that is compiled."""

    bundles: tuple[Bundle, ...]
    tiers: Mapping[tuple[str, str], Compile]
    problems: Mapping[str, Problem]

    @property
    def base(self) -> str:
        """The bundle with which every plan is compiled."""
        return self.bundles[0].name

    def refusal(self, where: str, plan: Plan) -> tuple[str, str] | None:
        """The rule by which our trainer has no program for a plan of a slice, with its sentence; None where it has."""
        return broken(self.problems[where], plan)


def compilers(config: Config, setting: Setting) -> Compilers:
    """The compilers that a command needs, checked before anything starts.

    Raises:
        ConfigError: a chip has no compiler here, or a bundle of flags does not exist or is not for it.
        AsapError: the compiler of a chip is not installed; the text says how it is.
    """
    ours = stack_from_mapping(load_group("stack")[OURS])
    calibrations = calibrations_from_mappings(load_group("calibration", config.config_dir))
    bundles = load_bundles(config.compile.xla, [each.chip for each in setting.slices], config.config_dir)
    tiers, problems = {}, {}
    for tier in setting.tiers:
        where, chip = tier.problem.slice.name, tier.problem.slice.chip
        problem = problems[where] = in_our_trainer(tier.problem, ours)
        for bundle in bundles:
            made = Compile(
                problem=problem,
                calibration=calibration_of(chip, OURS, calibrations),
                options=_options(config, bundle.flags_for(chip) or {}),
            )
            if missing := made.missing:
                raise AsapError(f"tiers=compile: {missing}")
            tiers[where, bundle.name] = made
    return Compilers(bundles=tuple(bundles), tiers=tiers, problems=problems)


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


def _options(config: Config, flags: Mapping[str, str]) -> CompileOptions:
    folder = config.compile.cache
    cache = default_cache() if folder is None else Path(os.path.expanduser(folder)).absolute()
    return CompileOptions(flags=flags, timeout_s=config.compile.timeout_s, cache=cache)


def workers(config: Config) -> int:
    """How many compilations may run at once; memory may allow fewer, which the executor sees to."""
    return config.compile.workers or os.cpu_count() or 1


def compile_ranked(
    config: Config,
    found: Compilers,
    answers: Sequence[SliceAnswer],
    ranked: Mapping[str, Sequence[Estimate]],
    watcher: Watcher,
) -> tuple[SliceAnswer, ...]:
    """Each slice's answer with what compilers said of its best plans.

    Args:
        config: what was asked for.
        found: the compilers.
        answers: what the roofline said of each slice.
        ranked: the ranked plans of each slice by name, more than an answer shows.
        watcher: is told what happens while it happens.
    """
    deadline = float("inf")
    if config.budget.minutes is not None:
        deadline = time.monotonic() + 60.0 * config.budget.minutes
    wanted = config.budget.compile or COMPILED
    shares = _shares([each for each in answers if each.ranked], wanted)
    queues, refused = [], {}
    for name, share in shares.items():
        possible, refused[name] = _possible(found, name, ranked[name])
        queues.append(_queue(found, name, found.base, shortlist(possible), share))
    cascade = Cascade(queues=queues, workers=workers(config), watcher=watcher, deadline=deadline)
    cascade.run()
    stopped = {queue.where: stop_reason(config, queue, cascade.out_of_time) for queue in queues}
    flagged = Cascade(
        queues=_flagged(found, cascade.tried), workers=workers(config), watcher=watcher, deadline=deadline
    )
    trials = [*cascade.tried, *flagged.run()]
    return tuple(
        replace(each, compilation=_compilation(found, each.slice.name, trials, refused, stopped)) for each in answers
    )


def _shares(answers: Sequence[SliceAnswer], wanted: int) -> dict[str, int]:
    """How many plans each slice gets: as many as each other, the fastest slices one more, or none where too few."""
    fastest = sorted(answers, key=lambda each: each.ranked[0].step_time_s)
    even, more = divmod(wanted, max(len(fastest), 1))
    shares = {each.slice.name: even + (place < more) for place, each in enumerate(fastest)}
    return {name: share for name, share in shares.items() if share}


def _possible(found: Compilers, where: str, ranked: Sequence[Estimate]) -> tuple[list[Estimate], Mapping[str, int]]:
    """The plans that our trainer has a program for, and how many it has none for, by rule."""
    possible, refused = [], dict[str, int]()
    for each in ranked:
        if fault := found.refusal(where, each.plan):
            refused[fault[0]] = refused.get(fault[0], 0) + 1
        else:
            possible.append(each)
    return possible, refused


def _queue(found: Compilers, where: str, bundle: str, waiting: list[Estimate], wanted: int) -> Queue:
    return Queue(where=where, bundle=bundle, compiler=found.tiers[where, bundle], waiting=waiting, wanted=wanted)


def _flagged(found: Compilers, tried: Sequence[Tried]) -> list[Queue]:
    """The best few of each slice, once more with each further bundle."""
    queues = []
    for where in dict.fromkeys(each.where for each in tried):
        here = Compilation(base=found.base, trials=tuple(each for each in tried if each.where == where))
        best = [each.roofline for each in here.ranked[:FLAGGED]]
        queues += [_queue(found, where, bundle.name, list(best), len(best)) for bundle in found.bundles[1:] if best]
    return queues


def stop_reason(config: Config, queue: Queue, out_of_time: bool) -> str:
    """Why no more plans were compiled for a slice, in words."""
    done = queue.ended["complete"]
    plans = f"{done} plan{'' if done == 1 else 's'} compiled"
    if done >= queue.wanted:
        return f"{plans}, as many as wanted{'' if config.budget.compile else ' (budget.compile)'}"
    if out_of_time:
        return f"budget.minutes={config.budget.minutes:g} is over: {plans} of {queue.wanted}"
    if not queue.waiting:
        return f"{plans}: no other ranked plan is left"
    failed = queue.ended["failed"] + queue.ended["timeout"]
    return f"{plans} of {queue.wanted}, {queue.ended['infeasible']} did not fit and {failed} failed: given up"


def _compilation(
    found: Compilers,
    where: str,
    trials: Sequence[Tried],
    refused: Mapping[str, Mapping[str, int]],
    stopped: Mapping[str, str],
) -> Compilation | None:
    if where not in stopped:
        return None
    here = tuple(each for each in trials if each.where == where)
    told = Compilation(base=found.base, trials=here, refused=refused[where], stopped=stopped[where])
    seen = observed(found, told.best)
    return replace(told, trials=tuple(map(without_profile, here)), observed=seen)


def observed(found: Compilers, tried: Tried | None) -> Observation | None:
    """What the program of a plan shows, where it compiled and its text could be read."""
    found_ = tried.compiled if tried else None
    if tried is None or found_ is None or found_.profile is None or found_.estimate is None:
        return None
    return observe(found_.profile, found.problems[tried.where], found_.estimate, found_.memory_parts)


def without_profile(tried: Tried) -> Tried:
    """What is kept of a compilation: a profile has thousands of ops, and lies in the cache."""
    return replace(tried, compiled=replace(tried.compiled, profile=None))


def compile_one(config: Config, found: Compilers, where: str, estimate: Estimate, watcher: Watcher) -> Tried:
    """What a compiler says of one plan, with its profile.

    Raises:
        AsapError: our trainer has no program for the plan.
    """
    if fault := found.refusal(where, estimate.plan):
        text = f"asap_ray's own trainer has no program for this plan, rule {fault[0]}: {fault[1]}"
        raise ConfigError("tiers", "compile", text)
    queue = _queue(found, where, found.base, [estimate], 1)
    (tried,) = Cascade(queues=[queue], workers=workers(config), watcher=watcher).run()
    return tried

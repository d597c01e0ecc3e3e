"""The tier that a command's trials go through, one for each slice and bundle of flags, and what is kept of a trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from asap_ray.errors import ConfigError
from asap_ray.observation import Observation, observe
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.report.answer import Tried
from asap_ray.rules import broken
from asap_ray.stack import Stack
from asap_ray.tasks.bundles import Bundle
from asap_ray.tasks.trials import TrialTier
from asap_ray.tiers.command import Command
from asap_ray.tiers.compile_with import CompileWith
from asap_ray.tiers.run import SHARED, Run

OURS = "ours"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialTiers:
    """Tiers of one kind by slice and bundle of flags, and the problems as the trainer sees them that is tried.

    `workers` is how many trials may run at once; memory may allow fewer, which the executor sees to.
    """

    bundles: tuple[Bundle, ...]
    tiers: Mapping[tuple[str, str], TrialTier]
    problems: Mapping[str, Problem]
    workers: int

    @property
    def name(self) -> str:
        """The tier's name: what its figures name as their source."""
        return next(iter(self.tiers.values())).name

    @property
    def measured(self) -> bool:
        """Whether a clock says how long a step of the whole job takes: no compiler, and no proxy."""
        tier = next(iter(self.tiers.values()))
        return isinstance(tier, Command) or (isinstance(tier, Run) and tier.proxy is None)

    @property
    def base(self) -> str:
        """The bundle of flags that every plan is tried with."""
        return self.bundles[0].name

    def refusal(self, where: str, plan: Plan) -> tuple[str, str] | None:
        """The rule by which the trainer has no program for a plan of a slice, with its sentence; None where it has."""
        unspoken = self.unspoken(where, plan)
        return ("words", unspoken) if unspoken else broken(self.problems[where], plan)

    def unspoken(self, where: str, plan: Plan) -> str | None:
        """What another's trainer has no words for, or why no proxy stands for a plan; None where it can be tried."""
        tier = self.tiers[where, self.base]
        return tier.expressible(plan) if isinstance(tier, Command | CompileWith | Run) else None

    @property
    def speaks(self) -> bool:
        """Whether a plan may have no words for another's trainer, or no proxy."""
        tier = next(iter(self.tiers.values()))
        return isinstance(tier, Command | CompileWith) or (isinstance(tier, Run) and tier.proxy is not None)


def in_our_trainer(problem: Problem, ours: Stack, tier: str) -> Problem:
    """The problem as our trainer sees it, so that its rules say which plans of another stack it has a program for.

    It takes from each recomputation policy which tensors are saved, so the stack's own policies are at hand; all else
    is as in our trainer.

    Raises:
        ConfigError: our trainer does not have the workload's precision.
    """
    precision = problem.workload.precision
    if precision not in ours.precisions:
        wanted = f"with tiers={tier}: {', '.join(ours.precisions)}, which asap_ray's own trainer has"
        raise ConfigError("workload.precision", precision, wanted, ours.precisions)
    return replace(problem, stack=replace(ours, remat=problem.stack.remat))


def read_trial(found: TrialTiers, tried: Tried) -> Tried:
    """A trial with what its program shows, in place of its profile."""
    return without_profile(replace(tried, observed=observed(found, tried)))


def observed(found: TrialTiers, tried: Tried | None) -> Observation | None:
    """What the program of a plan shows, where it was made and its text or trace could be read."""
    finding = tried.finding if tried else None
    if tried is None or finding is None or finding.profile is None or finding.estimate is None:
        return None
    seen = observe(finding.profile, found.problems[tried.where], finding.estimate, finding.memory_parts)
    # A processor sends numbers of 16 bits as 32: more bytes than the plan needs, but no fault of its sharding.
    return replace(seen, unpredicted=()) if SHARED in finding.profile.flags else seen


def without_profile(tried: Tried) -> Tried:
    """What is kept of a trial: a profile has thousands of ops."""
    return replace(tried, finding=replace(tried.finding, profile=None))

"""The tiers that a command's trials go through, one after the other: what a compiler says comes before a device runs.

    tiers=[roofline,compile,run]
        compile  a third of the minutes; `budget.compile` plans are compiled
        run      what does not fit by the compiler is left out, the fastest by the compiler make the first round

Each stage is a search of its own, with its own budget and certificate; trials are numbered on through both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from asap_ray.config import COMPILED, MEASURING, Config
from asap_ray.report.answer import COMPILER, Searched
from asap_ray.search.pool import Pool
from asap_ray.tasks.setting import Setting

if TYPE_CHECKING:
    from asap_ray.tasks.trial_tiers import TrialTiers

SHARE = 1 / 3
"""Of the minutes, where there is a limit: what compiling may take before plans are run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A search through one tier, with what it may spend."""

    config: Config
    tiers: TrialTiers


def stages_of(config: Config, setting: Setting) -> list[Stage]:
    """The searches of a command; none where the roofline's answer is all that is asked for or can be had.

    Raises:
        ConfigError: something that a tier needs is not there, or is not for it.
        AsapError: the compiler of a chip is not installed.
    """
    if not config.cascades:
        tiers = _tiers(config, setting)
        return [Stage(config=config, tiers=tiers)] if tiers is not None else []
    parts = [compiling(config), measuring(config)]
    return [Stage(config=each, tiers=tiers) for each in parts if (tiers := _tiers(each, setting)) is not None]


def compiling(config: Config) -> Config:
    """The first stage of two: trials and chip hours are for what runs."""
    given = config.budget
    budget = replace(
        given,
        trials=0 if given.trials == 0 else None,
        compile=COMPILED if given.compile is None else given.compile,
        minutes=SHARE * given.minutes if given.minutes is not None else None,
        chip_hours=None,
    )
    return replace(config, tiers=[each for each in config.tiers if each not in MEASURING], budget=budget)


def measuring(config: Config) -> Config:
    """The second stage of two: its minutes are those of both, for one clock counts them."""
    tiers = [each for each in config.tiers if each != "compile"]
    return replace(config, tiers=tiers, budget=replace(config.budget, compile=None))


def that_compiles(pool: Pool, compiled: Searched | None) -> Pool:
    """The pool without the plans that a compiler has found not to fit."""
    too_big = [each.finding.plan for each in compiled.trials if each.finding.status == "infeasible"] if compiled else []
    out = {row for plan in too_big if (row := pool.row(plan)) is not None}
    left = np.array([row for row in range(len(pool)) if row not in out], np.int64)
    return pool.only(left, **{COMPILER: len(out)}) if out else pool


def next_number(before: Searched | None) -> int:
    """The number after those of a search: a budget may leave the last of a round untried."""
    if before is None:
        return 0
    asked = (one.trial for each in before.rounds for one in each.proposed)
    return 1 + max((*asked, *(each.number for each in before.trials)), default=-1)


def _tiers(config: Config, setting: Setting) -> TrialTiers | None:
    from asap_ray.search.study import check_sampler

    if config.measures:
        from asap_ray.tasks.measuring import commands, runners

        found = runners(config, setting) if config.runs else commands(config, setting)
    elif config.may_compile:
        from asap_ray.tasks.compiling import compilers  # compilers are looked up only where one is asked for

        found = compilers(config, setting)
    else:
        return None
    if found is not None:
        check_sampler(config.search.method)
        if not config.measures and config.budget.trials != 0:
            from asap_ray.executor.ray_start import cluster_of

            cluster_of(config.ray.address)  # before the space is priced, though Ray starts with the first trial
    return found

"""`task=compare +model=NAME`: methods against each other on the user's own workload, through the command's own tier.

The roofline cannot be the judge: half of the methods read it. So plans are compiled, or run, as in `task=tune`; each
plan is tried once, whoever asks for it again is told what came of it. All methods have the same pool (what is legal,
fits and has a program), rounds and trials. The best plan of all is not known here: regret is against the best that any
method has found.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from asap_ray.config import Config
from asap_ray.contest.ground import Field, Named
from asap_ray.contest.methods import ASKING, TAUGHT, Means, Method, methods_named, seeds_of
from asap_ray.contest.play import START_UP_S, STEPS, Budget, Played
from asap_ray.errors import ConfigError
from asap_ray.executor.protocol import Executor
from asap_ray.hardware import Slice
from asap_ray.ledger import Ledger
from asap_ray.report.answer import Tried
from asap_ray.report.comparison import ComparisonAnswer
from asap_ray.report.live import live
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Result
from asap_ray.tasks import compiling, record
from asap_ray.tasks.brains import carried_weights
from asap_ray.tasks.compared import conclude
from asap_ray.tasks.loop import Budget as Spending
from asap_ray.tasks.loop import Loop
from asap_ray.tasks.recorder import Recorder
from asap_ray.tasks.running import command_line, open_run, versions
from asap_ray.tasks.searching import pool_for
from asap_ray.tasks.setting import Setting, load
from asap_ray.tasks.stages import Stage, stages_of
from asap_ray.tasks.trial_tiers import read_trial
from asap_ray.tasks.trials import Clock, Key, Trials, key_of

METHODS = ("random_gated", "tpe_gated", "tpe_seeded", "greedy", "playbook", "playbook_mixed")
"""What `auto` stands for here: every trial costs, so none goes to a plan that is known not to fit."""
SEEDS, TRIALS = 3, 12
"""Seeds and trials where none are given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """The user's workload as a ground, for the record."""

    name: str
    source: str
    constants: str = "those of conf/calibration"
    kind: str = "own"
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Searched:
    """What one method came to with one seed: its results in the order of their numbers, and why it ended."""

    method: str
    seed: int
    results: tuple[Result, ...]
    stopped: str


def run(config: Config, started: float) -> int:
    """Run the task; returns the exit status.

    Raises:
        AsapError: something for the user to change.
    """
    methods = own_methods(config)
    if asking := next((each.name for each in methods if each.name in ASKING), None):
        raise ConfigError("compare.methods", asking, "not part of this version with +model; leave it out")
    setting = load(config)
    names = [each.name for each in setting.slices]
    if len(names) != 1:
        raise ConfigError("hardware", names, "one slice for task=compare: methods are held against each other on it")
    stage = only_stage(config, setting)
    ledger = open_run(config)
    before = _finished(config, setting, ledger)
    record.started(ledger, config, setting.workload, command_line(), versions())
    budget = Budget(trials=config.compare.trials or TRIALS, width=config.search.proposals)
    with (
        live(sys.stderr, sys.stderr, None, stage.tiers.base) as shown,
        compiling.executor_of(config, stage.tiers.workers) as executor,
    ):
        match = Match(stage, setting, methods, budget, Recorder(ledger, shown), executor, before)
        found = match.run()
    ground = Own(name=f"{config.model_name} on {names[0]}", source=config.model_name)
    searches = played(found, ground.name, match.where.chips)
    answer = _answer(config, ground, methods, searches, budget, stage, started)
    conclude(config, ledger, answer)
    return 0


def own_methods(config: Config) -> list[Method]:
    """The methods that are asked for.

    Raises:
        ConfigError: there is none of that name, or it would try plans that are known not to fit.
    """
    names = [name for each in config.compare.methods for name in (METHODS if each == "auto" else (each,))]
    policy = carried_weights() if {*names} & {"all", *TAUGHT} else None
    methods = methods_named(tuple(names), Means(policy=policy))
    if raw := next((each.name for each in methods if not each.gated), None):
        gated = [each.name for each in methods_named(("all",)) if each.gated]
        raise ConfigError("compare.methods", raw, f"with +model, methods that keep to what fits: {', '.join(gated)}")
    return methods


def only_stage(config: Config, setting: Setting) -> Stage:
    """The one tier that trials go through.

    Raises:
        ConfigError: there is none, or there are two.
    """
    stages = stages_of(config, setting)
    if len(stages) != 1:
        wanted = "one tier that says more than the roofline, which methods read: [roofline,compile] or [roofline,run]"
        raise ConfigError("tiers", config.tiers, wanted)
    return stages[0]


def _finished(config: Config, setting: Setting, ledger: Ledger) -> dict[Key, Tried]:
    events = list(ledger.events())
    with ledger.understood():
        return {key_of(each): each for each in record.finished(events, setting.workload, config.stack)}


@dataclass
class Match:
    """All searches of a command, one after the other; a plan that was tried is found again."""

    stage: Stage
    setting: Setting
    methods: Sequence[Method]
    budget: Budget
    recorder: Recorder
    executor: Executor
    before: dict[Key, Tried]
    clock: Clock = field(default_factory=Clock)

    @property
    def where(self) -> Slice:
        """The slice."""
        return self.setting.tiers[0].problem.slice

    def run(self) -> list[Searched]:
        """Let each method search with each of its seeds."""
        config, tiers, where = self.stage.config, self.stage.tiers, self.where.name
        pool = pool_for(self.setting.tiers[0], self.setting.spaces[0], tiers, where)
        if not len(pool):
            raise ConfigError("space.fix", config.space.fix, "a space in which a plan fits and has a program")
        total, clock = 60.0 * config.minutes if config.minutes else float("inf"), self.clock
        clock.start()
        found, field_ = [], _unknown(pool)
        searches = [(each, seed) for each in self.methods for seed in seeds_of(each, config.compare.seeds or SEEDS)]
        for place, (method, seed) in enumerate(searches):
            # As much time for each: what the first do not spend, the others have more.
            clock.limit_s = clock.spent_s + (total - clock.spent_s) / (len(searches) - place)
            self.recorder.say(f"{method.name}, seed {config.seed + seed}, on {len(pool):,} plans")
            found.append(self._search(method, config.seed + seed, field_))
        return found

    def _search(self, method: Method, seed: int, field_: Field) -> Searched:
        tiers, where = self.stage.tiers, self.where.name
        loop = Loop(
            where=where,
            pool=field_.pool,
            searcher=method.make(field_, seed),
            trials=Trials(
                where=where,
                bundle=tiers.base,
                tier=tiers.tiers[where, tiers.base],
                executor=self.executor,
                clock=self.clock,
                watcher=self.recorder,
                read=lambda tried: read_trial(tiers, tried),
                before=self.before,
            ),
            budget=Spending(trials=self.budget.trials, minutes=self.stage.config.minutes),
            clock=self.clock,
            listener=self.recorder,
            width=self.budget.width,
        )
        stopped = loop.run()
        self.before |= {key_of(each): each for each in loop.tried}
        results = tuple(sorted(loop.results, key=lambda each: each.candidate.number))
        return Searched(method.name, seed, results, stopped)


def _unknown(pool: Pool) -> Field:
    """A field of which no outcome is known yet."""
    nothing = np.full(len(pool), np.nan)
    return Field(pool=pool, gate=np.ones(len(pool), bool), step_s=nothing, status=np.full(len(pool), "complete"))


def played(found: Sequence[Searched], ground: str, chips: int) -> list[Played]:
    """The searches as what they are told by: regret is against the fastest step of all of them.

    A trial costs what it would on chips (`contest.play`), however it was made here; rounds are not told apart.
    """
    results = [each for one in found for each in one.results if each.status == "complete"]
    best = min((each.step_time_s for each in results if each.step_time_s), default=float("nan"))
    return [_played(each, ground, chips, best) for each in found]


def _played(found: Searched, ground: str, chips: int, best_s: float) -> Played:
    done = [each.step_time_s if each.status == "complete" else None for each in found.results]
    so_far = [min((step for step in done[: i + 1] if step), default=None) for i in range(len(done))]
    costs = [START_UP_S + STEPS * (step or 0.0) for step in done]
    proposals = [each.candidate.proposal for each in found.results]
    return Played(
        method=found.method,
        ground=ground,
        seed=found.seed,
        regret=tuple(None if step is None else step / best_s - 1.0 for step in so_far),
        bad=tuple(step is None for step in done),
        chip_s=tuple(chips * cost for cost in costs),
        end_s=tuple(float(each) for each in np.cumsum(costs)),
        plans=tuple(each.candidate.plan.line for each in found.results),
        why=tuple(f"{each.mechanism}: {each.hypothesis}" if each else "" for each in proposals),
        stopped=found.stopped,
    )


def _answer(
    config: Config,
    ground: Named,
    methods: Sequence[Method],
    found: Sequence[Played],
    budget: Budget,
    stage: Stage,
    started: float,
) -> ComparisonAnswer:
    tier = stage.tiers.name
    return ComparisonAnswer(
        grounds=(ground,),
        errors={},
        methods=tuple(methods),
        played=tuple(found),
        budget=budget,
        seed=config.seed,
        resumed=False,
        command=command_line(),
        run_dir=config.run_path,
        wall_s=time.monotonic() - started,
        versions=versions(compiling=True),
        evaluator=f"the {tier} tier; the best plan is the best that any method has found, not the best there is",
    )

"""A search as a task runs it: for each slice a pool, a searcher and a loop; then flags for the best few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from asap_ray.agents.cascade import Cascade
from asap_ray.agents.coordinator import Coordinator, Rules
from asap_ray.agents.evolution import Evolution
from asap_ray.agents.reasoning import Reasoner
from asap_ray.agents.seeded import Seeded
from asap_ray.agents.varied import Varied
from asap_ray.config import Config
from asap_ray.executor.protocol import Executor
from asap_ray.physics.calibration import Calibration
from asap_ray.physics.estimate import Estimate
from asap_ray.physics.roofline import Pricer
from asap_ray.plan import AXES, KNOBS
from asap_ray.recall import Recall
from asap_ray.recipe import Recipe
from asap_ray.report.answer import FLAGS, Confirmed, Searched, SliceAnswer, Tried
from asap_ray.report.told import words_of
from asap_ray.search.blackbox import black_box
from asap_ray.search.pool import Pool, pool_of_space
from asap_ray.search.protocol import Candidate, Searcher
from asap_ray.search.study import Study
from asap_ray.space import Space
from asap_ray.tasks.brains import cards_of, rules_of, untrained
from asap_ray.tasks.certifying import certificate_after
from asap_ray.tasks.confirming import Confirming, Turns, to_confirm
from asap_ray.tasks.loop import Budget, Loop
from asap_ray.tasks.recorder import Recorder
from asap_ray.tasks.rounds import RECALLED
from asap_ray.tasks.setting import Setting
from asap_ray.tasks.stages import next_number, that_compiles
from asap_ray.tasks.trial_tiers import TrialTiers, read_trial
from asap_ray.tasks.trials import Clock, Key, Trials, Wanted
from asap_ray.tasks.varying import genes_of, prices_of
from asap_ray.tiers.command import Command
from asap_ray.tiers.roofline import Roofline
from asap_ray.tiers.run import Run

FLAGGED = 2
"""Plans that are tried with each further bundle of flags."""
MEASURED_STEPS = 20
"""Steps of a short measured run, for what a trial on chips would cost."""


@dataclass(kw_only=True)
class Search:
    """All slices of one command, one after the other, the fastest by the roofline first.

    Where it takes up the `answers` of a search through a cheaper tier, they say what is left out and what comes first.
    """

    config: Config
    setting: Setting
    tiers: TrialTiers
    executor: Executor
    recorder: Recorder
    before: Mapping[Key, Tried] = field(default_factory=dict)
    turns: Turns = field(default_factory=dict)
    baseline: Estimate | None = None
    recalls: Mapping[str, Recall] = field(default_factory=dict)
    asker: Cascade | None = None
    clock: Clock = field(default_factory=Clock)
    agents: dict[str, object] = field(
        default_factory=lambda: {"brain": "none", "rounds": 0, "proposals": 0, "refused": 0}
    )

    def run(self, answers: Sequence[SliceAnswer]) -> tuple[SliceAnswer, ...]:
        """Each slice's answer with what trials say of its plans."""
        self.clock.start()
        shares = budget_shares([each for each in answers if each.ranked], self.config)
        total = 60.0 * self.config.minutes if self.config.minutes else float("inf")
        found: dict[str, SliceAnswer] = {each.slice.name: each for each in answers}
        for place, (name, budget) in enumerate(shares.items()):
            self.clock.limit_s = self.clock.spent_s + (total - self.clock.spent_s) / (len(shares) - place)
            found[name] = self._slice(found[name], budget)
        return tuple(found[each.slice.name] for each in answers)

    def _slice(self, answer: SliceAnswer, budget: Budget) -> SliceAnswer:
        where = answer.slice.name
        place = next(i for i, each in enumerate(self.setting.slices) if each.name == where)
        pool = pool_for(self.setting.tiers[place], self.setting.spaces[place], self.tiers, where)
        pool = that_compiles(pool, answer.searched)
        if not len(pool):
            why = "asap_ray's own trainer has no program that fits for any plan that fits"
            told = self._told(pool, (), f"0 plans {words_of(self.tiers.name).done}: {why}")
            return replace(answer, searched=told, compiled=answer.searched)
        recall = self.recalls.get(where)
        calibration = self.setting.tiers[place].calibration
        searcher = searcher_of(self.config, pool, self.tiers, where, recall, answer.searched, self.asker, calibration)
        bundles = [each.name for each in self.tiers.bundles]
        self.recorder.told(where, "parameters", {"values": {"bundle": bundles} | parameter_values(pool)})
        if recall is not None:
            self.recorder.told(where, RECALLED, recall.as_dict())
        if why := untrained(self.config):
            self.recorder.say(why)
        self.recorder.say(start_words(where, pool, searcher, self.config))
        first = next_number(answer.searched)
        trials = self._trials(where)
        loop = Loop(
            where=where,
            pool=pool,
            searcher=searcher,
            trials=trials,
            budget=budget,
            clock=self.clock,
            listener=self.recorder,
            width=self.config.search.proposals,
            numbers=first,
            heard=searcher.seen if isinstance(searcher, Coordinator) else lambda result: None,
        )
        if budget.trials == 0:
            self._show_first(answer, pool, loop.first())
            stopped = "budget.trials=0: nothing was tried"
        else:
            stopped = loop.run()
        self._count(searcher, loop)
        found = [*loop.tried, *self._flagged(where, loop)]
        told = self._told(pool, found, stopped)
        told = replace(told, confirmed=self._confirmed(where, told))
        told = replace(told, observed=told.best.observed if told.best else None)
        certificate = certificate_after(pool, loop.results, measured=self.tiers.measured) or answer.certificate
        return replace(answer, searched=told, compiled=answer.searched, certificate=certificate)

    def _told(self, pool: Pool, found: Sequence[Tried], stopped: str) -> Searched:
        return Searched(
            base=self.tiers.base,
            source=self.tiers.name,
            trials=tuple(found),
            refused=pool.refused,
            stopped=stopped,
        )

    def _trials(self, where: str) -> Trials:
        tiers = {bundle.name: self.tiers.tiers[where, bundle.name] for bundle in self.tiers.bundles}
        for name, tier in tiers.items():
            if isinstance(tier, Run):  # it holds runs against what was measured before
                for each in self.before.values():
                    if (each.where, each.bundle, each.finding.evidence) == (where, name, tier.evidence):
                        tier.learn(each.finding)
        return Trials(
            where=where,
            bundle=self.tiers.base,
            tier=tiers[self.tiers.base],
            others=tiers,
            executor=self.executor,
            clock=self.clock,
            watcher=self.recorder,
            read=lambda tried: read_trial(self.tiers, tried),
            before=self.before,
        )

    def _confirmed(self, where: str, told: Searched) -> tuple[Confirmed, ...]:
        """The baseline and the best few once more, where trials are measured."""
        tier, run = self.tiers.tiers[where, self.tiers.base], self.config.run
        wanted = to_confirm(told, self.baseline, run.best)
        if not isinstance(tier, Run | Command) or not run.confirm or len(wanted) < 2:
            return ()
        if isinstance(tier, Run) and tier.proxy:  # a gain is a difference of what was measured, and the whole was not
            return ()
        confirming = Confirming(
            where=where,
            tier=tier,
            executor=self.executor,
            recorder=self.recorder,
            clock=self.clock,
            turns=run.confirm,
        )
        return confirming.run(wanted, self.turns)

    def _flagged(self, where: str, loop: Loop) -> list[Tried]:
        """The best few once more with each further bundle of flags that they were not tried with."""
        best = Searched(base=self.tiers.base, source=self.tiers.name, trials=tuple(loop.tried)).ranked[:FLAGGED]
        done = {(each.finding.plan, each.bundle) for each in loop.tried}
        wanted = [
            (each.roofline, Recipe(flags=bundle.name))
            for bundle in self.tiers.bundles[1:]
            for each in best
            if (each.finding.plan, bundle.name) not in done
        ]
        # A budget may leave the last of a round untried: their numbers are taken.
        numbered = enumerate(wanted, start=loop.numbers)
        return self._trials(where).run(
            [Wanted(number=n, author=FLAGS, roofline=priced, recipe=recipe) for n, (priced, recipe) in numbered]
        )

    def _show_first(self, answer: SliceAnswer, pool: Pool, candidates: Sequence[Candidate]) -> None:
        chips = answer.slice.chips
        for each in candidates:
            estimate = pool.estimate(pool.row(each.plan) or 0)
            hours = MEASURED_STEPS * estimate.step_time_s * chips / 3600.0
            why = f"; {each.proposal.hypothesis}" if each.proposal else ""
            self.recorder.say(
                f"  would try {each.plan.line}: {estimate.step_time_s:.3g} s a step expected; to compile it costs no "
                f"chip-hour, to run {MEASURED_STEPS} steps {hours:.3g} chip-hours{why}"
            )

    def _count(self, searcher: Searcher, loop: Loop) -> None:
        told = self.agents
        brain, proposals, refused = "none", 0, 0
        if isinstance(searcher, Coordinator):
            brain, proposals, refused = searcher.brain.name, searcher.proposals, searcher.refused
        told.update(brain=brain, rounds=int(str(told["rounds"])) + loop.rounds)
        told.update(proposals=int(str(told["proposals"])) + proposals, refused=int(str(told["refused"])) + refused)


def pool_for(tier: Roofline, space: Space, tiers: TrialTiers, where: str) -> Pool:
    """The plans of a slice that may be tried."""
    pricer, tried = Pricer(tier.problem, tier.calibration), tiers.tiers[where, tiers.base]
    pool = pool_of_space(space, pricer, tier.fitting(space), Pricer(tried.problem, tried.calibration))
    if not tiers.speaks:
        return pool
    rows = [row for row in range(len(pool)) if tiers.unspoken(where, pool.plan(row)) is None]
    return pool.only(np.array(rows, np.int64), words=len(pool) - len(rows))


def searcher_of(
    config: Config,
    pool: Pool,
    tiers: TrialTiers,
    where: str,
    recall: Recall | None = None,
    compiled: Searched | None = None,
    asker: Cascade | None = None,
    calibration: Calibration | None = None,
) -> Searcher:
    """The agents, with what they recall and a language model where there is an `asker`, or a black-box search alone;
    what a cheaper tier found fastest is tried first.

    Raises:
        AsapError: the sampler needs a package that is not installed.
        ConfigError: a card or the weights of a policy cannot be read.
    """
    seeds = tuple(each.finding for each in compiled.ranked) if compiled else ()
    number = next_number(compiled)
    if config.agents.brain == "none":
        rows = [row for each in seeds[: config.search.proposals] if (row := pool.row(each.plan)) is not None]
        return black_box(pool, config.search.method, config.seed, rows, number)
    sampler = "random" if config.search.method == "grid" else config.search.method
    rules = Varied(inner=Seeded(inner=rules_of(config), seeds=seeds))
    share = config.search.share
    thinking = asker and Reasoner(asker=asker, rules=rules, cards=cards_of(config), problem=pool.problem, share=share)
    brain, population = thinking or rules, config.agents.population
    return Coordinator(
        pool=pool,
        brain=Evolution(inner=brain, size=population, seed=config.seed) if population else brain,
        adviser=thinking,
        genes=genes_of(config, tiers),
        price=prices_of(pool.problem, calibration or tiers.tiers[where, tiers.base].calibration),
        study=Study(pool, sampler, config.seed, number),
        rules=Rules(share=config.search.share, gap=config.search.gap),
        program=tiers.problems[where],
        recall=recall or Recall(),
    )


def parameter_values(pool: Pool) -> dict[str, list[int | str]]:
    """What each axis and knob may be in this search: the space, the same for all of its trials."""
    return {name: pool.values(name) for name in (*AXES, *(f"{axis}_dcn" for axis in AXES), *KNOBS)}


def start_words(where: str, pool: Pool, searcher: Searcher, config: Config) -> str:
    """That a search begins, over what and led by whom."""
    by = f"{config.search.method} alone"
    if isinstance(searcher, Coordinator):
        by = f"the {searcher.brain.name}, a share of {config.search.share:.0%} by {config.search.method}"
    return f"searching {where}: {len(pool):,} plans may be tried, {config.search.proposals} a round, chosen by {by}"


def budget_shares(answers: Sequence[SliceAnswer], config: Config) -> dict[str, Budget]:
    """What each slice may spend: as much as each other, the fastest slices one more, or nothing where it is too
    little."""
    fastest = sorted(answers, key=lambda each: each.ranked[0].step_time_s)
    given, found = config.budget, {}
    for place, each in enumerate(fastest):
        complete, trials = (_share(total, place, len(fastest)) for total in (config.wanted, given.trials))
        hours = None if given.chip_hours is None else given.chip_hours / len(fastest)
        if complete != 0 and (trials != 0 or given.trials == 0):
            found[each.slice.name] = Budget(complete=complete, trials=trials, minutes=config.minutes, chip_hours=hours)
    return found


def _share(total: int | None, place: int, among: int) -> int | None:
    return None if total is None else total // among + (place < total % among)

"""`task=tune`: price every legal plan of the workload on each slice and report the fastest that fits.

With the roofline alone, tuning is an exact argmin: there is nothing to search for, and no trial behind the answer. The
output says so. With the compile tier the roofline's answer is printed first; then a search decides which plans go
through the chip's own compiler, which says what fits and how long a step takes.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from asap_ray.config import Config
from asap_ray.diagnosis import compare, diagnose
from asap_ray.errors import AsapError, ConfigError, printable
from asap_ray.ledger import Ledger
from asap_ray.physics.estimate import Estimate
from asap_ray.report.answer import Answer, SliceAnswer, Tried
from asap_ray.report.files import write_report
from asap_ray.report.live import live
from asap_ray.report.terminal import announce, show, show_priced
from asap_ray.tasks import record
from asap_ray.tasks.baseline import tell_baseline
from asap_ray.tasks.derived import write_derived
from asap_ray.tasks.nothing import explain_nothing
from asap_ray.tasks.plans import tell_plans, write_plans
from asap_ray.tasks.recorder import Recorder
from asap_ray.tasks.rounds import recall_of, rounds_of, searches_of
from asap_ray.tasks.running import (
    command_line,
    open_run,
    output_of,
    results,
    swept,
    takes_a_while,
    versions,
    write_files,
)
from asap_ray.tasks.setting import Setting, load
from asap_ray.tasks.stages import stages_of
from asap_ray.tasks.written import baseline_of
from asap_ray.tiers.roofline import Roofline, Sweep

if TYPE_CHECKING:
    from asap_ray.agents.cascade import Cascade
    from asap_ray.tasks.stages import Stage
    from asap_ray.tasks.trials import Clock

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
    stages = stages_of(config, setting)
    if stages:
        check_brain(config)
    baseline = _baseline(config, setting)
    output, stream = output_of(config)
    # A large space takes a while, so its heading comes first; a small one is priced before, and an error stands alone.
    # Either way it is there before the report is drawn, which takes longer than pricing a small space.
    early = takes_a_while(*setting.spaces)
    if early:
        announce(config.model_name, setting.workload, setting.slices, output, stream)
    ledger = open_run(config)
    before = _finished(config, setting, ledger) if stages else []
    slices = _swept(config, setting, baseline, ledger)
    if not early and config.output != "json":
        announce(config.model_name, setting.workload, setting.slices, output, stream)
    tell_baseline(setting.foreign, baseline, ledger, output, stream)
    answer = exact_answer(config, setting, slices, baseline, started)
    if stages:
        show_priced(answer, output, stream)
        answer = _searched(config, setting, stages, answer, ledger, before, stream, started)
    write_files(config, lambda: write_report(answer, config.run_path))
    plans = write_files(config, lambda: write_plans(config, setting, answer))
    record.answered(ledger, answer)
    if stages:
        write_files(config, lambda: write_derived(list(ledger.events()), config.run_path))
        _remember(config, ledger, stream)
    show(answer, output if config.output != "json" else "json", sys.stdout, announced=True, priced=bool(stages))
    tell_plans(plans, output, stream)
    return 0


def check_brain(config: Config) -> None:
    """What is wanted can propose.

    Raises:
        ConfigError: a language model has no name, or nothing says how to reach it; a policy's file is none.
    """
    from asap_ray.tasks.brains import rules_of
    from asap_ray.tasks.thinking import brain_of, limits_of  # a schema library that no other brain needs

    if brain_of(config) == "llm":
        limits_of(config)
    rules_of(config)


def _finished(config: Config, setting: Setting, ledger: Ledger) -> list[Tried]:
    """The trials of this job that earlier runs in its directory have finished.

    Raises:
        ConfigError: another version, or something else, has written there.
    """
    events = list(ledger.events())
    with ledger.understood():
        return record.finished(events, setting.workload, config.stack)


def _searched(
    config: Config,
    setting: Setting,
    stages: Sequence[Stage],
    answer: Answer,
    ledger: Ledger,
    before: Sequence[Tried],
    stream: TextIO,
    started: float,
) -> Answer:
    """The answer with what trials say; those `before`, which earlier runs have finished, are not run again."""
    from asap_ray.tasks.thinking import asker_of
    from asap_ray.tasks.trials import Clock

    slices, clock, agents = answer.slices, Clock(), dict(answer.agents)
    asker = asker_of(config, ledger)
    for stage in stages:
        clock = Clock(found_s=clock.spent_s)
        slices = _stage(stage, setting, replace(answer, slices=slices), ledger, before, stream, clock, agents, asker)
    tried = [each for one in slices for each in one.trials]
    trials = {**answer.trials, **Counter(each.finding.status for each in tried)}
    told = "; ".join(f"{one.slice.name}: {each.stopped}" for one in slices for each in one.searches)
    return replace(
        answer,
        slices=slices,
        trials=trials,
        agents=agents,
        llm=asker.spent if asker else answer.llm,
        resumed=any(each.finding.cached for each in tried),
        stop_reason=f"{STOP_REASON}; {told}",
        wall_s=time.monotonic() - started,
        versions=versions(compiling=True),
    )


def _stage(
    stage: Stage,
    setting: Setting,
    answer: Answer,
    ledger: Ledger,
    before: Sequence[Tried],
    stream: TextIO,
    clock: Clock,
    agents: dict[str, object],
    asker: Cascade | None,
) -> tuple[SliceAnswer, ...]:
    """Each slice's answer with what one more search says; `agents` is counted on."""
    from asap_ray.tasks.compiling import executor_of
    from asap_ray.tasks.confirming import finished_turns
    from asap_ray.tasks.remembering import recall_each
    from asap_ray.tasks.searching import Search
    from asap_ray.tasks.standing import Standing
    from asap_ray.tasks.thinking import asked_words
    from asap_ray.tasks.trials import key_of

    config, tiers = stage.config, stage.tiers
    with (
        live(stream, sys.stderr, config.wanted, tiers.base) as shown,
        executor_of(config, tiers.workers) as executor,
    ):
        standing = None
        if config.ray.dashboard:
            standing = Standing(
                show=executor.show,
                tokens=lambda: asker.spent["tokens"] if asker else 0,
                places=lambda: executor.places,
                say=shown.say,
            )
        recorder = Recorder(ledger, shown, standing)
        recalls, complaint = recall_each(config, setting, answer.slices, ledger)
        if complaint:
            recorder.say(complaint)
        if asker is not None:
            recorder.say(asked_words(asker))
        search = Search(
            config=config,
            setting=setting,
            tiers=tiers,
            executor=executor,
            recorder=recorder,
            recalls=recalls,
            before={key_of(each): each for each in before},
            turns=finished_turns(list(ledger.events()), before),
            baseline=answer.baseline,
            clock=clock,
            agents=agents,
            asker=asker,
        )
        found = search.run(answer.slices)
    slices = tuple(
        _with_rounds(now, ledger) if now is not old else now for now, old in zip(found, answer.slices, strict=True)
    )
    for each in [now for now, old in zip(slices, answer.slices, strict=True) if now is not old]:
        record.searched(ledger, each)
        if each.certificate is not None:
            record.certified(ledger, each.slice.name, each.certificate)
    return slices


def _remember(config: Config, ledger: Ledger, stream: TextIO) -> None:
    """Add the trials to the memory of the agents, and say what of it cannot be used."""
    from asap_ray.tasks.remembering import remember

    if complaint := remember(config, ledger):
        stream.write(f"{printable(complaint)}\n")


def _with_rounds(found: SliceAnswer, ledger: Ledger) -> SliceAnswer:
    """With what the agents recalled and decided, as the ledger has it."""
    if found.searched is None:
        return found
    where = found.slice.name
    last = searches_of(record.last_run(list(ledger.events())), where)[-1:]
    rounds = rounds_of(last[0], where) if last else ()
    recall = recall_of(last[0], where) if last else None
    return replace(found, searched=replace(found.searched, rounds=rounds, recall=recall))


def _swept(config: Config, setting: Setting, baseline: Estimate | None, ledger: Ledger) -> tuple[SliceAnswer, ...]:
    """What `sweep_slices` finds, with an event for all that happens."""
    record.started(ledger, config, setting.workload, command_line(), versions())
    record.narrowed(ledger, setting.spaces[0].narrowings)
    if baseline is not None:
        record.compared(ledger, baseline)
    try:
        sweeps = sweep_slices(config, setting)
    except AsapError as error:
        record.failed(ledger, error)
        raise
    slices = tuple(slice_answer(tier, sweep, config.top) for tier, sweep in zip(setting.tiers, sweeps, strict=True))
    for found in slices:
        record.swept(ledger, found)
        if found.certificate is not None:
            record.certified(ledger, found.slice.name, found.certificate)
    return slices


def exact_answer(
    config: Config, setting: Setting, slices: tuple[SliceAnswer, ...], baseline: Estimate | None, started: float
) -> Answer:
    """What the roofline alone says; `started` is the monotonic time at which the task began."""
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


def sweep_slices(config: Config, setting: Setting) -> tuple[Sweep, ...]:
    """Price each slice, several side by side on as many cores as there are.

    Raises:
        ConfigError: no slice has a legal plan.
        DoesNotFitError: plans are legal but none fits.
    """
    pairs = list(zip(setting.tiers, setting.spaces, strict=True))
    if len(pairs) == 1:
        sweeps = [swept(*pairs[0], config.top)]
    else:
        sweeps = results([tier.sweep_job(space, config.top) for tier, space in pairs])
    if not any(sweep.ranked for sweep in sweeps):
        raise explain_nothing(config, *pairs[0], sweeps[0])
    return tuple(sweeps)


def slice_answer(tier: Roofline, sweep: Sweep, top: int) -> SliceAnswer:
    """A sweep with its reasons, and the first `top` of its ranked plans."""
    ranked = sweep.ranked[:top]
    best = ranked[0] if ranked else None
    return SliceAnswer(
        slice=tier.problem.slice,
        total=sweep.total,
        legal=sweep.legal,
        fitting=sweep.fitting,
        removed=sweep.removed,
        ranked=ranked,
        reasons=tuple(compare(estimate, best) for estimate in ranked) if best else (),
        diagnosis=diagnose(best) if best else None,
        too_big=sweep.too_big,
        sample=sweep.sample,
        certificate=sweep.certificate,
    )


def _baseline(config: Config, setting: Setting) -> Estimate | None:
    if config.baseline is None:
        return None
    if len(setting.slices) > 1:
        # A plan is of one slice: its time there says nothing of the best plan elsewhere.
        names = ", ".join(each.name for each in setting.slices)
        raise ConfigError("baseline", config.baseline, f"allowed: with one slice only, and hardware has {names}")
    return baseline_of(config, setting.tiers[0])

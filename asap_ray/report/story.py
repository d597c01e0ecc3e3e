"""What a run directory holds, told from its ledger alone: of a run that ended, goes on, or was killed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from asap_ray.report import sentences, units
from asap_ray.report.answer import Answer, Searched, SliceAnswer, Tried
from asap_ray.report.certified import certificate_facts
from asap_ray.report.compiled import NOT_COMPILED, confirmed_grid, took, why
from asap_ray.report.outline import Block, Grid, heading, space
from asap_ray.report.scenario import told_blocks
from asap_ray.report.search import search_blocks
from asap_ray.report.summary import confirmed_fields, estimate_fields, finite, space_fields, tried_fields

FINISHED, FAILED, OPEN = "finished", "failed", "open"


@dataclass(frozen=True, kw_only=True, slots=True)
class Story:
    """The last of the `runs` that a ledger holds: the same command again writes on in the same directory.

    `state` is finished, failed (in an error of the user's) or open: nothing says how it ended, so it goes on or was
    killed. `started_at` and `last_at` are the times of its first and last event (ISO 8601). `answer` is what it has
    come to so far, None for tasks that plan nothing. `narrowings` are the user's own; `running` trials that began and
    have no outcome; `earlier` those that earlier runs of the same job finished and this one has not come to. `scenario`
    is what came of a published case, as `scenario_fields` has it.
    """

    run_dir: Path
    task: str
    command: str
    started_at: str
    last_at: str
    runs: int
    state: str
    reason: str = ""
    answer: Answer | None = None
    narrowings: tuple[Mapping[str, Any], ...] = ()
    running: tuple[Mapping[str, Any], ...] = ()
    earlier: tuple[Tried, ...] = ()
    scenario: Mapping[str, Any] | None = None

    def best(self, one: SliceAnswer) -> Tried | None:
        """The fastest trial of a slice, of this run or of an earlier one; steps of two tiers are not held against each
        other, and what has run speaks before what was compiled."""
        now = one.telling
        earlier = [each for each in self.earlier if each.where == one.slice.name]
        if now is None:
            return Searched(base="", trials=tuple(earlier)).best
        more = [each for each in earlier if each.finding.source == now.source]
        return replace(now, trials=(*now.trials, *more)).best

    def running_on(self, one: SliceAnswer) -> list[Mapping[str, Any]]:
        """Trials of a slice without an outcome."""
        return [each for each in self.running if each["slice"] == one.slice.name]


def story_blocks(story: Story) -> Iterator[Block]:
    """What a reader is told, in the order in which it happened; the best so far comes last."""
    answer = story.answer
    if answer is not None:
        yield heading(answer.model, answer.workload, tuple(one.slice for one in answer.slices))
    yield Block(title="Run", facts=tuple(_run_facts(story)))
    for one in answer.slices if answer else ():
        yield space(one)
        yield from search_blocks(one)
        if one.trials:
            yield Block(title=f"Trials on {one.slice.name}", grid=trials_grid(one.trials))
        if one.searched and one.searched.confirmed:
            title = f"Once more on {one.slice.name}, alone and in turns"
            yield Block(title=title, grid=confirmed_grid(one.searched))
        yield from told_blocks(story.scenario) if story.scenario else ()
        yield Block(title=f"So far on {one.slice.name}", facts=tuple(_best_facts(story, one)), strong=True)


def _run_facts(story: Story) -> Iterator[tuple[str, str]]:
    yield "in", str(story.run_dir)
    yield "command", story.command
    yield "started", f"{story.started_at}{f', run {story.runs} in this directory' if story.runs > 1 else ''}"
    yield "state", state_words(story)
    for each in story.narrowings:
        yield "narrowed", f"by {each['author']}: {each['reason']}"


def state_words(story: Story) -> str:
    """Whether a run has ended and why, or what an open one waits for."""
    if story.state == FINISHED:
        return f"finished at {story.last_at}{f': {story.reason}' if story.reason else ''}"
    if story.state == FAILED:
        return f"ended in an error at {story.last_at}: {story.reason}"
    return f"no end on record, last event at {story.last_at}: it goes on, or was killed; the same command resumes it"


def _best_facts(story: Story, one: SliceAnswer) -> Iterator[tuple[str, str]]:
    best = story.best(one)
    if best is not None and (now := best.finding.estimate) is not None:
        yield "best", now.plan.line
        yield "step", f"{sentences.step_line(now)}; the roofline said {units.seconds(best.roofline.step_time_s)}"
        yield "by", f"{now.source}, trial {best.number} of {best.author}, bundle {best.bundle}"
        yield "memory", sentences.memory_line(one.slice, now)
    elif one.best is not None:
        yield "best", one.best.plan.line
        yield "step", f"{sentences.step_line(one.best)}, by the roofline: no trial has come to a step time"
    else:
        yield "best", "no plan fits"
    for each in story.running_on(one):
        yield "running" if story.state == OPEN else "lost", f"trial {each['trial']}: {each['plan']}"
    if earlier := [each for each in story.earlier if each.where == one.slice.name]:
        yield "earlier", f"{len(earlier)} trials of earlier runs, which this one has not come to"
    for each in one.searches:
        if each.stopped:
            yield "stopped", each.stopped
    yield from certificate_facts(one)[:2]


def trials_grid(trials: tuple[Tried, ...]) -> Grid:
    """All trials in the order of their numbers: how each ended, and why."""
    header = ("trial", "by", "bundle", "ended", "step", "roofline", "memory", "took", "why", "plan")
    rows = []
    for each in trials:
        now = each.finding.estimate
        rows.append(
            (
                *(str(each.number), each.author, each.bundle),
                "complete" if now and each.finding.status == "complete" else NOT_COMPILED[each.finding.status],
                units.seconds(now.step_time_s if now else None),
                units.seconds(each.roofline.step_time_s),
                units.gigabytes(each.finding.hbm_bytes),
                took(each),
                "" if now else why(each),
                each.finding.plan.line,
            )
        )
    return Grid(header=header, rows=tuple(rows), words=("by", "bundle", "ended", "why", "plan"))


def story_fields(story: Story) -> dict[str, Any]:
    """The same as one JSON object."""
    answer = story.answer
    kept = ("task", "command", "started_at", "last_at", "runs", "state", "reason")
    told = {"run_dir": str(story.run_dir), **{name: getattr(story, name) for name in kept}}
    if answer is not None:
        told |= {"model": answer.model, "stack": answer.stack, "seed": answer.seed}
        told["narrowings"] = [_narrowing(each) for each in story.narrowings]
        told |= {"scenario": story.scenario} if story.scenario else {}
        told["hardware"] = [_slice_fields(story, one) for one in answer.slices]
    return finite(told)


def _slice_fields(story: Story, one: SliceAnswer) -> dict[str, Any]:
    best, found = story.best(one), one.searched
    earlier = [each for each in story.earlier if each.where == one.slice.name]
    return {
        "slice": one.slice.name,
        "space": space_fields(one),
        "priced": estimate_fields(one.priced),
        "best": estimate_fields(best.finding.estimate if best else one.best),
        "recalled": one.recall.as_dict() if one.recall is not None else None,
        "rounds": [asdict(each) for search in one.searches for each in search.rounds],
        "trials": [_trial_fields(each) for each in one.trials],
        "running": [{"trial": each["trial"], "plan": each["plan"]} for each in story.running_on(one)],
        "earlier": [_trial_fields(each) for each in earlier],
        "refused": dict(found.refused) if found else {},
        "stopped": found.stopped if found else "",
        "confirmed": confirmed_fields(found),
    }


def _trial_fields(each: Tried) -> dict[str, Any]:
    return {"trial": each.number, "author": each.author, "elapsed_s": each.elapsed_s, **tried_fields(each)}


def _narrowing(each: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each[name] for name in ("name", "author", "reason", "keep")}

"""A run while it goes on: what it stands at, as a frame that fits a terminal, and a line for whatever happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from asap_ray.report import units
from asap_ray.report.answer import SliceAnswer, Tried
from asap_ray.report.compiled import took, why
from asap_ray.report.outline import Block, Grid
from asap_ray.report.story import OPEN, Story, state_words

SHOWN = 8
"""Trials that a frame shows: the last ones."""
RUNNING = 8


def frame(story: Story, now: datetime) -> Iterator[Block]:
    """What a run stands at, the state first; `now` is a UTC time."""
    state = state_words(story)
    if story.state == OPEN:
        state = f"goes on for {_since(story.started_at, now)}, last event {_since(story.last_at, now)} ago"
    yield Block(facts=((story.task, story.command), ("in", str(story.run_dir)), ("state", state)))
    for one in story.answer.slices if story.answer else ():
        yield from _slice_blocks(story, one, now)


def _slice_blocks(story: Story, one: SliceAnswer, now: datetime) -> Iterator[Block]:
    ended = Counter(each.finding.status for each in one.trials)
    counts = ", ".join(f"{count} {status}" for status, count in ended.items()) or "none has ended"
    facts = [("trials", counts), *_best(story, one)]
    facts += [
        ("running", f"trial {each['trial']} for {_since(each['at'], now)}: {each['plan']}")
        for each in story.running_on(one)[:RUNNING]
    ]
    yield Block(title=one.slice.name, facts=tuple(facts))
    if one.trials:
        yield Block(grid=_last(one.trials[-SHOWN:]))


def _last(trials: Sequence[Tried]) -> Grid:
    """The last trials, in fewer columns than a story has: a frame is not scrolled."""
    rows = []
    for each in trials:
        step = each.finding.estimate.step_time_s if each.finding.estimate else None
        head = (str(each.number), each.author, each.finding.status, units.seconds(step), took(each))
        rows.append((*head, each.finding.plan.line if step else f"{why(each)}; {each.finding.plan.line}"))
    return Grid(
        header=("trial", "by", "ended", "step", "took", "plan"), rows=tuple(rows), words=("by", "ended", "plan")
    )


def _best(story: Story, one: SliceAnswer) -> list[tuple[str, str]]:
    best = story.best(one)
    found = best.finding.estimate if best is not None else one.best
    if found is None:
        return []
    by = f"by {found.source}"
    return [("best", f"{units.seconds(found.step_time_s)} {by}, {units.percent(found.mfu)} MFU: {found.plan.line}")]


def _since(at: str, now: datetime) -> str:
    passed = (now - datetime.fromisoformat(at)).total_seconds()
    return units.seconds(max(0.0, round(passed)))


def event_line(event: Mapping[str, Any]) -> str:
    """What happened, in one line that begins with its time; empty where nobody needs to be told."""
    kind, say = event["kind"], TOLD.get(event["kind"])
    text = say(event) if say else ""
    at = datetime.fromisoformat(event["at"]).astimezone(UTC).strftime("%H:%M:%S")
    return f"{at} {kind}: {text}" if text else ""


def _tried(event: Mapping[str, Any]) -> str:
    found, estimate = event["finding"], event["estimate"]
    step = units.seconds(estimate["step_time_s"]) if estimate else " ".join((found["status"], found["reason"])).strip()
    return f"{event['slice']} trial {event.get('trial', 0)} {step}; {found['plan']}"


TOLD = {
    "start": lambda event: event["command"],
    "swept": lambda event: f"{event['slice']}: {event['fitting']:,} of {event['total']:,} plans fit",
    "proposal": lambda event: f"{event['slice']} trial {event['trial']}: {event['hypothesis']}",
    "trial": lambda event: f"{event['slice']} trial {event['trial']} begins: {event['plan']}",
    "tried": _tried,
    "fault": lambda event: f"{event['slice']}: {event['text']}",
    "searched": lambda event: f"{event['slice']}: {event['stopped']}",
    "answer": lambda event: f"{event['best'] or 'no plan fits'}; {event['stop_reason']}",
    "error": lambda event: event["text"],
    "cell_began": lambda event: event["cell"],
    "judged": lambda event: f"{event['cell']} {'; '.join((event['verdict'], *event['why']))}",
    "night_ended": lambda event: f"{event['night']}, status {event['status']}",
}
"""What is said of an event, by its kind; others are in the file."""

"""The story of a run directory, from the events in its ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asap_ray.report.answer import Answer, Tried
from asap_ray.report.story import FAILED, FINISHED, OPEN, Story
from asap_ray.tasks import record
from asap_ray.tasks.trials import key_of

ENDS = ("answer", "explained", "calibrated", "validated", "night_ended")
"""Events with which a run of some task is finished."""
Events = Sequence[Mapping[str, Any]]


def story_of(events: Events, run_dir: Path) -> Story:
    """What the events of a ledger tell of its last run.

    Raises:
        ValueError: no run has started.
    """
    run = record.last_run(events)
    if not run:
        raise ValueError("no run has started")
    start, last = run[0], run[-1]
    answer = record.answer_so_far(run, run_dir) if "workload" in start else None
    failed = last["kind"] == "error"
    return Story(
        run_dir=run_dir,
        task=start["task"],
        command=start["command"],
        started_at=start["at"],
        last_at=last["at"],
        runs=sum(event["kind"] == "start" for event in events),
        state=FAILED if failed else FINISHED if last["kind"] in ENDS else OPEN,
        reason=last["text"] if failed else last.get("stop_reason", ""),
        answer=answer,
        narrowings=tuple(each for each in run if each["kind"] == "narrowing" and "slice" not in each),
        running=_running(run),
        scenario=_scenario(run),
        earlier=_earlier(events[: len(events) - len(run)], start, answer) if answer else (),
    )


def _scenario(run: Events) -> Mapping[str, Any] | None:
    told = next((event for event in run if event["kind"] == "scenario"), None)
    return {name: value for name, value in told.items() if name not in ("kind", "at")} if told else None


def _running(run: Events) -> tuple[Mapping[str, Any], ...]:
    ended = {(event["slice"], event.get("trial")) for event in run if event["kind"] == "tried"}
    began = (event for event in run if event["kind"] == "trial")
    return tuple(event for event in began if (event["slice"], event["trial"]) not in ended)


def _earlier(before: Events, start: Mapping[str, Any], answer: Answer) -> tuple[Tried, ...]:
    """Trials of the same job that earlier runs finished and the last one has not, each once, as it ended last."""
    now = {key_of(each) for one in answer.slices for each in one.trials}
    found = {key_of(each): each for each in record.finished(before, answer.workload, start["config"]["stack"])}
    return tuple(each for key, each in found.items() if key not in now)

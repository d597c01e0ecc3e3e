"""The rounds of a search, and what it had recalled, read back from what the ledger of its run holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from asap_ray.recall import Recall, read_recall
from asap_ray.report.rounds import Proposed, Round

Event = Mapping[str, Any]
LISTS: Mapping[str, str] = {
    "refusal": "refusals",
    "fault": "faults",
    "narrowing": "narrowings",
    "lifted": "lifted",
    "reading": "readings",
    "decision": "decisions",
    "turn": "turns",
    "last": "last",
}
"""Events that a round keeps as they are, with where."""
SAID = ("kind", "at", "slice")
RECALLED = "recalled"
"""The event of what a search recalls of the memory when it starts."""
BEGINNINGS = ("parameters", "round", "trial", "tried", "searched")
"""With one of these a search on a slice begins; with the last it ends."""


def searches_of(events: Iterable[Event], where: str) -> list[list[Event]]:
    """The events of one run on a slice, a list for each search: one through each tier, and the last may go on."""
    found, over = list[list[Event]](), True
    for event in events:
        if event.get("slice") != where or (over and event["kind"] not in BEGINNINGS):
            continue
        if over:
            found.append([])
        found[-1].append(event)
        over = event["kind"] == "searched"
    return found


def rounds_of(events: Iterable[Event], where: str) -> tuple[Round, ...]:
    """The rounds of one run on a slice, in order; none where no agents searched."""
    found: list[list[Event]] = []
    verdicts: dict[int, Event] = {}
    for event in events:
        if event.get("slice") != where:
            continue
        if event["kind"] == "round":
            found.append([event])
        elif event["kind"] == "verdict":
            verdicts[event["trial"]] = event
        elif found and event["kind"] in (*LISTS, "proposal", "sample"):
            found[-1].append(event)
    return tuple(_round(each, verdicts) for each in found)


def recall_of(events: Iterable[Event], where: str) -> Recall | None:
    """What a run had recalled for a slice; None where it had no memory."""
    told = (event for event in events if event["kind"] == RECALLED and event.get("slice") == where)
    event = next(told, None)
    return read_recall(event) if event else None


def _round(events: Iterable[Event], verdicts: Mapping[int, Event]) -> Round:
    first, *rest = events
    lists: dict[str, list[Event]] = defaultdict(list)
    proposed = []
    for event in rest:
        if event["kind"] in LISTS:
            lists[LISTS[event["kind"]]].append({name: value for name, value in event.items() if name not in SAID})
        else:
            proposed.append(_proposed(event, verdicts.get(event["trial"], {})))
    kept = {name: tuple(each) for name, each in lists.items()}
    return Round(
        number=first["round"], open=first["open"], closed=dict(first["closed"]), proposed=tuple(proposed), **kept
    )


def _proposed(event: Event, verdict: Event) -> Proposed:
    if event["kind"] == "sample":
        return Proposed(trial=event["trial"], author="sampler", plan=event["plan"])
    told = event["prediction"]
    kept = ("trial", "author", "plan", "hypothesis", "mechanism", "card", "base", "expected_s")
    later = ("trade_off", "confidence", "evidence")  # a ledger of an earlier version has none
    return Proposed(
        **{name: event[name] for name in kept},
        recipe=event.get("recipe", ""),
        **{name: _kept(event[name]) for name in later if name in event},
        field=told["field"],
        base_s=told["base"],
        low_s=told["low"],
        high_s=told["high"],
        status=verdict.get("status", ""),
        observed_s=verdict.get("observed"),
        verdict=verdict.get("text", ""),
    )


def _kept(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value

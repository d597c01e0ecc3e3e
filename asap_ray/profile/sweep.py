"""What is on a device's critical path, from intervals: who works, who is hidden, and when nothing is done.

At each moment the device does what ranks first of all that is under way: work of its cores, then transfers between
devices, then copies, then waiting for input. What ranks lower is hidden; several of one rank share the moment. The
exposed seconds of all and the gaps where nothing is under way add up to the window, whatever the intervals.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Key = tuple[str, str]
"""Program and op."""
SAME_S = 1e-11
"""Moments nearer than this are one: profilers count picoseconds."""
CORE, WIRE, COPY, INPUT, CONTROL = range(5)
"""Ranks; control is a loop or a call that only holds others."""


class Interval(NamedTuple):
    """An op under way: `start` and `end` in seconds, `key` the row it counts for, `rank` as above; `counts` says
    whether it is a run of the op, or only the wait at its end."""

    start: float
    end: float
    key: Key
    rank: int = CORE
    counts: bool = True


@dataclass(slots=True)
class Swept:
    """A window's account: `busy` and `exposed` seconds and `runs` by key, seconds `under` which a transfer has an op
    of a core beside it, and the `gaps` as (start, end)."""

    busy: defaultdict[Key, float] = field(default_factory=lambda: defaultdict(float))
    exposed: defaultdict[Key, float] = field(default_factory=lambda: defaultdict(float))
    runs: defaultdict[Key, float] = field(default_factory=lambda: defaultdict(float))
    under: defaultdict[tuple[Key, Key], float] = field(default_factory=lambda: defaultdict(float))
    gaps: list[tuple[float, float]] = field(default_factory=list)


def leaves(line: Iterable[Interval]) -> list[Interval]:
    """The intervals of one line with what is nested in each cut out: a thread or a core does one thing at a time.

    Only the first piece of an interval counts as its run. One that only overlaps the one before it is left as it is.
    """
    found: list[Interval] = []
    open_: list[list] = []  # of each interval that is open: itself, from where it still runs, whether it was counted

    def close(until: float) -> None:
        while open_ and open_[-1][0].end <= until:
            own, since, counted = open_.pop()
            if own.end > since or not counted:
                found.append(own._replace(start=min(since, own.end), counts=own.counts and not counted))
            if open_:
                open_[-1][1] = max(open_[-1][1], own.end)

    for each in sorted(line, key=lambda span: (span.start, -span.end)):
        close(each.start)
        if open_ and each.end <= open_[-1][0].end:
            parent = open_[-1]
            if each.start > parent[1]:
                own = parent[0]
                found.append(own._replace(start=parent[1], end=each.start, counts=own.counts and not parent[2]))
                parent[2] = True
            parent[1] = max(parent[1], each.start)
            open_.append([each, each.start, False])
        elif open_:
            found.append(each)
        else:
            open_.append([each, each.start, False])
    close(float("inf"))
    return found


def sweep(intervals: Sequence[Interval], start: float, end: float) -> Swept:
    """The account of a window, intervals clipped to it; one that begins in it is a run of the window's."""
    swept, edges = Swept(), []
    for index, each in enumerate(intervals):
        if each.counts and start <= each.start < end:
            swept.runs[each.key] += 1.0
        since, until = max(each.start, start), min(each.end, end)
        if until > since:
            edges += [(since, 1, index), (until, 0, index)]
    edges.sort()
    active: dict[tuple[int, Key], int] = {}
    now = start
    for moment, opens, index in edges:
        if moment > now + SAME_S:
            _account(swept, active, now, moment)
            now = moment
        place = intervals[index].rank, intervals[index].key
        if opens:
            active[place] = active.get(place, 0) + 1
        elif active[place] == 1:
            del active[place]
        else:
            active[place] -= 1
    if end > now + SAME_S:
        swept.gaps.append((now, end))
    return swept


def _account(swept: Swept, active: dict[tuple[int, Key], int], start: float, end: float) -> None:
    seconds = end - start
    if not active:
        swept.gaps.append((start, end))
        return
    first = min(rank for rank, _ in active)
    leading = [key for rank, key in active if rank == first]
    for key in {key for _, key in active}:
        swept.busy[key] += seconds
    for key in leading:
        swept.exposed[key] += seconds / len(leading)
    if first == CORE:
        for wire in [key for rank, key in active if rank == WIRE]:
            for key in leading:
                swept.under[wire, key] += seconds


def merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans as few as possible, none overlapping, in order."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > start:
            found.append((start, end))
    return found


def shared(gaps: Iterable[tuple[float, float]], spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Where gaps and merged spans meet; both in order."""
    found = []
    for start, end in gaps:
        at = bisect_right(spans, start, key=lambda span: span[1])
        while at < len(spans) and spans[at][0] < end:
            found.append((max(start, spans[at][0]), min(end, spans[at][1])))
            at += 1
    return found


def without(gaps: Iterable[tuple[float, float]], spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """What is left of gaps where merged spans are taken out; both in order."""
    found = []
    for start, end in gaps:
        since = start
        for held, until in shared([(start, end)], spans):
            if held > since:
                found.append((since, held))
            since = until
        if end > since:
            found.append((since, end))
    return found


def length(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds of spans together."""
    return sum(end - start for start, end in spans)

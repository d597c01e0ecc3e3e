"""Where the steps of a trace begin and end.

A step lies between two starts of the same thing. Of the steps that the trainer's loop annotates on the host, where the
device's work lies within them. Else of the launches of the program that takes most of the device, several of them a
step where the host annotated fewer: small programs beside it (a metric, a counter) make no steps of their own, as they
do in XProf's step line. Else, where launches are not told (streams of a GPU), of an op that runs once a step.

A step's end is the start of the next, so that time between steps counts; the last of several has no such end and is
left out.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from asap_ray.profile.kinds import Kind
from asap_ray.profile.sweep import CORE, Interval, Key, leaves

WITHIN = 0.9
"""Of a device's work, what must lie within the host's annotated steps for them to be the device's too."""
ALIKE = 3
"""Ops that must run equally often for that to be the number of steps, where nothing else tells it."""
Span = tuple[float, float]
Event = tuple[float, float, Kind]


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What one device did: events as (start, end, kind) in seconds, by line (a core, a stream, a thread).

    `launches` are the runs of programs as (start, end, program), where they are told.
    """

    name: str
    lines: tuple[tuple[Event, ...], ...]
    launches: tuple[tuple[float, float, str], ...] = ()

    def intervals(self) -> tuple[list[Interval], dict[Key, Kind]]:
        """Its work in order, what is nested cut out, and the kind of each row."""
        kinds: dict[Key, Kind] = {}
        found: list[Interval] = []
        for line in self.lines:
            spans = []
            for start, end, kind in line:
                key = kind.module, kind.op.name
                kinds.setdefault(key, kind)
                spans.append(Interval(start, end, key, kind.rank, kind.counts))
            found += leaves(spans)
        return sorted(found, key=lambda each: each.start), kinds


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """One host's part of a trace: the steps that its loop annotates as (start, end), and when it was busy with what
    (`input`, `host`), the first of them first where two meet."""

    name: str
    annotated: tuple[Span, ...] = ()
    busy: dict[str, tuple[Span, ...]] = field(default_factory=dict)


def windows(host: Host, device: Device, intervals: Sequence[Interval]) -> tuple[list[Span], str]:
    """Start and end of each step of a device, and how they were found."""
    if not intervals:
        return [], "nothing"
    if host.annotated and _within(intervals, host.annotated):
        return between([start for start, _ in host.annotated], host.annotated[-1][1]), "steps that the host annotates"
    if launches := _main(device.launches):
        turns = _turns(len(launches), len(host.annotated))
        words = "launches of the main program" + (f", {turns} a step" if turns > 1 else "")
        return between([start for start, _ in launches[::turns]], launches[-1][1]), words
    last = max(each.end for each in intervals)
    if starts := _once_a_step(intervals, len(host.annotated)):
        return between(starts, last), "an op that runs once a step"
    return [(intervals[0].start, last)], "the whole trace, as one step"


def between(starts: Sequence[float], last: float) -> list[Span]:
    """From each start to the next; a single one to the end."""
    return list(itertools.pairwise(starts)) if len(starts) > 1 else [(starts[0], last)]


def _within(intervals: Iterable[Interval], annotated: Sequence[Span]) -> bool:
    first, last = annotated[0][0], annotated[-1][1]
    work = [(each.end - each.start, max(min(each.end, last) - max(each.start, first), 0.0)) for each in intervals]
    return math.fsum(inside for _, inside in work) >= WITHIN * math.fsum(whole for whole, _ in work)


def _main(launches: Iterable[tuple[float, float, str]]) -> list[Span]:
    """The launches of the program that takes most of the device."""
    runs: defaultdict[str, list[Span]] = defaultdict(list)
    for start, end, program in launches:
        runs[program].append((start, end))
    return sorted(max(runs.values(), key=lambda spans: math.fsum(end - start for start, end in spans), default=[]))


def _turns(launches: int, annotated: int) -> int:
    """Launches a step, where the host annotated fewer steps than there are launches."""
    return launches // annotated if annotated and launches % annotated == 0 else 1


def _once_a_step(intervals: Iterable[Interval], annotated: int) -> list[float]:
    """The starts of the first op of the main program that runs as often as there are steps."""
    starts: defaultdict[Key, list[float]] = defaultdict(list)
    work: defaultdict[str, float] = defaultdict(float)
    for each in intervals:
        if each.counts and each.rank == CORE:
            starts[each.key].append(each.start)
            work[each.key[0]] += each.end - each.start
    if not work:
        return []
    main = max(work, key=lambda program: work[program])
    runs = {key: found for key, found in starts.items() if key[0] == main}
    alike = Counter(len(found) for found in runs.values())
    known = [annotated] if alike[annotated] else []
    times = next(iter(known or sorted(count for count, ops in alike.items() if ops >= ALIKE)), min(alike))
    return min(found for found in runs.values() if len(found) == times)

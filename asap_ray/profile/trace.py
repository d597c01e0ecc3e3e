"""From plain events of a trace to steps, and from steps to the one normalised profile.

A step lies between two starts of the same thing: of the steps that the trainer's loop annotates on the host, where the
device's work lies within them; else of the launches of the program that takes most of the device, several of them a
step where the host annotated fewer. A step's end is the start of the next, so that time between steps counts; of a
trace with more than one step the last has no such end and is left out.

Rows are means over devices and over the middle half of the steps by their time: an odd step (a checkpoint, a pause)
moves nothing, and the rows still add up to a step that was there.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from asap_ray.profile.kinds import Kind
from asap_ray.profile.sweep import Interval, Key, Swept, leaves, length, shared, sweep, without
from asap_ray.profile.table import Op, Profile

OVERLAPS = 3
"""Ops named beside a transfer."""
WITHIN = 0.9
"""Of a device's work, what must lie within the host's annotated steps for them to be the device's too."""
Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What one device did: events as (start, end, kind) in seconds, by line (a core, a stream, a thread).

    `launches` are the runs of programs as (start, end, program).
    """

    name: str
    lines: tuple[tuple[tuple[float, float, Kind], ...], ...]
    launches: tuple[tuple[float, float, str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """One host's part of a trace: its devices, the steps that its loop annotates as (start, end), and when it was busy
    with input, with transfers and launches, and with compiling."""

    name: str
    devices: tuple[Device, ...]
    annotated: tuple[Span, ...] = ()
    busy: dict[str, tuple[Span, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of one device."""

    start: float
    end: float
    swept: Swept
    waits: dict[str, float]

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSteps:
    """The steps of one device, its kinds of op by key, and how its steps were found."""

    name: str
    steps: tuple[Step, ...]
    kinds: dict[Key, Kind]
    found_by: str

    @property
    def middle(self) -> tuple[Step, ...]:
        """The middle half of the steps by their time."""
        ranked = sorted(self.steps, key=lambda step: step.seconds)
        drop = (len(ranked) + 1) // 4
        return tuple(ranked[drop : len(ranked) - drop])


def steps_of(host: Host, device: Device) -> DeviceSteps:
    """The steps of a device, each swept."""
    kinds: dict[Key, Kind] = {}
    intervals: list[Interval] = []
    for line in device.lines:
        spans = []
        for start, end, kind in line:
            key = kind.module, kind.op.name
            kinds.setdefault(key, kind)
            spans.append(Interval(start, end, key, kind.rank, kind.counts))
        intervals += leaves(spans)
    intervals.sort(key=lambda each: each.start)
    windows, found_by = _windows(host, device, intervals)
    steps, first = [], 0
    for start, end in windows:
        while first < len(intervals) and intervals[first].end <= start and intervals[first].start < start:
            first += 1
        inside = [each for each in intervals[first:] if each.start < end and each.end >= start]
        swept = sweep(inside, start, end)
        steps.append(Step(start=start, end=end, swept=swept, waits=_waits(swept.gaps, host)))
    return DeviceSteps(name=device.name, steps=tuple(steps), kinds=kinds, found_by=found_by)


def _windows(host: Host, device: Device, intervals: Sequence[Interval]) -> tuple[list[Span], str]:
    """Start and end of each step, and how they were found."""
    if not intervals:
        return [], "nothing"
    whole = min(each.start for each in intervals), max(each.end for each in intervals)
    work = math.fsum(each.end - each.start for each in intervals)
    if host.annotated:
        first, last = host.annotated[0][0], host.annotated[-1][1]
        within = math.fsum(max(min(each.end, last) - max(each.start, first), 0.0) for each in intervals)
        if within >= WITHIN * work:
            return _between([start for start, _ in host.annotated], last), "the steps that the host annotates"
    launches = _main(device.launches)
    if launches:
        turns = _turns(len(launches), len(host.annotated))
        starts = [start for start, _ in launches[::turns]]
        words = "launches of the main program" + (f", {turns} a step" if turns > 1 else "")
        return _between(starts, launches[-1][1]), words
    return [whole], "the whole trace, as one step"


def _between(starts: Sequence[float], last: float) -> list[Span]:
    """From each start to the next; a single one to the end."""
    if len(starts) == 1:
        return [(starts[0], last)]
    return list(itertools.pairwise(starts))


def _main(launches: Sequence[tuple[float, float, str]]) -> list[Span]:
    """The launches of the program that takes most of the device."""
    taken: defaultdict[str, float] = defaultdict(float)
    for start, end, program in launches:
        taken[program] += end - start
    if not taken:
        return []
    most = max(taken, key=lambda program: taken[program])
    return sorted((start, end) for start, end, program in launches if program == most)


def _turns(launches: int, annotated: int) -> int:
    """Launches a step, where the host annotated fewer steps than there are launches."""
    return launches // annotated if annotated and launches % annotated == 0 else 1


def _waits(gaps: Sequence[Span], host: Host) -> dict[str, float]:
    """The gaps by what the host does in them: input first, then transfers and launches; `idle` is the rest."""
    found, left = {}, list(gaps)
    for what, spans in host.busy.items():
        found[what] = length(shared(left, spans))
        left = without(left, spans)
    return found | {"idle": length(left)}


def profile_of(hosts: Sequence[Host], *, chip: str = "", clock_hz: float = 0.0, flags: Sequence[str] = ()) -> Profile:
    """The profile of all devices of all hosts; flags say what of it is not certain."""
    found = [steps_of(host, device) for host in hosts for device in host.devices]
    return profile_of_steps(found, chip=chip, clock_hz=clock_hz, flags=flags)


def profile_of_steps(
    devices: Sequence[DeviceSteps], *, chip: str = "", clock_hz: float = 0.0, flags: Sequence[str] = ()
) -> Profile:
    """The profile of devices whose steps are known."""
    devices = [each for each in devices if each.steps]
    tally: defaultdict[Key, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    waits: defaultdict[str, float] = defaultdict(float)
    under: defaultdict[tuple[Key, Key], float] = defaultdict(float)
    kinds: dict[Key, Kind] = {}
    for device in devices:
        kinds |= device.kinds
        share = 1.0 / (len(devices) * len(device.middle))
        for step in device.middle:
            swept = step.swept
            for key, busy in swept.busy.items():
                row = tally[key]
                row[0] += share * swept.runs[key]
                row[1] += share * busy
                row[2] += share * swept.exposed[key]
            for pair, seconds in swept.under.items():
                under[pair] += seconds
            for what, seconds in step.waits.items():
                waits[what] += share * seconds
    beside = _beside(under)
    rows = [_row(kinds[key].op, row, beside.get(key, ())) for key, row in tally.items()]
    waiting = [_wait(what, seconds) for what, seconds in waits.items() if seconds > 0.0]
    ranked = sorted([*rows, *waiting], key=lambda op: (-op.exposed_s, op.name))
    return Profile(ops=tuple(ranked), chip=chip, clock_hz=clock_hz, source="trace", flags=tuple(flags))


def _beside(under: dict[tuple[Key, Key], float]) -> dict[Key, tuple[str, ...]]:
    """The ops that run longest beside each transfer."""
    found: defaultdict[Key, list[tuple[float, str]]] = defaultdict(list)
    for (wire, core), seconds in under.items():
        found[wire].append((-seconds, core[1]))
    return {wire: tuple(name for _, name in sorted(each)[:OVERLAPS]) for wire, each in found.items()}


def _row(op: Op, row: Sequence[float], beside: tuple[str, ...]) -> Op:
    """The row of an op, whose figures are of one run, with those of a step."""
    count, busy, exposed = row
    return replace(
        op,
        count=count,
        seconds=busy,
        exposed_s=exposed,
        flops=op.flops * count,
        redone_flops=op.redone_flops * count,
        hbm_bytes=op.hbm_bytes * count,
        wire_bytes=op.wire_bytes * count,
        overlaps_with=beside,
    )


def _wait(what: str, seconds: float) -> Op:
    return Op(name=what, category="other", seconds=seconds, exposed_s=seconds)


def median_step(devices: Sequence[DeviceSteps]) -> tuple[float, float, float]:
    """Median, shortest and longest step in seconds: of each step the slowest device's, since all wait for it."""
    turns = max((len(each.steps) for each in devices), default=0)
    times = [max(each.steps[i].seconds for each in devices if i < len(each.steps)) for i in range(turns)]
    return (statistics.median(times), min(times), max(times)) if times else (0.0, 0.0, 0.0)

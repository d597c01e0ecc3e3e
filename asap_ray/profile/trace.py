"""From a device's steps to the one normalised profile.

Rows are means over devices, and over the middle half of each device's steps by their time: an odd step (a checkpoint, a
pause) moves nothing, and the rows still add up to a step that was there. What no op fills is a row too: `input` where
the host was at its input then, `host` where it was launching or transferring, else `idle`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from asap_ray.profile.kinds import Kind
from asap_ray.profile.steps import Device, Host, Span, windows
from asap_ray.profile.sweep import Interval, Key, length, shared, sweep, without
from asap_ray.profile.table import Op, Profile

OVERLAPS = 3
"""Ops named beside a transfer."""
INPUT, HOST, IDLE = "input", "host", "idle"
"""Rows of what no op fills."""


@dataclass(slots=True)
class Account:
    """What the middle steps of one device are made of, in means a step: `runs`, `busy` and `exposed` seconds by row,
    seconds that a transfer has another op `under` it, and `waits` by what the host did."""

    runs: defaultdict[Key, float] = field(default_factory=lambda: defaultdict(float))
    busy: defaultdict[Key, float] = field(default_factory=lambda: defaultdict(float))
    exposed: defaultdict[Key, float] = field(default_factory=lambda: defaultdict(float))
    under: defaultdict[tuple[Key, Key], float] = field(default_factory=lambda: defaultdict(float))
    waits: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, other: Account, share: float) -> None:
        """Take in a share of another one."""
        for mine, theirs in (
            (self.runs, other.runs),
            (self.busy, other.busy),
            (self.exposed, other.exposed),
            (self.under, other.under),
            (self.waits, other.waits),
        ):
            for key, value in theirs.items():
                mine[key] += share * value  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSteps:
    """One device's steps: the seconds of each in order, how they were found, and the account of the middle ones."""

    host: str
    name: str
    seconds: tuple[float, ...]
    found_by: str
    kinds: dict[Key, Kind]
    account: Account


def steps_of(host: Host, device: Device) -> DeviceSteps:
    """The steps of a device, and the account of the middle half of them by their time."""
    intervals, kinds = device.intervals()
    found, found_by = windows(host, device, intervals)
    account = Account()
    chosen = middle(found)
    starts = [each.start for each in intervals]
    longest = max((each.end - each.start for each in intervals), default=0.0)
    for start, end in chosen:
        first, last = bisect_left(starts, start - longest), bisect_left(starts, end)
        account.add(_account(host, intervals[first:last], start, end), 1.0 / len(chosen))
    return DeviceSteps(
        host=host.name,
        name=device.name,
        seconds=tuple(end - start for start, end in found),
        found_by=found_by,
        kinds=kinds,
        account=account,
    )


def middle(found: Sequence[Span]) -> list[Span]:
    """The middle half of some steps by their time, in order; all of fewer than three."""
    ranked = sorted(found, key=lambda span: span[1] - span[0])
    drop = (len(ranked) + 1) // 4 if len(ranked) > 2 else 0
    return sorted(ranked[drop : len(ranked) - drop])


def _account(host: Host, intervals: Sequence[Interval], start: float, end: float) -> Account:
    swept = sweep(intervals, start, end)
    left, waits = swept.gaps, defaultdict(float)
    for what, spans in host.busy.items():
        waits[what] = length(shared(left, spans))
        left = without(left, spans)
    waits[IDLE] = length(left)
    return Account(runs=swept.runs, busy=swept.busy, exposed=swept.exposed, under=swept.under, waits=waits)


def profile_of(
    devices: Sequence[DeviceSteps], *, chip: str = "", clock_hz: float = 0.0, flags: Sequence[str] = ()
) -> Profile:
    """The profile of all devices; flags say what of it is not certain."""
    whole, kinds = Account(), {}
    for device in devices:
        whole.add(device.account, 1.0 / len(devices))
        kinds |= device.kinds
    beside = _beside(whole.under)
    rows = [_row(kinds[key].op, key, whole, beside.get(key, ())) for key in whole.busy]
    rows += [_wait(what, seconds) for what, seconds in whole.waits.items() if seconds > 0.0]
    ranked = sorted(rows, key=lambda op: (-op.exposed_s, op.name))
    return Profile(ops=tuple(ranked), chip=chip, clock_hz=clock_hz, source="trace", flags=tuple(flags))


def _beside(under: dict[tuple[Key, Key], float]) -> dict[Key, tuple[str, ...]]:
    """The ops that run longest beside each transfer."""
    found: defaultdict[Key, list[tuple[float, str]]] = defaultdict(list)
    for (wire, core), seconds in under.items():
        found[wire].append((-seconds, core[1]))
    return {wire: tuple(name for _, name in sorted(each)[:OVERLAPS]) for wire, each in found.items()}


def _row(op: Op, key: Key, whole: Account, beside: tuple[str, ...]) -> Op:
    """The row of an op, whose figures are of one run, with those of a step."""
    count = whole.runs[key]
    return replace(
        op,
        count=count,
        seconds=whole.busy[key],
        exposed_s=whole.exposed[key],
        flops=op.flops * count,
        redone_flops=op.redone_flops * count,
        hbm_bytes=op.hbm_bytes * count,
        wire_bytes=op.wire_bytes * count,
        overlaps_with=beside,
    )


def _wait(what: str, seconds: float) -> Op:
    return Op(name=what, category="input" if what == INPUT else "other", seconds=seconds, exposed_s=seconds)

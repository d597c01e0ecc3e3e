"""A traced step in a few figures: how long it takes and how steadily, what it is made of, and who is slowest."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asap_ray.profile.kinds import Kind
from asap_ray.profile.sweep import COPY, INPUT, WIRE, Key
from asap_ray.profile.trace import DeviceSteps

PARTS = ("compute", "collectives", "copies", "input", "host", "idle")
"""What a step is made of: work of the cores, transfers between devices that nothing hides, moves of data within a
device, waiting for input, for the host's launches and transfers, and for what is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceShare:
    """One device: its median step and the parts of it, in seconds."""

    host: str
    name: str
    step_s: float
    parts: Mapping[str, float]

    @property
    def own_s(self) -> float:
        """Seconds of work that no other device holds up."""
        return self.parts["compute"] + self.parts["copies"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSummary:
    """Steps of all devices.

    A step takes as long as on the device that is slowest in it: `step_s` is the median of these times, `fastest_s` and
    `slowest_s` the ends. `shares` are of the mean step, and add up to 1. `waited_s` is what of the collectives' part
    is the end of an asynchronous one. `skew` is the slowest device's own work over the median device's, less 1.
    """

    steps: int
    found_by: str
    hosts: int
    step_s: float
    fastest_s: float
    slowest_s: float
    shares: Mapping[str, float]
    waited_s: float
    devices: tuple[DeviceShare, ...]
    slowest: str
    skew: float

    @property
    def waiting(self) -> float:
        """The share of the step in which a device's cores do nothing for want of input or of a launch."""
        return self.shares["input"] + self.shares["host"] + self.shares["idle"]


def summarise(devices: Sequence[DeviceSteps]) -> StepSummary:
    """The summary of one device or more."""
    shares = tuple(_device(each) for each in devices)
    turns = min(len(each.seconds) for each in devices)
    times = [max(each.seconds[turn] for each in devices) for turn in range(turns)]
    whole = sum(sum(each.parts.values()) for each in shares)
    slowest = max(shares, key=lambda each: each.own_s)
    usual = statistics.median(each.own_s for each in shares)
    return StepSummary(
        steps=turns,
        found_by=devices[0].found_by,
        hosts=len({each.host for each in devices}),
        step_s=statistics.median(times),
        fastest_s=min(times),
        slowest_s=max(times),
        shares={part: sum(each.parts[part] for each in shares) / whole for part in PARTS},
        waited_s=sum(map(_waited, devices)) / len(devices),
        devices=shares,
        slowest=f"{slowest.name} of {slowest.host}",
        skew=slowest.own_s / usual - 1.0 if usual else 0.0,
    )


def _device(device: DeviceSteps) -> DeviceShare:
    parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    for key, seconds in device.account.exposed.items():
        parts[_part(device.kinds[key])] += seconds
    for what, seconds in device.account.waits.items():
        parts[what] += seconds
    return DeviceShare(host=device.host, name=device.name, step_s=statistics.median(device.seconds), parts=parts)


def _part(kind: Kind) -> str:
    if kind.rank == WIRE:
        return "collectives"
    if kind.rank == INPUT:
        return "input"
    if kind.op.category == "other":
        return "idle"  # a loop or a call between what it runs
    return "copies" if kind.rank == COPY or kind.op.category == "copy" else "compute"


def _waited(device: DeviceSteps) -> float:
    return sum(device.account.exposed[key] for key, kind in device.kinds.items() if _ends(key, kind))


def _ends(key: Key, kind: Kind) -> bool:
    """Whether a row is of an asynchronous collective, whose exposed seconds are the wait at its end."""
    return kind.rank == WIRE and "-start" in key[1]

"""Proxy trials: a smaller job runs in a plan's place where the real size is not to be had, and physics scales it up.

A proxy has fewer layers, or runs on fewer devices of the same kind with as much less of the batch, so that every device
has the same work. The step of the whole is that of the proxy times what the roofline says of both: constants that are
off for both alike cancel. What the proxy cannot show (longer rings, more ranks that wait for each other) is in the
interval, which grows with how far the step is carried.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from asap_ray.hardware import Slice
from asap_ray.plan import AXES, Plan, six
from asap_ray.problem import Problem
from asap_ray.rules import broken

CARRIED = 0.05
"""Standard deviation of the logarithm of a step for each factor e that it is carried by; chosen so that proxies of tiny
with 2 and 4 of 8 layers hold (docs/trials.md), else assumed."""
Ends = tuple[float, float]
SHRUNK = ("data", "fsdp")
"""Axes that give way where there are fewer devices, in turn: they split the batch, and leave each device its work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proxy:
    """How a job is made smaller: to so many layers, or onto another slice of the same chips; None leaves it."""

    layers: int | None = None
    slice: Slice | None = None

    def problem(self, full: Problem) -> Problem:
        """The smaller problem."""
        job, where = full.workload, self.slice or full.slice
        if self.layers is not None:
            job = replace(job, architecture=replace(job.architecture, layers=self.layers))
        job = replace(job, global_batch=job.global_batch * where.devices // full.slice.devices)
        return replace(full, workload=job, slice=where)

    def plan(self, full: Problem, plan: Plan) -> Plan | str:
        """The plan of the smaller problem that stands for one, or why there is none, in one line."""
        here = self.problem(full)
        left = full.slice.devices // here.slice.devices
        dcn, ici = list(plan.dcn), list(plan.ici)
        for sizes, place in ((sizes, AXES.index(axis)) for axis in SHRUNK for sizes in (dcn, ici)):
            shared = math.gcd(left, sizes[place])
            sizes[place] //= shared
            left //= shared
        if left > 1:
            return f"data and fsdp cannot give way {left} times more, which {here.slice.name} needs"
        layout = plan.layout if here.slice == full.slice else ()
        found = replace(plan, dcn=six(dcn), ici=six(ici), layout=layout)
        found = found if found.axes["data"] > 1 else replace(found, zero=0)
        fault = broken(here, found)
        return f"{self.words}: rule {fault[0]}: {fault[1]}" if fault else found

    @property
    def words(self) -> str:
        """What the proxy is, in a few words."""
        told = [f"{self.layers} layers"] if self.layers is not None else []
        return "a proxy of " + " on ".join([*told, *([self.slice.name] if self.slice else [])])


def carried(
    step_s: float, interval_s: tuple[float, float], prices_s: tuple[float, float]
) -> tuple[float, tuple[float, float]]:
    """A proxy's step and interval as the whole's, by what the roofline says of the proxy and of the whole."""
    ratio = prices_s[1] / prices_s[0]
    low, high = (math.log(end / step_s) for end in interval_s)
    more = 1.645 * CARRIED * abs(math.log(ratio))
    step = step_s * ratio
    ends = (step * math.exp(-math.hypot(low, more)), step * math.exp(math.hypot(high, more)))
    return step, ends

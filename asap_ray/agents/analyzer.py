"""The Analyzer: where a profile shows what the roofline did not see, and how far the roofline is off for the rest.

A fault is time that a trial spends beyond what its plan is priced at, laid to a mechanism that other plans may share:

- collectives that nobody predicted, over the mesh axes they run over (a fault of sharding);
- an axis whose traffic takes longer than modelled, at the bytes that were predicted (a slow link);
- kernels of one kind that take longer than priced at one shape (a slow kernel).

What kernels usually take, over what they are priced at, is learnt from trials of other shapes, or else from the other
kernels of the same trial, as for traffic: a price that is off for all plans alike is no fault. All of it is worked out
anew from all trials each time.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from asap_ray.agents.calibrated import step_ratios
from asap_ray.agents.effects import effects
from asap_ray.agents.proposal import GROUPS, grouped
from asap_ray.agents.usual import KERNELS, SHAPE, Parts, Usual
from asap_ray.narrowing import Test
from asap_ray.physics.estimate import TIME_PARTS
from asap_ray.plan import AXES
from asap_ray.problem import Columns, columns_of
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Result

TIMED = ("complete", "pruned")
"""How trials end that have come to a step time."""
SICK = 0.10
"""Share of a step from which excess time is a fault worth steering around."""
SLOWER = 1.5
"""Times what a part usually takes from which it is a fault; `ALONE` where only its own trial says what is usual."""
ALONE = 2.0
TRAFFIC: Mapping[str, str] = {axis: axis for axis in ("tensor", "context", "expert", "fsdp", "pipeline")} | {
    "gradient": "data"
}
"""Parts of a step that are traffic, and the mesh axis whose links they use."""
WITHIN = (0.5, 2.0)
"""How far the price of a part is corrected at most."""
STEADY = 0.02
"""Of a step: seconds that steady the ratio of a small part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mechanism:
    """Something that plans have in common: all of `tests` hold for their columns."""

    name: str
    tests: tuple[Test, ...]

    def holds(self, columns: Columns) -> np.ndarray:
        """Which plans have it [plans]."""
        return np.logical_and.reduce([test.holds(columns) for test in self.tests])


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Time of a trial that its plan is not priced at, with the mechanism it is laid to."""

    kind: str
    mechanism: Mechanism
    trial: int
    seconds: float
    share: float
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """What all trials so far come to.

    `ratios` are what each part of a step takes over what it is priced at [parts], `memory` the same of bytes.
    `penalties` are, for each mechanism with a fault, the mean logarithm of what it costs the plans that have it.
    `expected_s` are steps of all plans as the trials let expect them, in seconds [plans]: by ratios and penalties, and
    by what plans that are alike took beyond those (`effects`). `trials` counts those with a step, which one that was
    ended as clearly slower has too. `evidence` is whose figures these are: a trainer and a compiler; trials of others
    do not count.
    """

    faults: tuple[Fault, ...]
    penalties: Mapping[Mechanism, float]
    ratios: np.ndarray
    memory: float
    trials: int
    evidence: str
    expected_s: np.ndarray


def analyse(pool: Pool, results: Sequence[Result], *, diagnosing: bool = True) -> Analysis:
    """What trials say of a pool; without `diagnosing` of their profiles only how far steps are off on the whole."""
    evidence = next((each.evidence for each in reversed(results) if each.status in (*TIMED, "infeasible")), "")
    timed = [each for each in results if each.status in TIMED and each.evidence == evidence and each.roofline]
    told = [each for each in timed if each.status == "complete"]  # the others ended before they had a profile
    faults = list(_faults(told)) if diagnosing else []
    penalties = _penalties(pool, told, faults)
    ratios = _ratios(timed, faults) if diagnosing else np.full(len(TIME_PARTS), _whole(timed))
    return Analysis(
        faults=tuple(faults),
        penalties=penalties,
        ratios=ratios,
        memory=_memory(results, evidence),
        trials=len(timed),
        evidence=evidence,
        expected_s=_expected(pool, [each for each in told if diagnosing and _parted(each)], ratios, penalties),
    )


def _expected(
    pool: Pool, told: Sequence[Result], ratios: np.ndarray, penalties: Mapping[Mechanism, float]
) -> np.ndarray:
    """Steps of all plans, in seconds [plans]; `told` are trials that tell the parts of their step.

    Others say nothing of effects: what their steps take beyond their price may be any part's.
    """

    def corrected(parts: np.ndarray, columns: Columns) -> np.ndarray:
        steps = parts @ ratios
        for mechanism, penalty in penalties.items():
            steps = np.where(mechanism.holds(columns), steps * math.exp(penalty), steps)
        return steps

    steps = corrected(pool.parts, pool.columns)
    if not told:
        return steps
    columns = columns_of(pool.problem, [each.candidate.plan for each in told])
    priced = [each.roofline.time_parts for each in told if each.roofline]
    known = corrected(np.array([[each[name] for name in TIME_PARTS] for each in priced]), columns)
    return steps * np.exp(effects(pool, columns, np.log([each.step_time_s for each in told] / known)))


def _parted(result: Result) -> bool:
    """Whether a trial tells the parts of its step."""
    return bool(result.estimate and result.roofline and result.estimate.time_parts)


def _faults(told: Sequence[Result]) -> Iterator[Fault]:
    """The faults of each trial, its costliest first."""
    parts = {each.candidate.number: Parts.of(each) for each in told}
    usual = Usual([each for each in parts.values() if each])
    for each in told:
        found = list(_unpredicted(each))
        if (here := parts[each.candidate.number]) is not None:
            slow = [*_slow_axes(here, sum(fault.seconds for fault in found)), *_slow_kernels(here, usual)]
            found += [fault for fault in slow if fault.share > SICK]
        yield from sorted(found, key=lambda fault: -fault.seconds)


def _unpredicted(result: Result) -> Iterator[Fault]:
    seen = result.observation
    if seen is None:
        return
    for each in seen.unpredicted:
        wires = [wire for wire in seen.wires if wire.need == each.need]
        exposed, sent = sum(wire.exposed_s for wire in wires), sum(wire.wire_bytes for wire in wires)
        seconds = exposed * min(each.wire_bytes / sent, 1.0) if sent else 0.0
        mechanism = in_use(each.axes)
        if mechanism and seconds > SICK * (result.step_time_s or 0.0):
            words = (
                f"{each.category} over {each.over} that the plan does not need: {each.wire_bytes / 1e9:.3g} GB a "
                f"device, {seconds:.3g} s of the step"
            )
            yield _fault("unpredicted collectives", mechanism, result, seconds, words)


def _slow_axes(here: Parts, explained_s: float) -> Iterator[Fault]:
    """Axes whose traffic shows for more than it is priced at and than what nobody predicted explains."""
    result, usual = here.result, here.beside()
    avoidable = result.observation.avoidable.exposed_s if result.observation else 0.0
    for part, axis in TRAFFIC.items():
        seen, priced = here.seen[part], usual * here.priced[part]
        excess = seen - priced - explained_s - (avoidable if part in ("fsdp", "gradient") else 0.0)
        mechanism = in_use((axis,))
        if mechanism is None or result.candidate.plan.axes[axis] == 1 or seen < ALONE * priced:
            continue
        words = f"traffic over {axis} shows for {seen:.3g} s, where {here.priced[part]:.3g} s are modelled"
        yield _fault("slow link", mechanism, result, excess, words)


def _slow_kernels(here: Parts, usual: Usual) -> Iterator[Fault]:
    """Kinds of kernels that take longer than usual at the shapes of this plan."""
    for part in KERNELS:
        seen, priced, elsewhere = here.seen[part], here.priced[part], usual.elsewhere(part, here.shape)
        known, times = (here.beside(part), ALONE) if elsewhere is None else (elsewhere, SLOWER)
        if priced <= 0 or seen < times * known * priced:
            continue
        words = f"{part} kernels take {seen:.3g} s, {seen / priced:.2f} times their price{_op(here.result)}"
        yield _fault("slow kernel", _shaped(part, here.shape), here.result, seen - known * priced, words)


def _op(result: Result) -> str:
    """The op that costs most, with where it stands in the model."""
    top = result.observation.top[0] if result.observation and result.observation.top else None
    return f"; the costliest op is {top.name}{f' at {top.source}' if top.source else ''}" if top else ""


def _fault(kind: str, mechanism: Mechanism, result: Result, seconds: float, words: str) -> Fault:
    step = result.step_time_s or 1.0
    text = f"{words} ({seconds / step:.0%} of it); {mechanism.name}"
    return Fault(
        kind=kind,
        mechanism=mechanism,
        trial=result.candidate.number,
        seconds=seconds,
        share=seconds / step,
        text=text,
    )


def in_use(axes: Sequence[str]) -> Mechanism | None:
    """That all of some mesh axes are in use; None for no axis."""
    tests = tuple(Test(field=axis, comparison=">", values=(1,)) for axis in AXES if axis in axes)
    return Mechanism(name=f"plans with {' and '.join(t.field for t in tests)} above 1", tests=tests) if tests else None


def _shaped(part: str, shape: Sequence[int]) -> Mechanism:
    sizes = dict(zip(SHAPE, shape, strict=True))
    words = ", ".join(f"{name} {size}" for name, size in sizes.items())
    tests = tuple(Test(field=name, comparison="in", values=(size,)) for name, size in sizes.items())
    return Mechanism(name=f"{part} at {words}", tests=tests)


def _penalties(pool: Pool, told: Sequence[Result], faults: Sequence[Fault]) -> dict[Mechanism, float]:
    """What each mechanism costs on average: a trial that has it and is well counts as nothing."""
    if not faults:
        return {}
    columns = columns_of(pool.problem, [each.candidate.plan for each in told])
    lost: dict[Mechanism, defaultdict[int, float]] = {}
    for fault in faults:
        lost.setdefault(fault.mechanism, defaultdict(float))[fault.trial] += fault.seconds
    return {
        mechanism: statistics.fmean(
            _penalty(each.step_time_s, seconds[each.candidate.number])
            for each, has in zip(told, mechanism.holds(columns), strict=True)
            if has and each.step_time_s
        )
        for mechanism, seconds in lost.items()
    }


def _penalty(step_s: float, lost_s: float) -> float:
    """The logarithm of what a fault makes of a step."""
    return math.log(step_s / max(step_s - lost_s, 0.05 * step_s))


def _whole(told: Sequence[Result]) -> float:
    """What a whole step takes over its price, the median."""
    ratios = [each.step_time_s / each.roofline.step_time_s for each in told if each.step_time_s and each.roofline]
    return statistics.median(ratios) if ratios else 1.0


def _ratios(timed: Sequence[Result], faults: Sequence[Fault]) -> np.ndarray:
    """What each part takes over its price, of all trials that tell their parts, without their faults [parts]."""
    full = [each for each in timed if _parted(each)]
    if not full:
        return step_ratios(timed)
    sick = {fault.trial for fault in faults}
    full = [each for each in full if each.candidate.number not in sick] or full
    seen = [grouped(each.estimate.time_parts) for each in full if each.estimate]
    priced = [grouped(each.roofline.time_parts) for each in full if each.roofline]
    whole, steady = _whole(full), STEADY * sum(each.roofline.step_time_s for each in full if each.roofline)
    of_group = {  # a part too small to say anything is off as the whole is
        group: (sum(each[group] for each in seen) + steady * whole) / (sum(each[group] for each in priced) + steady)
        for group in GROUPS
    }
    within = {group: min(max(ratio, WITHIN[0]), WITHIN[1]) for group, ratio in of_group.items()}
    names = {name: group for group, parts in GROUPS.items() for name in parts}
    return np.array([within[names[name]] for name in TIME_PARTS])


def _memory(results: Sequence[Result], evidence: str) -> float:
    """What a plan needs over what it is priced at, the median; 1 before any trial says."""
    ratios = [
        each.hbm_bytes / each.roofline.hbm_bytes
        for each in results
        if each.hbm_bytes and each.roofline and each.evidence == evidence
    ]
    return statistics.median(ratios) if ratios else 1.0

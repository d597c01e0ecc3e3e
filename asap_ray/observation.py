"""What a profile shows of a step, whoever made it: a compiler's schedule today, a device's trace as well.

- Ops are ranked by what they add to the step: the seconds in which nothing hides them.
- An op's use of the matrix units and of HBM is its FLOPs and bytes over its own seconds at the datasheet's peaks.
- Redundant work is what is done beyond the model's own FLOPs: what is marked as recomputed, held against what the
  policy is priced to recompute; what kernels do once more inside themselves; what a pipeline's ranks do in ticks that
  bring them no micro-batch; and whatever else forward and backward do too much, which nothing asked for.
- What collectives send is held against what the plan must move (`physics.wire`), byte by byte. An all-reduce of which
  each rank reads its own part alone serves as a reduce-scatter: what it sends beyond one is avoidable, not unpredicted.
- The step's place is 0 at its floor and 1 where nothing would overlap; above 1 it is sick.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from asap_ray.physics.estimate import Estimate
from asap_ray.physics.wire import predicted_collectives
from asap_ray.plan import AXES, Plan
from asap_ray.problem import Problem
from asap_ray.profile.table import COLLECTIVES, Moved, Op, Profile

TOP = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class CostlyOp:
    """Ops of one name and place: what they take of the step.

    `seconds` are of all executions; of these `exposed_s` lie on the critical path, `share` of the step. `mxu` and `hbm`
    are achieved over peak while they run.
    """

    name: str
    category: str
    phase: str
    source: str
    count: float
    seconds: float
    exposed_s: float
    share: float
    mxu: float
    hbm: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Wire:
    """All collectives of one kind over the same mesh axes at one level of the network.

    `serves_as` is the kind that would do in their place, or nothing; `predicted` says whether the plan must move
    anything in the way that is needed of them.
    """

    category: str
    axes: tuple[str, ...]
    level: str
    wire_bytes: float
    seconds: float
    exposed_s: float
    predicted: bool
    serves_as: str = ""

    @property
    def over(self) -> str:
        """The axes in words."""
        return axes_words(self.axes)

    @property
    def need(self) -> tuple[str, tuple[str, ...], str]:
        """What is needed of them, as `Unpredicted` and `physics.wire` name it."""
        return self.serves_as or self.category, self.axes, self.level


@dataclass(frozen=True, kw_only=True, slots=True)
class Unpredicted:
    """Bytes that a device sends beyond what the plan must move in this way."""

    category: str
    axes: tuple[str, ...]
    level: str
    wire_bytes: float

    @property
    def over(self) -> str:
        """The axes in words."""
        return axes_words(self.axes)

    @property
    def need(self) -> tuple[str, tuple[str, ...], str]:
        """What `Wire.need` is of the collectives in question."""
        return self.category, self.axes, self.level


@dataclass(frozen=True, kw_only=True, slots=True)
class Avoidable:
    """What all-reduces cost beyond the reduce-scatters that they serve as: bytes that a device sends, seconds on its
    links, and of the step. `compiler` is whose doing it is."""

    compiler: str
    wire_bytes: float = 0.0
    seconds: float = 0.0
    exposed_s: float = 0.0


def axes_words(axes: Iterable[str]) -> str:
    """Mesh axes in words."""
    return "+".join(axes) or "unknown axes"


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What a profile shows of a step.

    `seconds` shares the step among the kinds of op on its path, `resources` among what they wait for: the matrix units,
    HBM, the links at either level, in a trace input, or nothing (`host`). `mxu` and `hbm` are achieved over peak.
    `flops` are of all devices by phase, as a model's own are counted, `redone_flops` what kernels do besides;
    `model_flops` are the model's own, and `policy_flops` what the recomputation policy is priced to add. `unpredicted`
    are the collectives that move more than the plan must, by enough to matter, the most bytes first. `memory` is bytes
    of a device by part, `buffers` the largest at the peak. `doubts` say what of the profile is not certain.
    `idle_ticks` are a pipeline's ticks without a micro-batch over those with one, where its ranks compute in them all
    the same, and `layer_flops` the model's own in its layers, which is what they compute.
    """

    source: str
    step_time_s: float
    floor_s: float
    serial_s: float
    seconds: Mapping[str, float]
    resources: Mapping[str, float]
    mxu: float
    hbm: float
    top: tuple[CostlyOp, ...]
    wires: tuple[Wire, ...]
    unpredicted: tuple[Unpredicted, ...]
    avoidable: Avoidable
    flops: Mapping[str, float]
    redone_flops: float
    model_flops: float
    policy_flops: float
    memory: Mapping[str, float]
    buffers: tuple[tuple[str, float], ...] = ()
    doubts: tuple[str, ...] = ()
    idle_ticks: float = 0.0
    layer_flops: float = 0.0

    @property
    def place(self) -> float:
        """Where the step lies between its floor (0) and its serial time (1)."""
        return (self.step_time_s - self.floor_s) / max(self.serial_s - self.floor_s, 1e-12)

    @property
    def recomputed(self) -> float:
        """FLOPs marked as recomputed for some micro-batch, over the model's own."""
        return self.flops.get("recompute", 0.0) / (1.0 + self.idle_ticks) / self.model_flops

    @property
    def idle(self) -> float:
        """FLOPs of layers in a pipeline's idle ticks, recomputed ones too, over the model's own."""
        return self.idle_ticks * (self.layer_flops / self.model_flops + self.recomputed)

    @property
    def surplus(self) -> float:
        """FLOPs that are neither the model's own nor recomputed nor of idle ticks, over the model's own."""
        return sum(self.flops.values()) / self.model_flops - 1.0 - self.recomputed - self.idle

    @property
    def redundant(self) -> float:
        """All FLOPs beyond the model's own besides what kernels do again inside themselves, over the model's own."""
        return self.recomputed + self.idle + max(self.surplus, 0.0)


def observe(profile: Profile, problem: Problem, estimate: Estimate, memory: Mapping[str, float]) -> Observation:
    """What a profile shows of the step of a plan.

    Args:
        profile: of one device.
        problem: what was profiled.
        estimate: of the plan; its floor, serial time and policy are the measure.
        memory: bytes of a device by part.
    """
    chip, step = problem.slice.chip, profile.step_time_s
    peak = chip.peak_flops[_peak_of(problem, estimate.plan)] / chip.devices_per_chip
    rates = (peak, chip.device_hbm_bytes_per_s)
    own, devices = problem.workload.model_flops, problem.slice.devices
    predicted = predicted_collectives(problem, estimate.plan)
    return Observation(
        source=profile.source,
        step_time_s=step,
        floor_s=estimate.floor_s,
        serial_s=estimate.serial_s,
        seconds=_seconds(profile.ops, step),
        resources=_resources(profile.ops, step, rates),
        mxu=profile.mxu_use(peak),
        hbm=profile.hbm_use(chip.device_hbm_bytes_per_s),
        top=costly(profile.ops, step, rates),
        wires=wires(profile.ops, predicted),
        unpredicted=unpredicted(profile, predicted),
        avoidable=Avoidable(
            compiler="XLA:TPU" if chip.kind == "tpu" else "XLA:GPU",
            wire_bytes=profile.avoidable_wire_bytes,
            seconds=profile.avoidable_s,
            exposed_s=profile.avoidable_exposed_s,
        ),
        flops={phase: devices * each for phase, each in profile.by("phase", "flops").items()},
        redone_flops=devices * profile.total("redone_flops"),
        model_flops=own,
        policy_flops=estimate.redundant * own,
        memory=dict(memory),
        buffers=profile.largest,
        doubts=profile.flags,
        idle_ticks=_idle_ticks(problem, estimate.plan),
        layer_flops=own - 3.0 * problem.workload.flops_by_part().get("head", 0.0),
    )


def _idle_ticks(problem: Problem, plan: Plan) -> float:
    """Ticks without a micro-batch over those with one, where a pipeline is one loop that all ranks run to its end."""
    return (plan.axes["pipeline"] - 1) / (plan.accumulation * plan.virtual) if problem.stack.holds_all else 0.0


def _peak_of(problem: Problem, plan: Plan) -> str:
    return plan.precision if plan.precision in problem.slice.chip.peak_flops else "bf16"


def _seconds(ops: Iterable[Op], step: float) -> dict[str, float]:
    """The critical path by kind of op; what no op fills is idle."""
    found: dict[str, float] = {}
    for op in ops:
        kind = "collectives" if op.category in COLLECTIVES else "host" if _waits(op) else op.category
        found[kind] = found.get(kind, 0.0) + op.exposed_s
    idle = step - sum(found.values())
    ranked = dict(sorted(found.items(), key=lambda pair: -pair[1]))
    return ranked | ({"idle": idle} if idle > 1e-9 * step else {})


def _resources(ops: Iterable[Op], step: float, rates: tuple[float, float]) -> dict[str, float]:
    """The critical path by what it waits for: an op waits for HBM where it keeps that busier than the matrix units."""
    found: dict[str, float] = dict.fromkeys(("compute", "hbm", "ici", "dcn", "host"), 0.0)
    for op in ops:
        if op.category in COLLECTIVES:
            found[op.level if op.level in found else "ici"] += op.exposed_s
        elif op.category == "input":
            found["input"] = found.get("input", 0.0) + op.exposed_s
        elif _waits(op):
            found["host"] += op.exposed_s
        else:
            found["hbm" if op.hbm_bytes / rates[1] > _work(op) / rates[0] else "compute"] += op.exposed_s
    return found | {"host": found["host"] + max(step - sum(found.values()), 0.0)}


def _waits(op: Op) -> bool:
    """Whether the device does nothing in it: what a host needs to launch a step is an op as well."""
    return op.category == "other" and not (op.flops or op.hbm_bytes)


def costly(ops: Iterable[Op], step: float, rates: tuple[float, float]) -> tuple[CostlyOp, ...]:
    """The ops that add most to a step, those of one source line, category and phase together.

    `rates` are the peaks of a device: FLOP/s and bytes/s of HBM.
    """
    groups: dict[tuple[str, str, str, tuple[str, ...]], list[Op]] = {}
    for op in ops:
        key = (op.source or op.name, op.category, op.phase, tuple(op.axes))
        groups.setdefault(key, []).append(op)
    found = [_costly(group, step, rates) for group in groups.values()]
    return tuple(sorted(found, key=lambda each: (-each.exposed_s, each.name))[:TOP])


def _costly(group: list[Op], step: float, rates: tuple[float, float]) -> CostlyOp:
    first = max(group, key=lambda op: op.exposed_s)
    seconds, exposed = sum(op.seconds for op in group), sum(op.exposed_s for op in group)
    return CostlyOp(
        name=first.name,
        category=first.category,
        phase=first.phase,
        source=first.source,
        count=sum(op.count for op in group),
        seconds=seconds,
        exposed_s=exposed,
        share=exposed / step,
        mxu=sum(map(_work, group)) / rates[0] / seconds if seconds else 0.0,
        hbm=sum(op.hbm_bytes for op in group) / rates[1] / seconds if seconds else 0.0,
    )


def _work(op: Op) -> float:
    return op.flops + op.redone_flops


def wires(ops: Iterable[Op], predicted: Moved) -> tuple[Wire, ...]:
    """Collectives by kind, axes and level, the most exposed first."""
    groups: dict[tuple[str, str, tuple[str, ...], str], list[Op]] = {}
    for op in ops:
        if op.category in COLLECTIVES:
            axes = tuple(axis for axis in AXES if axis in op.axes)
            groups.setdefault((op.category, op.serves_as, axes, op.level), []).append(op)
    found = [
        Wire(
            category=category,
            axes=axes,
            level=level,
            wire_bytes=sum(op.wire_bytes for op in group),
            seconds=sum(op.seconds for op in group),
            exposed_s=sum(op.exposed_s for op in group),
            predicted=(serves_as or category, axes, level) in predicted,
            serves_as=serves_as,
        )
        for (category, serves_as, axes, level), group in groups.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.exposed_s, -each.wire_bytes, each.category, each.axes)))


def unpredicted(profile: Profile, predicted: Moved) -> tuple[Unpredicted, ...]:
    """What collectives send beyond what a plan must move, where that is enough to matter, the most first."""
    found = [
        Unpredicted(category=category, axes=axes, level=level, wire_bytes=sent)
        for (category, axes, level), sent in profile.unexpected(predicted).items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.wire_bytes, each.category, each.axes)))


def read_observation(fields: Mapping[str, Any]) -> Observation:
    """An observation from plain values, as `dataclasses.asdict` and JSON leave it."""
    top = tuple(CostlyOp(**each) for each in fields["top"])
    found = tuple(Wire(**{**each, "axes": tuple(each["axes"])}) for each in fields["wires"])
    beyond = tuple(Unpredicted(**{**each, "axes": tuple(each["axes"])}) for each in fields["unpredicted"])
    avoidable = Avoidable(**fields["avoidable"])
    buffers = tuple((str(name), float(size)) for name, size in fields["buffers"])
    doubts = tuple(fields["doubts"])
    read = {"top": top, "wires": found, "unpredicted": beyond, "avoidable": avoidable}
    return Observation(**{**fields, **read, "buffers": buffers, "doubts": doubts})

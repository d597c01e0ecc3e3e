"""What passes between asap_ray and another project: a job read from its config, and a plan written as one.

A reader says what the file states of the model, the shape and the plan, in our words, together with what it leaves to
the project's defaults, what it could only read approximately, and what was not read. `plan_of` then makes the plan on a
slice: it fills in the axis that takes the devices which are left, lays the ranks and works out the micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from asap_ray.architecture import Architecture
from asap_ray.errors import ConfigError, nearest, shown
from asap_ray.plan import AXES, Plan, six
from asap_ray.problem import Problem, batch_shards

REST = -1
"""The size of an axis that takes the devices which the other axes leave."""
INSIDE_OUT = ("tensor", "context", "fsdp", "data", "pipeline")
"""Axes from neighbouring ranks outwards, where a trainer lays ranks by itself: Megatron's order tp-cp-dp-pp."""
PADDING = 0.01
"""Share by which a vocabulary may differ from the model's: trainers pad it so that it divides, or cut padding off."""
LIKELY = 0.93
"""Likeness from which an unknown name is taken for a slip, and not for a setting that is not read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Foreign:
    """A job as the config of another project states it.

    `stacks` are ours that its plans are of. `preset` is a model of conf/model that it names, `model` a mapping as such
    a file holds, where the config and the project's defaults say all that is needed. `claims` are fields of an
    architecture (dotted) that the file itself states, each with its own name for them and the value.

    The global batch is stated, or follows from the `per_device` sequences of a step. `inside` has sizes of mesh axes
    within a slice and `across` between slices; where `across` is None, `inside` has total sizes and ranks are laid by
    `INSIDE_OUT`. One axis of each may be `REST`. Of `micro_batch` and `accumulation` one is known. `chunk_layers` are
    the layers of each pipeline chunk, where the file does not say how many chunks a stage has, and `less_layers` the
    layers for which its first and last chunk count besides, rounded up where they do not come out even; None where they
    must. `knobs` are the others of a plan.
    """

    project: str
    stacks: tuple[str, ...]
    key: str
    path: str
    preset: str = ""
    model: Mapping[str, Any] | None = None
    claims: Mapping[str, tuple[str, object]] = field(default_factory=dict)
    seq_len: int | None = None
    global_batch: int | None = None
    per_device: Fraction | None = None
    precision: str = "bf16"
    inside: Mapping[str, int] = field(default_factory=dict)
    across: Mapping[str, int] | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    chunk_layers: int | None = None
    less_layers: int | None = None
    knobs: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def error(self, rule: str) -> ConfigError:
        """The error that names the file and says what is wrong with it."""
        return ConfigError(self.key, self.path, rule)

    def batch_on(self, devices: int) -> int | None:
        """Sequences of a step on that many devices; None where the file does not say.

        Raises:
            ConfigError: they do not come out whole.
        """
        if self.global_batch is not None or self.per_device is None:
            return self.global_batch
        batch = self.per_device * devices
        if batch < 1 or batch.denominator != 1:
            raise self.error(
                f"{float(self.per_device):g} sequences a device are {float(batch):g} on {devices} devices; "
                "allowed: a whole number of sequences"
            )
        return int(batch)

    def differences(self, architecture: Architecture) -> list[str]:
        """What the file states of the model and an architecture has otherwise, each in a few words."""
        found = []
        for name, (theirs, value) in self.claims.items():
            ours = _value_at(architecture, name)
            padded = name == "vocab" and abs(int(str(value)) - ours) <= PADDING * ours
            if ours != value and not padded:
                found.append(f"{theirs} is {shown(value)} here and {shown(ours)} there")
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A plan as a config of another project: files by name, and what of the plan that project has no word for."""

    project: str
    files: Mapping[str, str]
    cannot: Mapping[str, str] = field(default_factory=dict)


def _value_at(owner: Any, name: str) -> Any:
    """The value at a dotted name, None where something on the way is not there."""
    for part in name.split("."):
        owner = getattr(owner, part, None)
    return owner


def slips(names: Iterable[str], known: Iterable[str]) -> str:
    """The first unknown name that looks like a slip of a known one, with that one; empty where there is none."""
    import difflib

    known = tuple(known)
    taken = frozenset(known)
    for name in names:
        if name not in taken and difflib.get_close_matches(name, known, n=1, cutoff=LIKELY):
            return f"{shown(name)} is not known; {nearest(name, known)}".strip()
    return ""


def plan_of(foreign: Foreign, problem: Problem) -> Plan:
    """The plan that a config stands for on a slice, without a layout; whether it is legal is not looked at.

    Raises:
        ConfigError: its mesh or its batch does not fill the slice, or the stack has no such policy.
    """
    ici, dcn = _mesh(foreign, problem)
    sizes = {axis: ici[axis] * dcn[axis] for axis in AXES}
    shards = int(batch_shards(problem.stack, sizes))
    batch = problem.workload.global_batch
    known, what = foreign.micro_batch or foreign.accumulation or 1, "micro-batches"
    other, rest = divmod(batch, shards * known)
    if rest or not other:
        what = f"micro-batches of {known}" if foreign.micro_batch else f"{known} micro-batches"
        raise foreign.error(f"{batch} sequences do not divide into {what} on each of {shards} batch shards")
    micro, accumulation = (known, other) if foreign.micro_batch else (other, known)
    knobs = {"precision": problem.workload.precision, **foreign.knobs, **_chunks(foreign, problem, sizes["pipeline"])}
    plan = Plan(
        ici=six(ici[axis] for axis in AXES),
        dcn=six(dcn[axis] for axis in AXES),
        micro_batch=micro,
        accumulation=accumulation,
        **knobs,
    )
    if plan.remat not in problem.stack.remat_names:
        names = ", ".join(problem.stack.remat_names)
        raise foreign.error(f"recomputation {plan.remat}: stack={problem.stack.name} has {names}")
    if plan.axes["tensor"] == 1:
        plan = replace(plan, sequence_parallel=False)
    return plan


def _chunks(foreign: Foreign, problem: Problem, stages: int) -> dict[str, object]:
    """The schedule and chunks of a stage, where they follow from the layers of a chunk."""
    if foreign.chunk_layers is None or stages == 1:
        return {}
    layers = problem.workload.architecture.layers
    chunks, rest = divmod(layers, stages * foreign.chunk_layers)
    if foreign.less_layers is not None:
        chunks, rest = divmod(math.ceil((layers + foreign.less_layers) / foreign.chunk_layers), stages)
    if rest or not chunks:
        raise foreign.error(f"{layers} layers do not go into {stages} stages in chunks of {foreign.chunk_layers}")
    single = str(foreign.knobs.get("schedule", "1f1b"))
    return {"virtual": chunks, "schedule": "interleaved" if chunks > 1 else single}


def _mesh(foreign: Foreign, problem: Problem) -> tuple[dict[str, int], dict[str, int]]:
    """Sizes inside and across by axis."""
    where = problem.slice
    counted = [axis for axis in AXES if axis != "expert" or problem.stack.expert_multiplies]
    if foreign.across is not None:
        ici = _filled(foreign, foreign.inside, counted, where.ici_devices, f"inside {where.name}")
        dcn = _filled(foreign, foreign.across, counted, where.slices, f"across {where.name}")
        return ici, dcn
    totals = _filled(foreign, foreign.inside, counted, where.devices, f"in {where.name}")
    return laid(problem, totals)


def laid(problem: Problem, totals: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Sizes inside and across where ranks fill a slice or NVLink domain from the inside out (`INSIDE_OUT`)."""
    inside: dict[str, int] = dict.fromkeys(AXES, 1)
    across, room = dict(totals), problem.slice.ici_devices
    for axis in INSIDE_OUT:
        inside[axis] = math.gcd(across[axis], room)
        across[axis] //= inside[axis]
        room //= inside[axis]
    ranks = inside["context"] * inside["fsdp"] * inside["data"]
    inside["expert"] = math.gcd(totals["expert"], ranks)
    across["expert"] = totals["expert"] // inside["expert"]
    return inside, across


def _filled(
    foreign: Foreign, given: Mapping[str, int], counted: Iterable[str], room: int, place: str
) -> dict[str, int]:
    sizes = {axis: given.get(axis, 1) for axis in AXES}
    open_axes = [axis for axis, size in sizes.items() if size == REST]
    if len(open_axes) > 1:
        raise foreign.error(f"{' and '.join(open_axes)} are both {REST}; allowed: one that takes what is left")
    product = math.prod(sizes[axis] for axis in counted if sizes[axis] != REST)
    if open_axes:
        sizes[open_axes[0]] = max(room // product, 1)
        product *= sizes[open_axes[0]]
    if product != room:
        told = " × ".join(f"{axis} {sizes[axis]}" for axis in counted if sizes[axis] > 1) or "every axis 1"
        raise foreign.error(f"its mesh is {told}; there are {room} devices {place}")
    return sizes

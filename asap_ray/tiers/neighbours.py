"""What one step on each axis and knob would do to a plan: the nearest legal plans, priced.

A step on a mesh axis takes the next size there is; one other axis gives way, and the micro-batch, ZeRO, schedule and
sequence parallelism follow as they must. The fastest such plan stands for the step. A step on a knob changes that
knob alone (and the accumulation with the micro-batch).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from asap_ray.duplicates import duplicate
from asap_ray.narrowing import Narrowing, fixed
from asap_ray.physics.estimate import Neighbour
from asap_ray.physics.roofline import Pricer
from asap_ray.plan import AXES, SCHEDULES, Plan, Six
from asap_ray.problem import Columns, Problem, batch_shards, columns_of, usable_axes
from asap_ray.rules import RULES, broken
from asap_ray.space import MESH_BLOCK, PlanColumns, Space, divisors
from asap_ray.tiers.roofline import Roofline

SAME = ("remat", "precision", "attention")
Score = tuple[bool, float]  # whether it does not fit, seconds: a plan that fits is a better neighbour than a faster one


@dataclass(frozen=True, kw_only=True, slots=True)
class Near(Narrowing):
    """Open on meshes that lie one step away: an axis has its target's size, and at most one other has changed."""

    axes: Mapping[str, int]
    targets: tuple[tuple[int, int], ...]

    @property
    def reads(self) -> frozenset[str]:
        """The sizes of all axes."""
        return frozenset(AXES)

    def open(self, columns: Columns) -> np.ndarray:
        """Which rows stay open [plans]."""
        alike = np.array([columns[axis] == size for axis, size in self.axes.items()])
        near = [(columns[AXES[axis]] == size) & _one_other(alike, axis) for axis, size in self.targets]
        return np.logical_or.reduce(near) if near else np.zeros(alike.shape[1], bool)


def _one_other(alike: np.ndarray, axis: int) -> np.ndarray:
    """Where at most one axis but this one differs [plans]; `alike` says which are as they were [axes, plans]."""
    return alike.sum(axis=0) - alike[axis] >= len(AXES) - 2


def neighbours(tier: Roofline, space: Space, plan: Plan) -> list[Neighbour]:
    """Every plan one step away from a legal one, axes first."""
    return [*_axes(tier, space, plan), *_knobs(tier, plan)]


def _axes(tier: Roofline, space: Space, plan: Plan) -> list[Neighbour]:
    targets = list(_targets(space, plan))
    found: dict[tuple[int, int], tuple[Score, Plan]] = {}
    pricer = Pricer(tier.problem, tier.calibration)
    near = Near(name="near", tests=(), keep=True, author="asap_ray", reason="", axes=plan.axes, targets=tuple(targets))
    for rows in space.narrowed(*fixed(tier.problem, {name: getattr(plan, name) for name in SAME}), near).chunks():
        alike = np.array([rows[axis] == size for axis, size in plan.axes.items()])
        for target in targets:
            axis, size = target
            picked = rows.take((rows[AXES[axis]] == size) & _one_other(alike, axis))
            if len(picked):
                _keep(found, target, space, picked, pricer)
    estimates = dict(zip(found, tier.estimates([each for _, each in found.values()]), strict=True))
    return [
        Neighbour(
            field=AXES[axis],
            value=str(size),
            estimate=estimates.get((axis, size)),
            reason="" if (axis, size) in estimates else _why_not(space, plan, axis, size),
        )
        for axis, size in targets
    ]


def _keep(
    found: dict[tuple[int, int], tuple[Score, Plan]],
    target: tuple[int, int],
    space: Space,
    rows: PlanColumns,
    pricer: Pricer,
) -> None:
    prices = pricer.price(rows)
    over = prices.hbm_bytes > pricer.problem.hbm_limit_bytes
    best = int(np.lexsort((prices.step_time_s, over))[0])
    score = bool(over[best]), float(prices.step_time_s[best])
    if target not in found or score < found[target][0]:
        found[target] = (score, space.plan(rows, best))


def _targets(space: Space, plan: Plan) -> Iterator[tuple[int, int]]:
    for axis in usable_axes(space.problem):
        sizes = np.array(space.meshes.sizes(axis))
        here = plan.axes[axis]
        for size in (*sizes[sizes < here][-1:], *sizes[sizes > here][:1]):
            yield AXES.index(axis), int(size)


def _why_not(space: Space, plan: Plan, axis: int, size: int) -> str:
    """The rule that stands in the way: the one at which the last of the plans that would do is lost."""
    problem, tried = space.problem, list(_candidates(space, plan, axis, size))
    if not tried:
        return f"{problem.slice.name} has no mesh of this size with at most one other axis changed"
    columns = columns_of(problem, tried)
    alive = np.ones(len(tried), bool)
    for rule in RULES:
        kept = alive & rule.holds(problem, columns)
        if not kept.any():
            return rule.why(problem, tried[int(np.argmax(alive))])
        alive = kept
    return "no legal plan with at most one other axis changed"


def _candidates(space: Space, plan: Plan, axis: int, size: int) -> Iterator[Plan]:
    """Plans on each mesh that would do, with the knobs that may follow at every value."""
    stack, batch = space.problem.stack, space.problem.workload.global_batch
    for ici, dcn in _near_meshes(space, plan, axis, size):
        moved = replace(plan, ici=ici, dcn=dcn, layout=())
        axes = moved.axes
        shards = batch_shards(stack, axes)
        stages = [s for s in stack.schedules if (s == "none") == (axes["pipeline"] == 1)]
        for micro_batch, schedule, split in itertools.product(
            divisors(batch // shards) if batch % shards == 0 else (plan.micro_batch,),
            stages or ["none"],
            stack.sequence_parallel if axes["tensor"] > 1 else (False,),
        ):
            yield replace(
                moved,
                micro_batch=micro_batch,
                accumulation=max(batch // (shards * micro_batch), 1),
                zero=plan.zero if axes["data"] > 1 else 0,
                schedule=schedule,
                virtual=max(plan.virtual, 2) if schedule == "interleaved" else 1,
                sequence_parallel=split,
            )


def _near_meshes(space: Space, plan: Plan, axis: int, size: int) -> list[tuple[Six, Six]]:
    """ICI and DCN sizes of every mesh, legal or not, with that size and at most one other axis changed."""
    found: dict[tuple[Six, Six], None] = {}
    for start in range(0, len(space.meshes), MESH_BLOCK):
        meshes = space.meshes.take(np.arange(start, min(start + MESH_BLOCK, len(space.meshes))))
        alike = np.array([meshes.columns[name] == here for name, here in plan.axes.items()])
        near = (meshes.columns[AXES[axis]] == size) & _one_other(alike, axis)
        found |= dict.fromkeys(meshes.plan_fields(int(i))[:2] for i in np.flatnonzero(near))
    return list(found)


def _knobs(tier: Roofline, plan: Plan) -> list[Neighbour]:
    steps = list(_knob_steps(tier.problem, plan))
    # A step that changes nothing at all is none.
    again = duplicate(tier.problem, columns_of(tier.problem, [moved for _, _, moved in steps]))
    steps = [step for step, same in zip(steps, again, strict=True) if not same]
    faults = [broken(tier.problem, moved) for _, _, moved in steps]
    legal = [moved for (_, _, moved), fault in zip(steps, faults, strict=True) if fault is None]
    estimates = iter(tier.estimates(legal))
    return [
        Neighbour(
            field=field, value=value, estimate=None if fault else next(estimates), reason=fault[1] if fault else ""
        )
        for (field, value, _), fault in zip(steps, faults, strict=True)
        if fault is None or fault[0] not in ("schedule", "zero", "sequence_parallel")
    ]


def _knob_steps(problem: Problem, plan: Plan) -> Iterator[tuple[str, str, Plan]]:
    stack, total = problem.stack, plan.micro_batch * plan.accumulation
    sizes = divisors(total)
    here = sizes.index(plan.micro_batch)
    for size in (*sizes[max(here - 1, 0) : here], *sizes[here + 1 : here + 2]):
        yield "micro_batch", str(size), replace(plan, micro_batch=size, accumulation=total // size)
    for name in stack.remat_names:
        if name != plan.remat:
            yield "remat", name, replace(plan, remat=name)
    for stage in stack.zero:
        if stage != plan.zero:
            yield "zero", str(stage), replace(plan, zero=stage)
    for schedule in SCHEDULES:
        if schedule != plan.schedule and schedule in stack.schedules:
            virtual = 2 if schedule == "interleaved" else 1
            yield "schedule", schedule, replace(plan, schedule=schedule, virtual=virtual)
    if plan.schedule == "interleaved":
        moved = {virtual: replace(plan, virtual=virtual) for virtual in range(2, stack.max_virtual + 1)}
        legal = [virtual for virtual in moved if virtual == plan.virtual or broken(problem, moved[virtual]) is None]
        here = legal.index(plan.virtual)
        for virtual in (*legal[max(here - 1, 0) : here], *legal[here + 1 : here + 2]):
            yield "virtual", str(virtual), moved[virtual]
    yield (
        "sequence_parallel",
        str(not plan.sequence_parallel).lower(),
        replace(plan, sequence_parallel=not plan.sequence_parallel),
    )
    for kernel in stack.attention:
        if kernel != plan.attention:
            yield "attention", kernel, replace(plan, attention=kernel)

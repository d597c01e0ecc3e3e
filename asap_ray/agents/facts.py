"""What cards are held against: the facts of one trial or estimate, in the vocabulary of `knowledge`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from asap_ray.diagnosis import Diagnosis
from asap_ray.hardware import Slice
from asap_ray.knowledge import Fact
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import AXES, Plan
from asap_ray.problem import Problem
from asap_ray.search.protocol import Result

FROM_DIAGNOSIS = ("bound", "next_wall", "headroom", "overlap", "redundant")
FROM_PLAN = ("micro_batch", "accumulation", "zero", "virtual", "remat", "schedule", "attention", "precision")


def facts_of_result(problem: Problem, result: Result) -> dict[str, Fact]:
    """Facts of a trial: of one that does not fit, memory is what binds it."""
    told = _of_plan(problem, result.candidate.plan)
    if result.status == "infeasible":
        return told | {"bound": "memory"}
    estimate = result.estimate or result.roofline
    if estimate is None or result.diagnosis is None:
        return told
    return told | _of_step(estimate, result.diagnosis)


def _of_step(estimate: Estimate, diagnosis: Diagnosis) -> dict[str, Fact]:
    """What bounds a step, the shares of its parts, and memory."""
    found: dict[str, Fact] = {
        field.name: value
        for field in fields(Diagnosis)
        if field.name in FROM_DIAGNOSIS and (value := getattr(diagnosis, field.name)) is not None
    }
    shares = {f"share.{name}": value / estimate.step_time_s for name, value in estimate.time_parts.items()}
    limit = estimate.hbm_limit_bytes
    return found | shares | ({"hbm": estimate.hbm_bytes / limit} if limit else {})


def _of_plan(problem: Problem, plan: Plan) -> dict[str, Fact]:
    experts = problem.workload.architecture.experts
    sizes: Mapping[str, Fact] = {
        **plan.axes,
        **{f"{axis}_ici": plan.ici[i] for i, axis in enumerate(AXES)},
        **{f"{axis}_dcn": plan.dcn[i] for i, axis in enumerate(AXES)},
    }
    return {
        **sizes,
        **{name: getattr(plan, name) for name in FROM_PLAN},
        "sequence_parallel": str(plan.sequence_parallel).lower(),
        "chip": problem.slice.chip.kind,
        "generation": problem.slice.chip.name,
        **({} if (rings := _wrapped(problem.slice)) is None else {"wrapped": str(rings).lower()}),
        "slices": problem.slice.slices,
        "devices": problem.slice.devices,
        "experts": experts.experts if experts else 0,
        "seq_len": problem.workload.seq_len,
        "tokens": plan.micro_batch * problem.workload.seq_len // plan.axes["context"],
    }


def _wrapped(where: Slice) -> bool | None:
    """Whether all axes of a torus close to rings that are long enough to; None where there is no torus."""
    axes = [axis for axis in where.axes if not axis.on_chip]
    return all(axis.wrap or axis.size <= 2 for axis in axes) if where.chip.fabric == "torus" else None

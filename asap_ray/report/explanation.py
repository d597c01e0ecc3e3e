"""One plan taken apart, for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from asap_ray.report import sentences, units
from asap_ray.report.compiled import tried_blocks
from asap_ray.report.observed import observed_blocks
from asap_ray.report.outline import Block, Grid
from asap_ray.report.summary import estimate_fields, finite, observed_fields, tried_fields
from asap_ray.report.traced import traced_blocks, traced_fields

if TYPE_CHECKING:
    from asap_ray.diagnosis import Diagnosis
    from asap_ray.hardware import Slice
    from asap_ray.observation import Observation
    from asap_ray.physics.estimate import Estimate, Neighbour
    from asap_ray.report.answer import Tried
    from asap_ray.report.traced import Traced
    from asap_ray.workload import Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """A plan's estimate with its diagnosis and its neighbours; `chosen` says how the plan came to be explained.

    `tried` and `observed` are what a compiler said of it and what its program shows, where one was asked; `traced` and
    `traced_observed` a trace of the plan, and that beside the roofline's figures, where one was given.
    """

    model: str
    stack: str
    seed: int
    workload: Workload
    slice: Slice
    chosen: str
    estimate: Estimate
    diagnosis: Diagnosis
    baseline: Estimate | None
    steps: tuple[Neighbour, ...]
    wall_s: float
    versions: Mapping[str, str]
    tried: Tried | None = None
    observed: Observation | None = None
    traced: Traced | None = None
    traced_observed: Observation | None = None


def blocks(told: Explanation) -> Iterator[Block]:
    """What the roofline says of the plan, in the order in which it is read."""
    estimate, diagnosis = told.estimate, told.diagnosis
    yield _plan(told)
    yield _parts("Step time by part", estimate.time_parts, estimate.step_time_s, units.seconds)
    yield _overlap(estimate)
    yield _parts("Memory by part, on the fullest device", estimate.memory_parts, estimate.hbm_bytes, units.gigabytes)
    yield _parts("Floor: the least each resource needs", estimate.floor_parts, estimate.step_time_s, units.seconds)
    facts = [("bound", sentences.bound_line(diagnosis))]
    facts += [("evidence" if i == 0 else "", line) for i, line in enumerate(diagnosis.evidence)]
    facts.append(("next wall", sentences.wall_line(diagnosis)))
    if diagnosis.abstains:
        facts.append(("abstains", diagnosis.abstains))
    yield Block(title="Why", facts=tuple(facts))
    if told.baseline is not None:
        yield Block(title="Against the baseline", facts=_against(estimate, told.baseline))
    if told.steps:
        yield _steps(told)


def closing(told: Explanation, file: str) -> Iterator[Block]:
    """What a compiler said, where one was asked; then where all of it lies as JSON, and what it is worth."""
    note = "priced by the roofline; no trial stands behind these figures"
    if told.tried is not None:
        yield from tried_blocks(told.stack, told.slice, told.tried)
        note = sentences.COMPILED_ONLY
    if told.observed is not None:
        yield from observed_blocks(told.observed)
    if told.traced is not None and told.traced_observed is not None:
        yield from traced_blocks(told.traced)
        yield from observed_blocks(told.traced_observed)
        note = "the trace is measured; all else is priced by the roofline"
    yield Block(facts=(("file", file), ("note", note)))


def explanation_fields(told: Explanation) -> dict[str, Any]:
    """The explanation as one JSON object: the keys of `summary.json` that apply, and every part."""
    estimate = told.estimate
    return finite(
        {
            "task": "explain",
            "model": told.model,
            "hardware": told.slice.name,
            "stack": told.stack,
            "seed": told.seed,
            "chosen": told.chosen,
            "best": estimate_fields(estimate),
            "fits": estimate.fits,
            "hbm_limit_bytes": estimate.hbm_limit_bytes,
            "time_parts_s": estimate.time_parts,
            "busy_s": estimate.busy,
            "memory_parts_bytes": estimate.memory_parts,
            "floor_parts_s": estimate.floor_parts,
            "flops_by_part": told.workload.flops_by_part(),
            "parameters": told.workload.architecture.parameters,
            "diagnosis": asdict(told.diagnosis),
            "compiled": tried_fields(told.tried) if told.tried else None,
            "observed": observed_fields(told.observed),
            "traced": traced_fields(told.traced) | {"observed": observed_fields(told.traced_observed)}
            if told.traced
            else None,
            "baseline": estimate_fields(told.baseline),
            "steps": [_step_fields(step) for step in told.steps],
            "wall_s": told.wall_s,
            "versions": told.versions,
        }
    )


def _step_fields(step: Neighbour) -> dict[str, Any]:
    return {
        "field": step.field,
        "value": step.value,
        "reason": step.reason,
        "fits": step.estimate.fits if step.estimate else None,
        "estimate": estimate_fields(step.estimate),
    }


def _plan(told: Explanation) -> Block:
    estimate = told.estimate
    over = estimate.hbm_bytes - estimate.hbm_limit_bytes
    memory = sentences.memory_line(told.slice, estimate)
    return Block(
        title=f"{told.chosen} on {told.slice.name}",
        strong=True,
        facts=(
            ("plan", estimate.plan.line),
            ("step", sentences.step_line(estimate)),
            ("speed", sentences.speed_line(told.slice, estimate)),
            ("floor", sentences.floor_line(estimate)),
            ("memory", memory if estimate.fits else f"DOES NOT FIT, {units.gigabytes(over)} over: {memory}"),
            ("cost", sentences.cost_line(told.slice, estimate)),
        ),
    )


def _parts(title: str, parts: Mapping[str, float], whole: float, show: Callable[[float], str]) -> Block:
    rows = [(name, show(value), units.percent(value / whole)) for name, value in parts.items() if value > 0]
    return Block(title=title, grid=Grid(header=("part", "amount", "share"), rows=tuple(rows), words=("part",)))


def _overlap(estimate: Estimate) -> Block:
    wires = estimate.busy["ici"] + estimate.busy["dcn"] + estimate.busy["pcie"]
    saved = estimate.serial_s - estimate.step_time_s
    hidden = f"{units.seconds(saved)} of {units.seconds(wires)} of traffic" if wires else "there is no traffic"
    return Block(
        title="What overlaps",
        facts=(
            ("hidden", hidden),
            ("busy", sentences.busy_line(estimate)),
            ("serial", f"{units.seconds(estimate.serial_s)} with nothing hidden"),
        ),
    )


def _against(estimate: Estimate, baseline: Estimate) -> tuple[tuple[str, str], ...]:
    ratio = baseline.step_time_s / estimate.step_time_s
    return (
        ("baseline", baseline.plan.line),
        ("step", f"{units.seconds(baseline.step_time_s)}, {units.times(ratio)} of this plan's"),
        ("memory", f"{units.gigabytes(baseline.hbm_bytes)}{'' if baseline.fits else ', does not fit'}"),
    )


def _steps(told: Explanation) -> Block:
    here = told.estimate
    rows = []
    for step in told.steps:
        change = f"{step.field} {step.value}"
        if step.estimate is None:
            rows.append((change, "-", "-", f"not legal: {step.reason}"))
            continue
        found = step.estimate
        changed = sentences.differences(found.plan, here.plan)
        with_it = [token for token in changed if token.partition("=")[0] != step.field]
        rows.append(
            (
                change,
                f"{found.step_time_s / here.step_time_s - 1:+.1%}",
                units.gigabytes(found.hbm_bytes) + ("" if found.fits else " (does not fit)"),
                " ".join(with_it) or "-",
            )
        )
    header = ("one step to", "step time", "memory", "with it")
    title = "What one step on each axis and knob would do"
    return Block(title=title, grid=Grid(header=header, rows=tuple(rows), words=("one step to", "with it")))

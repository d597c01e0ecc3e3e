"""What makes a plan legal: named rules, each a vectorised test of columns and a sentence for one plan that breaks it.

A rule names the columns it reads (`problem.py` says what they hold); the space applies it as soon as they exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from asap_ray.plan import ATTENTION_KERNELS, AXES, PRECISIONS, SCHEDULES, Plan
from asap_ray.problem import (
    FLASH,
    INTERLEAVED,
    MESH_COLUMNS,
    NONE,
    Columns,
    Problem,
    batch_shards,
    columns_of,
    expert_split,
    usable_axes,
    weight_shards,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A named condition of legality: `holds` tests columns [plans] -> bool [plans], `why` says what one plan breaks."""

    name: str
    reads: frozenset[str]
    holds: Callable[[Problem, Columns], np.ndarray]
    why: Callable[[Problem, Plan], str]


def _sharded_dims(problem: Problem) -> tuple[int, ...]:
    architecture = problem.workload.architecture
    dims = [architecture.ffn.d_ff] if architecture.ffn else []
    if architecture.experts:
        dims.append(architecture.experts.d_ff)
    return tuple(dims)


def _kv_heads_hold(p: Problem, c: Columns) -> np.ndarray:
    heads = p.workload.architecture.attention.kv_heads
    even = heads % c["tensor"] == 0
    return even | (c["tensor"] % heads == 0) if p.stack.replicates_kv else even


def _experts_hold(p: Problem, c: Columns) -> np.ndarray:
    experts = p.workload.architecture.experts
    ok = (experts.experts if experts else 1) % c["expert"] == 0
    if p.stack.expert_multiplies:
        return ok
    inside, across = expert_split(c)
    lies_within = c["context_dcn"] * c["fsdp_dcn"] * c["data_dcn"] % across == 0
    return ok & lies_within & (c["expert_ici"] == inside)


def _stages_hold(p: Problem, c: Columns) -> np.ndarray:
    layers, chunks = p.workload.architecture.layers, c["pipeline"] * c["virtual"]
    return chunks <= layers if p.stack.uneven_layers else layers % chunks == 0


def _microbatches_hold(p: Problem, c: Columns) -> np.ndarray:
    must_fill = (c["schedule"] == INTERLEAVED) | (p.stack.fills_pipeline & (c["pipeline"] > 1))
    return ~must_fill | (c["accumulation"] % c["pipeline"] == 0)


def _zero_hold(p: Problem, c: Columns) -> np.ndarray:
    alone = (c["data"] == 1) | (c["fsdp"] == 1) | (c["zero"] == 0)
    return np.isin(c["zero"], p.stack.zero) & (alone | p.stack.zero_beside_fsdp)


def _sequence_parallel_hold(p: Problem, c: Columns) -> np.ndarray:
    offered = np.isin(c["sequence_parallel"], p.stack.sequence_parallel)
    divides = p.workload.seq_len % (c["context"] * c["tensor"]) == 0
    split = offered & (divides | (c["sequence_parallel"] == 0))
    return np.where(c["tensor"] > 1, split, c["sequence_parallel"] == 0)


def _mesh_holds(p: Problem, c: Columns) -> np.ndarray:
    skip = () if p.stack.expert_multiplies else ("expert",)
    ici = math.prod(c[f"{axis}_ici"] for axis in AXES if axis not in skip)
    dcn = math.prod(c[f"{axis}_dcn"] for axis in AXES if axis not in skip)
    return np.asarray((ici == p.slice.ici_devices) & (dcn == p.slice.slices))


def _axes_hold(p: Problem, c: Columns) -> np.ndarray:
    axes = usable_axes(p)
    return np.asarray(math.prod(c[axis] for axis in AXES if axis not in axes) == 1) & (c["data"] > 0)


def _why_experts(p: Problem, plan: Plan) -> str:
    experts = p.workload.architecture.experts
    size, count = plan.axes["expert"], experts.experts if experts else 1
    if count % size or p.stack.expert_multiplies:
        return f"expert {size} must divide the {count} experts"
    inside, across = (int(n[0]) for n in expert_split(columns_of(p, [plan])))
    ranks = math.prod(plan.dcn[AXES.index(axis)] for axis in ("data", "fsdp", "context"))
    if ranks % across:
        return f"expert {size} must lie within data, fsdp and context in {p.stack.name}, on the nearest of their ranks"
    return f"the nearest ranks of expert {size} are {inside} inside and {across} across: expert={inside}x{across}"


def _why_mesh(p: Problem, plan: Plan) -> str:
    degrees = " × ".join(f"{axis} {size}" for axis, size in plan.axes.items() if size > 1) or "every axis 1"
    return (
        f"{degrees} is ici {math.prod(plan.ici)} × dcn {math.prod(plan.dcn)}; {p.slice.name} has "
        f"{p.slice.ici_devices} devices inside and {p.slice.slices} across"
    )


def _why_precision(p: Problem, plan: Plan) -> str:
    if not p.slice.chip.multiplies(plan.precision):
        return f"{p.slice.chip.name} does not multiply {plan.precision}, only {', '.join(p.slice.chip.peak_flops)}"
    return (
        f"precision {plan.precision} changes numerics: allowed are {', '.join(p.precisions)} "
        "(space.numerics=[precision] opts in)"
    )


def _rule(
    name: str, reads: str, holds: Callable[[Problem, Columns], np.ndarray], why: Callable[[Problem, Plan], str]
) -> Rule:
    return Rule(name=name, reads=frozenset(reads.split()), holds=holds, why=why)


RULES: tuple[Rule, ...] = (
    _rule(
        "axes",
        " ".join(AXES),
        _axes_hold,
        lambda p, plan: f"{p.stack.name} with this model has only the axes {', '.join(usable_axes(p))}",
    ),
    _rule("devices", " ".join(MESH_COLUMNS), _mesh_holds, _why_mesh),
    _rule(
        "heads",
        "tensor",
        lambda p, c: p.workload.architecture.attention.heads % c["tensor"] == 0,
        lambda p, plan: f"tensor {plan.axes['tensor']} does not divide {p.workload.architecture.attention.heads} heads",
    ),
    _rule(
        "kv_heads",
        "tensor",
        _kv_heads_hold,
        lambda p, plan: (
            f"tensor {plan.axes['tensor']} does not divide {p.workload.architecture.attention.kv_heads} key-value heads"
        ),
    ),
    _rule(
        "ffn",
        "tensor",
        lambda p, c: np.logical_and.reduce([d % c["tensor"] == 0 for d in _sharded_dims(p)]),
        lambda p, plan: f"tensor {plan.axes['tensor']} does not divide the feed-forward widths {_sharded_dims(p)}",
    ),
    _rule(
        "sequence",
        "context",
        lambda p, c: (p.workload.seq_len % (c["context"] * p.stack.context_chunks) == 0) | (c["context"] == 1),
        lambda p, plan: (
            f"context {plan.axes['context']} × {p.stack.context_chunks} balanced causal chunks must divide seq_len "
            f"{p.workload.seq_len}"
        ),
    ),
    _rule(
        "experts",
        "expert expert_ici context_ici fsdp_ici data_ici context_dcn fsdp_dcn data_dcn",
        _experts_hold,
        _why_experts,
    ),
    _rule(
        "weights",
        "fsdp context expert",
        lambda p, c: (p.workload.architecture.d_model % weight_shards(p.stack, c) == 0) | (not p.stack.fsdp_divides),
        lambda p, plan: (
            f"{p.stack.name} shards weights along d_model {p.workload.architecture.d_model}, which fsdp (with "
            f"{', '.join(p.stack.shards_weights) or 'no other axis'}) must divide"
        ),
    ),
    _rule(
        "batch",
        "data fsdp expert micro_batch accumulation",
        lambda p, c: batch_shards(p.stack, c) * c["micro_batch"] * c["accumulation"] == p.workload.global_batch,
        lambda p, plan: (
            f"micro_batch {plan.micro_batch} × accumulation {plan.accumulation} × batch shards is not the global batch "
            f"of {p.workload.global_batch} sequences"
        ),
    ),
    _rule(
        "schedule",
        "pipeline schedule",
        lambda p, c: (
            np.isin(c["schedule"], [SCHEDULES.index(s) for s in p.stack.schedules])
            & ((c["pipeline"] == 1) == (c["schedule"] == NONE))
        ),
        lambda p, plan: (
            f"schedule {plan.schedule} with pipeline {plan.axes['pipeline']}: none needs pipeline 1, others more; "
            f"{p.stack.name} has {', '.join(p.stack.schedules)}"
        ),
    ),
    _rule(
        "virtual",
        "schedule virtual",
        lambda p, c: ((c["schedule"] == INTERLEAVED) == (c["virtual"] > 1)) & (c["virtual"] <= p.stack.max_virtual),
        lambda p, plan: (
            f"virtual {plan.virtual}: interleaved needs 2 to {p.stack.max_virtual} chunks a stage, others have 1"
        ),
    ),
    _rule(
        "stages",
        "pipeline virtual",
        _stages_hold,
        lambda p, plan: (
            f"{p.workload.architecture.layers} layers do not split into pipeline {plan.axes['pipeline']} × virtual "
            f"{plan.virtual}"
        ),
    ),
    _rule(
        "microbatches",
        "pipeline schedule accumulation",
        _microbatches_hold,
        lambda p, plan: f"accumulation {plan.accumulation} must be a multiple of pipeline {plan.axes['pipeline']} here",
    ),
    _rule(
        "zero",
        "data fsdp zero",
        _zero_hold,
        lambda p, plan: (
            f"zero {plan.zero}: {p.stack.name} has stages {', '.join(map(str, p.stack.zero))}"
            f"{'' if p.stack.zero_beside_fsdp else ', above 0 only without fsdp'}"
        ),
    ),
    _rule(
        "sequence_parallel",
        "tensor context sequence_parallel",
        _sequence_parallel_hold,
        lambda p, plan: (
            f"sequence_parallel {plan.sequence_parallel}: {p.stack.name} offers {p.stack.sequence_parallel} where "
            f"tensor > 1 (false where it is 1), and context × tensor must divide seq_len {p.workload.seq_len}"
        ),
    ),
    _rule(
        "precision",
        "precision",
        lambda p, c: np.isin(
            c["precision"], [PRECISIONS.index(name) for name in p.precisions if p.slice.chip.multiplies(name)]
        ),
        _why_precision,
    ),
    _rule(
        "attention",
        "context attention",
        lambda p, c: (
            np.isin(c["attention"], [ATTENTION_KERNELS.index(name) for name in p.stack.attention])
            & ((c["attention"] == FLASH) | (c["context"] == 1))
        ),
        lambda p, plan: (
            f"attention {plan.attention}: {p.stack.name} has {', '.join(p.stack.attention)}; context > 1 needs flash"
        ),
    ),
)


def broken(problem: Problem, plan: Plan) -> tuple[str, str] | None:
    """The first rule that a plan breaks, as (name, sentence), or None if it is legal."""
    if plan.remat not in problem.stack.remat_names:
        return "remat", f"remat {plan.remat}: {problem.stack.name} has {', '.join(problem.stack.remat_names)}"
    columns = columns_of(problem, [plan])
    for rule in RULES:
        if not bool(np.all(rule.holds(problem, columns))):
            return rule.name, rule.why(problem, plan)
    return None

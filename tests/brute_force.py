"""Legal plans found the slow way: every combination tried, one at a time, by rules written out in plain Python.

What is legal is read from the stack's own file and from what trainers require, not from `asap_ray.rules`; which ways to
lie on a torus are useful is found by trying all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from asap_ray.plan import ATTENTION_KERNELS, PRECISIONS, SCHEDULES, Plan, Six, six
from asap_ray.problem import Problem
from asap_ray.settings import load_group
from tests.brute_layouts import ORDER, YAML, Factors, splits, useful_layouts

EXPERT = ORDER.index("expert")
CHIPS = load_group("hardware")
TENSORS = {"attn_in", "query", "key_value", "scores", "context", "out", "mlp_in", "gate_up", "act"}
ROUTED = {"router", "expert_in", "expert_gate_up", "expert_act", "expert_out"}


# --- meshes ----------------------------------------------------------------------------------------------------------


def all_meshes(problem: Problem) -> Iterator[tuple[Six, Six, Factors]]:
    """Sizes inside and across and the layout of every mesh that fills the devices, the expert axis included."""
    stack, experts = YAML[problem.stack.name], problem.workload.architecture.experts
    multiplies = stack["expert"] == "multiplies"
    has = [axis in stack["axes"] and (axis != "expert" or experts is not None) for axis in ORDER]
    may_grow = [grows and (axis != "expert" or multiplies) for axis, grows in zip(ORDER, has, strict=True)]
    degrees = range(1, experts.experts + 1) if experts and has[EXPERT] and not multiplies else [1]
    across = splits(problem.slice.slices, may_grow)
    for inside, layouts in useful_layouts(problem, may_grow).items():
        for factors, dcn, degree in itertools.product(layouts, across, degrees):
            yield *with_expert(inside, six(dcn), degree), factors


def with_expert(ici: Six, dcn: Six, degree: int) -> tuple[Six, Six]:
    """The sizes with an expert group of `degree` that takes as many ranks inside as divide what is there."""
    if degree == 1:
        return ici, dcn
    ranks = ici[0] * ici[1] * ici[3]
    near = max(k for k in range(1, degree + 1) if degree % k == 0 and ranks % k == 0)
    return six((*ici[:EXPERT], near, ici[5])), six((*dcn[:EXPERT], degree // near, dcn[5]))


# --- legality --------------------------------------------------------------------------------------------------------


def mesh_is_legal(problem: Problem, ici: Six, dcn: Six) -> bool:
    stack, model, seq_len = YAML[problem.stack.name], problem.workload.architecture, problem.workload.seq_len
    data, fsdp, _, context, expert, tensor = (a * b for a, b in zip(ici, dcn, strict=True))
    for axis, a, b in zip(ORDER, ici, dcn, strict=True):
        if a * b > 1 and (axis not in stack["axes"] or (axis == "expert" and model.experts is None)):
            return False
    multiplies = stack["expert"] == "multiplies"
    own = [i for i in range(6) if i != EXPERT or multiplies]
    if math.prod(ici[i] for i in own) != problem.slice.ici_devices:
        return False
    if math.prod(dcn[i] for i in own) != problem.slice.slices:
        return False
    heads, kv_heads = model.attention.heads, model.attention.kv_heads
    if heads % tensor or (kv_heads % tensor and not (stack["replicates_kv"] and tensor % kv_heads == 0)):
        return False
    if any(block.d_ff % tensor for block in (model.ffn, model.experts) if block):
        return False
    if context > 1 and seq_len % (context * stack["context_chunks"]):
        return False
    if (model.experts.experts if model.experts else 1) % expert:
        return False
    if not multiplies:
        if with_expert(ici, dcn, expert) != (ici, dcn):
            return False
        if dcn[0] * dcn[1] * dcn[3] % dcn[EXPERT] or ici[0] * ici[1] * ici[3] % ici[EXPERT]:
            return False
    shards = {"fsdp": fsdp, "context": context, "expert": expert if multiplies else 1}
    ways = math.prod(shards[axis] for axis in ("fsdp", *stack["shards_weights"]))
    assert data > 0
    return not (stack["fsdp_divides"] and model.d_model % ways)


def batch_is_legal(problem: Problem, sizes: Six, micro_batch: int, accumulation: int) -> bool:
    shards = sizes[0] * sizes[1]
    if YAML[problem.stack.name]["expert"] == "multiplies":
        shards *= sizes[EXPERT]
    return shards * micro_batch * accumulation == problem.workload.global_batch


def pipeline_is_legal(problem: Problem, stages: int, accumulation: int, schedule: str, virtual: int) -> bool:
    stack, layers = YAML[problem.stack.name], problem.workload.architecture.layers
    if schedule not in stack["schedules"] or (schedule == "none") != (stages == 1):
        return False
    if schedule == "interleaved":
        if not 2 <= virtual <= stack["max_virtual"] or accumulation % stages:
            return False
    elif virtual != 1:
        return False
    if stages > 1 and stack["fills_pipeline"] and accumulation % stages:
        return False
    return stages * virtual <= layers and (stack["uneven_layers"] or layers % (stages * virtual) == 0)


def zero_is_legal(problem: Problem, data: int, fsdp: int, zero: int) -> bool:
    stack = YAML[problem.stack.name]
    return zero in stack["zero"] and (zero == 0 or data == 1 or fsdp == 1 or stack["zero_beside_fsdp"])


def sequence_parallel_is_legal(problem: Problem, context: int, tensor: int, on: bool) -> bool:
    if tensor == 1:
        return not on
    divides = problem.workload.seq_len % (context * tensor) == 0
    return on in YAML[problem.stack.name]["sequence_parallel"] and (divides or not on)


def precision_is_legal(problem: Problem, precision: str) -> bool:
    opted_in = "precision" in problem.numerics and precision in YAML[problem.stack.name]["precisions"]
    return precision in CHIPS[problem.slice.chip.name]["peak_flops"] and (
        precision == problem.workload.precision or opted_in
    )


def attention_is_legal(problem: Problem, context: int, attention: str) -> bool:
    return attention in YAML[problem.stack.name]["attention"] and (attention == "flash" or context == 1)


def says_the_same(problem: Problem, data: int, zero: int, attention: str, remat: str) -> bool:
    """Whether a legal plan only repeats another one: ZeRO over one rank, or a policy that keeps what an earlier one
    keeps, of the tensors there are."""
    return (data == 1 and zero > 0) or not first_of_its_kind(problem, attention, remat)


def first_of_its_kind(problem: Problem, attention: str, remat: str) -> bool:
    model, policies = problem.workload.architecture, YAML[problem.stack.name]["remat"]
    there = TENSORS | (ROUTED if model.experts else set())
    if model.experts and not model.dense_layers and not model.experts.shared:
        there -= {"gate_up", "act"}
    if attention == "flash":
        there -= {"scores"}

    def kept(name: str) -> tuple[set[str], set[str], bool]:
        rule = policies[name] or {}
        saved = there if rule.get("saved") == "all" else there & set(rule.get("saved", ()))
        return saved, there & set(rule.get("offloaded", ())), rule.get("offload_input", False)

    earlier = itertools.takewhile(lambda name: name != remat, policies)
    return all(kept(name) != kept(remat) for name in earlier)


def is_legal(problem: Problem, plan: Plan) -> bool:
    """Whether one plan is legal, be it enumerated or said in other words."""
    data, fsdp, stages, context, _, tensor = plan.sizes
    return (
        mesh_is_legal(problem, plan.ici, plan.dcn)
        and batch_is_legal(problem, plan.sizes, plan.micro_batch, plan.accumulation)
        and pipeline_is_legal(problem, stages, plan.accumulation, plan.schedule, plan.virtual)
        and zero_is_legal(problem, data, fsdp, plan.zero)
        and sequence_parallel_is_legal(problem, context, tensor, plan.sequence_parallel)
        and precision_is_legal(problem, plan.precision)
        and attention_is_legal(problem, context, plan.attention)
        and plan.remat in YAML[problem.stack.name]["remat"]
    )


def legal_plans(problem: Problem) -> Iterator[Plan]:
    """Every legal plan that says something of its own: all numbers up to the largest that could do, all names, and none
    left out for being odd."""
    batch, layers = problem.workload.global_batch, problem.workload.architecture.layers
    policies = list(YAML[problem.stack.name]["remat"])
    for ici, dcn, factors in all_meshes(problem):
        if not mesh_is_legal(problem, ici, dcn):
            continue
        sizes = six(a * b for a, b in zip(ici, dcn, strict=True))
        data, fsdp, stages, context, _, tensor = sizes
        for micro_batch, accumulation in itertools.product(range(1, batch + 1), repeat=2):
            if not batch_is_legal(problem, sizes, micro_batch, accumulation):
                continue
            for schedule, virtual in itertools.product(SCHEDULES, range(1, layers + 1)):
                if not pipeline_is_legal(problem, stages, accumulation, schedule, virtual):
                    continue
                for zero, on, precision, attention, remat in itertools.product(
                    [zero for zero in range(4) if zero_is_legal(problem, data, fsdp, zero)],
                    [on for on in (False, True) if sequence_parallel_is_legal(problem, context, tensor, on)],
                    [name for name in PRECISIONS if precision_is_legal(problem, name)],
                    [name for name in ATTENTION_KERNELS if attention_is_legal(problem, context, name)],
                    policies,
                ):
                    if not says_the_same(problem, data, zero, attention, remat):
                        yield Plan(
                            ici=ici,
                            dcn=dcn,
                            layout=factors,
                            micro_batch=micro_batch,
                            accumulation=accumulation,
                            zero=zero,
                            schedule=schedule,
                            virtual=virtual,
                            sequence_parallel=on,
                            remat=remat,
                            precision=precision,
                            attention=attention,
                        )

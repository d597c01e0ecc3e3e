"""Rules of legality: each one explains a plan that breaks it, and one plan is judged as a column of them is."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asap_ray.architecture import Architecture
from asap_ray.duplicates import DUPLICATES, duplicate
from asap_ray.plan import ATTENTION_KERNELS, AXES, KNOBS, PRECISIONS, SCHEDULES, Plan, six
from asap_ray.problem import Problem, columns_of
from asap_ray.rules import RULES, broken
from asap_ray.space import Space
from asap_ray.stack import Remat
from tests.brute_force import is_legal
from tests.problems import DENSE, MIXED, MOE, STACKS, all_plans, make_problem

# DENSE: 6 layers, d_model 24, 6 heads, 2 key-value heads, d_ff 48. MOE: 4 layers, 4 heads, 6 experts of 24.
# A batch of 12 sequences of 24 tokens. Each case: slice, stack, model, line, rule, what the sentence must say.
CASES = [
    ("h100x4", "megatron", DENSE, "fsdp=4 accumulation=3", "axes", "only the axes data, pipeline, context, tensor"),
    ("h100x4", "maxtext", DENSE, "expert=4 accumulation=3", "axes", "data, fsdp, pipeline, context, tensor"),
    ("h100x4", "megatron", DENSE, "data=2 accumulation=6", "devices", "data 2 is ici 2 × dcn 1; h100x4 has 4 devices"),
    ("h100:2x4", "megatron", DENSE, "data=2x4", "devices", "is ici 2 × dcn 4; h100:2x4 has 4 devices inside and 2"),
    ("h100x4", "megatron", DENSE, "accumulation=12", "devices", "every axis 1 is ici 1"),
    ("h100x4", "megatron", DENSE, "tensor=4 accumulation=12", "heads", "tensor 4 does not divide 6 heads"),
    ("h100x3", "megatron", DENSE, "tensor=3 accumulation=12", "kv_heads", "tensor 3 does not divide 2 key-value heads"),
    ("h100x6", "nanotron", DENSE, "tensor=6 accumulation=12", "kv_heads", "tensor 6 does not divide 2 key-value heads"),
    ("h100x8", "megatron", DENSE, "context=8 accumulation=12", "sequence", "context 8 × 2 balanced causal chunks"),
    ("h100x4", "maxtext", MOE, "expert=4 accumulation=3", "experts", "expert 4 must divide the 6 experts"),
    ("h100x4", "megatron", MOE, "pipeline=2 data=2 expert=6", "experts", "must lie within data, fsdp and context"),
    ("h100:3x2", "megatron", MOE, "data=2x3 expert=6", "experts", "are 2 inside and 3 across: expert=2x3"),
    ("h100:3x3", "maxtext", DENSE, "fsdp=3x3", "weights", "d_model 24, which fsdp (with context, expert)"),
    ("h100x4", "megatron", DENSE, "data=4 accumulation=2", "batch", "is not the global batch of 12 sequences"),
    ("h100x4", "maxtext", DENSE, "fsdp=4 micro_batch=2", "batch", "micro_batch 2 × accumulation 1 × batch shards"),
    ("h100x2", "megatron", DENSE, "pipeline=2 accumulation=12", "schedule", "schedule none with pipeline 2"),
    ("h100x2", "megatron", DENSE, "data=2 accumulation=6 schedule=1f1b", "schedule", "none needs pipeline 1"),
    ("h100x2", "megatron", DENSE, "pipeline=2 accumulation=12 schedule=gpipe", "schedule", "none, 1f1b, interleaved"),
    ("h100x2", "megatron", DENSE, "pipeline=2 accumulation=12 schedule=interleaved", "virtual", "2 to 16 chunks"),
    ("h100x2", "megatron", DENSE, "pipeline=2 accumulation=12 schedule=1f1b virtual=3", "virtual", "virtual 3"),
    ("h100x4", "maxtext", DENSE, "pipeline=4 accumulation=12 schedule=gpipe", "stages", "6 layers do not split"),
    ("h100x8", "torchtitan", DENSE, "pipeline=8 accumulation=12 schedule=1f1b", "stages", "6 layers do not split"),
    (
        "h100x3",
        "megatron",
        DENSE,
        "pipeline=3 accumulation=4 micro_batch=3 schedule=interleaved virtual=2",
        "microbatches",
        "accumulation 4 must be a multiple of pipeline 3",
    ),
    ("h100x3", "maxtext", DENSE, "pipeline=3 accumulation=4 micro_batch=3 schedule=gpipe", "microbatches", "4 must be"),
    ("h100x2", "torchtitan", DENSE, "data=2 accumulation=6 zero=1", "zero", "torchtitan has stages 0"),
    ("h100x4", "foundry", DENSE, "data=2 fsdp=2 accumulation=3 zero=2", "zero", "above 0 only without fsdp"),
    (
        "h100x2",
        "megatron",
        DENSE,
        "data=2 accumulation=6 sequence_parallel=true",
        "sequence_parallel",
        "false where it is 1",
    ),
    ("h100x2", "maxtext", DENSE, "tensor=2 accumulation=12", "sequence_parallel", "maxtext offers (True,)"),
    ("h100x2", "megatron", DENSE, "data=2 accumulation=6 precision=fp8", "precision", "space.numerics=[precision]"),
    ("h100x2", "megatron", DENSE, "context=2 accumulation=12 attention=unfused", "attention", "> 1 needs flash"),
    ("h100x2", "torchtitan", DENSE, "data=2 accumulation=6 attention=unfused", "attention", "torchtitan has flash"),
    ("h100x2", "megatron", DENSE, "data=2 accumulation=6 remat=minimal", "remat", "megatron has none, selective, full"),
]


@pytest.mark.parametrize(("slice_", "stack", "model", "line", "rule", "said"), CASES)
def test_a_broken_rule_is_named_and_explained(
    slice_: str, stack: str, model: Architecture, line: str, rule: str, said: str
) -> None:
    problem = make_problem(slice_, stack, model)
    plan = Plan.parse(line if "remat=" in line or stack != "maxtext" else f"{line} remat=full")
    fault = broken(problem, plan)
    assert fault is not None
    assert fault[0] == rule
    assert said in fault[1]
    assert "\n" not in fault[1]
    assert not is_legal(problem, plan)


def test_every_rule_has_a_case_or_cannot_be_the_first_to_break() -> None:
    assert {rule.name for rule in RULES} - {case[4] for case in CASES} == {"ffn"}


def test_feed_forward_widths_must_divide_too() -> None:
    """Heads of 6 and a width of 48 are divided alike, so this one needs a narrower model."""
    model = dataclasses.replace(MIXED, attention=dataclasses.replace(MIXED.attention, heads=5, kv_heads=5))
    fault = broken(make_problem("h100x5", "megatron", model), Plan.parse("tensor=5 accumulation=12"))
    assert fault == ("ffn", "tensor 5 does not divide the feed-forward widths (48, 24)")


@pytest.mark.parametrize("stack", ["megatron", "torchtitan", "maxtext"])
def test_key_value_heads_may_be_replicated_where_the_stack_can(stack: str) -> None:
    """Six ranks share two key-value heads in Megatron (each head on three of them), in no other stack."""
    plan = Plan.parse("tensor=6 accumulation=12 sequence_parallel=true remat=full")
    fault = broken(make_problem("h100x6", stack, batch=12), plan)
    assert (fault is None) == (stack == "megatron")


def test_policies_that_do_the_same_here_count_once() -> None:
    """Without scores (flash) Megatron's `selective` is `none`; with them it is not; a routed layer has no gate_up."""
    problem = make_problem("h100x2", "megatron")
    lines = {
        "data=2 accumulation=6 remat=selective attention=unfused": False,
        "data=2 accumulation=6 remat=selective": True,
        "data=2 accumulation=6 remat=full": False,
        "data=2 accumulation=6 zero=1 remat=full": False,
        "tensor=2 accumulation=12 zero=1 remat=full": True,
    }
    for line, same in lines.items():
        plan = Plan.parse(line)
        # All are legal: a user may name any of them.
        assert broken(problem, plan) is None
        assert bool(duplicate(problem, columns_of(problem, [plan]))[0]) is same
    only_mlp = dataclasses.replace(
        STACKS["megatron"],
        remat=(
            Remat(name="full", saved=frozenset()),
            Remat(name="mlp", saved=frozenset({"gate_up"})),
            Remat(name="host", saved=frozenset(), offloaded=frozenset({"gate_up"})),
            Remat(name="input", saved=frozenset(), offload_input=True),
        ),
    )
    for model, distinct in ((DENSE, {"full", "mlp", "host", "input"}), (MOE, {"full", "input"})):
        found = all_plans(Space(problem=make_problem("h100x2", only_mlp, model, batch=2)))
        assert {plan.remat for plan in found} == distinct


# --- one plan and many -----------------------------------------------------------------------------------------------

PROBLEMS = [
    (slice_, stack, model)
    for slice_ in ("v5e-8", "h100:3x4", "h100:2x2")
    for stack in STACKS
    for model in (DENSE, MOE, MIXED)
]


@cache
def legal(case: int) -> tuple[Problem, list[Plan]]:
    slice_, stack, model = PROBLEMS[case]
    problem = make_problem(slice_, stack, model, batch=24)
    return problem, Space(problem=problem).sample(300, seed=0)


@st.composite
def nearly_legal(draw: st.DrawFn) -> tuple[Problem, list[Plan]]:
    """Legal plans of a problem with up to two fields changed."""
    problem, plans = legal(draw(st.integers(0, len(PROBLEMS) - 1)))
    changed = []
    for _ in range(draw(st.integers(1, 12))):
        plan = draw(st.sampled_from(plans))
        for field in draw(st.lists(st.sampled_from(("ici", "dcn", *KNOBS)), max_size=2)):
            plan = dataclasses.replace(plan, **{field: draw(value_of(problem, field, plan))})
        changed.append(plan)
    return problem, changed


def value_of(problem: Problem, field: str, plan: Plan) -> st.SearchStrategy:
    if field in ("ici", "dcn"):
        sizes = getattr(plan, field)
        moves = st.tuples(st.integers(0, 5), st.sampled_from([1, 2, 3, 4, 6]))
        return moves.map(lambda move: six(move[1] if i == move[0] else size for i, size in enumerate(sizes)))
    names = {
        "schedule": SCHEDULES,
        "remat": problem.stack.remat_names,
        "precision": PRECISIONS,
        "attention": ATTENTION_KERNELS,
    }
    if field in names:
        return st.sampled_from(names[field])
    if field == "sequence_parallel":
        return st.booleans()
    return st.integers(0, 2) if field == "zero" else st.sampled_from([1, 2, 3, 4, 6, 12])


@given(nearly_legal())
def test_one_plan_is_judged_as_in_a_column_and_as_by_hand(case: tuple[Problem, list[Plan]]) -> None:
    problem, plans = case
    columns = columns_of(problem, plans)
    holds = np.array([np.broadcast_to(rule.holds(problem, columns), len(plans)) for rule in RULES])  # [rules, plans]
    for i, plan in enumerate(plans):
        fault = broken(problem, plan)
        assert (fault is None) == holds[:, i].all() == is_legal(problem, plan)
        if fault:
            assert fault[0] == RULES[int(np.argmin(holds[:, i]))].name
            assert fault[1]
            assert "\n" not in fault[1]


def test_a_rule_reads_what_it_says() -> None:
    """A rule must give the same answer from the columns that it names alone."""
    problem, plans = legal(0)
    columns = columns_of(problem, plans)
    for rule in (*RULES, *DUPLICATES):
        few = {name: columns[name] for name in rule.reads}
        np.testing.assert_array_equal(rule.holds(problem, few), rule.holds(problem, columns))
    known = {*AXES, *KNOBS, *(f"{axis}_{level}" for axis in AXES for level in ("ici", "dcn"))}
    assert set().union(*(rule.reads for rule in RULES)) <= known
    assert len({rule.name for rule in RULES}) == len(RULES)

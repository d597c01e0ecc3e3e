"""Command lines of the templates, read back by those who read users' own: each says the plan that it was made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import pytest

from asap_ray.interchange import maxtext, megatron
from asap_ray.interchange.exchange import Foreign, plan_of
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.settings import load_group
from asap_ray.space import Space
from asap_ray.tiers.placeholders import RUN
from asap_ray.tiers.template import fill
from asap_ray.tiers.templates import template_from_mapping
from tests.problems import all_plans, make_problem

Read = Callable[[str, str, Sequence[str]], Foreign | None]
CASES: list[tuple[str, Problem, Read]] = [
    ("maxtext", make_problem("v5e-4", "maxtext", "tiny", batch=8, seq_len=64), maxtext.read_words),
    ("maxtext", make_problem("2xv5e-4", "maxtext", "tiny", batch=8, seq_len=64), maxtext.read_words),
    ("megatron", make_problem("h100x8", "megatron", "tiny", batch=8, seq_len=64), megatron.read_words),
    ("megatron", make_problem("h100:2x4", "megatron", "tiny", batch=8, seq_len=64), megatron.read_words),
]


@pytest.mark.parametrize(
    ("name", "problem", "read"), CASES, ids=lambda each: getattr(each, "slice", None) and each.slice.name
)
def test_words_say_their_plan(name: str, problem: Problem, read: Read) -> None:
    of = template_from_mapping(name, load_group("command")[name])
    plans = all_plans(Space(problem=problem))
    said = [plan for plan in plans if of.refusal(problem, plan) is None]
    assert len(said) > 20
    step = max(len(said) // 300, 1)
    for plan in islice(said, 0, None, step):
        made = fill(of, of.values(problem, plan), dict.fromkeys(RUN, "X"))
        foreign = read("baseline", "run.sh", made.argv)
        assert foreign is not None
        assert foreign.batch_on(problem.slice.devices) == problem.workload.global_batch
        assert bare(plan_of(foreign, problem)) == bare(plan), made.argv


def bare(plan: Plan) -> Plan:
    """Without what no command line says: how axes lie on the links, a ZeRO stage of nothing."""
    return replace(plan, layout=(), zero=plan.zero if plan.axes["data"] > 1 else 0)


def test_what_a_command_cannot_say_is_what_it_has_no_word_for() -> None:
    _, problem, _ = CASES[0]
    problem = replace(problem, stack=replace(problem.stack, zero_beside_fsdp=True))  # as if MaxText had it
    of = template_from_mapping("maxtext", load_group("command")["maxtext"])
    refused = {plan: of.refusal(problem, plan) for plan in all_plans(Space(problem=problem))}
    told = {sentence for sentence in refused.values() if sentence}
    assert told == {"zero=1: command=maxtext has no word for it, and the trainer runs 0"}
    assert all(plan.axes["fsdp"] > 1 for plan, sentence in refused.items() if sentence)

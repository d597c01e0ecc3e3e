"""Narrowing: a mask that keeps exactly the plans a condition describes, says who asked for it, and can be lifted."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asap_ray.errors import ConfigError
from asap_ray.narrowing import NARROWING_FIELDS, fixed, forbidden
from asap_ray.plan import AXES, KNOBS, Plan
from asap_ray.space import Space
from tests.problems import MOE, all_plans, make_problem

MEGATRON = Space(problem=make_problem("h100:2x4", "megatron", MOE, batch=8))
OURS = Space(problem=make_problem("h100x4", "ours", batch=4))
PLANS = all_plans(MEGATRON)


def value(plan: Plan, field: str) -> Any:
    """A field of a plan by the name that conditions use."""
    if field in KNOBS:
        return getattr(plan, field)
    axis, _, level = field.partition("_")
    return getattr(plan, level)[AXES.index(axis)] if level else plan.axes[axis]


CONDITIONS: list[tuple[Mapping[str, Any], Callable[[Plan], bool]]] = [
    ({"tensor": 2}, lambda p: p.axes["tensor"] == 2),
    ({"tensor": "2"}, lambda p: p.axes["tensor"] == 2),
    ({"tensor": [1, 4]}, lambda p: p.axes["tensor"] in (1, 4)),
    ({"data_dcn": 2}, lambda p: p.dcn[0] == 2),
    ({"pipeline_ici": ">1"}, lambda p: p.ici[2] > 1),
    ({"micro_batch": "<=2"}, lambda p: p.micro_batch <= 2),
    ({"accumulation": ">= 4"}, lambda p: p.accumulation >= 4),
    ({"accumulation": "<4"}, lambda p: p.accumulation < 4),
    ({"expert": "!=1"}, lambda p: p.axes["expert"] != 1),
    ({"zero": 0}, lambda p: p.zero == 0),
    ({"virtual": [2, 4]}, lambda p: p.virtual in (2, 4)),
    ({"remat": "full"}, lambda p: p.remat == "full"),
    ({"remat": ["none", "full"]}, lambda p: p.remat in ("none", "full")),
    ({"remat": None}, lambda p: p.remat == "none"),  # what YAML makes of an empty value or ~
    ({"remat": [None, "selective"]}, lambda p: p.remat in ("none", "selective")),
    ({"schedule": "1f1b"}, lambda p: p.schedule == "1f1b"),
    ({"schedule": None}, lambda p: p.schedule == "none"),
    ({"attention": "unfused"}, lambda p: p.attention == "unfused"),
    ({"sequence_parallel": True}, lambda p: p.sequence_parallel),
    ({"sequence_parallel": "false"}, lambda p: not p.sequence_parallel),
    ({"precision": "bf16"}, lambda p: True),
    ({"precision": "fp8"}, lambda p: False),
    ({"tensor": 3}, lambda p: False),
    ({"tensor": [2, 4], "remat": "none"}, lambda p: p.axes["tensor"] in (2, 4) and p.remat == "none"),
    ({"data": ">1", "zero": 1, "micro_batch": 1}, lambda p: p.axes["data"] > 1 and p.zero == 1 and p.micro_batch == 1),
]


@pytest.mark.parametrize(("condition", "matches"), CONDITIONS, ids=lambda c: str(c) if isinstance(c, dict) else "")
def test_fix_keeps_what_matches_and_forbid_drops_it(condition: dict, matches: Callable[[Plan], bool]) -> None:
    kept = MEGATRON.narrowed(*fixed(MEGATRON.problem, condition))
    left = MEGATRON.narrowed(*forbidden(MEGATRON.problem, [condition]))
    assert all_plans(kept) == [plan for plan in PLANS if matches(plan)]
    assert all_plans(left) == [plan for plan in PLANS if not matches(plan)]
    for space, name in ((kept, "fix"), (left, "forbid")):
        survey = space.survey()
        assert survey.total == MEGATRON.total == survey.legal + sum(survey.removed.values())
        assert (name in survey.removed) == (survey.legal < len(PLANS))


def test_several_forbidden_entries_each_drop_their_own() -> None:
    entries = [{"tensor": 4}, {"remat": "none", "attention": "flash"}, {"pipeline": ">2"}]
    space = MEGATRON.narrowed(*forbidden(MEGATRON.problem, entries))
    assert len(space.narrowings) == 3
    expected = [
        plan
        for plan in PLANS
        if plan.axes["tensor"] != 4
        and not (plan.remat == "none" and plan.attention == "flash")
        and plan.axes["pipeline"] <= 2
    ]
    assert all_plans(space) == expected


SIGNS = {"<=": operator.le, ">=": operator.ge, "!=": operator.ne, "<": operator.lt, ">": operator.gt}
NUMBERS = [
    field
    for field in NARROWING_FIELDS
    if field not in ("schedule", "remat", "precision", "attention", "sequence_parallel")
]


@given(
    st.sampled_from(NUMBERS),
    st.one_of(
        st.integers(0, 9),
        st.lists(st.integers(0, 9), min_size=1, max_size=4),
        st.tuples(st.sampled_from(sorted(SIGNS)), st.integers(0, 9)),
    ),
)
def test_any_condition_on_a_number_means_what_it_says(field: str, condition: Any) -> None:
    if isinstance(condition, tuple):
        sign, bound = condition
        text: Any = f"{sign}{bound}"
        expected = [plan for plan in PLANS if SIGNS[sign](int(value(plan, field)), bound)]
    else:
        text, values = condition, condition if isinstance(condition, list) else [condition]
        expected = [plan for plan in PLANS if int(value(plan, field)) in values]
    assert all_plans(MEGATRON.narrowed(*fixed(MEGATRON.problem, {field: text}))) == expected


# --- lifting ---------------------------------------------------------------------------------------------------------


def test_a_lifted_narrowing_gives_the_same_space_back() -> None:
    (tensor,) = fixed(OURS.problem, {"tensor": 2}, author="coordinator")
    (remat,) = forbidden(OURS.problem, [{"remat": "full"}])
    both = OURS.narrowed(tensor, remat)
    assert both.lifted(remat) == OURS.narrowed(tensor)
    assert both.lifted(remat).lifted(tensor) == OURS
    assert all_plans(both.lifted(tensor).lifted(remat)) == all_plans(OURS)
    assert all_plans(both) != all_plans(OURS)


def test_lifting_one_of_two_alike_leaves_the_other() -> None:
    first, second = (fixed(OURS.problem, {"tensor": 2})[0] for _ in range(2))
    assert OURS.narrowed(first, second).lifted(first).narrowings == (second,)


def test_the_order_of_narrowings_does_not_matter() -> None:
    narrowings = [*fixed(OURS.problem, {"tensor": [1, 2], "zero": 0}), *forbidden(OURS.problem, [{"fsdp": 4}])]
    assert all_plans(OURS.narrowed(*narrowings)) == all_plans(OURS.narrowed(*narrowings[::-1]))


def test_a_narrowing_says_who_and_why() -> None:
    (narrowing,) = fixed(OURS.problem, {"tensor": 2})
    assert (narrowing.author, narrowing.reason) == ("user", "space.fix.tensor=2")
    (narrowing,) = forbidden(OURS.problem, [{"remat": "full"}], author="coordinator")
    assert (narrowing.author, narrowing.reason) == ("coordinator", "space.forbid[0]={'remat': 'full'}")


# --- what cannot be meant --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "key", "said"),
    [
        ({"tensr": 8}, "tensr", "did you mean tensor"),
        ({"layout": 1}, "layout", "allowed: data, fsdp"),
        ({"remat": "ful"}, "space.fix.remat=ful", "did you mean full"),
        ({"remat": ["none", "minimal_offload"]}, "space.fix.remat=minimal_offload", "none, selective, full"),
        ({"schedule": "1f2b"}, "space.fix.schedule=1f2b", "did you mean 1f1b"),
        ({"precision": 8}, "space.fix.precision=8", "bf16"),
        ({"attention": ">flash"}, "space.fix.attention=>flash", "flash, unfused"),
        ({"tensor": "eight"}, "space.fix.tensor=eight", "a whole number, a list of them, or a comparison"),
        ({"tensor": -8}, "space.fix.tensor=-8", "a whole number"),
        ({"tensor": 2.5}, "space.fix.tensor=2.5", "a whole number"),
        ({"tensor": float("nan")}, "space.fix.tensor=nan", "a whole number"),
        ({"tensor": 2**40}, "space.fix.tensor=1099511627776", "a whole number"),
        ({"tensor": "²"}, "space.fix.tensor=²", "a whole number"),
        ({"tensor": None}, "space.fix.tensor=null", "a whole number"),
        ({"tensor": []}, "space.fix.tensor=[]", "at least one"),
        ({"tensor": {"min": 2}}, "space.fix.tensor=", "a whole number"),
        ({"tensor": ">=many"}, "space.fix.tensor=many", "a whole number"),
        ({"tensor": [2, ">4"]}, "space.fix.tensor=>4", "a whole number"),
        ({"micro_batch": "=>2"}, "space.fix.micro_batch==>2", "a whole number"),
    ],
)
def test_a_condition_that_means_nothing_is_refused_in_one_line(condition: dict, key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fixed(MEGATRON.problem, condition)
    assert key in str(caught.value)
    assert "space.fix" in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("entry", [{}, "tensor", 8, None, ["tensor"]])
def test_an_entry_of_forbid_is_a_mapping_with_something_in_it(entry: Any) -> None:
    with pytest.raises(ConfigError, match=r"^space\.forbid\[1\]="):
        forbidden(MEGATRON.problem, [{"tensor": 4}, entry])


def test_a_bad_value_in_forbid_names_its_entry() -> None:
    with pytest.raises(ConfigError, match=r"^space\.forbid\[1\]\.remat=ful: .*did you mean full"):
        forbidden(MEGATRON.problem, [{"tensor": 4}, {"remat": "ful"}])


@pytest.mark.parametrize("field", ["tensor", "micro_batch"])
def test_a_flag_is_no_number(field: str) -> None:
    with pytest.raises(ConfigError, match=rf"space\.fix\.{field}=true: allowed: a whole number"):
        fixed(MEGATRON.problem, {field: True})


def test_a_number_is_no_flag() -> None:
    with pytest.raises(ConfigError, match=r"space\.fix\.sequence_parallel=2: allowed: true, false"):
        fixed(MEGATRON.problem, {"sequence_parallel": 2})

"""A plan and its line: what is written can be read back, and what cannot be read says why in one line."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asap_ray.errors import ConfigError
from asap_ray.plan import ATTENTION_KERNELS, AXES, FIELDS, KNOBS, PRECISIONS, SCHEDULES, Plan, six
from asap_ray.space import Space
from tests.problems import MOE, STACKS, all_plans, make_problem

SIZES = st.sampled_from([1, 1, 1, 2, 3, 4, 7, 16, 512, 99_999_999])
EXPERT = AXES.index("expert")
PIECES = ("tensor", "fsdp", "micro_batch", "zero", "=", "@", ".", "x", " ", "1", "2", "8", "0", "-")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans that are well formed, legal or not."""
    ici, layout = [draw(SIZES) for _ in AXES], ()
    if rank := draw(st.sampled_from([0, 2, 3])):
        parts = st.tuples(*[st.sampled_from([1, 1, 2, 3, 16])] * rank)
        layout = tuple(draw(parts) for _ in AXES)
        ici = [math.prod(row) for row in layout]
        if draw(st.booleans()):  # an expert axis that subdivides others has no parts of its own
            layout = (*layout[:EXPERT], (1,) * rank, *layout[EXPERT + 1 :])
        if all(math.prod(row) == 1 for row in layout):
            layout = ()
    return Plan(
        ici=six(ici),
        dcn=six(draw(SIZES) for _ in AXES),
        layout=layout,
        micro_batch=draw(SIZES),
        accumulation=draw(SIZES),
        zero=draw(st.integers(0, 2)),
        schedule=draw(st.sampled_from(SCHEDULES)),
        virtual=draw(SIZES),
        sequence_parallel=draw(st.booleans()),
        remat=draw(st.sampled_from(["none", "full", "save_out_proj"])),
        precision=draw(st.sampled_from(PRECISIONS)),
        attention=draw(st.sampled_from(ATTENTION_KERNELS)),
    )


@given(plans())
def test_a_line_reads_back_as_the_same_plan(plan: Plan) -> None:
    assert "\n" not in plan.line
    again = Plan.parse(plan.line)
    assert again == plan
    assert hash(again) == hash(plan)
    assert again.line == plan.line


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("slice_", ["v5e-1", "v5e-8", "2xv5e-4", "tpu7x-8", "h100:2x4"])
def test_every_plan_of_a_space_has_a_line_of_its_own(slice_: str, stack: str) -> None:
    found = all_plans(Space(problem=make_problem(slice_, stack, MOE, batch=8)))
    assert len({plan.line for plan in found}) == len(found) > 0
    assert [Plan.parse(plan.line) for plan in found] == found


@given(plans(), plans())
def test_plans_are_values(a: Plan, b: Plan) -> None:
    assert (a == b) == (a.line == b.line)
    assert (a < b) + (b < a) + (a == b) == 1
    assert pickle.loads(pickle.dumps(a)) == a


@given(plans())
def test_plain_values_hold_every_knob_and_fit_json(plan: Plan) -> None:
    plain = json.loads(json.dumps(plan.as_dict()))
    assert {knob: plain[knob] for knob in KNOBS} == {knob: getattr(plan, knob) for knob in KNOBS}
    assert [plain.get(axis, 1) for axis in AXES] == list(plan.sizes)
    assert [plain["ici"][axis] * plain["dcn"][axis] for axis in AXES] == list(plan.sizes)
    for axis, parts in plain["layout"].items():
        assert math.prod(parts) == plain["ici"][axis]


def test_lines_as_people_write_them() -> None:
    plan = Plan.parse("fsdp=16@4.4.1 tensor=4@1.1.4 micro_batch=2 accumulation=8 remat=full")
    assert plan.ici == (1, 16, 1, 1, 1, 4)
    assert plan.layout == ((1, 1, 1), (4, 4, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 4))
    assert (plan.micro_batch, plan.accumulation, plan.remat, plan.zero) == (2, 8, "full", 0)
    plan = Plan.parse("  data=1x6   tensor=8\tsequence_parallel=True zero=1 ")
    assert (plan.ici, plan.dcn) == ((1, 1, 1, 1, 1, 8), (6, 1, 1, 1, 1, 1))
    assert plan.sizes == (6, 1, 1, 1, 1, 8)
    assert plan.axes == {"data": 6, "fsdp": 1, "pipeline": 1, "context": 1, "expert": 1, "tensor": 8}
    assert (plan.sequence_parallel, plan.zero, plan.layout) == (True, 1, ())
    assert Plan.parse("") == Plan()
    assert Plan().line == "micro_batch=1 accumulation=1 remat=none"
    mixed = Plan.parse("fsdp=2@2.1x3 tensor=4@1.4 expert=8")
    assert (mixed.ici, mixed.dcn) == ((1, 2, 1, 1, 8, 4), (1, 3, 1, 1, 1, 1))
    assert mixed.layout[EXPERT] == (1, 1)


def test_every_field_has_a_place_in_the_line() -> None:
    assert {field.name for field in fields(Plan)} - {"ici", "dcn", "layout"} == set(KNOBS)
    assert FIELDS == AXES + KNOBS


@pytest.mark.parametrize(
    ("line", "key", "said"),
    [
        ("tensr=8", "plan=tensr=8", "did you mean tensor"),
        ("tensor", "plan.tensor=''", "a positive whole number"),
        ("nonsense", "plan=nonsense", "unknown field"),
        ("fsdp=8x", "plan.fsdp", "a positive whole number"),
        ("fsdp=8@", "plan.fsdp", "a positive whole number"),
        ("tensor=8 tensor=4", "plan=tensor=4", "given twice"),
        ("tensor=0", "plan.tensor=0", "a positive whole number"),
        ("tensor=-2", "plan.tensor=-2", "a positive whole number"),
        ("tensor=2.5", "plan.tensor=2.5", "a positive whole number"),
        ("tensor=nan", "plan.tensor=nan", "a positive whole number"),
        ("tensor=²", "plan.tensor=²", "a positive whole number"),
        ("tensor=9999999999", "plan.tensor=9999999999", "a positive whole number"),
        ("tensor=8xtwo", "plan.tensor=two", "a positive whole number"),
        ("tensor=8@2.2", "plan.tensor=8@2.2", "the parts 2.2 multiply to 4, not to 8"),
        ("tensor=8@2.x4", "plan.tensor=''", "a positive whole number"),
        ("fsdp=4@4.1 tensor=2@2.1.1", "plan=", "a part for each ICI axis"),
        ("fsdp=4@4.1 tensor=2", "plan=", "a part for each ICI axis"),
        ("micro_batch=0", "plan.micro_batch=0", "a positive whole number"),
        ("schedule=1f2b", "plan.schedule=1f2b", "did you mean 1f1b"),
        ("precision=bf61", "plan.precision=bf61", "did you mean bf16"),
        ("attention=flsh", "plan.attention=flsh", "did you mean flash"),
        ("sequence_parallel=yes", "plan.sequence_parallel=yes", "true, false"),
        ("zero=3", "plan.zero=3", "stage 3 is the fsdp axis"),
        ("virtual=", "plan.virtual=''", "a positive whole number"),
    ],
)
def test_a_line_that_cannot_be_read_is_refused_in_one_line(line: str, key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Plan.parse(line)
    assert str(caught.value).startswith(key)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_errors_name_the_key_that_was_read() -> None:
    with pytest.raises(ConfigError, match=r"^baseline\.tensor=0: "):
        Plan.parse("tensor=0", key="baseline")


@given(st.text(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        plan = Plan.parse(text)
    except ConfigError:
        return
    assert Plan.parse(plan.line) == plan

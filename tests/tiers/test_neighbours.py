"""One step on each axis and knob, against a search of the whole space for the best plan of that kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asap_ray.layers import Attention
from asap_ray.physics.calibration import calibration_from_mapping
from asap_ray.physics.estimate import Neighbour
from asap_ray.physics.roofline import Pricer
from asap_ray.plan import AXES, KNOBS, Plan
from asap_ray.problem import Problem, usable_axes
from asap_ray.rules import broken
from asap_ray.settings import load_group
from asap_ray.space import Space
from asap_ray.tasks.running import fastest_layout
from asap_ray.tiers.neighbours import neighbours
from asap_ray.tiers.roofline import Roofline
from tests.problems import DENSE, MOE, all_plans, make_problem

SAME = ("remat", "precision", "attention")


def tier(problem: Problem) -> Roofline:
    kind = problem.slice.chip.kind
    return Roofline(problem=problem, calibration=calibration_from_mapping(kind, load_group("calibration")[kind]))


def steps(problem: Problem, plan: Plan) -> dict[tuple[str, str], Neighbour]:
    found = neighbours(tier(problem), Space(problem=problem), plan)
    assert len({(each.field, each.value) for each in found}) == len(found), "each step once"
    return {(each.field, each.value): each for each in found}


# The last one has a chip so small that some plans do not fit.
CASES = {
    "v5e-8 maxtext": make_problem("v5e-8", "maxtext"),
    "h100:3x2 megatron": make_problem("h100:3x2", "megatron"),
    "h100:2x3 megatron moe": make_problem("h100:2x3", "megatron", MOE),
    "2xv5e-4 torchtitan moe": make_problem("2xv5e-4", "torchtitan", MOE),
    "small chip": make_problem("v5e-8", "maxtext"),
}
SMALL = replace(CASES["small chip"].slice.chip, usable_hbm_bytes=2.1e9)
CASES["small chip"] = replace(CASES["small chip"], slice=replace(CASES["small chip"].slice, chip=SMALL))


@pytest.mark.parametrize("case", CASES)
def test_each_axis_step_is_the_best_plan_with_one_other_axis_changed(case: str) -> None:
    problem = CASES[case]
    legal = all_plans(Space(problem=problem))
    priced = dict(zip(legal, tier(problem).estimates(legal), strict=True))
    for plan in legal[:: len(legal) // 5]:
        found = steps(problem, plan)
        sizes = {axis: sorted({other.axes[axis] for other in legal}) for axis in AXES}
        for axis in usable_axes(problem):
            for size in sizes[axis]:
                near = [
                    other
                    for other in legal
                    if other.axes[axis] == size
                    and sum(other.axes[a] != plan.axes[a] for a in AXES if a != axis) <= 1
                    and all(getattr(other, knob) == getattr(plan, knob) for knob in SAME)
                ]
                step = found.pop((axis, str(size)), None)
                if step is None:
                    continue
                assert step.reason == "" if near else step.reason != ""
                if not near:
                    assert step.estimate is None
                    continue
                prices = [priced[other] for other in near]
                pool = [each for each in prices if each.fits] or prices
                assert step.estimate is not None
                assert step.estimate.step_time_s == pytest.approx(min(each.step_time_s for each in pool))
                assert step.estimate.plan in near
        assert {field for field, _ in found} <= {*KNOBS, *AXES}
        assert all(each.estimate is None for each in found.values() if each.field in AXES), "no legal plan is missed"


@pytest.mark.parametrize("case", CASES)
def test_steps_go_to_the_sizes_next_to_the_plans_own(case: str) -> None:
    problem = CASES[case]
    space = Space(problem=problem)
    plan = all_plans(space)[0]
    found = steps(problem, plan)
    for axis in usable_axes(problem):
        sizes = [int(size) for size in space.meshes.sizes(axis)]
        here = sizes.index(plan.axes[axis])
        expected = {str(size) for size in (*sizes[max(here - 1, 0) : here], *sizes[here + 1 : here + 2])}
        assert {value for field, value in found if field == axis} == expected


@pytest.mark.parametrize("case", CASES)
def test_each_knob_step_changes_that_knob_alone(case: str) -> None:
    problem = CASES[case]
    legal = all_plans(Space(problem=problem))
    for plan in legal[:: len(legal) // 7]:
        for (field, value), step in steps(problem, plan).items():
            if field in AXES:
                continue
            assert (step.estimate is None) == (step.reason != "")
            if step.estimate is None:
                continue
            moved = step.estimate.plan
            assert broken(problem, moved) is None
            assert str(getattr(moved, field)).lower() == value
            follow = {"micro_batch": {"accumulation"}, "schedule": {"virtual"}}.get(field, set())
            changed = {knob for knob in KNOBS if getattr(moved, knob) != getattr(plan, knob)}
            assert field in changed
            assert changed <= {field, *follow}
            assert (moved.ici, moved.dcn, moved.layout) == (plan.ici, plan.dcn, plan.layout)


def reason(problem: Problem, line: str, field: str, value: str) -> str:
    plan = fastest_layout(tier(problem), Plan.parse(line)).plan
    step = steps(problem, plan)[field, value]
    assert step.estimate is None
    return step.reason


def test_the_rule_that_stands_in_the_way_is_told() -> None:
    problem = make_problem("v5e-8", "maxtext")
    line = "fsdp=4 tensor=2 micro_batch=3 accumulation=1 sequence_parallel=true remat=full"
    assert reason(problem, line, "tensor", "4") == "tensor 4 does not divide 6 heads"
    assert reason(problem, line, "fsdp", "8") == (
        "micro_batch 3 × accumulation 1 × batch shards is not the global batch of 12 sequences"
    )
    wide = replace(DENSE, attention=Attention(heads=12, kv_heads=2, head_dim=4))
    assert reason(make_problem("v5e-8", "maxtext", wide), line, "tensor", "4") == (
        "tensor 4 does not divide 2 key-value heads"
    )
    line = "fsdp=2 pipeline=2 tensor=2 micro_batch=3 accumulation=2 schedule=gpipe sequence_parallel=true remat=full"
    assert reason(problem, line, "pipeline", "4").startswith("6 layers do not split into pipeline 4")


def test_the_reason_is_not_an_artefact_of_the_domains() -> None:
    # Two domains of four: tensor 4 × data 2 steps to tensor 8, which must reach across; the heads do not divide.
    problem = make_problem("h100:2x4", "megatron", replace(DENSE, attention=Attention(heads=4, kv_heads=4, head_dim=6)))
    line = "data=1x2 tensor=4 micro_batch=6 accumulation=1 sequence_parallel=true remat=full"
    assert reason(problem, line, "tensor", "8") == "tensor 8 does not divide 4 heads"


def test_an_expert_axis_inside_the_others_needs_no_other_to_give_way() -> None:
    problem = make_problem("h100:2x3", "megatron", MOE)
    line = "data=1x2 pipeline=1 context=3 expert=3 micro_batch=6 accumulation=1 remat=full"
    plan = replace(Plan.parse(line.replace(" pipeline=1", "")))
    found = steps(problem, fastest_layout(tier(problem), plan).plan)
    six = found["expert", "6"]
    assert six.estimate is not None
    assert six.estimate.plan.axes["data"] * six.estimate.plan.axes["context"] == 6


def test_a_mesh_that_is_not_there_is_said() -> None:
    # 30 = data 2 × pipeline 3 × context 5. Context 6 leaves 5 for the other two: both would have to change.
    problem = make_problem("h100:30x1", "megatron", seq_len=240)
    line = "data=1x2 pipeline=1x3 context=1x5 micro_batch=1 accumulation=6 schedule=1f1b remat=full"
    assert reason(problem, line, "context", "6") == (
        "h100:30x1 has no mesh of this size with at most one other axis changed"
    )


def test_stages_are_split_into_the_next_number_of_chunks_that_divides() -> None:
    # 12 layers on 2 stages: 2, 3 and 6 chunks a stage divide, 4 and 5 do not.
    problem = make_problem("h100x4", "maxtext", replace(DENSE, layers=12))
    line = "data=2 pipeline=2 accumulation=6 schedule=interleaved virtual=3 remat=full"
    found = steps(problem, Plan.parse(line))
    assert [value for field, value in found if field == "virtual"] == ["2", "6"]
    assert all(found["virtual", value].estimate for value in ("2", "6"))


def test_only_plans_near_the_given_one_are_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem("v5p-64", "maxtext", MOE, batch=48, seq_len=48)
    legal = all_plans(Space(problem=problem))
    plan = legal[len(legal) // 2]
    near = [
        other
        for other in legal
        if sum(other.axes[axis] != plan.axes[axis] for axis in AXES) <= 2
        and all(getattr(other, knob) == getattr(plan, knob) for knob in SAME)
    ]
    priced: list[int] = []
    price = Pricer.price
    monkeypatch.setattr(Pricer, "price", lambda self, rows: priced.append(len(rows)) or price(self, rows))
    enumerated: list[int] = []
    chunks = Space.chunks
    monkeypatch.setattr(
        Space, "chunks", lambda *given: (enumerated.append(len(rows)) or rows for rows in chunks(*given))
    )
    assert steps(problem, plan)
    assert 0 < sum(enumerated) <= len(near) < len(legal) / 20
    assert sum(priced) <= 2 * len(near) + 100

"""The sweep of a small space, against pricing each of its plans alone and sorting them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from asap_ray.architecture import Architecture
from asap_ray.errors import ConfigError
from asap_ray.executor import local
from asap_ray.layers import Attention, FeedForward
from asap_ray.narrowing import fixed
from asap_ray.physics.calibration import Calibration, calibrations_from_mappings
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.rules import broken
from asap_ray.settings import load_group
from asap_ray.space import Space
from asap_ray.tasks.running import fastest_layout
from asap_ray.tiers.keepers import SAMPLE
from asap_ray.tiers.roofline import Roofline, Sweep
from tests.problems import MOE, all_plans, make_problem

CALIBRATIONS: dict[str, Calibration] = calibrations_from_mappings(load_group("calibration"))
# Large enough that some plans fit on eight chips and some do not.
MIDDLE = Architecture(
    name="middle",
    layers=12,
    d_model=2304,
    vocab=32000,
    attention=Attention(heads=18, kv_heads=6, head_dim=128),
    ffn=FeedForward(d_ff=9216),
)


def tier(problem: Problem) -> Roofline:
    return Roofline(problem=problem, calibration=CALIBRATIONS[problem.slice.chip.kind])


PROBLEMS = {
    "v5e-8 maxtext": make_problem("v5e-8", "maxtext", MIDDLE, batch=32, seq_len=8192),
    "2xv5e-4 maxtext": make_problem("2xv5e-4", "maxtext", MIDDLE, batch=8, seq_len=16384),
    "h100:3x2 megatron": make_problem("h100:3x2", "megatron", MIDDLE, batch=48, seq_len=8192),
    "h100:2x3 megatron moe": make_problem("h100:2x3", "megatron", MOE, batch=12, seq_len=24),
}


@lru_cache
def everything(name: str) -> tuple[Problem, Sweep, list[Estimate]]:
    """A problem, its sweep, and an estimate of each legal plan on a mesh of its own."""
    problem = PROBLEMS[name]
    space = Space(problem=problem)
    return problem, tier(problem).sweep(space, top=25), tier(problem).estimates(all_plans(space))


@pytest.fixture(params=PROBLEMS)
def priced(request: pytest.FixtureRequest) -> tuple[Problem, Sweep, list[Estimate]]:
    return everything(request.param)


def close(a: list[float], b: list[float]) -> bool:
    return len(a) == len(b) and bool(np.allclose(a, b, rtol=1e-12, atol=0))


def test_ranked_are_the_fastest_that_fit(priced: tuple[Problem, Sweep, list[Estimate]]) -> None:
    _, sweep, alone = priced
    fitting = sorted((e for e in alone if e.fits), key=lambda e: e.step_time_s)
    assert close([e.step_time_s for e in sweep.ranked], [e.step_time_s for e in fitting[:25]])
    assert len({e.plan for e in sweep.ranked}) == len(sweep.ranked), "each plan once"
    by_plan = {e.plan: e for e in alone}
    assert all(e.fits and by_plan[e.plan].step_time_s == pytest.approx(e.step_time_s) for e in sweep.ranked)


def test_a_plan_costs_the_same_alone(priced: tuple[Problem, Sweep, list[Estimate]]) -> None:
    problem, _, alone = priced
    for each in alone[:: len(alone) // 11]:
        assert tier(problem).estimates([each.plan]) == [each]


def test_counts_add_up(priced: tuple[Problem, Sweep, list[Estimate]]) -> None:
    problem, sweep, alone = priced
    assert sweep.legal == len(alone)
    assert sweep.fitting == sum(e.fits for e in alone)
    by_rule = sum(count for rule, count in sweep.removed.items() if rule != "memory")
    assert sweep.total == Space(problem=problem).total == sweep.legal + by_rule
    assert sweep.removed.get("memory", 0) == sweep.legal - sweep.fitting
    assert all(sweep.removed.values())


def test_too_big_are_the_nearest_misses_that_would_be_faster(priced: tuple[Problem, Sweep, list[Estimate]]) -> None:
    _, sweep, alone = priced
    best = sweep.ranked[0].step_time_s
    misses = [e for e in alone if not e.fits]
    faster = sorted((e for e in misses if e.step_time_s < best), key=lambda e: (e.hbm_bytes, e.step_time_s))
    if not faster:
        fastest = sorted(misses, key=lambda e: e.step_time_s)[:3]
        assert close([e.step_time_s for e in sweep.too_big], [e.step_time_s for e in fastest])
        return
    # Each next one needs more memory and must be faster than all before it, or it would be no use.
    expected: list[Estimate] = []
    for each in faster:
        if not expected or each.step_time_s < expected[-1].step_time_s:
            expected.append(each)
    assert close([e.hbm_bytes for e in sweep.too_big], [e.hbm_bytes for e in expected[:3]])
    assert close([e.step_time_s for e in sweep.too_big], [e.step_time_s for e in expected[:3]])


def test_leanest_needs_the_least_memory(priced: tuple[Problem, Sweep, list[Estimate]]) -> None:
    _, sweep, alone = priced
    assert sweep.leanest is not None
    assert sweep.leanest.hbm_bytes == pytest.approx(min(e.hbm_bytes for e in alone))


def test_sample_holds_columns_of_real_plans(priced: tuple[Problem, Sweep, list[Estimate]]) -> None:
    _, sweep, alone = priced
    known = {(round(e.step_time_s, 9), round(e.hbm_bytes), e.plan.remat, e.plan.micro_batch) for e in alone}
    columns = (sweep.sample[name] for name in ("step_time_s", "hbm_bytes", "remat", "micro_batch"))
    for step, size, remat, micro_batch in zip(*columns, strict=True):
        assert (round(float(step), 9), round(float(size)), str(remat), int(micro_batch)) in known
    assert len({len(column) for column in sweep.sample.values()}) == 1
    shown, half = int(sweep.sample["fits"].sum()), SAMPLE // 2
    assert shown == sweep.fitting or half / 2 < shown <= half
    assert (sweep.sample["floor_s"] <= sweep.sample["step_time_s"] * (1 + 1e-9)).all()


def test_fits_any_is_whether_a_sweep_finds_one(priced: tuple[Problem, Sweep, list[Estimate]]) -> None:
    problem, _, alone = priced
    assert tier(problem).fits_any(Space(problem=problem)) == any(e.fits for e in alone)
    chip = replace(problem.slice.chip, usable_hbm_bytes=0.99 * min(e.hbm_bytes for e in alone))
    smaller = replace(problem, slice=replace(problem.slice, chip=chip))
    assert not tier(smaller).fits_any(Space(problem=smaller))
    assert tier(smaller).sweep(Space(problem=smaller), top=3).ranked == ()


def test_a_narrowed_space_is_swept_as_far_as_it_is_open() -> None:
    problem = PROBLEMS["v5e-8 maxtext"]
    space = Space(problem=problem, narrowings=fixed(problem, {"tensor": 2, "remat": "full"}))
    sweep = tier(problem).sweep(space, top=5)
    assert {e.plan.axes["tensor"] for e in sweep.ranked} == {2}
    assert {e.plan.remat for e in sweep.ranked} == {"full"}
    assert sweep.removed["fix"] > 0
    assert sweep.legal == len(all_plans(space))


def test_an_empty_space_has_no_plans() -> None:
    problem = PROBLEMS["v5e-8 maxtext"]
    space = Space(problem=problem, narrowings=fixed(problem, {"tensor": 5}))
    sweep = tier(problem).sweep(space, top=5)
    assert (sweep.legal, sweep.ranked, sweep.too_big, sweep.leanest, sweep.sample) == (0, (), (), None, {})


def test_progress_rises_to_the_whole() -> None:
    told: list[float] = []
    problem = PROBLEMS["v5e-8 maxtext"]
    tier(problem).sweep(Space(problem=problem), top=1, progress=told.append)
    assert told
    assert told == sorted(told)
    assert 0 < told[0] <= told[-1] <= 1


def test_best_layout_is_the_fastest_of_all_layouts() -> None:
    problem = make_problem("v5p-32", "maxtext", MIDDLE, batch=64, seq_len=2048)
    line = "fsdp=8 tensor=2 micro_batch=8 accumulation=1 sequence_parallel=true remat=full"
    sizes = Plan.parse(line).sizes
    alike = [p for p in all_plans(Space(problem=problem)) if p.sizes == sizes and replace(p, layout=()).line == line]
    assert len(alike) > 1, "there must be a choice"
    found = fastest_layout(tier(problem), Plan.parse(line))
    assert found.step_time_s == pytest.approx(min(e.step_time_s for e in tier(problem).estimates(alike)))
    slowest = max(tier(problem).estimates(alike), key=lambda e: e.step_time_s)
    assert fastest_layout(tier(problem), slowest.plan) == slowest, "a layout that is named is kept"


def test_an_illegal_plan_is_refused_with_its_rule() -> None:
    problem = PROBLEMS["v5e-8 maxtext"]
    heads = replace(MIDDLE, attention=Attention(heads=24, kv_heads=6, head_dim=96))
    problem = replace(problem, workload=replace(problem.workload, architecture=heads))
    plan = Plan.parse("tensor=8 micro_batch=32 sequence_parallel=true remat=full")
    with pytest.raises(ConfigError, match=r"baseline=tensor=8 .*not legal, rule kv_heads: tensor 8 does not divide 6"):
        fastest_layout(tier(problem), plan, "baseline")


def test_a_sweep_goes_through_a_process() -> None:
    problem = PROBLEMS["h100:3x2 megatron"]
    space = Space(problem=problem)
    job = tier(problem).sweep_job(space, top=4)
    (outcome,) = local.run([replace(job, timeout_s=600.0)], workers=1)
    expected = tier(problem).sweep(space, top=4)
    assert (outcome.value.ranked, outcome.value.removed) == (expected.ranked, expected.removed)


def test_job_and_read_go_through_a_process() -> None:
    problem = PROBLEMS["h100:3x2 megatron"]
    plans = all_plans(Space(problem=problem))[:4]
    assert all(broken(problem, plan) is None for plan in plans)
    job = tier(problem).job(plans)
    assert pickle.loads(pickle.dumps(job.arguments)) == job.arguments
    (outcome,) = local.run([replace(job, timeout_s=600.0)], workers=1)
    assert tier(problem).read(outcome.value) == tier(problem).estimates(plans)

"""Faults that the roofline cannot see are found, named and avoided within two rounds; not without diagnosis."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from asap_ray.agents.analyzer import analyse
from asap_ray.physics.estimate import TIME_PARTS
from asap_ray.plan import Plan
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Candidate, Result, Status
from tests.agents.doubles import Double, Fault, agents, play, resharding, slow_kernel, slow_link, small_pool


@pytest.fixture(scope="module")
def pool() -> Pool:
    return small_pool("v5e-16", model="llama3_8b", batch=128, seq_len=4096)


Sick = Callable[[Plan], bool]
PLANTED: dict[str, tuple[Fault, Sick, str, str]] = {
    "resharding": (
        resharding("fsdp"),
        lambda plan: plan.axes["fsdp"] > 1,
        "unpredicted collectives",
        "all_to_all over fsdp",
    ),
    "link": (
        slow_link("fsdp", "fsdp"),
        lambda plan: plan.axes["fsdp"] > 1,
        "slow link",
        "traffic over fsdp shows for",
    ),
    "kernel": (
        slow_kernel("attention", lambda plan: plan.micro_batch == 4),
        lambda plan: plan.micro_batch == 4,
        "slow kernel",
        "attention kernels take",
    ),
}


def sick(found: list[Result], test: Sick) -> list[bool]:
    return [test(each.candidate.plan) for each in found]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named_and_avoided_within_two_rounds(pool: Pool, name: str) -> None:
    fault, test, kind, words = PLANTED[name]
    searcher = agents(pool, share=0.0)
    found = play(searcher, Double(pool, [fault]), rounds=4)
    told = searcher.drain()
    named = [each.fields for each in told if each.kind == "fault"]
    assert {each["fault"] for each in named} == {kind}
    assert all(words in each["text"] for each in named)
    assert min(each["trial"] for each in named) < 6
    assert any(sick(found[:6], test))
    assert not any(sick(found[6:], test)), "after two rounds no proposal has what is sick"
    closed = next(each.fields for each in told if each.kind == "narrowing")
    assert (closed["author"], closed["keep"]) == ("analyzer", False)
    if name != "kernel":  # that is laid to one shape, which is less than all that is slow
        by_then = 3 * (min(each["trial"] for each in named) // 3 + 1)
        all_ = sum(test(pool.plan(row)) for row in range(len(pool)))
        assert closed["plans"] == all_ - sum(sick(found[:by_then], test))
    assert words in closed["reason"]


@pytest.mark.parametrize("name", PLANTED)
def test_without_diagnosis_it_is_walked_into_again(pool: Pool, name: str) -> None:
    fault, test, *_ = PLANTED[name]
    searcher = agents(pool, share=0.0, diagnosing=False)
    found = play(searcher, Double(pool, [fault]), rounds=4)
    assert any(sick(found[6:], test))
    assert not [each for each in searcher.drain() if each.kind in ("fault", "narrowing")]


@pytest.mark.parametrize("name", ["resharding", "link"])
def test_the_best_plan_is_faster_for_it(pool: Pool, name: str) -> None:
    best = []
    for diagnosing in (True, False):
        searcher = agents(pool, share=0.0, diagnosing=diagnosing)
        found = play(searcher, Double(pool, [PLANTED[name][0]]), rounds=3)
        best.append(min(each.step_time_s or 0.0 for each in found))
    assert best[0] < 0.6 * best[1]


def test_the_sampler_leaves_what_is_closed_alone(pool: Pool) -> None:
    fault, test, *_ = PLANTED["resharding"]
    found = play(agents(pool, share=0.4), Double(pool, [fault]), rounds=5)
    sampled = [each for each in found[6:] if each.candidate.author == "sampler"]
    assert sampled
    assert not any(sick(sampled, test))


def test_a_price_that_is_off_for_all_plans_is_no_fault(pool: Pool) -> None:
    searcher = agents(pool, share=0.0)
    play(searcher, Double(pool, scale=1.9), rounds=3)
    assert not [each for each in searcher.drain() if each.kind in ("fault", "narrowing")]
    assert searcher.analysis.ratios == pytest.approx(1.9)


def test_traffic_that_is_off_as_all_else_is_no_slow_link(pool: Pool) -> None:
    tensor = pool.parts[:, TIME_PARTS.index("tensor")] / pool.step_s
    row = int(np.argmax(tensor))
    assert tensor[row] > 0.2
    candidate = Candidate(number=0, plan=pool.plan(row), author="test")
    off, slow = Double(pool, scale=3.0).one(candidate), Double(pool, [slow_link("tensor", "tensor")]).one(candidate)
    assert analyse(pool, [off]).faults == ()
    assert [each.kind for each in analyse(pool, [slow]).faults] == ["slow link"]


def test_what_is_closed_is_all_that_fits_so_it_stays_open(pool: Pool) -> None:
    # With this much more memory than priced no plan without tensor parallelism fits any more, which has the fault.
    whole = pool.columns["tensor"] == 1
    usable = pool.problem.slice.chip.usable_hbm_bytes
    memory = 1.01 * usable / float(pool.hbm_bytes[whole].min())
    assert (memory * pool.hbm_bytes[~whole] <= usable).sum() > 20
    searcher = agents(pool, share=0.0)
    found = play(searcher, Double(pool, [resharding("tensor")], memory=memory), rounds=4)
    assert len(found) == 12
    assert all(sick(found[3:], lambda plan: plan.axes["tensor"] > 1))
    kinds = [each.kind for each in searcher.drain()]
    assert ("fault" in kinds, "narrowing" in kinds) == (True, False)


def test_memory_is_learnt_where_nothing_has_fit_yet(pool: Pool) -> None:
    searcher = agents(pool, share=0.0)
    usable, memory = pool.problem.slice.chip.usable_hbm_bytes, 1.7
    double = Double(pool, memory=memory, too_big=lambda plan: True)
    first = play(searcher, double, rounds=1)
    assert {each.status for each in first} == {"infeasible"}
    assert searcher.analysis.memory == pytest.approx(memory)
    for each in searcher.ask(3):
        assert memory * float(pool.hbm_bytes[pool.row(each.plan) or 0]) <= usable


def test_a_thousand_trials_are_analysed_in_seconds(pool: Pool) -> None:
    double = Double(pool, [resharding("fsdp")])
    one = [double.one(Candidate(number=n, plan=pool.plan(n), author="test")) for n in range(0, 1000, 20)]
    many = [
        replace(each, candidate=replace(each.candidate, number=20 * n + i))
        for i, each in enumerate(one)
        for n in range(20)
    ]
    begun = time.process_time()
    assert analyse(pool, many).trials == 1000
    assert time.process_time() - begun < 10  # a comparison of each with each takes a minute


def test_a_narrowing_is_lifted_where_what_it_closes_is_the_best_after_all(pool: Pool) -> None:
    searcher = agents(pool, share=0.0)
    faults = [resharding("fsdp")]
    double = Double(pool, faults)
    play(searcher, double, rounds=1)
    assert [each.kind for each in searcher.drain()].count("narrowing") == 1
    # Now all else turns out to be far slower than the fault costs.
    faults.append(slow_link("tensor", "tensor"))
    faults.append(slow_link("tensor", "tensor"))
    faults.append(slow_link("context", "context"))
    faults.append(slow_link("context", "context"))
    play(searcher, double, rounds=4)
    lifted = [each.fields for each in searcher.drain() if each.kind == "lifted"]
    assert lifted
    assert lifted[0]["author"] == "analyzer"
    assert "faster than every other" in lifted[0]["reason"]


def test_trials_of_another_trainer_do_not_count(pool: Pool) -> None:
    found = play(agents(pool, share=0.0), Double(pool, scale=3.0), rounds=1)
    mixed = [replace(found[0], evidence="maxtext"), *(replace(each, evidence="ours") for each in found[1:])]
    assert analyse(pool, mixed).trials == 2
    assert analyse(pool, [*mixed[1:], mixed[0]]).trials == 1


def test_a_trial_that_was_ended_as_slower_tells_its_step_and_no_fault(pool: Pool) -> None:
    """Steps alone, as on a processor: two plans take their price, and one that is mostly gathers is four times slower
    and was ended for it."""
    gathers = pool.parts[:, TIME_PARTS.index("fsdp")] / pool.step_s
    light, heavy = np.argsort(gathers)[[0, 1]], int(np.argmax(gathers))

    def trial(number: int, row: int, times: float, status: Status) -> Result:
        estimate = pool.estimate(row)
        bare = replace(estimate, step_time_s=times * estimate.step_time_s, time_parts={})
        candidate = Candidate(number=number, plan=estimate.plan, author="test")
        return Result(
            candidate=candidate,
            status=status,
            step_time_s=bare.step_time_s,
            evidence="ours",
            estimate=bare,
            roofline=estimate,
        )

    complete = [trial(number, int(row), 1.0, "complete") for number, row in enumerate(light)]
    before = analyse(pool, complete)
    after = analyse(pool, [*complete, trial(2, heavy, 4.0, "pruned")])
    assert (before.trials, after.trials, after.faults) == (2, 3, ())
    assert after.expected_s[heavy] > 1.5 * before.expected_s[heavy]
    assert after.expected_s[light] == pytest.approx(pool.step_s[light], rel=0.2)
    assert analyse(pool, [trial(0, heavy, 4.0, "pruned")], diagnosing=False).ratios == pytest.approx(4.0)

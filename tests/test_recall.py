"""What is recalled, in which order, and how cards rank: by values worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from asap_ray.cases import LONG, Case
from asap_ray.recall import CONTRADICTED, MOST, Recall, Record, Tally, read_recall, recalled, records
from tests.test_cases import CASE, HERE

FAST = replace(CASE, plan="fsdp=32 tensor=2 micro_batch=1 accumulation=8 remat=full", step_time_s=2.2, bound="compute")
LOST = replace(CASE, plan="fsdp=64 micro_batch=8 accumulation=1 remat=full", status="infeasible", step_time_s=None)
WRONG = replace(
    CASE,
    plan="fsdp=16 tensor=4 micro_batch=1 accumulation=8 remat=full",
    step_time_s=2.9,
    by="fsdp_traffic_to_tensor",
    base_bound="ici",
    verdict="refuted",
    told="fsdp is 1 s, 0.2 to 0.5 s predicted",
)


def test_of_one_situation_the_fastest_plan_is_recalled_with_how_it_was_found() -> None:
    found = recalled([CASE, FAST, LOST], HERE)
    best = found.cases[0]
    assert (best.id, best.sort, best.plan, best.name) == (FAST.id, "best", FAST.plan, f"case:{FAST.id}")
    assert best.ratio == pytest.approx(2.2 / 2.0)
    assert best.akin
    assert best.similarity == 0.95  # what bounds the step here is not known
    assert best.text == (
        "llama3_8b (dense, 8.03B), 512 x 4,096 tokens on v5e-64: 2.2 s, the fastest of 3 plans by compile, "
        "bound by compute"
    )
    assert [each.sort for each in found.cases] == ["best", "infeasible"]


def test_trials_of_another_trainer_or_compiler_are_not_held_against_these() -> None:
    other = replace(FAST, evidence="maxtext@1", plan=CASE.plan, step_time_s=1.0)
    assert {each.plan for each in recalled([CASE, FAST, other], HERE).cases} == {FAST.plan, CASE.plan}


def test_a_gain_of_flags_alone_makes_no_plan_the_best() -> None:
    flagged = replace(CASE, bundle="async", step_time_s=1.0)
    (best,) = recalled([CASE, FAST, flagged], HERE).cases
    assert best.id == FAST.id


def test_structure_comes_first_and_words_second() -> None:
    def elsewhere(**change: Any) -> Case:
        return replace(CASE, situation=replace(HERE, **change))

    near, far = elsewhere(devices=128, slice="v5e-128"), elsewhere(devices=256, slice="v5e-256")
    here = replace(CASE, diagnosis="nothing of note")
    twin = replace(CASE, situation=replace(HERE, slice="v5e:8x8"), diagnosis="traffic tensor exposed")
    found = recalled([far, near, here, twin], HERE, query="tensor traffic").cases
    # Twins are as much alike as the case itself: the words of their diagnoses decide.
    assert [each.id for each in found] == [twin.id, here.id, near.id, far.id]
    assert [each.similarity for each in found] == [0.95, 0.95, 0.912, 0.875]  # 0.15 x 1/4 and 0.15 x 1/2 lost


def test_what_is_too_far_off_says_nothing() -> None:
    other = replace(
        CASE, situation=replace(HERE, family="moe", chip="h100", kind="gpu", parameters=4 * HERE.parameters)
    )
    assert recalled([other], HERE).cases == ()  # 1 - 0.05 - 0.25 - 0.20 - 0.10 is 0.40


def test_refuted_ideas_are_remembered_and_the_rankings_figures_are_not() -> None:
    ranking = replace(WRONG, by="ranking")
    found = recalled([WRONG, ranking], HERE).cases
    assert [each.sort for each in found] == ["best", "refuted"]
    assert found[1].by == "fsdp_traffic_to_tensor"
    assert found[1].text.endswith("fsdp_traffic_to_tensor: refuted, fsdp is 1 s, 0.2 to 0.5 s predicted")


def test_no_more_is_recalled_than_a_reader_can_take() -> None:
    many = [replace(CASE, situation=replace(HERE, devices=64 + i, slice=f"v5e-{64 + i}")) for i in range(40)]
    many += [replace(WRONG, situation=each.situation, told="x" * LONG) for each in many]
    many += [replace(WRONG, by=f"card_{i}") for i in range(300)]
    found = recalled(many, HERE, query="x")
    assert [each.sort for each in found.cases] == ["best"] * MOST + ["refuted"] * MOST
    assert len(found.records) == 100
    assert len(json.dumps(found.as_dict())) < 64_000


def test_a_recall_is_read_back_as_it_was_written() -> None:
    found = recalled([CASE, FAST, LOST, WRONG, replace(WRONG, situation=replace(HERE, kind="gpu"))], HERE, "ici")
    assert read_recall(json.loads(json.dumps(found.as_dict()))) == found


def record(cases: list[Case], kind: str = "tpu") -> Record:
    return records(cases, kind)["fsdp_traffic_to_tensor"]


def fared(verdict: str, bound: str = "ici", kind: str = "tpu", times: int = 1) -> list[Case]:
    made = replace(WRONG, verdict=verdict, base_bound=bound, situation=replace(HERE, kind=kind))
    return [replace(made, step_time_s=3.0 + i) for i in range(times)]


def test_the_rank_of_the_module_is_worked_out() -> None:
    cases = [*fared("confirmed"), *fared("refuted", times=2), *fared("no-op"), *fared("confirmed", "hbm", times=2)]
    found = record(cases)
    assert found.here == {
        "ici": Tally(fired=4, confirmed=1, refuted=2, no_op=1),
        "hbm": Tally(fired=2, confirmed=2),
    }
    assert found.rank("ici") == pytest.approx(3 / 7)
    assert found.rank("hbm") == pytest.approx((1 + 2 + 0.5) / (2 + 2 + 2))
    assert found.rank("dcn") == pytest.approx((1 + 0.5 * 3) / (2 + 0.5 * 6))
    # DOUBT is 0.1: a seventh below the half counts 1/70 slower.
    assert found.doubt("ici") == pytest.approx(1 + 0.1 * (1 - 6 / 7))


def test_another_kind_of_chip_counts_a_quarter() -> None:
    cases = [*fared("refuted", kind="gpu", times=4)]
    assert record(cases).elsewhere == Tally(fired=4, refuted=4)
    assert record(cases).rank("ici") == pytest.approx(1 / (2 + 0.25 * 4))
    assert record(cases, kind="gpu").rank("ici") == pytest.approx(1 / 6)


def test_a_trial_that_came_to_no_verdict_fired_and_counts_no_further() -> None:
    found = record([*fared("invalid", times=3), *fared("", times=1)])
    assert found.here == {"ici": Tally(fired=4)}
    assert (found.rank("ici"), found.doubt("ici")) == (0.5, 1.0)


def test_a_record_says_why_it_is_what_it_is() -> None:
    cases = [*fared("confirmed"), *fared("refuted")]
    assert record(cases).text("ici") == (
        "rank 0.50 (on tpu bound by ici: 2 fired, 1 confirmed, 1 refuted, 0 no-op; against it "
        f"case:{cases[1].id}, refuted: fsdp is 1 s, 0.2 to 0.5 s predicted)"
    )
    assert Record(kind="tpu").text("ici") == ""


def test_a_case_that_was_refuted_once_and_never_confirmed_is_contradicted() -> None:
    (best,) = recalled([CASE], HERE).cases
    again = replace(CASE, by=best.name, verdict="refuted", step_time_s=4.0)
    assert recalled([CASE, again], HERE).contradicted(best)
    saved = replace(again, verdict="confirmed", step_time_s=2.41)
    assert not recalled([CASE, again, saved], HERE).contradicted(best)
    assert 1 / 3 < CONTRADICTED < 2 / 5


def test_without_a_memory_nothing_is_recalled_and_no_card_is_doubted() -> None:
    assert recalled([], HERE) == Recall()
    assert Recall().doubt("fsdp_traffic_to_tensor", "ici") == 1.0
    assert Recall().record_text("fsdp_traffic_to_tensor", "ici") == ""


def test_what_was_measured_comes_before_what_was_compiled() -> None:
    measured = replace(CASE, source="run", evidence="ours@1, on v5e-64", step_time_s=2.6)
    proxy = replace(CASE, source="proxy run", evidence="ours@1, on v5e-4, 2 layers", plan=FAST.plan)
    for cases in ([CASE, proxy, measured], [measured, proxy, CASE]):
        found = recalled(cases, HERE, query="compile").cases
        assert found[0].id == measured.id
        assert len(found) == 2
    assert "by proxy run" in next(each.text for each in found if each.id == proxy.id)

"""`tiers=[roofline,compile,run]` from the command line to its files, with a compiler and devices that only pretend."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend

from asap_ray.ledger import Ledger
from asap_ray.plan import Plan
from asap_ray.report.answer import Answer
from asap_ray.report.summary import summary
from asap_ray.tasks import record
from tests.tasks.pretend import Pretend, PretendRun

TINY = (
    "+model=tiny",
    "hardware=v5e-4",
    "run_dir=run",
    "tiers=[roofline,compile,run]",
    "compile.workers=2",
    "stack=ours",
)


SAID = 0.98


def answer(ended: Any) -> dict[str, Any]:
    assert ended.status == 0, ended.err
    return json.loads(ended.out)


def tried(found: Mapping[str, Any], tier: str) -> dict[str, Mapping[str, Any]]:
    return {each["plan"]: each for each in found[tier]["plans"]}


@pytest.fixture
def second_fits(pretend: type[Pretend], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """By the compiler the first and third plan do not fit, and each takes less of its price than those before; returns
    their lines."""
    seen: list[str] = []

    def verdict(plan: Plan, flags: Mapping[str, str]) -> Mapping[str, Any]:
        seen.append(plan.line)
        if len(seen) in (1, 3):
            return {"status": "infeasible", "over_bytes": 2e9}
        return {"step": SAID ** len(seen)}

    monkeypatch.setattr(pretend, "verdict", staticmethod(verdict))
    return seen


def test_what_compiles_fastest_is_run_first_and_what_does_not_fit_never(
    command, pretend_run: type[PretendRun], second_fits: list[str]
) -> None:
    found = answer(command(*TINY, "budget.compile=5", "budget.trials=6", "run.confirm=0", "output=json"))
    compiled, ran = tried(found, "compiled"), tried(found, "searched")
    assert len(second_fits) == 7, found["stop_reason"]  # five that fit are wanted, and two of them do not
    too_big = {second_fits[0], second_fits[2]}
    steps = {line: each["step_time_s"] for line, each in compiled.items() if line not in too_big}
    assert len(steps) == 5
    assert list(ran)[:3] == sorted(steps, key=lambda line: steps[line])[:3]
    assert len(ran) == len(pretend_run.ran) == 6
    assert not too_big & set(pretend_run.ran)
    assert found["searched"]["refused"]["compiler"] == 2
    assert found["best"]["source"] == "run"
    assert found["best"]["step_time_s"] == min(each["step_time_s"] for each in ran.values())
    assert found["trials"] == {"complete": 11, "pruned": 0, "infeasible": 2, "failed": 0, "timeout": 0}
    assert "v5e-4: 5 plans compiled, 2 did not fit: as many as wanted; v5e-4: 6 plans run" in found["stop_reason"]
    assert found["certificate"]["measured"] is True
    assert found["certificate"]["untried"] == found["space"]["fitting"] - 6 - 2


def test_the_first_round_holds_the_compiler_to_what_it_said(
    command, pretend_run: type[PretendRun], second_fits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler is sure to a fifth; its plans take what it said, but for one that takes three times that."""

    def verdict(plan: Plan, flags: Mapping[str, str]) -> Mapping[str, Any]:
        place = second_fits.index(plan.line)
        return {"step": SAID ** (1 + place) * (3.0 if place == 3 else 1.0)}

    monkeypatch.setattr(pretend_run, "verdict", staticmethod(verdict))
    ended = command(*TINY, "budget.compile=3", "budget.trials=3", "run.confirm=0", "output=plain")
    assert ended.status == 0, ended.err
    events = list(Ledger(Path("run")).events())
    proposals = [each for each in events if each["kind"] == "proposal" and each["mechanism"] == "cascade"]
    verdicts = {each["trial"]: each["status"] for each in events if each["kind"] == "verdict"}
    assert len(proposals) == 3
    for each in proposals:
        assert verdicts[each["trial"]] == ("refuted" if each["plan"] == second_fits[3] else "confirmed")
    assert {each["author"] for each in proposals} == {"compile"}
    assert "Compiled for v5e-4:" in ended.out
    (header,) = [line for line in ended.out.splitlines() if "compiler" in line and line.lstrip().startswith("#")]
    assert " ".join(header.split()) == "# step likely roofline compiler memory roofline compiler took plan"
    (off,) = [line for line in ended.out.splitlines() if "(+200.0%)" in line]
    assert second_fits[3] in off
    assert [line.count("(+0.0%)") for line in ended.out.splitlines() if second_fits[1] in line][-1:] != [0]


def test_the_answer_can_be_rebuilt_and_each_tier_has_its_own_trials(
    command, pretend_run: type[PretendRun], second_fits: list[str]
) -> None:
    given = (*TINY, "budget.compile=3", "budget.trials=4", "run.confirm=2", "output=json")
    found = answer(command(*given))
    events = list(Ledger(Path("run")).events())
    rebuilt: Answer = record.answer_of(events, Path("run").absolute())
    assert summary(rebuilt)["searched"] == found["searched"]
    assert summary(rebuilt)["compiled"] == found["compiled"]
    assert summary(rebuilt)["best"] == found["best"]
    numbers = [event["trial"] for event in events if event["kind"] == "proposal"]
    assert numbers == list(range(len(numbers))), (
        "numbered on from tier to tier, also those that the budget left untried"
    )
    (one,) = rebuilt.slices
    assert one.compiled is not None
    assert one.searched is not None
    assert {each.finding.source for each in one.compiled.trials} == {"compile"}
    assert {each.finding.source for each in one.searched.trials} == {"run"}
    assert [each.number for each in one.compiled.rounds] == [1, 2]
    assert [each.number for each in one.searched.rounds] == [1, 2]
    journal = optuna.storages.JournalStorage(JournalFileBackend("run/optuna.journal"))
    assert optuna.get_all_study_names(journal) == ["v5e-4 compile", "v5e-4 run"]
    gains = {each["plan"]: each for each in found["searched"]["confirmed"]}
    assert len(gains) == 4 - (found["searched"]["plans"][0]["plan"] in list(gains)[1:])
    told = command("task=show", "run_dir=run", "output=plain").out
    assert "Once more on v5e-4, alone and in turns:" in told
    assert json.loads(command("task=show", "run_dir=run", "output=json").out)["hardware"][0]["confirmed"]


def test_nothing_is_tried_twice_after_a_kill_between_the_tiers(
    command, pretend: type[Pretend], pretend_run: type[PretendRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (*TINY, "budget.compile=3", "budget.trials=4", "run.confirm=0", "output=json")

    def killed(plan: Plan, flags: Mapping[str, str]) -> Mapping[str, Any]:
        if len(pretend_run.ran) == 3:
            raise KeyboardInterrupt
        return {"step": 1.2}

    before = pretend_run.verdict
    monkeypatch.setattr(pretend_run, "verdict", staticmethod(killed))
    command(*given)
    monkeypatch.setattr(pretend_run, "verdict", staticmethod(before))
    compiled, ran = list(pretend.compiled), list(pretend_run.ran)
    pretend.cache.clear()  # so that the record alone knows
    found = answer(command(*given))
    assert found["resumed"] is True
    assert pretend.compiled == compiled
    assert pretend_run.ran[: len(ran)] == ran
    assert len(found["searched"]["plans"]) == 4


def test_a_search_without_agents_begins_with_what_compiles_fastest(
    command, pretend_run: type[PretendRun], second_fits: list[str]
) -> None:
    given = (*TINY, "agents=none", "search=random", "budget.compile=4", "budget.trials=5", "run.confirm=0")
    found = answer(command(*given, "output=json"))
    steps = {line: each["step_time_s"] for line, each in tried(found, "compiled").items() if each["step_time_s"]}
    assert list(tried(found, "searched"))[:3] == sorted(steps, key=lambda line: steps[line])[:3]
    assert not {second_fits[0], second_fits[2]} & set(pretend_run.ran)


def test_compiling_takes_a_third_of_the_minutes_at_most(command, pretend_run: type[PretendRun]) -> None:
    from asap_ray.config import BudgetConfig, Config
    from asap_ray.tasks.stages import compiling, measuring

    config = Config(tiers=["roofline", "compile", "run"], budget=BudgetConfig(minutes=60.0, chip_hours=2.0, trials=9))
    first, second = compiling(config), measuring(config)
    assert first.tiers == ["roofline", "compile"]
    assert first.budget == BudgetConfig(minutes=20.0, compile=6)
    assert second.tiers == ["roofline", "run"]
    assert second.budget == BudgetConfig(minutes=60.0, chip_hours=2.0, trials=9)


def test_what_a_proxy_stands_for_is_not_confirmed_and_its_certificate_is_no_clocks(
    command, pretend_run: type[PretendRun]
) -> None:
    given = ("+model=tiny", "hardware=v5e-4", "tiers=[roofline,run]", "stack=ours", "budget.trials=3", "output=json")
    whole = answer(command(*given, "run_dir=whole"))
    assert whole["searched"]["confirmed"]
    assert whole["certificate"]["measured"] is True
    found = answer(command(*given, "run_dir=proxy", "run.proxy_layers=2"))
    assert found["searched"]["confirmed"] == []
    assert found["certificate"]["measured"] is False
    assert "confirmed" not in {event["kind"] for event in Ledger(Path("proxy")).events()}

"""The main job from the command line with a compiler that only pretends: seeds, budgets, and what was killed."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asap_ray.executor import local
from asap_ray.tasks import compiling
from tests.tasks.pretend import Pretend, at_once
from tests.tasks.test_compile import answer

LOOP = ("+model=tiny", "hardware=v5e-4", "budget.trials=7", "output=json")
RUN = ("trial", "tried")
TIMES = ("at", "wall_s", "elapsed_s", "command", "config")


@pytest.fixture(autouse=True)
def compilers_installed(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "installed", lambda setting, ours: True)


def events(run_dir: str) -> list[dict[str, Any]]:
    lines = (Path(run_dir) / "events.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in TIMES} for line in lines]


def test_two_runs_with_one_seed_give_the_same_events(command, pretend: type[Pretend]) -> None:
    for name in ("one", "two"):
        pretend.cache.clear()
        answer(command(*LOOP, f"run_dir={name}", "agents.memory=off"))
    assert events("one") == events("two")
    kinds = [each["kind"] for each in events("one")]
    assert kinds.count("trial") == kinds.count("tried") == 7
    assert kinds.count("round") == 3


def test_which_trial_is_faster_to_run_changes_nothing_but_the_order_in_which_they_end(
    command, pretend: type[Pretend], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    for workers, first in ((1, True), (2, True), (3, False)):
        monkeypatch.setattr(local, "stream", partial(at_once, first=first))
        monkeypatch.setattr(compiling, "executor_of", lambda _, __, n=workers: nullcontext(local.Local(workers=n)))
        pretend.cache.clear()
        answer(command(*LOOP, f"run_dir={workers}", "agents.memory=off"))
        found = events(str(workers))
        decided = [each for each in found if each["kind"] not in RUN]
        told.append((decided, in_order(found, "trial"), in_order(found, "tried")))
    assert told[0] == told[1] == told[2]
    assert [each["trial"] for each in events("3") if each["kind"] == "tried"] != list(range(7))


def in_order(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return sorted((each for each in found if each["kind"] == kind), key=lambda each: each["trial"])


def test_a_run_that_was_killed_repeats_no_finished_trial(command, pretend: type[Pretend]) -> None:
    whole = answer(command(*LOOP, "run_dir=whole"))
    lines = (Path("whole") / "events.jsonl").read_text().splitlines(keepends=True)
    tried = [i for i, line in enumerate(lines) if json.loads(line)["kind"] == "tried"]
    Path("killed").mkdir()
    # Killed while the fifth result is written: a torn line ends the file.
    (Path("killed") / "events.jsonl").write_text("".join(lines[: tried[4]]) + lines[tried[4]][:50])
    done = {json.loads(lines[i])["finding"]["plan"] for i in tried[:4]}
    pretend.cache.clear()
    pretend.compiled.clear()
    again = answer(command(*LOOP, "run_dir=killed"))
    assert len(pretend.compiled) == 3
    assert done & set(pretend.compiled) == set()
    assert again["best"] == whole["best"]
    assert again["trials"] == whole["trials"]
    assert (whole["resumed"], again["resumed"]) == (False, True)


def test_the_same_command_with_more_budget_goes_on(command, pretend: type[Pretend]) -> None:
    answer(command(*LOOP, "run_dir=run"))
    pretend.cache.clear()
    pretend.compiled.clear()
    more = answer(command(*LOOP, "budget.trials=9", "run_dir=run"))
    assert len(pretend.compiled) == 2
    assert more["trials"]["complete"] == 9


def test_another_models_trials_in_one_directory_are_not_taken(command, pretend: type[Pretend]) -> None:
    answer(command(*LOOP, "run_dir=run"))
    pretend.cache.clear()
    pretend.compiled.clear()
    answer(command(*LOOP, "workload.seq_len=256", "run_dir=run"))
    assert len(pretend.compiled) == 7


def test_a_dry_run_says_what_would_be_tried_and_what_it_costs(command, pretend: type[Pretend]) -> None:
    ended = command("+model=tiny", "hardware=v5e-4", "budget.trials=0", "run_dir=run", "output=plain")
    assert ended.status == 0, ended.err
    assert pretend.compiled == []
    assert ended.out.count("would try") == 3
    assert "chip-hours" in ended.out
    assert "evidence   memory and operations" not in ended.out  # nothing says any
    assert "budget.trials=0: nothing was tried" in json.loads(Path("run/summary.json").read_text())["stop_reason"]
    assert [each["kind"] for each in events("run")].count("proposal") == 3


@pytest.mark.parametrize("search", ["random", "grid"])
def test_without_agents_the_sampler_decides_alone(command, pretend: type[Pretend], search: str) -> None:
    found = answer(command(*LOOP, "agents=none", f"search={search}", "run_dir=run"))
    assert found["agents"] == {"brain": "none", "rounds": 3, "proposals": 0, "refused": 0}
    assert found["trials"]["complete"] == 7
    assert not [each for each in events("run") if each["kind"] in ("proposal", "verdict")]


def test_the_agents_are_counted_and_the_reason_to_stop_is_told(command, pretend: type[Pretend]) -> None:
    found = answer(command(*LOOP, "run_dir=run"))
    assert found["agents"]["brain"] == "playbook"
    assert found["agents"]["rounds"] == 3
    assert found["agents"]["proposals"] >= 6
    assert found["stop_reason"].endswith("7 plans compiled: budget.trials=7 are done")
    stop = next(each for each in events("run") if each["kind"] == "stop")
    assert (stop["reason"], stop["rounds"]) == ("budget.trials=7 are done", 3)


def test_a_terminal_shows_how_the_search_stands(command, pretend: type[Pretend]) -> None:
    ended = command("+model=tiny", "hardware=v5e-4", "budget.trials=5", "run_dir=run", "output=plain")
    assert ended.status == 0, ended.err
    line = next(line for line in ended.out.splitlines() if line.startswith("searching v5e-4: "))
    assert ended.out.index(line) < ended.out.index("v5e-4 round 1")
    first = next(event for event in events("run") if event["kind"] == "round")
    assert line.startswith(f"searching v5e-4: {first['open']:,} plans may be tried, 3 a round, chosen by the playbook")
    assert "v5e-4 round 2; best so far" in ended.out
    assert "above the lowest floor" in ended.out


def test_auto_without_a_compiler_is_the_roofline_alone(command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "installed", lambda setting, ours: False)
    found = answer(command("+model=tiny", "hardware=v5e-4", "output=json"))
    assert found["stop_reason"] == "exact: the roofline priced every legal plan"
    assert "searched" not in found


def test_a_sampler_whose_package_is_missing_ends_before_anything_starts(
    command, pretend: type[Pretend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ended = command(*LOOP, "search=gp", "run_dir=run")
    assert (ended.status, ended.out) == (1, "")
    assert ended.err == "asap-ray: search=gp: needs torch: pip install 'asap-ray[gp]'\n"
    assert not Path("run").exists()

"""`task=compare` from the command line: the object it prints, what it finds again, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asap_ray.contest.ground import Field
from asap_ray.contest.methods import Method
from asap_ray.contest.play import START_UP_S, STEPS, Played
from asap_ray.ledger import Ledger
from asap_ray.overrides import configure
from asap_ray.report import comparison_files
from asap_ray.search.protocol import Candidate, Result
from asap_ray.tasks import compare
from asap_ray.tasks.comparing_own import Match, Searched, played
from tests.contest.grounds import small_field
from tests.executor.at_once import AtOnce
from tests.tasks.test_validate import GPT, table

METHODS = ("random_gated", "greedy", "playbook")


@pytest.fixture(autouse=True)
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "ray" not in request.fixturenames:
        monkeypatch.setattr(compare, "executor_for", lambda config, jobs: AtOnce())
    if "drawn_page" not in request.fixturenames:
        monkeypatch.setattr(comparison_files, "comparison_page", lambda answer, fields: "<!doctype html>\n")


@pytest.fixture
def ray() -> None:
    """Ask for this where jobs are to go through Ray."""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table of twelve plans: time falls with the tensor axis, which the roofline does not believe."""
    monkeypatch.chdir(tmp_path)
    plans = [{"tp": tp, "dp": 8 // tp, "micro_batch_per_dp_rank": m} for tp in (1, 2, 4, 8) for m in (1, 2, 4)]
    runs = [
        {**GPT, **plan, "id": f"a-{i}", "metric_step_time_s": 2.0 / (1 + plan["tp"]) + 0.01 * i}
        for i, plan in enumerate(plans)
    ]
    return table("mine.csv", *runs)


@pytest.fixture
def compared(command):
    def run(*words: str) -> dict[str, Any]:
        ended = command("task=compare", *words, "output=json", "run_dir=run")
        assert (ended.status, ended.err, ended.out.count("\n")) == (0, "", 1), ended
        return json.loads(ended.out)

    return run


def words(mine: str, seeds: int = 2, methods: tuple[str, ...] = METHODS) -> tuple[str, ...]:
    return f"compare.tables={mine}", f"compare.methods=[{','.join(methods)}]", f"compare.seeds={seeds}"


def searches() -> list[Played]:
    events = Ledger(Path("run")).events("played")
    return [Played.from_dict(each) for event in events for each in event["searches"]]


def test_the_object_that_is_printed(mine: str, compared) -> None:
    found = compared(*words(mine))
    assert tuple(found["methods"]) == METHODS
    assert [found["methods"][name]["seeds"] for name in METHODS] == [2, 1, 1]
    one = found["methods"]["greedy"]
    assert {"trials_to_1pct", "trials_to_5pct", "regret_at", "infeasible_trials", "chip_seconds_to_1pct", "llm"} <= set(
        one
    )
    assert set(one["regret_at"]) == {"1", "3", "5", "10", "20"}
    assert set(one["trials_to_1pct"]) == {"median", "iqr", "solved"}
    assert len(found["pairs"]) == 3
    assert found["grounds"]["total"] == 1
    assert json.loads(Path("run/comparison.json").read_text()) == found


def test_what_is_printed_is_what_was_played(mine: str, compared) -> None:
    found = compared(*words(mine))
    (greedy,) = [each for each in searches() if each.method == "greedy"]
    needed = next(i for i, regret in enumerate(greedy.regret, 1) if regret is not None and regret <= 0.01)
    assert found["methods"]["greedy"]["trials_to_1pct"]["median"]["value"] == needed
    (ground,) = found["each"]
    assert ground["methods"]["greedy"]["trials_to_1pct"] == needed


def test_the_same_command_again_plays_nothing_and_more_seeds_play_the_rest(mine: str, compared) -> None:
    first = compared(*words(mine))
    assert not first["resumed"]
    before = searches()
    again = compared(*words(mine))
    assert again["resumed"]
    assert searches() == before
    assert again["methods"] == first["methods"]
    compared(*words(mine, seeds=4))
    fresh = searches()[len(before) :]
    assert [(each.method, each.seed) for each in fresh] == [("random_gated", 2), ("random_gated", 3)]


def test_what_was_played_on_another_table_of_that_name_does_not_count(mine: str, compared) -> None:
    compared(*words(mine))
    count = len(searches())
    text = Path(mine).read_text()
    Path(mine).write_text(text.replace(",2.0,", ",2.5,").replace("1.01", "1.51"))
    assert not compared(*words(mine))["resumed"]
    assert len(searches()) == 2 * count


def test_jobs_go_through_ray_and_come_back_the_same(mine: str, compared, ray: None) -> None:
    first = compared(*words(mine, seeds=1))
    played = sorted(searches(), key=lambda each: each.method)
    assert [each.method for each in played] == sorted(METHODS)
    assert first["methods"]["playbook"]["grounds"] == 1


def test_the_page_names_every_method_and_its_winner_only_where_there_is_one(mine: str, compared, drawn_page) -> None:
    found = compared(*words(mine))
    page = Path("run/report.html").read_text()
    for name in METHODS:
        assert f'<td class="words" data-title="method">{name}</td>' in page
    assert ("no method is better than all others" in page) == (found["leader"] is None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("compare.methods=[tpee]",), "compare.methods=tpee"),
        (("compare.methods=[]",), "compare.methods=[]"),
        (("compare.tasks=[replays]",), "compare.tasks=replays"),
        (("compare.seeds=0",), "compare.seeds=0"),
        (("compare.leave_out=row",), "compare.leave_out=row"),
        (("compare.tables=[nowhere.csv]",), "compare.tables=nowhere.csv"),
        (("tiers=[compile]",), "tiers="),
    ],
)
def test_mistakes_end_in_one_line(command, given: tuple[str, ...], said: str) -> None:
    ended = command("task=compare", *given)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith(f"asap-ray: {said}")
    assert ended.err.count("\n") == 1


def test_keys_of_a_comparison_are_for_one(command) -> None:
    ended = command("+model=tiny", "compare.seeds=3")
    assert ended.err.startswith("asap-ray: compare.seeds=3: only with task=compare")


def test_methods_on_the_users_own_workload_share_their_trials(command, pretend, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    given = ("+model=tiny", "hardware=v5e-4", "workload.global_batch=8", "tiers=[roofline,compile]", "run_dir=run")
    more = ("compare.methods=[greedy,playbook,tpe_seeded]", "compare.seeds=2", "compare.trials=4", "output=json")
    ended = command("task=compare", *given, *more)
    assert ended.status == 0, ended.err
    found = json.loads(ended.out)
    assert list(found["methods"]) == ["greedy", "playbook", "tpe_seeded"]
    assert [each["seeds"] for each in found["methods"].values()] == [1, 1, 2]
    assert "the compile tier" in found["evaluator"]
    assert len(pretend.compiled) == len(set(pretend.compiled)) < 16  # the same plan again is no trial
    compiled = len(pretend.compiled)
    again = command("task=compare", *given, *more)
    assert json.loads(again.out)["methods"] == found["methods"]
    assert len(pretend.compiled) == compiled


def test_minutes_are_shared_by_the_searches(command, pretend, monkeypatch) -> None:
    """Of four minutes each of four searches has one; the second spends half of its own, the third and fourth 5/4."""
    left: list[float] = []

    def search(match: Match, method: Method, seed: int, field: Field) -> Searched:
        left.append(match.clock.left_s)
        match.clock.found_s += left[-1] * (0.5 if len(left) == 2 else 1.0)
        return Searched(method.name, seed, (), "time is over")

    monkeypatch.setattr(Match, "_search", search)
    given = ("+model=tiny", "hardware=v5e-4", "workload.global_batch=8", "tiers=[roofline,compile]", "run_dir=run")
    command(
        "task=compare", *given, "compare.methods=[greedy,playbook,tpe_seeded]", "compare.seeds=2", "budget.minutes=4"
    )
    assert left == pytest.approx([60, 60, 75, 75], abs=0.5)


@pytest.mark.parametrize(("words", "minutes"), [((), None), (("budget.minutes=3",), 3.0)])
def test_a_comparison_has_no_limit_of_time_but_the_users(words: tuple[str, ...], minutes: float | None) -> None:
    """A search alone ends after five minutes: the first method here would leave the others none."""
    assert configure(["task=compare", "+model=tiny", "run_dir=run", *words]).minutes == minutes


def test_regret_on_ones_own_workload_is_against_the_best_that_any_method_found() -> None:
    plan = small_field().pool.plan(0)

    def results(*steps: float | None) -> tuple[Result, ...]:
        candidates = [Candidate(number=i, plan=plan, author="x") for i in range(len(steps))]
        return tuple(
            Result(candidate=each, status="complete" if step else "infeasible", step_time_s=step)
            for each, step in zip(candidates, steps, strict=True)
        )

    one, other = Searched("one", 0, results(None, 3.0, 2.0), ""), Searched("other", 0, results(4.0, 5.0), "")
    first, second = played([one, other], "own", chips=8)
    assert first.regret == (None, 0.5, 0.0)
    assert second.regret == (1.0, 1.0)
    assert first.bad == (True, False, False)
    assert first.chip_s == (8 * START_UP_S, 8 * (START_UP_S + 3 * STEPS), 8 * (START_UP_S + 2 * STEPS))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("tiers=[roofline]",), "tiers="),
        (("tiers=[roofline,compile]", "compare.methods=[random]"), "compare.methods=random"),
        (("tiers=[roofline,compile]", "hardware=[v5e-4,v5e-8]"), "hardware="),
        (("compare.tables=[a.csv]",), "compare.tables="),
    ],
)
def test_mistakes_with_a_model_end_in_one_line(command, pretend, given: tuple[str, ...], said: str) -> None:
    ended = command("task=compare", "+model=tiny", "hardware=v5e-4", "workload.global_batch=8", *given)
    assert (ended.status, ended.err.count("\n")) == (1, 1)
    assert ended.err.startswith(f"asap-ray: {said}")

"""`task=show` and the derived files: a run that ended, was killed or goes on, told from its events alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pyarrow.parquet as parquet
import pytest
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from asap_ray.plan import Plan
from asap_ray.report.answer import Answer
from asap_ray.report.search import search_blocks
from asap_ray.tasks import compiling, tune
from asap_ray.tasks.derived import COLUMNS, JOURNAL, TABLE
from asap_ray.tasks.record import answer_of
from tests.tasks.pretend import Pretend

RUN = ("+model=tiny", "hardware=v5e-4", "budget.trials=7", "search.share=0.4", "output=json", "run_dir=run")
SHOW = ("task=show", "run_dir=run", "output=json")
FIRST, SECOND, OVER = 0, 1, 3e9


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run that most tests look at is kept: it is made once."""
    return tmp_path_factory.mktemp("kept") / "run"


@pytest.fixture
def searched(command: Any, pretend: type[Pretend], monkeypatch: pytest.MonkeyPatch, kept: Path) -> Any:
    """A run of seven trials, of which the first to compile does not fit and the second has no program."""
    seen: list[Plan] = []

    def verdict(plan: Plan, flags: Mapping[str, str]) -> Mapping[str, Any]:
        seen.append(plan)
        told = {
            FIRST: {"status": "infeasible", "over_bytes": OVER, "memory": 2.0, "reason": "RESOURCE_EXHAUSTED"},
            SECOND: {"status": "failed", "reason": "INTERNAL: no program"},
        }
        return told.get(len(seen) - 1, {"step": 1.1})

    monkeypatch.setattr(compiling, "installed", lambda setting, ours: True)
    monkeypatch.setattr(pretend, "verdict", staticmethod(verdict))
    if not kept.exists():
        ended = command(*RUN)
        assert ended.status == 0, ended.err
        shutil.copytree("run", kept)
    shutil.copytree(kept, "run", dirs_exist_ok=True)
    return json.loads(Path("run/summary.json").read_text())


def shown(command: Any, *words: str) -> dict[str, Any]:
    ended = command(*SHOW, *words)
    assert (ended.status, ended.err) == (0, "")
    return json.loads(ended.out)


def events() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("run/events.jsonl").read_text().splitlines()]


def cut_after(kind: str, nth: int, torn: str = "") -> None:
    """Leave of the ledger what stands there up to the nth event of a kind, as a kill would."""
    lines = Path("run/events.jsonl").read_text().splitlines(keepends=True)
    place = [i for i, line in enumerate(lines) if json.loads(line)["kind"] == kind][nth - 1]
    Path("run/events.jsonl").write_text("".join(lines[: place + 1]) + torn)


def test_a_finished_run_is_told_from_its_events(command, searched: dict[str, Any]) -> None:
    for path in Path("run").iterdir():
        if path.is_file() and path.name != "events.jsonl":
            path.unlink()
    told = shown(command)
    assert (told["state"], told["runs"], told["model"], told["seed"]) == ("finished", 1, "tiny", 0)
    assert told["reason"] == searched["stop_reason"]
    (one,) = told["hardware"]
    assert one["space"] == searched["space"]
    assert one["best"] == searched["best"]
    assert [each["trial"] for each in one["trials"]] == list(range(7))
    ends = [each["status"] for each in one["trials"]]
    assert {name: ends.count(name) for name in ("complete", "infeasible", "failed")} == {
        name: searched["trials"][name] for name in ("complete", "infeasible", "failed")
    }
    assert one["running"] == one["earlier"] == []


def test_rounds_hold_every_proposal_with_its_reason_and_verdict(command, searched: dict[str, Any]) -> None:
    (one,) = shown(command)["hardware"]
    assert [each["number"] for each in one["rounds"]] == [1, 2, 3]
    proposed = [each for one in one["rounds"] for each in one["proposed"]]
    # A round is decided whole, whether or not the budget lets all of it run.
    assert [each["trial"] for each in proposed] == list(range(9))
    written = {each["trial"]: each for each in events() if each["kind"] == "proposal"}
    judged = {each["trial"]: each for each in events() if each["kind"] == "verdict"}
    assert {each["trial"] for each in proposed if each["author"] != "sampler"} == set(written)
    for each in proposed:
        if each["author"] == "sampler":
            continue
        assert each["hypothesis"] == written[each["trial"]]["hypothesis"] != ""
        assert each["low_s"] == written[each["trial"]]["prediction"]["low"]
        assert each["status"] == judged.get(each["trial"], {"status": ""})["status"]
    assert {each["trial"] for each in proposed if each["status"]} == set(judged)
    assert set(judged) == set(written) & set(range(7))
    asked = [each["trial"] for each in events() if each["kind"] == "sample"]
    assert [each["trial"] for each in proposed if each["author"] == "sampler"] == asked != []


def test_a_killed_run_tells_what_was_running_and_what_is_best(command, searched: dict[str, Any]) -> None:
    cut_after("tried", 4, torn='{"kind": "tried", "slice": "v5e')
    whole = events_before_the_torn_line()
    told = shown(command)
    (one,) = told["hardware"]
    assert told["state"] == "open"
    assert told["last_at"] == whole[-1]["at"]
    began = {each["trial"] for each in whole if each["kind"] == "trial"}
    ended = {each["trial"]: each for each in whole if each["kind"] == "tried"}
    assert {each["trial"] for each in one["running"]} == began - set(ended) != set()
    steps = [each["estimate"]["step_time_s"] for each in ended.values() if each["estimate"]]
    assert one["best"]["step_time_s"] == min(steps)
    assert len(one["trials"]) == len(ended) == 4
    # A ledger belongs to its writer: who looks on leaves the torn line to it.
    assert Path("run/events.jsonl").read_text().endswith("v5e")


def events_before_the_torn_line() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("run/events.jsonl").read_text().split("\n")[:-1]]


def test_a_resumed_run_that_has_only_begun_still_knows_the_earlier_trials(command, searched: dict[str, Any]) -> None:
    assert command(*RUN).status == 0
    cut_after("swept", 2)
    told = shown(command)
    (one,) = told["hardware"]
    assert (told["state"], told["runs"], len(one["trials"]), len(one["earlier"])) == ("open", 2, 0, 7)
    assert one["best"] == searched["best"]


def test_a_run_killed_before_anything_is_priced_is_told(command, searched: dict[str, Any]) -> None:
    cut_after("start", 1)
    told = shown(command)
    assert (told["state"], told["model"], told["hardware"]) == ("open", "tiny", [])


def test_a_reader_sees_rounds_reasons_trials_and_the_best(command, searched: dict[str, Any]) -> None:
    ended = command("task=show", "run_dir=run", "output=plain")
    assert (ended.status, ended.err) == (0, "")
    for text in (
        "tiny ",
        "finished at ",
        "budget.trials=7 are done",
        "57,600 plans",
        "Round 3 on v5e-4:",
        "best so far  ",
        "confirmed: step_time_s is",
        "does not fit",
        "3.00 GB over",
        "INTERNAL: no program",
        "What the trainer and agents removed",
        "1.10x",  # what trials took over the roofline's price
        searched["best"]["line"],
    ):
        assert text in ended.out, text


def test_an_error_of_the_users_is_the_reason(command) -> None:
    ended = command("+model=llama70b", "hardware=v5e-1", "run_dir=run")
    told = shown(command)
    assert told["state"] == "failed"
    assert ended.err == f"asap-ray: {told['reason']}\n"


def test_tasks_that_plan_nothing_are_shown_too(command) -> None:
    assert command("task=explain", "+model=tiny", "hardware=v5e-4", "run_dir=run").status == 0
    told = shown(command)
    assert (told["task"], told["state"]) == ("explain", "finished")


@pytest.mark.parametrize(
    ("words", "begin"),
    [
        (("task=show",), "run_dir=null: "),
        (("task=show", "run_dir=nowhere"), "run_dir={here}/nowhere: a directory with a run in it"),
        (("task=show", "run_dir=empty"), "run_dir={here}/empty: a directory with a run in it"),
        (
            ("task=show", "run_dir=odd"),
            "run_dir={here}/odd: a directory whose events.jsonl this version has written (line 1 is no event)",
        ),
        (("task=show", "run_dir=empty", "+model=tiny"), "+model=tiny: not for task=show"),
    ],
)
def test_a_directory_without_a_run_ends_in_one_line(command, words: tuple[str, ...], begin: str) -> None:
    Path("empty").mkdir()
    Path("odd").mkdir()
    Path("odd/events.jsonl").write_text("not json\n")
    ended = command(*words)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith(f"asap-ray: {begin.format(here=Path.cwd())}"), ended.err
    assert ended.err.count("\n") == 1
    assert not Path("nowhere").exists()


def trials_of(path: Path) -> list[Any]:
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    return optuna.load_study(study_name="v5e-4", storage=storage).get_trials(deepcopy=False)


def test_the_table_has_a_row_a_trial(command, searched: dict[str, Any]) -> None:
    table = parquet.read_table(Path("run") / TABLE)
    assert tuple(table.column_names) == tuple(COLUMNS)
    rows = table.to_pylist()
    ended = {each["trial"]: each for each in events() if each["kind"] == "tried"}
    assert [row["trial"] for row in rows] == sorted(ended)
    for row in rows:
        event, plan = ended[row["trial"]], Plan.parse(row["plan"])
        assert row["plan"] == event["finding"]["plan"]
        assert (row["fsdp"], row["tensor"], row["remat"]) == (plan.axes["fsdp"], plan.axes["tensor"], plan.remat)
        assert row["step_time_s"] == event["finding"]["step_time_s"]
        assert row["roofline_step_time_s"] == event["roofline"]["step_time_s"]
        assert row["ended_at"] == event["at"] >= row["began_at"]
    assert [row["over_bytes"] for row in rows if row["status"] == "infeasible"] == [OVER]


def test_optuna_reads_the_journal(command, searched: dict[str, Any]) -> None:
    trials = trials_of(Path("run") / JOURNAL)
    ended = {each["trial"]: each for each in events() if each["kind"] == "tried"}
    states = {"complete": TrialState.COMPLETE, "infeasible": TrialState.PRUNED, "failed": TrialState.FAIL}
    assert [each.number for each in trials] == sorted(ended)
    assert len({frozenset(each.params) for each in trials}) == 1
    for each in trials:
        event = ended[each.number]
        assert each.state == states[event["finding"]["status"]]
        assert each.value == event["finding"]["step_time_s"]
        assert each.user_attrs["plan"] == event["finding"]["plan"]
        assert each.params["fsdp"] == Plan.parse(event["finding"]["plan"]).axes["fsdp"]
        assert (max(each.constraints.values()) > 0) == (event["finding"]["status"] == "infeasible")
    fastest = min(trials, key=lambda each: each.value or float("inf"))
    assert fastest.user_attrs["plan"] == searched["best"]["line"]


def test_all_trials_have_the_space_of_the_search_and_not_what_it_came_to(command, searched: dict[str, Any]) -> None:
    trials = trials_of(Path("run") / JOURNAL)
    assert all(each.distributions == trials[0].distributions for each in trials)
    found: dict[str, Any] = optuna.search_space.intersection_search_space(trials)
    assert len(found) == len(trials[0].params)
    # By hand: four chips, 8 heads and 8 key-value heads, no experts, 32 sequences that one replica may take whole.
    for name in ("data", "fsdp", "tensor", "context"):
        assert (found[name].low, found[name].high, found[name].log) == (1, 4, True), name
    assert (found["micro_batch"].low, found["micro_batch"].high) == (1, 32)
    assert (found["expert"].low, found["expert"].high) == (1, 1)
    assert found["sequence_parallel"].choices == (False, True)
    assert set(found["remat"].choices) > {each.params["remat"] for each in trials}


def test_derived_files_can_be_deleted_and_made_again(command, searched: dict[str, Any]) -> None:
    table, trials = parquet.read_table(Path("run") / TABLE), trials_of(Path("run") / JOURNAL)
    (Path("run") / TABLE).unlink()
    (Path("run") / JOURNAL).unlink()
    shown(command)
    assert parquet.read_table(Path("run") / TABLE).equals(table)
    assert trials_of(Path("run") / JOURNAL) == trials
    assert {path.name for path in Path("run").iterdir() if path.name.startswith(".")} == set()


def test_the_report_of_a_search_can_be_rebuilt_from_its_events(
    command, pretend: type[Pretend], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Answer] = []
    write = tune.write_report
    monkeypatch.setattr(tune, "write_report", lambda answer, folder: reported.append(answer) or write(answer, folder))
    assert command(*RUN, "tiers=[roofline,compile]", "budget.trials=4").status == 0
    rebuilt = answer_of(events(), Path("run").absolute())
    found, told = rebuilt.winner.searched, reported[0].winner.searched
    assert found is not None
    assert told is not None
    assert found.rounds == told.rounds
    assert [each.number for each in found.rounds] == [1, 2]
    assert list(search_blocks(rebuilt.winner)) == list(search_blocks(reported[0].winner))


def test_a_run_without_trials_has_no_derived_files(command) -> None:
    assert command("+model=tiny", "hardware=v5e-4", "run_dir=run", "tiers=roofline").status == 0
    shown(command)
    assert not (Path("run") / TABLE).exists()
    assert not (Path("run") / JOURNAL).exists()

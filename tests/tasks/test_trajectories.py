"""`task=export export.what=trajectories`: the steps of a run, their rewards by hand from its own events."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from asap_ray.ledger import Ledger
from asap_ray.plan import Plan
from asap_ray.tasks.trajectories import moved, steps_of

LOOP = ("+model=tiny", "hardware=v5e-8", "tiers=[roofline,compile]", "budget.trials=7", "run_dir=runs/one")


@pytest.fixture
def searched(command, pretend):
    """A run with seven trials: with tensor above 1 they do not fit, else they take a tenth longer per micro-batch."""
    pretend.verdict = staticmethod(
        lambda plan, flags: (
            {"status": "infeasible", "reason": "out of memory", "over_bytes": 1e9}
            if plan.axes["tensor"] > 1
            else {"step": 1.0 + 0.1 * plan.micro_batch}
        )
    )
    ended = command(*LOOP, "output=json")
    assert ended.status == 0, ended.err
    return Path("runs/one")


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_trial_is_a_step_with_its_reward(command, searched: Path) -> None:
    ended = command("task=export", "export.what=trajectories", f"run_dir={searched}", "output=json")
    assert ended.status == 0, ended.err
    told, steps = json.loads(ended.out), lines(searched / "trajectories/steps.jsonl")
    tried = [each for each in lines(searched / "events.jsonl") if each["kind"] == "tried"]
    assert told["steps"] == len(steps) >= len(tried) == 7
    by_trial = {each["trial"]: each for each in steps if each["trial"] is not None}
    rounds: list[dict[int, dict]] = []  # what had ended before each round decides what its steps gained
    for event in lines(searched / "events.jsonl"):
        if event["kind"] == "round":
            rounds.append({})
        elif event["kind"] == "tried":
            rounds[-1][event["trial"]] = event
    best = math.inf
    for each in rounds:
        for number, event in each.items():
            step = by_trial[number]
            if event["finding"]["status"] == "infeasible":
                assert step["reward"] == 0.0
            elif best == math.inf:
                assert step["reward"] == 0.5
                assert step["state"]["best"] is None
            else:
                took = event["estimate"]["step_time_s"]
                assert step["reward"] == pytest.approx(best**10 / (best**10 + took**10))
                assert step["best_s"] == best
        ran = [e["estimate"]["step_time_s"] for e in each.values() if e["estimate"]]
        best = min([best, *ran])
    assert {each["reward"] for each in steps} - {0.0, 0.5}, "some trial was better or worse than the best before"


def test_the_state_is_what_was_known_and_the_action_is_a_move_from_it(command, searched: Path) -> None:
    command("task=export", "export.what=trajectories", f"run_dir={searched}")
    for step in lines(searched / "trajectories/steps.jsonl"):
        state, action = step["state"], step["action"]
        assert state["workload"]["model"] == "tiny"
        assert (state["slice"]["chip"], state["slice"]["devices"]) == ("v5e", 8)
        if state["best"]:
            assert {"bound", "headroom", "hbm", "micro_batch", "share.fsdp"} <= set(state["best"]["facts"])
            before, after = Plan.parse(state["best"]["plan"]), Plan.parse(action["plan"])
            assert {k: tuple(v) for k, v in action["move"].items()} == {
                k: tuple(v) for k, v in moved(before, after).items()
            }
        if action["author"] == "playbook":
            assert action["hypothesis"]
            assert action["prediction"]["low"] < action["prediction"]["high"]


def test_three_forms_say_the_same(command, searched: Path) -> None:
    command("task=export", "export.what=trajectories", f"run_dir={searched}")
    folder = searched / "trajectories"
    steps, chats = lines(folder / "steps.jsonl"), lines(folder / "chat.jsonl")
    table = pq.read_table(folder / "steps.parquet").to_pylist()
    assert [row["reward"] for row in table] == [each["reward"] for each in steps] == [each["reward"] for each in chats]
    assert [json.loads(row["state"]) for row in table] == [each["state"] for each in steps]
    for step, chat in zip(steps, chats, strict=True):
        assert [each["role"] for each in chat["messages"]] == ["system", "user", "assistant"]
        assert json.loads(chat["messages"][1]["content"]) == step["state"]
        assert json.loads(chat["messages"][2]["content"])["plan"] == step["action"]["plan"]


def test_a_folder_of_runs_is_exported_whole(command, searched: Path) -> None:
    command(*LOOP[:-1], "seed=1", "run_dir=runs/two")
    ended = command("task=export", "export.what=trajectories", "run_dir=runs", "output=json")
    steps = lines(Path("runs/trajectories/steps.jsonl"))
    assert json.loads(ended.out)["steps"] == len(steps)
    assert {each["run"] for each in steps} == {"one", "two"}


def test_the_cells_of_a_night_are_below_a_folder_with_a_record_of_its_own(command, searched: Path) -> None:
    Ledger(Path("runs")).append("start", {"task": "nightly", "command": "", "config": {}})
    ended = command("task=export", "export.what=trajectories", "run_dir=runs", "output=json")
    assert ended.status == 0, ended.err
    assert {each["run"] for each in lines(Path("runs/trajectories/steps.jsonl"))} == {"one"}


def test_a_refusal_is_worth_nothing_and_a_no_op_a_half(searched: Path) -> None:
    ledger = Ledger(searched)
    events = list(ledger.events())
    tried = [each for each in events if each["kind"] == "tried" and each["finding"]["status"] != "infeasible"]
    last = tried[-1]["trial"]
    again = {name: value for name, value in events[-1].items() if name not in ("kind", "at")}
    (searched / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events[:-1]))
    where = tried[-1]["slice"]
    refused = {
        "plan": "data=8 micro_batch=1 accumulation=1 remat=none",
        "author": "llm",
        "card": "",
        "reason": "tried before",
    }
    ledger.append("refusal", {"slice": where, **refused})
    ledger.append("verdict", {"slice": where, "trial": last, "status": "no-op", "observed": None, "text": ""})
    ledger.append("answer", again)
    steps = steps_of(ledger)
    (step,) = [each for each in steps if each.status == "refused"]
    assert (step.reward, step.trial, step.reason, step.action["author"]) == (0.0, None, "tried before", "llm")
    (step,) = [each for each in steps if each.trial == last]
    assert step.reward == 0.5


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("task=export", "export.what=trajectories", "run_dir=empty"), "in which a plan was tried"),
        (("task=export", "export.what=moves", "run_dir=empty"), "export.what=moves: allowed: plans, trajectories"),
        (
            ("task=show", "export.what=trajectories", "run_dir=empty"),
            "export.what=trajectories: for task=export",
        ),
        (("task=export", "export.what=trajectories", "run_dir=empty", "to=maxtext"), "only with export.what=plans"),
    ],
)
def test_a_mistake_is_one_line(command, words: tuple[str, ...], told: str) -> None:
    Path("empty").mkdir()
    ended = command(*words)
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert told in ended.err

"""The ledger alone is enough: the answer that its events give is the one that was reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from asap_ray.ledger import Ledger
from asap_ray.report import leaderboard
from asap_ray.report.answer import Answer
from asap_ray.report.page import page
from asap_ray.report.summary import summary
from asap_ray.tasks import tune
from asap_ray.tasks.record import answer_of

RUNS = {
    "pins and a baseline": (
        "+model=tiny",
        "hardware=v5e-4",
        "space.fix={tensor: [1, 2]}",
        "space.forbid=[{remat: full, micro_batch: '>4'}]",
        "baseline=fsdp=4 micro_batch=4 accumulation=2 remat=full",
    ),
    "several slices, one too small": ("+model=llama7b", "hardware=[v5e-1,v5p-32,tpu7x-16,h100:2x4]", "seed=7"),
    "latent attention and experts": (
        "+model=deepseek_v2_lite",
        "hardware=h100x8",
        "stack=megatron",
        "workload.global_batch=64",
        "workload.seq_len=2048",
        "space.fix={pipeline: 1, zero: 1}",
    ),
}


@pytest.mark.parametrize("run", RUNS)
def test_the_report_can_be_rebuilt_from_the_events(command, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Answer] = []
    write = tune.write_report
    monkeypatch.setattr(tune, "write_report", lambda answer, folder: reported.append(answer) or write(answer, folder))
    ended = command(*RUNS[run], "run_dir=run", "output=json")
    assert ended.status == 0, ended.err
    rebuilt = answer_of(list(Ledger(Path("run")).events()), Path("run").absolute())
    assert leaderboard.records(rebuilt) == json.loads(Path("run/leaderboard.json").read_text())
    assert summary(rebuilt) == json.loads(Path("run/summary.json").read_text())
    bare = replace(reported[0], slices=tuple(replace(each, sample={}) for each in reported[0].slices))
    assert page(rebuilt) == page(bare)


def test_rows_of_the_leaderboard_are_in_the_events(command) -> None:
    assert command(*RUNS["pins and a baseline"], "run_dir=run", "output=json").status == 0
    events = list(Ledger(Path("run")).events())
    (swept,) = (event for event in events if event["kind"] == "swept")
    rows = json.loads(Path("run/leaderboard.json").read_text())
    found = swept["ranked"] + sorted(swept["too_big"], key=lambda each: each["step_time_s"])
    assert len(rows) == len(found)
    for row, event in zip(rows, found, strict=True):
        assert (row["plan"], row["step_time_s"], row["hbm_bytes"]) == (
            event["line"],
            event["step_time_s"],
            event["hbm_bytes"],
        )
        assert {
            name.removeprefix("time_").removesuffix("_s"): value for name, value in row.items() if "time_" in name[:5]
        } == (event["time_parts"])
        assert sum(event["memory_parts"].values()) == pytest.approx(row["hbm_bytes"])


def test_events_say_who_narrowed_the_space_and_why(command) -> None:
    assert command(*RUNS["pins and a baseline"], "run_dir=run", "output=json").status == 0
    narrowings = list(Ledger(Path("run")).events("narrowing"))
    assert [(each["author"], each["name"]) for each in narrowings] == [("user", "fix"), ("user", "forbid")]
    assert narrowings[0]["reason"] == "space.fix.tensor=[1, 2]"
    assert narrowings[1]["reason"] == "space.forbid[0]={'remat': 'full', 'micro_batch': '>4'}"
    (start,) = Ledger(Path("run")).events("start")
    assert start["command"].startswith("python -m asap_ray")
    assert start["config"]["space"]["fix"] == {"tensor": [1, 2]}
    assert start["config"]["hardware"]["slices"] == ["v5e-4"]


def test_a_run_without_an_answer_has_none(command) -> None:
    with pytest.raises(ValueError, match="no answer"):
        answer_of([], Path("run"))
    assert command("+model=llama70b", "hardware=v5e-1", "run_dir=run").status == 1
    with pytest.raises(ValueError, match="no answer"):
        answer_of(list(Ledger(Path("run")).events()), Path("run"))

"""`tiers=run` as a command: real trainings through Ray Tune on this machine, and the same command once more."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

SMALL = (
    *("+model=tiny", "model.layers=1", "model.d_model=32", "model.vocab=64", "model.ffn.d_ff=48"),
    *("workload.global_batch=4", "workload.seq_len=16", "workload.precision=fp32"),
)
SPACE = "space.fix={attention: unfused, remat: full, context: 1, pipeline: 1, zero: 0, accumulation: 1}"
RUN = (
    *(*SMALL, "hardware=local", "tiers=[roofline,run]", "stack=ours", SPACE, "run.devices=2", "run.steps=3"),
    *("run.seconds=0.1", "run.best=2", "run.confirm=1", "run_dir=run"),
)


def events() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("run/events.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run_tier")


def test_plans_are_run_for_real_confirmed_and_not_run_again(command, monkeypatch: pytest.MonkeyPatch, folder) -> None:
    monkeypatch.chdir(folder)
    ended = command(*RUN, "output=json")
    assert ended.status == 0, ended.err
    found = json.loads(ended.out)
    # By hand: two devices make data=2, fsdp=2 or tensor=2, each the only one with these pins.
    assert found["space"]["legal"] == 3
    assert found["trials"]["complete"] + found["trials"]["pruned"] == 3
    assert found["best"]["source"] == "run"
    assert found["best"]["step_time_s"] > found["best"]["floor_s"]
    tried = [event for event in events() if event["kind"] == "tried"]
    assert all(event["finding"]["facts"]["losses"] for event in tried)
    assert any(event["observed"] for event in tried)  # by its trace
    again = [event for event in events() if event["kind"] == "confirmed"]
    assert {event["status"] for event in again} == {"complete"}

    before = len(again)
    ended = command(*RUN, "output=json")
    assert ended.status == 0, ended.err
    second = json.loads(ended.out)
    assert second["resumed"] is True
    assert second["best"]["line"] == found["best"]["line"]
    assert second["best"]["step_time_s"] == pytest.approx(found["best"]["step_time_s"])
    assert len([event for event in events() if event["kind"] == "confirmed"]) == before
    assert [event["kind"] for event in events()].count("trial") == 3
    plain = command(*RUN, "output=plain").out
    assert "Once more on local, alone and in turns:" in plain
    assert "Best plan on local, by the clock:" in plain
    assert re.search(r"note +Steps were timed on the devices named", plain)

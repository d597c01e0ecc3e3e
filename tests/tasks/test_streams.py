"""What reaches stdout and the disk where the terminal, the working directory or the stream is an odd one."""

from __future__ import annotations

import json

import pytest

TINY = ("+model=tiny", "hardware=v5e-4")


@pytest.mark.parametrize("task", ["tune", "explain"])
def test_the_jobs_of_a_sweep_are_one_json_object_a_line(command, task: str) -> None:
    ended = command("-m", *TINY, f"task={task}", "workload.seq_len=128,256", "output=json")
    assert ended.status == 0, ended.err
    first, second = map(json.loads, ended.out.splitlines())
    assert first["best"]["step_time_s"] < second["best"]["step_time_s"]


def test_what_is_legal_and_does_not_fit_is_counted(command) -> None:
    ended = command("+model=llama3_2_1b", "hardware=v5e-4", "output=json")
    space = json.loads(ended.out)["space"]
    assert space["removed"]["memory"] > 0
    assert space["fitting"] == space["legal"] - space["removed"]["memory"]

"""`task=explain` from the command line to its file."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from asap_ray import drafts
from asap_ray.ledger import Ledger

EXPLAIN = ("+model=tiny", "hardware=v5e-4", "run_dir=run", "task=explain")
WHOLE = "fsdp=2 tensor=2 micro_batch=4 accumulation=4 sequence_parallel=true remat=full"


def told(ended: Any) -> dict[str, Any]:
    assert ended.status == 0, ended.err
    return json.loads(ended.out)


def test_the_best_plan_is_the_one_that_tune_finds(command) -> None:
    tuned = told(command(*EXPLAIN[:3], "output=json"))
    found = told(command(*EXPLAIN, "output=json"))
    assert found["chosen"] == "The best plan"
    assert found["best"] == tuned["best"]


def test_parts_add_up(command) -> None:
    found = told(command(*EXPLAIN, f"plan={WHOLE}", "output=json"))
    best = found["best"]
    assert sum(found["time_parts_s"].values()) == pytest.approx(best["step_time_s"])
    assert sum(found["memory_parts_bytes"].values()) == pytest.approx(best["hbm_bytes"])
    assert max(found["floor_parts_s"].values()) == pytest.approx(best["floor_s"])
    assert found["diagnosis"]["headroom"] == pytest.approx(1 - best["floor_s"] / best["step_time_s"])
    assert found["fits"]
    assert found["parameters"] == 8 * (4 * 128 * 128 + 3 * 128 * 192 + 2 * 128) + 128 + 512 * 128


def test_the_file_is_what_json_prints_and_the_ledger_knows_the_plan(command) -> None:
    found = told(command(*EXPLAIN, "output=json"))
    assert json.loads(Path("run/explanation.json").read_text()) == found
    (event,) = Ledger(Path("run")).events("explained")
    assert event["plan"] == found["best"]["line"]
    assert {name: event[name] for name in found} == found


def test_plain_output_takes_the_plan_apart(command) -> None:
    ended = command(*EXPLAIN, f"plan={WHOLE}", f"baseline={WHOLE}", "output=plain")
    assert (ended.status, ended.err) == (0, "")
    for title in (
        "The given plan on v5e-4:",
        "Step time by part:",
        "What overlaps:",
        "Memory by part, on the fullest device:",
        "Floor: the least each resource needs:",
        "Why:",
        "Against the baseline:",
        "What one step on each axis and knob would do:",
    ):
        assert f"{title}\n" in ended.out
    assert "1.00x of this plan's" in ended.out
    assert str(Path.cwd() / "run/explanation.json") in ended.out


def test_steps_are_plans_of_their_own(command) -> None:
    found = told(command(*EXPLAIN, f"plan={WHOLE}", "output=json"))
    steps = {(step["field"], step["value"]): step for step in found["steps"]}
    assert {"data", "fsdp", "pipeline", "context", "tensor", "micro_batch", "remat"} <= {field for field, _ in steps}
    step = steps["tensor", "4"]
    alone = told(command(*EXPLAIN, f"plan={step['estimate']['line']}", "output=json"))
    assert alone["best"] == step["estimate"]


def test_a_partial_plan_pins_what_it_names(command) -> None:
    found = told(command(*EXPLAIN, "plan=fsdp=2 tensor=2 remat=full", "output=json"))
    assert found["chosen"] == "The best plan with what was given"
    plan = found["best"]["plan"]
    assert (plan["fsdp"], plan["tensor"], plan["remat"]) == (2, 2, "full")
    assert set(plan) & {"data", "pipeline", "context", "expert"} == set()


def test_a_plan_that_does_not_fit_is_explained_all_the_same(command) -> None:
    plan = "fsdp=4 micro_batch=1 accumulation=256 remat=full"
    words = ("+model=llama70b", "hardware=v5e-4", "task=explain", "run_dir=run", f"plan={plan}")
    ended = command(*words, "output=plain")
    assert ended.status == 0
    assert "DOES NOT FIT" in ended.out
    assert not told(command(*words, "output=json"))["fits"]


MISTAKES = {
    "plan=tensr=2": ("plan=tensr=2", "unknown field", "did you mean tensor?"),
    "plan=fsdp=two": ("plan.fsdp=two", "a positive whole number"),
    "plan=fsdp=2@2 tensor=2": ("plan=", "part"),
    "plan=fsdp=2 fsdp=2": ("plan=fsdp=2", "given twice"),
    "plan=tensor=4 context=4": ("plan.tensor=4", "v5e-4", "allowed with all else as it is: 1"),
    "plan=fsdp=3 tensor=1": ("plan.fsdp=3", "allowed with all else as it is: 1, 2, 4"),
    "plan=fsdp=4 remat=ful": ("plan", "remat", "full"),
    "plan=fsdp=4 micro_batch=5": ("plan.micro_batch=5", "batch", "allowed with all else as it is: 1, 2"),
    "plan=precision=fp8": ("plan.precision=fp8", "bf16 (others by space.numerics=[precision])"),
    "hardware=[v5e-4,v5e-8]": ("hardware=", "one slice"),
}


@pytest.mark.parametrize("word", MISTAKES)
def test_a_mistake_ends_in_one_line(command, word: str) -> None:
    ended = command(*EXPLAIN, word)
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert [part for part in MISTAKES[word] if part not in ended.err] == []
    assert list(Path.cwd().iterdir()) == [], "a mistake leaves no directory"


def test_a_full_disk_ends_in_one_line(command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(drafts.os, "replace", full)
        ended = command(*EXPLAIN)
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert "No space left on device" in ended.err

"""`task=explain profile=PATH`: a trace by itself, and beside the plan that was run."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.profile import layouts
from tests.profile.make_traces import TRACES

TINY = ("+model=tiny", "hardware=v5e-4", "plan=data=2 tensor=2 micro_batch=4 accumulation=4 remat=full")


@pytest.fixture(autouse=True)
def working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "taken" / "host0.xplane.pb"
    file.parent.mkdir()
    file.write_bytes(gzip.decompress((TRACES / "one_host" / "host0.xplane.pb.gz").read_bytes()))
    return file.parent


def told(ended: Any) -> dict[str, Any]:
    assert ended.status == 0, ended.err
    return json.loads(ended.out)


def test_a_trace_needs_neither_model_nor_hardware(command, trace: Path) -> None:
    found = told(command("task=explain", f"profile={trace}", "run_dir=run", "output=json"))
    traced = found["traced"]
    assert json.loads(Path("run/explanation.json").read_text()) == found
    assert traced["step"]["steps"] == 3
    assert sum(traced["step"]["shares"].values()) == pytest.approx(1)
    assert sum(traced["by_category_s"].values()) == pytest.approx(sum(traced["by_phase_s"].values()))
    assert traced["thresholds"]["input"] == 0.1
    assert traced["not_certain"] == []


def test_what_is_printed_says_what_bounds_the_step_and_what_to_look_at(command, tmp_path: Path) -> None:
    file = tmp_path / "t1v-n-0.xplane.pb"
    file.write_bytes(layouts.tpu())
    ended = command("task=explain", f"profile={file}", "output=plain")
    assert ended.status == 0
    assert "bound      idle: nothing that the trace names" in ended.out
    assert "abstains   the mesh is not the bottleneck: devices do nothing for 20.0% of the step" in ended.out
    assert "look at    a trace with Python's calls" in ended.out
    assert re.search(r"nothing that the trace names +12.0 us +12.0% +10% EXCEEDED", ended.out)
    assert Path("runs").is_dir()


def test_names_in_a_trace_cannot_reach_the_terminal(command, tmp_path: Path) -> None:
    file = tmp_path / "evil.xplane.pb"
    file.write_bytes(layouts.gpu().replace(b"loop_add_fusion", b"loop_\x1b[31m\n\rion"))
    ended = command("task=explain", f"profile={file}", "output=plain")
    assert ended.status == 0
    assert "\x1b" not in ended.out
    assert "loop_\\x1b[31m\\n\\rion" in ended.out


def test_beside_a_plan_the_trace_has_axes_a_floor_and_redundant_work(command, trace: Path) -> None:
    found = told(command("task=explain", f"profile={trace}", *TINY, "run_dir=run", "output=json"))
    seen = found["traced"]["observed"]
    axes = {tuple(each["axes"]) for each in found["traced"]["collectives"]}
    assert axes == {("data",), ("tensor",)}
    assert seen["source"] == "trace"
    assert seen["floor_s"] == found["best"]["floor_s"]
    assert seen["step_time_s"] == pytest.approx(sum(found["traced"]["by_category_s"].values()))


MISTAKES = {
    "another task": (("+model=tiny", "profile=here"), "profile=here: only with task=explain"),
    "no plan": (("task=explain", "profile=here", "+model=tiny"), "plan=null: with profile= and +model=, the plan"),
    "a plan alone": (
        ("task=explain", "profile=here", "plan=fsdp=4"),
        "plan=fsdp=4: with profile=, only beside +model=",
    ),
    "nothing there": (("task=explain", "profile=here"), "here: there is no such file or folder"),
    "an empty name": (("task=explain", "profile=''"), "profile=: text that is not empty"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_in_one_line(command, mistake: str) -> None:
    words, line = MISTAKES[mistake]
    ended = command(*words)
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1), ended
    assert line in ended.err
    assert not Path("runs").exists()


def test_a_truncated_file_is_named(command, trace: Path) -> None:
    file = trace / "host0.xplane.pb"
    file.write_bytes(file.read_bytes()[:-1000])
    ended = command("task=explain", f"profile={trace}")
    assert ended.status == 1
    assert f"{file}: it is cut off, or no profile" in ended.err

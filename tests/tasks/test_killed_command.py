"""A command that is ended amid its work: by kill -9, after which the same command goes on and nothing is done again or
lost; by SIGTERM, which leaves nothing running and nothing locked."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.slow_command import COMPILED

ROOT = Path(__file__).parents[2]
WORDS = (
    *("+model=tiny", "hardware=v5e-4", "tiers=[roofline,compile]", "budget.trials=6", "output=plain"),
    "agents.memory=false",  # else the second command begins with what the first has found
)


def command(folder: Path, executor: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from tests.tasks.slow_command import run; run()",
            executor,
            *WORDS,
            f"run_dir={folder}",
        ],
        env={**os.environ, "PYTHONPATH": path, COMPILED: str(folder) + ".compiled"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def tried(folder: Path) -> list[dict[str, Any]]:
    """The finished trials on record, as far as lines are whole."""
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event for event in events if event["kind"] == "tried"]


def left_running(folder: Path) -> list[int]:
    """Processes that were started by a command of this folder: its environment names the folder's file."""
    mark, found = f"{COMPILED}={folder}.compiled".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def plans(folder: Path) -> list[str]:
    return Path(f"{folder}.compiled").read_text().splitlines()


def test_the_same_command_after_a_kill_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = command(killed, "ray")
    while len(tried(killed)) < 2 and process.poll() is None:
        time.sleep(0.05)  # until there is something to lose; the run's own end bounds it
    process.kill()
    process.communicate()
    finished = {event["finding"]["plan"] for event in tried(killed)}
    assert 2 <= len(finished) < 6
    for folder, executor in ((killed, "ray"), (whole, "local")):
        process = command(folder, executor)
        out, _ = process.communicate()
        assert process.returncode == 0, out
    again = Counter(plans(killed))
    assert {plan: again[plan] for plan in finished} == dict.fromkeys(finished, 1)
    assert set(again) == set(plans(whole))
    ends = [json.loads((folder / "summary.json").read_text()) for folder in (killed, whole)]
    assert ends[0]["best"] == ends[1]["best"]
    assert ends[0]["trials"] == ends[1]["trials"]
    assert (ends[0]["resumed"], ends[1]["resumed"]) == (True, False)
    deadline = time.monotonic() + 60.0
    while left_running(killed) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left_running(killed) == []


def test_a_command_that_is_asked_to_end_leaves_nothing_running(tmp_path: Path) -> None:
    process = command(tmp_path / "run", "ray")
    while not tried(tmp_path / "run") and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, out
    assert out.splitlines()[-1] == "asap-ray: ended by SIGTERM"
    assert "Traceback" not in out
    assert left_running(tmp_path / "run") == []


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_night_that_is_asked_to_end_ends_its_cells_and_frees_its_lock(tmp_path: Path, parallel: int) -> None:
    folder = tmp_path / "run"
    words = ("task=nightly", "nightly=small", f"nightly.parallel={parallel}", f"run_dir={folder}", "tiers=[roofline]")
    process = subprocess.Popen(
        [sys.executable, "-m", "asap_ray", *words],
        env={**os.environ, COMPILED: f"{folder}.compiled"},
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(list(folder.glob("nights/*/*/log"))) < parallel and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, err
    assert err.splitlines()[-1] == "asap-ray: ended by SIGTERM"
    assert left_running(folder) == []
    assert not (folder / "night.lock").exists()
    events = [json.loads(line)["kind"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert events == ["start", "night", *["cell_began"] * parallel]

"""kill -9 amid real trainings that run through Ray: of the command, of Ray's raylet, of one training."""

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

from tests.tasks.test_run import RUN

ROOT = Path(__file__).parents[2]
MARK = "ASAP_RAY_TEST_RUN"
HANG_S = 600.0
LONGER = ("run.steps=400", "run.seconds=3", "run.confirm=0", "run.trace=false", "output=json")


def command(folder: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "asap_ray", *RUN, *LONGER, f"run_dir={folder}"],
        env={**os.environ, "PYTHONPATH": path, MARK: str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Events of a kind, as far as lines are whole."""
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [each for line in lines if line.endswith("\n") and (each := json.loads(line))["kind"] == kind]


def running(folder: Path) -> dict[int, dict[str, str]]:
    """What runs for a command of this folder, however far below: its environment, by number of the process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            lines = path.read_bytes().decode(errors="replace").split("\0")
            environ: dict[str, str] = {name: value for name, _, value in (line.partition("=") for line in lines)}
            if environ.get(MARK) == str(folder):
                found[int(path.parent.name)] = environ
    return found


def until(condition: Any) -> None:
    limit = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < limit, "it never happened"
        time.sleep(0.05)


def name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def trainings(folder: Path) -> list[int]:
    """Processes that train: alone of all they lead a session and hold JAX."""
    found = []
    for pid in running(folder):
        with contextlib.suppress(OSError):
            if os.getsid(pid) == pid and "jaxlib" in Path(f"/proc/{pid}/maps").read_text():
                found.append(pid)
    return found


def amid_trials(folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a trial is finished and another one trains."""
    until(lambda: process.poll() is not None or (events(folder, "tried") and trainings(folder)))
    assert process.poll() is None, process.communicate()


@pytest.mark.parametrize("whom", ["command", "raylet"])
def test_the_same_command_goes_on_and_nothing_is_left(tmp_path: Path, whom: str) -> None:
    folder = tmp_path / "run"
    process = command(folder)
    amid_trials(folder, process)
    below = running(folder)
    (pid,) = [process.pid] if whom == "command" else [pid for pid in below if name(pid) == "raylet"]
    os.kill(pid, signal.SIGKILL)
    _, err = process.communicate()
    if whom == "raylet":
        assert process.returncode == 1
        assert err.strip().splitlines()[-1].endswith("the same command goes on where this one ended")
        assert "Traceback" not in err
    finished = Counter(each["finding"]["plan"] for each in events(folder, "tried"))
    assert 1 <= len(finished) < 3
    until(lambda: not running(folder))
    folders = {each["TMPDIR"] for each in below.values() if "asap_ray_" in each.get("TMPDIR", "")}
    assert len(folders) == 1, "Ray's own, and all that it started"
    until(lambda: not any(map(os.path.exists, folders)))

    process = command(folder)
    out, err = process.communicate()
    assert process.returncode == 0, err
    found = json.loads(out)
    assert found["resumed"] is True
    assert found["trials"]["complete"] + found["trials"]["pruned"] == 3
    began = Counter(each["plan"] for each in events(folder, "trial"))
    assert {plan: began[plan] for plan in finished} == dict.fromkeys(finished, 1)
    assert len(began) == 3
    until(lambda: not running(folder))


def test_a_training_that_is_killed_costs_its_own_trial_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = command(folder)
    until(lambda: process.poll() is not None or trainings(folder))
    assert process.poll() is None, process.communicate()
    os.kill(trainings(folder)[0], signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 0, err
    trials = json.loads(out)["trials"]
    assert (trials["failed"], trials["complete"] + trials["pruned"]) == (1, 2)
    (failed,) = [each["finding"] for each in events(folder, "tried") if each["finding"]["status"] == "failed"]
    assert failed["reason"] == "its process was ended by SIGKILL"
    assert failed["lost"] is False
    until(lambda: not running(folder))

"""What reaches stdout and the disk where the terminal, the working directory or the stream is an odd one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import asap_ray

TINY = ("+model=tiny", "hardware=v5e-4", "tiers=roofline")


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


def _shell(line: str, cwd: Path | bytes) -> subprocess.CompletedProcess[str]:
    command = f"{shlex.quote(sys.executable)} -m asap_ray"
    return subprocess.run(
        ["sh", "-c", line.replace("asap-ray", command)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(asap_ray.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("task", ["tune", "explain"])
def test_a_working_directory_whose_name_is_no_text_is_worked_in(tmp_path: Path, task: str) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff"
    try:
        os.mkdir(odd)
    except OSError:
        pytest.skip("this file system takes text only")
    ended = _shell(f"asap-ray {' '.join(TINY)} task={task}", odd)
    assert (ended.returncode, ended.stderr) == (0, "")
    name = "report.html" if task == "tune" else "explanation.json"
    (run,) = Path(os.fsdecode(odd), "runs").iterdir()
    assert (run / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("where", ["", "run_dir=$0"])
def test_a_working_directory_that_is_gone_ends_in_one_line(tmp_path: Path, where: str) -> None:
    place = where.replace("$0", str(tmp_path / "run"))
    ended = _shell(f"mkdir gone && cd gone && rmdir ../gone && asap-ray {' '.join(TINY)} {place}", tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert "the working directory cannot be found" in ended.stderr


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_a_closed_stdout_drops_what_is_printed_and_nothing_else(tmp_path: Path, closed: str) -> None:
    ended = _shell(f"asap-ray {' '.join(TINY)} run_dir=run {closed}", tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["best"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("words", ["--help", "--version", "+model=tiny --cfg job"])
def test_a_full_disk_behind_any_output_ends_in_one_line(tmp_path: Path, words: str) -> None:
    ended = _shell(f"asap-ray {words} >/dev/full", tmp_path)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
    assert "cannot be printed: No space left on device" in ended.stderr

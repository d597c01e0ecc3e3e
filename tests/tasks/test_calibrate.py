"""`task=calibrate` from the command line: a few runs of a user's own, and what cannot be fitted to."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from asap_ray.physics.calibration import calibrations_from_mappings
from asap_ray.settings import data_dir, load_group
from asap_ray.tasks import calibrate, here

RUN: dict[str, Any] = {"source_name": "our cluster", "model": "GPT", "layers": 24, "d_model": 2048, "d_ff": 8192}
RUN |= {"n_heads": 16, "vocab": 51200, "seq_len": 2048, "hardware": "H100", "chips": 8, "precision": "bf16", "pp": 1}
RUN |= {"global_batch_seqs": 64, "framework": "Megatron-LM", "date": "2026", "remat": "none", "status": "ok"}
CHIP = (data_dir("conf") / "hardware" / "h100.yaml").read_text().replace("name: h100", "name: local")
PLANS = [(1, 8, 2, 0.9), (2, 4, 4, 1.0), (4, 2, 4, 1.2), (8, 1, 8, 1.6)]


def table(name: str, *rows: dict[str, Any]) -> str:
    with Path(name).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    return name


def runs(slower: float = 1.0) -> list[dict[str, Any]]:
    names = ("tp", "dp", "micro_batch_per_dp_rank", "metric_step_time_s")
    return [{**RUN, **dict(zip(names, plan, strict=True)), "metric_step_time_s": plan[-1] * slower} for plan in PLANS]


def test_a_users_own_runs_move_the_constants_and_keep_what_was_fitted_before(command, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = table("mine.csv", *runs(slower=1.5))
    ended = command("task=calibrate", f"calibrate.tables=[{mine}]", "output=json", "run_dir=run")
    assert (ended.status, ended.err) == (0, ""), ended
    found = json.loads(ended.out)
    (before,), (after,) = found["errors"]["before"].values(), found["errors"]["fitted"].values()
    assert found["rows"] == before["n"] == 4
    assert after["median_ape"] < before["median_ape"]
    files = {path.stem: yaml.safe_load(path.read_text()) for path in Path("run/conf/calibration").glob("*.yaml")}
    assert "h100" in files
    shipped = load_group("calibration")
    assert set(shipped["h100"].get("fitted", {})) <= set(files["h100"]["fitted"])
    assert files["h100"]["rows"]["our cluster"] == 4
    # The folder is one for --config-dir, whose files replace the built-in ones.
    merged = calibrations_from_mappings(load_group("calibration", "run/conf"))
    (value, _) = files["h100"]["fitted"]["matmul_fraction"]
    assert merged["h100"].matmul_fraction == value
    again = command(
        "task=validate", f"validate.tables=[{mine}]", "output=json", "run_dir=val", "--config-dir", "run/conf"
    )
    assert json.loads(again.out)["overall"]["median_ape"] == pytest.approx(after["median_ape"], rel=0.05)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (runs()[:2], "3 or more runs"),
        ([{**row, "hardware": "abacus"} for row in runs()], "3 or more runs"),
        ([{**row, "metric_step_time_s": None} for row in runs()], "3 or more runs"),
    ],
)
def test_too_few_runs_end_in_one_line(command, tmp_path, monkeypatch, rows, told) -> None:
    monkeypatch.chdir(tmp_path)
    ended = command("task=calibrate", f"calibrate.tables=[{table('few.csv', *rows)}]", "run_dir=run")
    assert ended.status == 1
    assert ended.err.startswith("asap-ray: calibrate.tables=")
    assert told in ended.err
    assert ended.err.count("\n") == 1
    assert not Path("run").exists()


def test_a_table_that_is_not_there_ends_in_one_line(command) -> None:
    ended = command("task=calibrate", "calibrate.tables=[none.csv]")
    assert ended.status == 1
    assert "calibrate.tables=none.csv" in ended.err
    assert ended.err.count("\n") == 1


def test_the_machine_at_hand_must_be_described(command) -> None:
    ended = command("task=calibrate", "hardware=local")
    assert ended.status == 1
    assert "hardware/local.yaml" in ended.err
    assert ended.err.count("\n") == 1


def test_what_keeps_rows_from_being_used_is_told(command, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = table("mine.csv", *({**row, "hardware": "abacus"} for row in runs()[:3]), runs()[3])
    ended = command("task=calibrate", f"calibrate.tables=[{mine}]", "run_dir=run")
    assert "1 of 4 rows are" in ended.err
    assert "hardware: abacus" in ended.err


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_fitted(command, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibrate, "_fitted", lambda *_: pytest.fail("fitted first"))

    def refused(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refused)
    ended = command("task=calibrate", f"calibrate.tables=[{table('mine.csv', *runs())}]", "run_dir=run")
    assert ended.status == 1
    assert "run_dir=" in ended.err
    assert "Read-only file system" in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rows: 3", "calibration.h100.rows=3: allowed: a mapping of sources to numbers of runs"),
        ("rows: {mine: many}", "calibration.h100.rows.mine=many: allowed: a whole number from 0"),
        ("rows: {mine: -1}", "calibration.h100.rows.mine=-1: allowed: a whole number from 0"),
        ("fitted: {hbm_fraction: [0.9, b]}", "calibration.h100.fitted.hbm_fraction=b: allowed: a standard error"),
        (f"hbm_fraction: {'9' * 400}", "a settings file without numbers of hundreds of digits"),
        (f"fitted: {{hbm_fraction: [0.9, {'9' * 400}]}}", "a settings file without numbers of hundreds of digits"),
        ("fitted: {hbm_fraction: [0.9, -1]}", "calibration.h100.fitted.hbm_fraction=-1: allowed: a standard error"),
    ],
)
def test_a_fit_edited_by_hand_is_refused_in_one_line(command, tmp_path, monkeypatch, text, told) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my/calibration").mkdir(parents=True)
    Path("my/calibration/h100.yaml").write_text(f"base: gpu\n{text}\n")
    mine = table("mine.csv", *runs())
    ended = command("task=calibrate", f"calibrate.tables=[{mine}]", "--config-dir", "my", "run_dir=run")
    assert ended.status == 1
    assert told in ended.err
    assert ended.err.count("\n") == 1
    assert not Path("run").exists()


def test_processes_that_fit_end_with_a_parent_that_is_killed() -> None:
    # The parent forks one worker through a pool, says which, and is killed while the worker waits for work.
    script = (
        "import os, sys, time\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from multiprocessing import get_context\n"
        "from asap_ray.tasks.calibrate import _follow_parent\n"
        "pool = ProcessPoolExecutor(2, mp_context=get_context('fork'), initializer=_follow_parent)\n"
        "pool.submit(os.getpid).result()\n"
        "print('forked', flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    # Workers inherit stdout: its end is seen when the last of them is gone.
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (-9, "forked\n")


def test_what_a_measurement_would_add_to_is_read_before_it(command, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(here, "measured_here", lambda *_: pytest.fail("measured first"))
    for folder, text in (("hardware", CHIP), ("calibration", "base: gpu\nfitted: 3\n")):
        (tmp_path / "my" / folder).mkdir(parents=True)
        (tmp_path / "my" / folder / "local.yaml").write_text(text)
    ended = command("task=calibrate", "hardware=local", "--config-dir", "my", "run_dir=run")
    assert ended.status == 1
    assert "calibration.local.fitted=3: allowed: a mapping of constants" in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("task", ["calibrate", "validate"])
def test_a_model_is_refused_where_rows_name_their_own(command, task) -> None:
    ended = command(f"task={task}", "+model=llama70b")
    assert ended.status == 1
    assert "+model=llama70b: not for task=" in ended.err
    assert ended.err.count("\n") == 1

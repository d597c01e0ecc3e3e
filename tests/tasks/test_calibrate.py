"""`task=calibrate` from the command line: a few runs of a user's own, and what cannot be fitted to."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from asap_ray.physics.calibration import calibrations_from_mappings
from asap_ray.settings import load_group

RUN: dict[str, Any] = {"source_name": "our cluster", "model": "GPT", "layers": 24, "d_model": 2048, "d_ff": 8192}
RUN |= {"n_heads": 16, "vocab": 51200, "seq_len": 2048, "hardware": "H100", "chips": 8, "precision": "bf16", "pp": 1}
RUN |= {"global_batch_seqs": 64, "framework": "Megatron-LM", "date": "2026", "remat": "none", "status": "ok"}
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

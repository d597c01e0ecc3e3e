"""The record of searches: what is written is read back, with what is not known left open."""

from __future__ import annotations

from pathlib import Path

from asap_ray.report.leaderboard import csv_text
from asap_ray.tiers.recorded import Recorded, read_record

PLAN = "fsdp=16@4.4 micro_batch=1 accumulation=1 remat=full"
SHAPE = {"model": "m", "hardware": "v5e-16", "global_batch": 16, "seq_len": 4096, "plan": PLAN}


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    complete = Recorded(
        row="a-1",
        **SHAPE,
        status="complete",
        needed_bytes=3e9,
        limit_bytes=16e9,
        memory_parts={"weights": 1e9, "temporaries": 2e9},
        step_time_s=1.25,
        time_parts={"matmul": 1.0, "fsdp": 0.25},
        flops=1e15,
        unpredicted=0.001,
        core_s=80.5,
        compiled_with="ours@12345678",
        digest="abcd",
    )
    refused = Recorded(
        row="",
        **SHAPE,
        status="infeasible",
        reason="too big, by far",
        needed_bytes=20e9,
        limit_bytes=16e9,
        over_bytes=4e9,
    )
    failed = Recorded(row="a-2", **SHAPE, status="failed", reason='it said "no"')
    path = tmp_path / "results.csv"
    path.write_text(csv_text([each.as_row() for each in (complete, refused, failed)]))
    assert read_record(path) == [complete, refused, failed]
    assert len({each.key for each in (complete, refused, failed)}) == 3


def test_no_record_is_an_empty_one(tmp_path: Path) -> None:
    assert read_record(tmp_path / "results.csv") == []

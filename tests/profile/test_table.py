"""The questions that a diagnosis asks of a profile."""

from __future__ import annotations

import json
import math

import pyarrow as pa
import pytest

from asap_ray.profile.table import Op, Profile, from_row

OPS = (
    Op(name="m", category="matmul", phase="forward", count=4, seconds=3.0, exposed_s=3.0, flops=6e12, source="a.py:1"),
    Op(name="s", category="attention", phase="backward", seconds=1.0, exposed_s=1.0, flops=1e12, redone_flops=0.5e12),
    Op(
        name="g",
        category="all_gather",
        phase="forward",
        seconds=2.0,
        exposed_s=0.5,
        wire_bytes=1e9,
        axes=("fsdp",),
        level="ici",
        overlaps_with=("m",),
    ),
    Op(name="r", category="all_reduce", seconds=1.0, exposed_s=1.0, wire_bytes=3e9, axes=("data",), level="dcn"),
    Op(name="p", category="permute", seconds=0.1, exposed_s=0.0, wire_bytes=1e7, axes=("context",), level="ici"),
    Op(name="c", category="copy", seconds=0.5, exposed_s=0.0, hbm_bytes=1e9),
)
PROFILE = Profile(
    ops=OPS, chip="v5e", clock_hz=1.5e9, source="compile", memory={"temporaries": 1e9}, largest=(("w", 5e8),)
)


def test_the_step_is_what_is_exposed() -> None:
    assert PROFILE.step_time_s == 5.5
    assert math.fsum(PROFILE.by("category").values()) == 5.5
    assert PROFILE.by("phase") == {"forward": 3.5, "backward": 1.0, "other": 1.0}
    assert PROFILE.by("source", "flops")["a.py:1"] == 6e12


def test_how_much_traffic_hides() -> None:
    assert PROFILE.overlap() == pytest.approx(1.0 - 1.5 / 3.1)
    assert Profile(ops=OPS[:1], chip="x", clock_hz=1.0, source="compile").overlap() is None


def test_ops_that_cost_most() -> None:
    assert [op.name for op in PROFILE.top(2)] == ["m", "s"]
    assert [op.name for op in PROFILE.top(2, "wire_bytes")] == ["r", "g"]


def test_use_of_the_hardware() -> None:
    assert PROFILE.mxu_use(2e12) == pytest.approx(7.5 / 11)
    assert PROFILE.hbm_use(1e9) == pytest.approx(1 / 5.5)


def test_what_no_one_predicted() -> None:
    moved = {
        ("all_reduce", ("data",), "dcn"): 3e9,
        ("all_gather", ("fsdp",), "ici"): 1e9,
        ("permute", ("context",), "ici"): 1e7,
    }
    assert PROFILE.moved() == moved
    assert PROFILE.unexpected(moved) == {}
    # A predicted kind on other axes predicts nothing; what is below half a percent of all is no finding.
    predicted = {("all_reduce", ("data",), "dcn"): 2e9, ("all_gather", ("tensor",), "ici"): 1e9}
    assert PROFILE.unexpected(predicted) == {
        ("all_reduce", ("data",), "dcn"): 1e9,
        ("all_gather", ("fsdp",), "ici"): 1e9,
    }
    assert len(PROFILE.unexpected(predicted, share=0.0)) == 3


def test_a_profile_comes_back_from_json() -> None:
    text = json.dumps(PROFILE.as_dict())
    assert Profile.from_dict(json.loads(text)) == PROFILE


def test_rows_make_a_table_and_come_back() -> None:
    table = pa.Table.from_pylist(PROFILE.rows())
    assert table.num_rows == 6
    assert table.column("seconds").to_pylist() == [3.0, 1.0, 2.0, 1.0, 0.1, 0.5]
    assert tuple(from_row(row) for row in table.to_pylist()) == OPS

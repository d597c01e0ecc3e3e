"""What bounds a traced step, on summaries whose shares are given."""

from __future__ import annotations

import pytest

from asap_ray.profile.summary import PARTS, DeviceShare, StepSummary
from asap_ray.profile.table import Op, Profile
from asap_ray.profile.verdict import Verdict, verdict


def judged(peaks: tuple[float, float] = (0.0, 0.0), skew: float = 0.0, **shares: float) -> Verdict:
    """The verdict on a step of one second on two devices."""
    parts = {**dict.fromkeys(PARTS, 0.0), **shares}
    parts["compute"] = 1.0 - sum(parts.values())
    devices = tuple(DeviceShare(host="h", name=name, step_s=1.0, parts=parts) for name in ("a", "b"))
    summary = StepSummary(
        steps=3,
        found_by="launches",
        hosts=1,
        step_s=1.0,
        fastest_s=1.0,
        slowest_s=1.0,
        shares=parts,
        waited_s=0.2 * (parts["collectives"] > 0.2),
        devices=devices,
        slowest="b of h",
        skew=skew,
    )
    ops = (
        Op(
            name="dot",
            category="matmul",
            seconds=0.6,
            exposed_s=parts["compute"],
            flops=4e9,
            hbm_bytes=3e9,
            source="m:1",
        ),
        Op(name="ag", category="all_gather", seconds=1.0, exposed_s=parts["collectives"], source="m:2"),
        Op(name="idle", category="other", seconds=0.0, exposed_s=1 - parts["compute"] - parts["collectives"]),
    )
    return verdict(summary, Profile(ops=ops, chip="", clock_hz=0.0, source="trace"), peaks)


@pytest.mark.parametrize(
    ("shares", "bound"),
    [
        ({}, "compute"),
        ({"input": 0.10}, "compute"),
        ({"input": 0.11}, "input"),
        ({"host": 0.06, "idle": 0.05}, "host"),
        ({"host": 0.05, "idle": 0.06}, "idle"),
        ({"collectives": 0.30}, "compute"),
        ({"collectives": 0.31}, "collectives"),
        ({"copies": 0.31}, "copies"),
        ({"collectives": 0.31, "idle": 0.32}, "idle"),
        ({"collectives": 0.40, "input": 0.32}, "collectives"),
    ],
)
def test_of_what_exceeds_xprofs_thresholds_the_largest_binds(shares: dict[str, float], bound: str) -> None:
    assert judged(**shares).bound == bound


def test_no_mesh_is_asked_for_where_devices_wait_or_little_is_exposed() -> None:
    assert judged(input=0.2, idle=0.05).abstains == (
        "the mesh is not the bottleneck: devices do nothing for 25.0% of the step, mostly waiting for input, "
        "which is the same on every mesh"
    )
    assert judged(collectives=0.04).abstains is not None
    assert judged(collectives=0.06).abstains is None
    assert judged(collectives=0.5).abstains is None


def test_what_is_looked_at_next_is_named() -> None:
    assert judged(collectives=0.4).look_at.endswith("or overlap: m:2")
    assert judged().look_at.endswith("then recomputation: m:1")
    assert judged(collectives=0.4, skew=0.2).look_at.startswith("b of h first, which all others wait for")
    assert "b of h works 20% longer" in " ".join(judged(collectives=0.4, skew=0.2).evidence)
    assert judged(collectives=0.4).next_wall == "compute"


def test_hbm_binds_where_it_is_busy_and_the_matrix_units_are_not() -> None:
    assert judged(peaks=(8e9, 4e9)).bound == "hbm"  # 75% of HBM, 50% of the matrix units
    assert judged(peaks=(5e9, 4e9)).bound == "compute"  # 80% of the matrix units
    assert judged(peaks=(0.0, 0.0)).mxu is None
    assert "HBM at 75%, high" in judged(peaks=(8e9, 4e9)).evidence


def test_waiting_for_the_ends_of_transfers_is_evidence() -> None:
    assert "the ends of asynchronous collectives are waited for 20.0% of the step" in judged(collectives=0.4).evidence

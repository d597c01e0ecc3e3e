"""What a profile shows, on steps of a few ops whose figures are worked out by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from asap_ray.diagnosis import diagnose_observed
from asap_ray.observation import Observation, observe, read_observation
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.physics.estimate import Estimate
from asap_ray.physics.wire import predicted_collectives
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.profile.table import Op, Profile
from asap_ray.settings import load_group
from asap_ray.tiers.roofline import Roofline
from tests.problems import make_problem

PROBLEM = make_problem("v5e-4", "ours")  # 4 devices
PEAK, HBM = PROBLEM.slice.chip.peak_flops["bf16"], PROBLEM.slice.chip.hbm_bytes_per_s
LINE = "fsdp=2@2.1 tensor=2@1.2 micro_batch=1 accumulation=6 sequence_parallel=true remat=full"
GATHERED = predicted_collectives(PROBLEM, Plan.parse(LINE))["all_gather", ("fsdp",), "ici"]
"""Bytes that each device sends to gather weights."""


def estimate(problem: Problem = PROBLEM, line: str = LINE, **changes: Any) -> Estimate:
    constants = calibrations_from_mappings(load_group("calibration"))
    tier = Roofline(problem=problem, calibration=calibration_of(problem.slice.chip, "ours", constants))
    (found,) = tier.estimates([Plan.parse(line)])
    return replace(found, **{"floor_s": 4.0, "serial_s": 14.0, "redundant": 0.30, **changes})


def op(category: str, seconds: float, **changes: Any) -> Op:
    fields = {"name": category, "category": category, "phase": "forward", "seconds": seconds, "exposed_s": seconds}
    return Op(**{**fields, **changes})


def gather(seconds: float, exposed: float, axes: tuple[str, ...] = ("fsdp",), **changes: Any) -> Op:
    fields = {"exposed_s": exposed, "axes": axes, "level": "ici", "wire_bytes": GATHERED}
    return op(changes.pop("category", "all_gather"), seconds, **{**fields, **changes})


def seen(*ops: Op, memory: dict[str, float] | None = None, **changes: Any) -> Observation:
    profile = Profile(ops=ops, chip="v5e", clock_hz=1.5e9, source="compile", **changes)
    return observe(profile, PROBLEM, estimate(), memory or {})


def own_flops(share: float) -> float:
    """A device's part of the model's FLOPs."""
    return share * PROBLEM.workload.model_flops / 4


def test_the_critical_path_is_shared_by_kind_and_by_what_it_waits_for() -> None:
    found = seen(
        op("matmul", 5.0, flops=0.8 * 5 * PEAK, hbm_bytes=0.1 * 5 * HBM),
        op("matmul", 1.0, flops=0.1 * PEAK, hbm_bytes=0.9 * HBM, name="thin"),
        op("elementwise", 1.0, hbm_bytes=0.7 * HBM),
        gather(4.0, 1.5),
        gather(2.0, 0.5, level="dcn", axes=("data",), category="all_reduce"),
    )
    assert found.step_time_s == pytest.approx(9.0)
    assert found.seconds == pytest.approx({"matmul": 6.0, "elementwise": 1.0, "collectives": 2.0})
    assert found.resources == pytest.approx({"compute": 5.0, "hbm": 2.0, "ici": 1.5, "dcn": 0.5, "host": 0.0})
    assert found.mxu == pytest.approx((4.0 + 0.1) / 9)
    assert found.hbm == pytest.approx((0.5 + 0.9 + 0.7) / 9)
    assert found.place == pytest.approx((9 - 4) / (14 - 4))


def test_the_ops_that_cost_most_are_told_with_their_line_and_use() -> None:
    line = "asap_ray/trainer/layers.py:88"
    found = seen(
        op("matmul", 2.0, name="dot.1", source=line, flops=1.5 * PEAK, count=80),
        op("matmul", 1.0, name="dot.2", source=line, flops=0.6 * PEAK, hbm_bytes=0.3 * HBM, count=80),
        op("matmul", 2.5, name="dot.1", source=line, phase="backward", flops=PEAK, redone_flops=PEAK),
        op("copy", 0.5, name="copy.9"),
    )
    first, second, third = found.top
    assert (first.source, first.phase, first.name) == (line, "forward", "dot.1")
    assert (first.seconds, first.count, first.share) == pytest.approx((3.0, 160, 0.5))
    assert (first.mxu, first.hbm) == pytest.approx((2.1 / 3, 0.1))
    assert second.mxu == pytest.approx(2 / 2.5), "what a kernel does again keeps the units busy"
    assert (third.name, third.source) == ("copy.9", "")


def test_redundant_work_is_laid_to_the_policy_to_kernels_and_to_what_nobody_asked_for() -> None:
    found = seen(
        op("matmul", 1.0, flops=own_flops(0.35)),
        op("matmul", 2.0, flops=own_flops(0.70), phase="backward", redone_flops=own_flops(0.10)),
        op("matmul", 1.0, flops=own_flops(0.28), phase="recompute"),
    )
    assert found.recomputed == pytest.approx(0.28)
    assert found.surplus == pytest.approx(0.05)
    words = diagnose_observed(found).evidence
    text = (
        "recomputation +28.0% FLOPs (the policy is priced at +30.0%), kernels +10.0%, all else +5.0% of the model's own"
    )
    assert text in words
    assert diagnose_observed(found).redundant == pytest.approx(0.33)


def test_what_a_pipelines_ranks_do_without_a_micro_batch_is_told_apart() -> None:
    # Two stages and six micro-batches are seven ticks: a sixth more of all that layers do, of the head nothing.
    line = "fsdp=2 pipeline=2 micro_batch=1 accumulation=6 schedule=gpipe remat=full"
    workload = PROBLEM.workload
    layers = 1.0 - 3.0 * workload.flops_by_part()["head"] / workload.model_flops
    ops = (
        op("matmul", 1.0, flops=own_flops(1.0 + layers / 6 + 0.05)),
        op("matmul", 1.0, flops=own_flops(0.30 * 7 / 6), phase="recompute"),
    )
    profile = Profile(ops=ops, chip="v5e", clock_hz=1.5e9, source="compile")
    found = observe(profile, PROBLEM, estimate(line=line), {})
    assert found.recomputed == pytest.approx(0.30)
    assert found.idle == pytest.approx((layers + 0.30) / 6)
    assert found.surplus == pytest.approx(0.05)
    text = f"(the policy is priced at +30.0%), idle ticks of the pipeline {found.idle:+.1%}, all else +5.0% of"
    assert any(text in words for words in diagnose_observed(found).evidence)
    assert diagnose_observed(found).redundant == pytest.approx(0.30 + (layers + 0.30) / 6 + 0.05)


def test_a_naively_sharded_attention_is_seen() -> None:
    # Twice the FLOPs of matmuls and a flood of all-to-alls over the tensor axis.
    found = seen(
        op("matmul", 4.0, flops=own_flops(2.0)),
        gather(1.0, 0.2),
        gather(9.0, 9.0, axes=("tensor",), category="all_to_all", wire_bytes=8.67 * GATHERED),
    )
    assert found.surplus == pytest.approx(1.0)
    assert [(each.category, each.over) for each in found.unpredicted] == [("all_to_all", "tensor")]
    told = diagnose_observed(found)
    assert told.bound == "ici"
    assert f"not predicted: all_to_all over tensor, {8.67 * GATHERED / 1e9:.3g} GB a device" in told.evidence
    assert told.abstains is None


def test_a_few_bytes_that_nobody_predicted_are_no_alarm() -> None:
    found = seen(
        op("matmul", 9.0, flops=own_flops(1.0)),
        gather(1.0, 0.1),
        gather(0.001, 0.001, category="all_to_all", axes=("fsdp", "tensor"), wire_bytes=0.004 * GATHERED),
    )
    assert [each.predicted for each in found.wires] == [True, False]
    assert found.unpredicted == ()


def test_bytes_are_held_against_what_the_plan_must_move() -> None:
    # What the plan gathers over fsdp is predicted; a quarter of all on top of it is not.
    found = seen(op("matmul", 9.0, flops=own_flops(1.0)), gather(1.0, 0.1))
    assert (found.unpredicted, [each.predicted for each in found.wires]) == ((), [True])
    found = seen(op("matmul", 9.0, flops=own_flops(1.0)), gather(1.0, 0.1, wire_bytes=4 / 3 * GATHERED))
    assert [(each.category, each.over) for each in found.unpredicted] == [("all_gather", "fsdp")]
    assert found.unpredicted[0].wire_bytes == pytest.approx(GATHERED / 3)
    assert found.unpredicted[0].need == found.wires[0].need


def test_an_all_reduce_that_serves_as_a_reduce_scatter_is_the_compilers_doing() -> None:
    # The gradients of 3 GB sharded over fsdp: as a reduce-scatter half the bytes and half of the 4 s would do. Of the
    # 4 s 1.5 s hide, and would hide still: of the 2.5 s that are waited for 2 s would go.
    must = predicted_collectives(PROBLEM, Plan.parse(LINE))["reduce_scatter", ("fsdp",), "ici"]
    summed = gather(4.0, 2.5, category="all_reduce", wire_bytes=2 * must, serves_as="reduce_scatter")
    hidden = gather(4.0, 0.5, category="all_reduce", wire_bytes=0.0, serves_as="reduce_scatter")
    found = seen(op("matmul", 7.0, flops=own_flops(1.0)), summed, hidden)
    assert found.unpredicted == ()
    assert (found.wires[0].predicted, found.wires[0].need[0]) == (True, "reduce_scatter")
    more = found.avoidable
    assert (more.compiler, more.seconds, more.exposed_s) == ("XLA:TPU", 4.0, 2.5)
    assert more.wire_bytes == pytest.approx(must)
    assert (
        "XLA:TPU runs an all-reduce where a reduce-scatter over several link axes of a torus would do; it moves "
        f"{must / 1e9:.3g} GB more, 4 s on the links, 2.5 s of the step (25%)"
    ) in diagnose_observed(found).evidence


def test_what_binds_and_when_the_mesh_is_not_the_problem() -> None:
    busy = op("matmul", 9.5, flops=own_flops(1.0) + 0.9 * 9.5 * PEAK)
    clean = replace(busy, flops=own_flops(1.0), hbm_bytes=0.0)
    told = diagnose_observed(seen(clean, gather(3.0, 0.1)))
    assert (told.bound, told.next_wall, told.overlap) == ("compute", "ici", pytest.approx(1 - 0.1 / 3))
    assert told.abstains is not None
    assert told.abstains.startswith("exposed collectives and redundant work are 1.0% of the step")
    assert diagnose_observed(seen(clean, gather(9.0, 6.0))).bound == "ici"
    assert diagnose_observed(seen(clean, op("copy", 8.0, hbm_bytes=HBM))).bound == "hbm"


def test_a_step_above_its_serial_time_is_called_sick() -> None:
    told = diagnose_observed(seen(op("matmul", 20.0, flops=own_flops(1.0))))
    assert "above it something is sick" in told.evidence[-1]


def test_an_observation_survives_json() -> None:
    found = seen(
        op("matmul", 1.0, flops=own_flops(1.0), source="x.py:1"),
        gather(1.0, 0.5),
        memory={"weights": 1e9},
        largest=(("bf16[8,128] layers.py:3", 2e9),),
        flags=("a loop's bound is not known",),
    )
    assert read_observation(json.loads(json.dumps(asdict(found)))) == found
    assert "not certain: a loop's bound is not known" in diagnose_observed(found).evidence


def test_what_the_host_needs_is_no_work_of_the_device() -> None:
    found = seen(op("matmul", 5.0, flops=own_flops(1.0)), op("other", 1.0, name="dispatch", phase="other"))
    assert found.seconds == pytest.approx({"matmul": 5.0, "host": 1.0})
    assert found.resources["host"] == pytest.approx(1.0)
    assert diagnose_observed(found).bound == "host"


def test_of_a_trace_waiting_is_told_apart_and_no_mesh_is_asked_for() -> None:
    work = op("matmul", 6.0, flops=own_flops(1.0))
    waits = op("input", 3.0, phase="other"), op("other", 1.0, name="idle", phase="other")
    profile = Profile(ops=(work, *waits), chip="v5e", clock_hz=1.5e9, source="trace")
    found = observe(profile, PROBLEM, estimate(), {})
    assert found.seconds == pytest.approx({"matmul": 6.0, "input": 3.0, "host": 1.0})
    assert (found.resources["input"], found.resources["host"]) == (3.0, 1.0)
    diagnosis = diagnose_observed(found)
    assert diagnosis.bound == "input"
    assert diagnosis.abstains == (
        "the mesh is not the bottleneck: devices do nothing for 40.0% of the step, mostly waiting for input"
    )

"""Diagnoses of estimates made by hand, one for each bound, and of real plans whose bound is known."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

from asap_ray.diagnosis import compare, diagnose, resource_seconds
from asap_ray.physics.calibration import calibration_from_mapping
from asap_ray.physics.estimate import RESOURCES, TIME_PARTS, Estimate
from asap_ray.plan import Plan
from asap_ray.settings import load_group
from asap_ray.tasks.running import fastest_layout
from asap_ray.tiers.roofline import Roofline
from tests.problems import make_problem


def made(
    parts: dict[str, float],
    busy: dict[str, float] | None = None,
    floor: dict[str, float] | None = None,
    line: str = "fsdp=4",
    redundant: float = 0.0,
    overhead_s: float = 0.0,
) -> Estimate:
    """An estimate whose step is the sum of its parts, whose matrix units wait in elementwise kernels only; what is not
    given is 0."""
    floors = {"compute": 1.0, "hbm": 0.0, "ici": 0.0, "dcn": 0.0} | (floor or {})
    step = sum(parts.values())
    compute = sum(parts.get(name, 0.0) for name in ("matmul", "attention", "recompute", "head"))
    return Estimate(
        plan=Plan.parse(line),
        step_time_s=step,
        interval_s=(step, step),
        floor_s=max(floors.values()),
        serial_s=2 * step,
        mfu=0.5,
        tokens_per_s=1.0,
        hbm_bytes=1.0,
        hbm_limit_bytes=2.0,
        time_parts=dict.fromkeys(TIME_PARTS, 0.0) | parts,
        busy=dict.fromkeys(RESOURCES, 0.0) | {"compute": compute} | (busy or {}),
        memory_parts={"weights": 1.0},
        floor_parts=floors,
        redundant=redundant,
        overhead_s=overhead_s,
    )


@pytest.mark.parametrize(
    ("parts", "busy", "bound", "next_wall"),
    [
        ({"matmul": 9.0, "elementwise": 0.6, "fsdp": 0.4}, {"ici": 4.0}, "compute", "ici"),
        ({"matmul": 4.0, "attention": 1.0, "elementwise": 4.0, "optimizer": 1.0}, {}, "hbm", "compute"),
        ({"matmul": 6.0, "tensor": 3.0, "fsdp": 1.0}, {"ici": 5.0}, "ici", "compute"),
        ({"matmul": 5.0, "gradient": 5.0}, {"dcn": 9.0}, "dcn", "compute"),
        ({"matmul": 6.0, "head": 1.0, "tensor": 1.0, "bubble": 2.0}, {"ici": 1.0}, "bubble", "compute"),
        ({"matmul": 8.0, "host": 1.2, "elementwise": 0.8}, {}, "host", "compute"),
        ({"matmul": 5.0, "host": 0.8, "offload": 4.2}, {"pcie": 6.0}, "pcie", "compute"),
        # matmuls of few rows: the matrix units work a fifth of the time that the weights take through HBM
        ({"matmul": 9.0, "fsdp": 1.0}, {"compute": 1.8, "hbm": 9.0}, "hbm", "compute"),
        ({"matmul": 8.0, "input": 1.5, "elementwise": 0.5}, {}, "input", "compute"),
    ],
)
def test_each_bound_is_told_from_where_the_time_goes(
    parts: dict[str, float], busy: dict[str, float], bound: str, next_wall: str
) -> None:
    found = diagnose(made(parts, busy))
    assert (found.bound, found.next_wall) == (bound, next_wall)


def test_of_two_above_their_thresholds_the_larger_binds() -> None:
    assert diagnose(made({"matmul": 4.0, "bubble": 2.9, "tensor": 3.1}, {"ici": 3.1})).bound == "ici"
    assert diagnose(made({"matmul": 4.2, "bubble": 2.9, "tensor": 2.9}, {"ici": 2.9})).bound == "bubble", "below 30%"
    assert diagnose(made({"matmul": 6.1, "bubble": 0.9, "tensor": 3.0}, {"ici": 3.0})).bound == "ici"


def test_just_below_every_threshold_is_compute_bound() -> None:
    parts = {"matmul": 2.3, "elementwise": 2.9, "tensor": 2.9, "bubble": 0.95, "host": 0.95}
    assert diagnose(made(parts, {"ici": 2.9})).bound == "compute"


def test_exposed_traffic_is_shared_as_the_wires_are_busy_and_judged_as_a_whole() -> None:
    # 4 s of 10 s do not hide. The wires work 2 s and 6 s, so 1 s is the slice's and 3 s the network's.
    found = made({"matmul": 6.0, "tensor": 4.0}, {"ici": 2.0, "dcn": 6.0})
    seconds = resource_seconds(found)
    assert (seconds["ici"], seconds["dcn"]) == (pytest.approx(1.0), pytest.approx(3.0))
    assert diagnose(found).bound == "dcn"
    split = made({"matmul": 6.0, "tensor": 4.0}, {"ici": 2.1, "dcn": 2.0})
    assert diagnose(split).bound == "ici", "half of it on each is still 40% of traffic"


def test_every_second_belongs_to_one_resource() -> None:
    found = made({name: float(i + 1) for i, name in enumerate(TIME_PARTS)}, {"ici": 30.0, "dcn": 70.0})
    assert sum(resource_seconds(found).values()) == pytest.approx(found.step_time_s)


def test_overlap_is_the_share_of_traffic_that_hides() -> None:
    assert diagnose(made({"matmul": 9.0, "fsdp": 1.0}, {"ici": 4.0})).overlap == pytest.approx(0.75)
    assert diagnose(made({"matmul": 9.0}, {"ici": 4.0})).overlap == 1.0
    assert diagnose(made({"matmul": 9.0, "fsdp": 0.1 + 0.2}, {"ici": 0.3})).overlap == 0.0, "not below by rounding"
    assert diagnose(made({"matmul": 9.0})).overlap is None


def test_headroom_and_redundancy_are_those_of_the_estimate() -> None:
    found = diagnose(made({"matmul": 7.0, "recompute": 3.0}, floor={"hbm": 4.0}, redundant=0.33))
    assert found.headroom == pytest.approx(0.6)
    assert found.redundant == 0.33
    assert "recomputation 33% more FLOPs, 3 s" in found.evidence
    assert "floor 4 s, set by hbm" in found.evidence


def test_evidence_gives_the_numbers() -> None:
    parts = {"matmul": 5.0, "attention": 1.0, "tensor": 2.0, "gradient": 0.5, "fsdp": 0.01, "bubble": 1.49}
    evidence = diagnose(made(parts, {"ici": 4.0, "dcn": 1.0})).evidence
    assert evidence[0] == "compute 6 s of 10 s (60%)"
    assert evidence[1] == "traffic 5 s, of which 2.51 s (25% of the step) does not hide: tensor 2 s, gradient 0.5 s"
    assert evidence[2] == "pipeline bubble 1.49 s (15%)"
    assert evidence[-1] == "floor 1 s, set by compute"


def test_it_abstains_where_no_mesh_would_help() -> None:
    idle = diagnose(made({"matmul": 9.6, "fsdp": 0.2, "recompute": 0.2}, {"ici": 4.0}))
    assert idle.abstains is not None
    assert idle.abstains.startswith("traffic, bubble and recomputation are 4.0% of the step")
    waiting = diagnose(made({"matmul": 5.0, "host": 5.0}, overhead_s=4.9))
    assert waiting.abstains == "4.9 s of the step (49%) are the same in every plan"


def test_it_does_not_abstain_where_a_mesh_would_help() -> None:
    assert diagnose(made({"matmul": 9.4, "fsdp": 0.3, "recompute": 0.3}, {"ici": 4.0})).abstains is None
    assert diagnose(made({"matmul": 5.0, "tensor": 5.0}, {"ici": 5.0})).abstains is None
    assert diagnose(made({"matmul": 5.0, "host": 5.0}, overhead_s=1.0)).abstains is None, "fewer launches would help"
    assert diagnose(made({"matmul": 5.0, "host": 4.0, "bubble": 1.0}, overhead_s=4.0)).abstains is None
    assert diagnose(made({"matmul": 8.0, "input": 2.0})).abstains is None


def test_the_best_is_told_by_what_it_is_made_of() -> None:
    best = made({"matmul": 9.0, "elementwise": 0.7, "fsdp": 0.3}, {"ici": 4.0})
    assert compare(best, best) == "90% of the step is compute; the largest other cost, hbm, takes 7.0%"


def test_a_slower_plan_is_told_by_what_differs_most() -> None:
    best = made({"matmul": 9.0, "fsdp": 1.0}, {"ici": 4.0})
    slower = made({"matmul": 9.01, "fsdp": 0.5, "tensor": 1.5, "bubble": 1.0}, {"ici": 4.0}, line="tensor=4")
    assert compare(slower, best) == "+20.1%: tensor +1.5 s, bubble +1 s, fsdp -0.5 s"


def test_an_equal_plan_has_nothing_to_tell() -> None:
    best = made({"matmul": 9.0})
    assert compare(made({"matmul": 9.0}, line="tensor=4"), best) == "+0.0%: no part differs much"


@lru_cache
def _tier(slice_: str, stack: str, batch: int) -> Roofline:
    problem = make_problem(slice_, stack, "llama2_70b", batch=batch, seq_len=4096)
    kind = problem.slice.chip.kind
    return Roofline(problem=problem, calibration=calibration_from_mapping(kind, load_group("calibration")[kind]))


@pytest.mark.parametrize(
    ("slice_", "stack", "batch", "line", "bound"),
    [
        ("h100x16", "megatron", 256, "data=2 tensor=4x2 accumulation=128 sequence_parallel=true", "dcn"),
        ("h100x64", "megatron", 16, "pipeline=1x8 tensor=8 accumulation=16 schedule=1f1b remat=full", "bubble"),
        ("h100x64", "megatron", 1024, "pipeline=1x8 tensor=8 accumulation=1024 schedule=1f1b remat=full", "compute"),
        ("v5p-128", "maxtext", 1024, "fsdp=64 accumulation=16 remat=full", "compute"),
    ],
    ids=["tensor across nodes", "few micro-batches", "many micro-batches", "fsdp on a torus"],
)
def test_plans_whose_bound_is_known(slice_: str, stack: str, batch: int, line: str, bound: str) -> None:
    found = diagnose(fastest_layout(_tier(slice_, stack, batch), Plan.parse(line)))
    assert found.bound == bound
    assert found.overlap is not None
    assert 0 <= found.overlap <= 1
    assert 0 < found.headroom < 1


def test_matmuls_that_wait_for_weights_are_bound_by_hbm() -> None:
    # 128 tokens a micro-batch: a weight of two bytes is read for 256 FLOPs, and an H100 does 295 in the time of a byte.
    problem = make_problem("h100x8", "megatron", "llama2_7b", batch=1024, seq_len=128)
    eager = calibration_from_mapping("gpu", load_group("calibration")["gpu"])
    # A CUDA graph launches a step's kernels at once; one by one, such small ones would wait for the host.
    graphs = replace(eager, host_launch_s=0.0, batch_overhead_s=0.0)
    estimate, one_by_one = (
        fastest_layout(Roofline(problem=problem, calibration=constants), Plan.parse("data=8 accumulation=128"))
        for constants in (graphs, eager)
    )
    assert diagnose(one_by_one).bound == "host"
    assert max(estimate.floor_parts, key=estimate.floor_parts.__getitem__) == "hbm"
    # Three passes over 6.6 G weights for each of 128 micro-batches, at the 85% of 3.35 TB/s that an H100 reaches.
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
    assert estimate.busy["hbm"] > 128 * 3 * 2 * weights / 3.35e12
    found = diagnose(estimate)
    assert found.bound == "hbm"
    assert any(line.startswith("waiting for HBM") for line in found.evidence)


def test_a_small_model_is_not_told_that_nothing_helps_where_fewer_launches_would() -> None:
    # Larger micro-batches of a tiny model launch fewer kernels, and are faster.
    problem = make_problem("h100x8", "torchtitan", "tiny", batch=256, seq_len=128)
    tier = Roofline(problem=problem, calibration=calibration_from_mapping("gpu", load_group("calibration")["gpu"]))
    one, two = (fastest_layout(tier, Plan.parse(f"fsdp=8 micro_batch={m} accumulation={32 // m}")) for m in (1, 2))
    assert two.step_time_s < 0.95 * one.step_time_s
    assert diagnose(one).abstains is None

"""A fault that only a compiler shows: attention whose shards a partitioner has to move, in a real program.

Queries, keys and values are cut out of one matrix whose columns lie on the tensor axis, so that no rank holds whole
heads of each. XLA moves them by all-to-alls that nobody asked for (`programs.naive`).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from asap_ray.architecture import architecture_from_mapping
from asap_ray.compiler.hlo import parse
from asap_ray.compiler.timeline import profile_of
from asap_ray.diagnosis import diagnose_observed
from asap_ray.meshes import laid_out
from asap_ray.observation import Observation, observe
from asap_ray.plan import Plan
from asap_ray.tiers.roofline import Roofline
from asap_ray.workload import Workload
from tests.compiler.conftest import calibrated
from tests.compiler.programs import NAIVE, NAIVE_BATCH, NAIVE_LENGTH, dump
from tests.problems import make_problem


@pytest.fixture(scope="module")
def seen() -> Observation:
    attention = {name: NAIVE[name] for name in ("heads", "kv_heads", "head_dim")}
    model = {"name": "naive", "vocab": 512, "attention": attention, "ffn": {"d_ff": NAIVE["d_ff"]}}
    architecture = architecture_from_mapping(model | {name: NAIVE[name] for name in ("layers", "d_model")})
    workload = Workload(architecture=architecture, global_batch=NAIVE_BATCH, seq_len=NAIVE_LENGTH, precision="bf16")
    problem = replace(make_problem("v5p:2x2x4", "ours"), workload=workload)
    line = "fsdp=8 tensor=2 micro_batch=16 accumulation=1 sequence_parallel=true remat=full attention=unfused"
    plan = Plan.parse(line)
    plan = replace(plan, layout=laid_out(problem, plan).plan_layout(0))
    profile = profile_of(parse(dump("naive")), problem, plan, calibrated(problem))
    (estimate,) = Roofline(problem=problem, calibration=calibrated(problem)).estimates([plan])
    return observe(profile, problem, estimate, {})


def test_the_collectives_that_nobody_predicted_are_named(seen: Observation) -> None:
    first = seen.unpredicted[0]
    assert (first.category, first.axes, first.level) == ("all_to_all", ("tensor",), "ici")
    # Columns of all of q, k and v and of gate and up change hands for each layer, forward, again, and backward.
    tokens, columns = NAIVE_BATCH // 8 * NAIVE_LENGTH, 2 * NAIVE["d_ff"]
    moved = tokens * columns * 2 / 2  # bytes that a device holds of gate and up
    assert 3 * NAIVE["layers"] * moved / 2 <= first.wire_bytes <= 3 * NAIVE["layers"] * moved


def test_they_are_on_the_critical_path_with_the_line_that_asks_for_them(seen: Observation) -> None:
    wire = next(each for each in seen.wires if each.category == "all_to_all")
    assert not wire.predicted
    assert wire.exposed_s == pytest.approx(wire.seconds)
    assert wire.exposed_s > 0.15 * seen.step_time_s
    assert any(line.startswith("not predicted: all_to_all over tensor") for line in diagnose_observed(seen).evidence)
    sources = {op.source.rsplit("/", 1)[-1].split(":")[0] for op in seen.top if op.category == "all_to_all"}
    assert sources == {"programs.py"}

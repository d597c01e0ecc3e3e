"""The JAX program of a plan, run on CPU devices: its mesh is the plan's, and each weight lies as the plan says."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asap_ray.interchange import plain_jax
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.rules import broken
from asap_ray.space import Space
from tests.problems import DENSE, MIXED, MOE, make_problem


def _letting_zero_beside_fsdp(problem: Problem) -> Problem:
    """What MaxText refuses, a plain program can do."""
    return replace(problem, stack=replace(problem.stack, zero_beside_fsdp=True))


CASES: dict[str, tuple[Problem, str]] = {
    "torus": (
        _letting_zero_beside_fsdp(make_problem("v5e-8", "maxtext", DENSE, 8, 24)),
        "data=2@1.2 fsdp=2@1.2 tensor=2@2.1 micro_batch=1 accumulation=2 zero=1 sequence_parallel=true remat=full",
    ),
    "slices": (
        make_problem("2xv5e-4", "maxtext", MOE, 8, 24),
        "fsdp=2@2.1 data=1x2 expert=2@1.2 micro_batch=1 accumulation=1 remat=full",
    ),
    "experts": (
        make_problem("h100:2x4", "megatron", MOE, 16, 24),
        "data=2x2 expert=2 tensor=2 micro_batch=1 accumulation=4 remat=full",
    ),
    "stages": (
        make_problem("h100x8", "torchtitan", DENSE, 16, 24),
        "fsdp=2 pipeline=2 context=2 micro_batch=1 accumulation=8 schedule=1f1b remat=none",
    ),
    "mixed": (
        make_problem("h100x8", "torchtitan", MIXED, 16, 24),
        "fsdp=2 context=2 expert=4 tensor=2 micro_batch=1 accumulation=8 sequence_parallel=true remat=none",
    ),
}
RUNNER = """
import json, runpy, sys
import jax
from asap_ray.trainer.sharding import device_mesh
from tests.interchange.test_plain_jax import CASES
from asap_ray.plan import Plan
found = {}
for name, (problem, line) in CASES.items():
    program = runpy.run_path(f"{sys.argv[1]}/{name}.py")
    mesh = program["make_mesh"](jax.devices())
    made = program["make_weights"](mesh)
    plan = Plan.parse(line)
    same = None
    if problem.stack.expert_multiplies:
        same = bool((mesh.devices == device_mesh(plan, problem.slice, jax.devices()).devices).all())
    found[name] = {
        "mesh": dict(mesh.shape),
        "ids": [device.id for device in mesh.devices.flat],
        "parts": {key: list(each.addressable_shards[0].data.shape) for key, each in made.items()},
        "specs": {key: repr(tuple(each.sharding.spec)) for key, each in made.items()},
        "state": {key: repr(tuple(spec)) for key, spec in program["STATE"].items()},
        "same": same,
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("programs")
    for name, (problem, line) in CASES.items():
        plan = Plan.parse(line)
        assert broken(problem, plan) is None, (name, broken(problem, plan))
        (folder / f"{name}.py").write_text(plain_jax.write(problem, plan).files["jax.py"])
    flags = {"JAX_PLATFORMS": "cpu", "NPROC": "16", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(folder)],
        env=os.environ | flags | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_mesh_is_the_plan_s(ran: dict[str, Any]) -> None:
    for name, (problem, line) in CASES.items():
        plan, mesh = Plan.parse(line), ran[name]["mesh"]
        for axis, size in plan.axes.items():
            parts = [mesh.get(axis, 1), mesh.get(f"{axis}_expert", 1)]
            whole = axis != "expert" or problem.stack.expert_multiplies
            assert parts[0] * parts[1] == (size if whole else 1), (name, axis)
        assert sorted(ran[name]["ids"]) == list(range(8))
    assert ran["experts"]["mesh"] | {"pipeline": 1} == {
        "data": 2, "data_expert": 2, "fsdp": 1, "pipeline": 1, "context": 1, "tensor": 2,
    }  # fmt: skip


def test_devices_lie_as_in_our_own_trainer(ran: dict[str, Any]) -> None:
    assert (ran["torus"]["same"], ran["slices"]["same"]) == (True, True)


def test_devices_lie_as_worked_out_by_hand(ran: dict[str, Any]) -> None:
    """On 2 x 4 chips, numbered row by row, tensor takes the two rows, data and fsdp the columns, fsdp innermost."""
    assert ran["torus"]["ids"] == [0, 4, 1, 5, 2, 6, 3, 7]
    # Two domains of four: data has two across and two inside, tensor is innermost; experts are on near data ranks.
    assert ran["experts"]["ids"] == list(range(8))


def test_each_weight_is_cut_as_the_plan_says(ran: dict[str, Any]) -> None:
    # DENSE: 24 wide, 6 heads and 2 key-value heads of 4, feed-forward 48, 6 layers, 64 words.
    assert ran["torus"]["parts"] == {
        "embedding": [32, 12],  # words over tensor, width over fsdp
        "head": [12, 32],
        "dense.query": [6, 12, 12],
        "dense.key_value": [6, 12, 8],
        "dense.out": [6, 12, 12],
        "dense.gate_up": [6, 12, 48],
        "dense.down": [6, 24, 12],
    }
    # MaxText shards dense weights over expert, too; MOE's 6 experts of width 24 are three on each expert rank.
    assert ran["slices"]["parts"]["sparse.query"] == [4, 6, 24]
    assert ran["slices"]["parts"]["sparse.expert_gate_up"] == [4, 3, 12, 48]
    assert ran["slices"]["specs"]["sparse.query"] == "(None, ('fsdp', 'expert'), None)"
    # Megatron keeps whole weights on every data rank, experts on the two ranks that are nearest.
    assert ran["experts"]["parts"]["sparse.query"] == [4, 24, 12]
    assert ran["experts"]["parts"]["sparse.expert_down"] == [4, 3, 12, 24]
    # Two stages of three layers; torchtitan's context ranks shard weights, too.
    assert ran["stages"]["parts"]["dense.down"] == [1, 1, 3, 48, 6]
    # One dense layer of four, eight experts over four ranks that are context's and fsdp's: nothing else shards them.
    assert ran["mixed"]["parts"]["dense.down"] == [1, 24, 6]
    assert ran["mixed"]["parts"]["sparse.expert_down"] == [3, 2, 12, 24]
    assert ran["mixed"]["parts"]["sparse.shared_down"] == [3, 12, 6]


def test_zero_shards_the_optimizer_over_data(ran: dict[str, Any]) -> None:
    """24 columns over tensor and data, or 24 rows: the last dimension that divides takes the data axis."""
    assert ran["torus"]["state"]["dense.query"] == "(None, 'fsdp', ('tensor', 'data'))"
    assert ran["torus"]["state"]["dense.down"] == "(None, 'tensor', ('fsdp', 'data'))"
    assert ran["slices"]["state"] == {}


@pytest.mark.parametrize(
    ("where", "stack", "model"),
    [("v5p-16", "maxtext", MIXED), ("h100x16", "megatron", MOE), ("h100x16", "torchtitan", MIXED)],
)
def test_every_plan_gives_a_program_whose_mesh_fills_the_slice(where: str, stack: str, model) -> None:
    problem = make_problem(where, stack, model, 16, 24)
    for plan in Space(problem=problem).sample(100, seed=1):
        written = plain_jax.write(problem, plan)
        ast.parse(written.files["jax.py"])
        axes = plain_jax.axes_of(problem, plan)
        assert axes.ranks(axes.names) == problem.slice.devices
        if not problem.stack.expert_multiplies:
            assert axes.ranks(axes.stands_for["expert"]) == plan.axes["expert"] or plan.axes["expert"] == 1
        for shape, spec in plain_jax.weights(problem, plan).values():
            used = [name for names in spec for name in names]
            assert len(used) == len(set(used))
            assert all(size % axes.ranks(names) == 0 for size, names in zip(shape, spec, strict=True))


def test_what_does_not_divide_is_said() -> None:
    problem = make_problem("h100:2x3", "torchtitan", DENSE, 12, 24)
    plan = Plan.parse(
        "pipeline=1x2 tensor=3 micro_batch=1 accumulation=12 schedule=1f1b sequence_parallel=true remat=none"
    )
    written = plain_jax.write(problem, plan)
    assert "vocabulary 64 over tensor 3" in written.cannot["uneven"]
    assert "'embedding': ((64, 24), P(None, None))" in written.files["jax.py"]
    assert "1f1b is no sharding" in written.cannot["schedule"]

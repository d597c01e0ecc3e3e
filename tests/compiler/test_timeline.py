"""Playing schedules: by hand, against loops that are written out, and against what parts must sum to."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asap_ray.compiler.costs import CYCLES_FRACTION, Costs
from asap_ray.compiler.hlo import HloError, parse
from asap_ray.compiler.schedule import Branch, Loop, Run, Start, Wait
from asap_ray.compiler.timeline import Player, profile_of
from asap_ray.meshes import meshes_of
from asap_ray.physics import network
from asap_ray.physics.traffic import axes_link
from asap_ray.profile.kinds import phase_of
from tests.compiler.conftest import PLANS, Profiled, Read, calibrated, planned
from tests.compiler.test_hlo_loops import LOOP, PLAIN

X, Y = ("ici", 0, 0), ("ici", 1, 0)


def play(steps: dict[str, list[Any]]) -> tuple[float, dict[str, tuple[float, float, float]]]:
    """Seconds of a program, and (runs, busy, exposed) of each op by its name."""
    program: Any = SimpleNamespace(steps=steps, module=SimpleNamespace(entry="main"))
    now, tally = Player(program).play()
    assert math.fsum(exposed for _, _, exposed in tally.values()) == pytest.approx(now, rel=1e-12)
    return now, {key[1]: value for key, value in tally.items()}


def run(name: str, seconds: float) -> Run:
    return Run(("c", name), seconds)


def start(name: str, seconds: float, *resources: Any, waits: bool = False) -> Start:
    return Start(("c", name), seconds, resources, waits)


def wait(name: str) -> Wait:
    return Wait(("c", name))


def test_a_collective_hides_under_what_runs_beside_it() -> None:
    now, ops = play({"main": [start("a", 5, X), run("m", 3), wait("a"), run("n", 1)]})
    assert (now, ops) == (6, {"a": (1, 5, 2), "m": (1, 3, 3), "n": (1, 1, 1)})


def test_one_that_is_done_in_time_costs_nothing() -> None:
    now, ops = play({"main": [start("a", 2, X), run("m", 3), wait("a")]})
    assert (now, ops["a"]) == (3, (1, 2, 0))


def test_the_core_waits_for_all_of_a_synchronous_one() -> None:
    now, ops = play({"main": [run("m", 3), start("a", 2, X, waits=True), run("n", 1)]})
    assert (now, ops["a"]) == (6, (1, 2, 2))


def test_collectives_on_one_link_take_turns() -> None:
    # b starts once a has its turn done, at 4; who waits for b waits first for a.
    now, ops = play({"main": [start("a", 4, X), start("b", 3, X, Y), run("m", 1), wait("b"), wait("a")]})
    assert (now, ops) == (7, {"a": (1, 4, 3), "b": (1, 3, 3), "m": (1, 1, 1)})


def test_collectives_on_different_links_run_side_by_side() -> None:
    now, ops = play({"main": [start("a", 4, X), start("b", 3, Y), run("m", 1), wait("b"), wait("a")]})
    assert (now, ops["a"], ops["b"]) == (4, (1, 4, 1), (1, 3, 2))


def test_loops_multiply() -> None:
    body = [start("a", 5, X), run("m", 3), wait("a")]
    now, ops = play({"main": [run("f", 1), Loop("body", 80)], "body": body})
    assert (now, ops) == (401, {"f": (1, 1, 1), "a": (80, 400, 160), "m": (80, 240, 240)})


def test_loops_in_loops_multiply() -> None:
    steps = {"main": [Loop("outer", 3)], "outer": [run("o", 1), Loop("inner", 4)], "inner": [run("i", 2)]}
    assert play(steps) == (27, {"o": (3, 3, 3), "i": (12, 24, 24)})


def test_a_transfer_that_began_before_a_loop_holds_up_its_first_turns_only() -> None:
    body = [start("a", 2, X), run("m", 3), wait("a")]
    now, ops = play({"main": [start("long", 10, X), Loop("body", 100), wait("long")], "body": body})
    # The first turn waits until 12; then each takes 3.
    assert now == 12 + 99 * 3
    assert ops["long"] == (1, 10, 7)
    assert ops["a"] == (100, 200, 2)


def test_a_transfer_that_a_loop_leaves_behind_slows_each_turn() -> None:
    # Each turn starts a transfer of 5 that no one waits for before the loop ends, and works for 3.
    body = [start("a", 5, X), run("m", 3)]
    now, ops = play({"main": [Loop("body", 10), wait("a")], "body": body})
    assert (now, ops["m"], ops["a"]) == (50, (10, 30, 30), (10, 50, 20))


def test_the_longest_branch_counts() -> None:
    steps = {"main": [Branch(("short", "long")), run("m", 1)], "short": [run("s", 1)], "long": [run("l", 4)]}
    assert play(steps) == (5, {"l": (1, 4, 4), "m": (1, 1, 1)})


TIMES = st.integers(0, 6).map(float)


@st.composite
def bodies(draw: Any) -> list[Any]:
    """A body whose transfers all end inside of it."""
    steps, open_ = [], []
    for index in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["run", "start", "sync", "wait"]))
        if kind == "run":
            steps.append(run(f"r{index}", draw(TIMES)))
        elif kind == "wait" and open_:
            steps.append(wait(open_.pop(draw(st.integers(0, len(open_) - 1)))))
        elif kind != "wait":
            on = draw(st.sampled_from([(X,), (Y,), (X, Y)]))
            steps.append(start(f"s{index}", draw(TIMES), *on, waits=kind == "sync"))
            open_ += [f"s{index}"] if kind == "start" else []
    return [*steps, *(wait(name) for name in open_)]


@settings(max_examples=200, deadline=None)
@given(inner=bodies(), outer=bodies(), before=TIMES, turns=st.tuples(st.integers(0, 5), st.integers(1, 4)))
def test_a_loop_is_its_body_written_out(inner: list[Any], outer: list[Any], before: float, turns: Any) -> None:
    own = [type(s)(("o", s.key[1]), *[getattr(s, f) for f in s.__slots__[1:]]) for s in outer]
    first = [start("before", before, X, Y)]
    looped = {"main": [*first, Loop("out", turns[1]), wait("before")], "out": [*own, Loop("in", turns[0])], "in": inner}
    plain = [*first, *[*own, *inner * turns[0]] * turns[1], wait("before")]
    now, ops = play(looped)
    expected, by_name = play({"main": plain})
    assert now == pytest.approx(expected)
    for name, figures in by_name.items():
        assert ops[name] == pytest.approx(figures)


@pytest.mark.parametrize("name", PLANS)
def test_exposed_seconds_are_the_step(name: str, profiled: Profiled) -> None:
    profile = profiled(name)
    assert profile.step_time_s == math.fsum(op.exposed_s for op in profile.ops) > 0.0
    compute = profile.total("seconds", [op for op in profile.ops if op.category not in ("copy",) and not op.axes])
    everything = profile.total("seconds")
    assert compute <= profile.step_time_s * (1 + 1e-12)
    assert profile.step_time_s <= everything * (1 + 1e-12)
    assert all(op.exposed_s >= 0.0 and op.count > 0.0 for op in profile.ops)
    assert profile.flags == ()


def test_compute_of_a_tpu_is_its_cycles(module: Read, profiled: Profiled) -> None:
    ops = {op.name: op for op in profiled("layers").ops}
    fastest = ops["fusion.107"].flops / 197e12
    # In a loop of 4, on a v5e; no op is faster than the chip.
    assert ops["fusion.107"].seconds == pytest.approx(max(CYCLES_FRACTION * 4 * 141232 / 1.5e9, fastest), rel=1e-12)
    assert all(op.seconds >= (1 - 1e-12) * op.flops / 197e12 for op in ops.values())


def test_collectives_take_what_the_network_model_says(profiled: Profiled) -> None:
    problem, plan = planned(*PLANS["layers"])
    link = axes_link(problem, meshes_of(problem, [plan]), ["tensor"], calibrated(problem))
    ici, dcn = network.all_gather(link, np.array([4 * 2048 * 1024 * 2.0]))
    gather = next(op for op in profiled("layers").ops if op.name.startswith("all-gather") and op.axes == ("tensor",))
    assert gather.seconds == pytest.approx(4 * float(ici[0] + dcn[0]))


def test_phases_follow_the_scopes(profiled: Profiled) -> None:
    flops = dict.fromkeys(("forward", "recompute", "backward"), 0.0)
    for op in profiled("layers").ops:
        if op.flops:
            flops[op.phase] += op.flops
    assert flops["forward"] == 2 * flops["recompute"] == flops["backward"] / 2
    assert {op.phase for op in profiled("layers").ops if op.scope.endswith("optimizer/sub")} == {"optimizer"}
    assert phase_of("jit(step)/transpose(jvp(x))/checkpoint/rematted_computation/dot") == "recompute"
    assert phase_of("jit(step)/sub") == ""


def test_a_loop_that_cannot_be_counted_is_never_counted_once_silently() -> None:
    problem, plan = planned("v5e:1x1", "")
    text = LOOP.format(**PLAIN | {"how": "multiply", "start": 1, "step": 2})
    profile = profile_of(parse(text), problem, plan, calibrated(problem))
    assert len(profile.flags) == 1
    assert "w" in profile.flags[0]
    dot = "%y = f32[8,8] dot(%x, %x), lhs_contracting_dims={}, rhs_contracting_dims={}\n  %copied ="
    with pytest.raises(HloError, match="loop w"):
        profile_of(parse(text.replace("%copied =", dot)), problem, plan, calibrated(problem))


def test_gpu_ops_are_priced_by_physics(module: Read) -> None:
    problem, plan = planned(*PLANS["layers_h100"])
    costs = Costs(module("layers_h100"), problem, plan, calibrated(problem))
    program = module("layers_h100")
    found = [
        (c, each) for c in program.computations.values() for each in c.instructions if each.name == "gemm_fusion_dot.2"
    ]
    cost = costs.of_op(*found[0])
    assert cost.flops == 2.0 * 8 * 2048 * 1024 * 1024
    peak = problem.slice.chip.peak_flops["bf16"]
    assert 1.0 < cost.seconds / (cost.flops / peak) < 2.5


UPDATE = """HloModule m, is_scheduled=true, num_partitions=1

ENTRY %main (p: bf16[32,8,128], u: bf16[1,8,128], i: s32[]) -> bf16[32,8,128] {{
  %p = bf16[32,8,128]{{2,1,0:S({space})}} parameter(0)
  %u = bf16[1,8,128]{{2,1,0}} parameter(1)
  %i = s32[] parameter(2)
  %start = ((bf16[32,8,128]{{2,1,0:S({space})}}, bf16[1,8,128]{{2,1,0}}, s32[]), \
bf16[32,8,128]{{2,1,0:S({space})}}, u32[]) dynamic-update-slice-start(%p, %u, %i)
  ROOT %done = bf16[32,8,128]{{2,1,0:S({space})}} dynamic-update-slice-done(%start)
}}
"""


@pytest.mark.parametrize("space", [0, 5])
def test_an_update_of_a_buffer_moves_the_update_alone(space: int) -> None:
    # One layer's 8 x 128 numbers of 2 bytes go into a stack of 32: on the host (space 5), or in HBM, read and written.
    problem, plan = planned("v5e:1x1", "")
    module = parse(UPDATE.format(space=space))
    costs = Costs(module, problem, plan, calibrated(problem))
    entry = module.computations[module.entry]
    (start,) = [op for op in entry.instructions if op.opcode == "dynamic-update-slice-start"]
    found, machine = costs.of_copy(entry, start), costs.machine
    moved = 8 * 128 * 2
    assert found.seconds == pytest.approx(
        moved / machine.pcie_bytes_per_s if space else 2 * moved / machine.hbm_bytes_per_s
    )
    assert found.hbm_bytes == (moved if space else 2 * moved)


def test_two_ways_round_a_ring_do_not_wait_for_each_other(profiled: Profiled, module: Read) -> None:
    # On v5p:2x2x4 no axis is a ring: windows that go both ways round share links, and the second waits for the first.
    ops = [op for op in profiled("collective_matmul").ops if op.category == "permute"]
    assert {op.count for op in ops} == {1.0, 2.0}
    assert sum(op.exposed_s for op in ops) > 0.0

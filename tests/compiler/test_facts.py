"""What a program says of each of its instructions, without its times: the same as the compile tier's rows."""

from __future__ import annotations

import math

import pytest

from asap_ray.compiler.facts import Facts
from asap_ray.compiler.hlo import parse
from asap_ray.plan import Plan

TEXT = """HloModule jit_step, is_scheduled=true

%fused (a: f32[16,64], b: f32[64,32]) -> f32[16,32] {
  %a = f32[16,64]{1,0} parameter(0)
  %b = f32[64,32]{1,0} parameter(1)
  ROOT %dot.1 = f32[16,32]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0},
    metadata={op_name="jit(step)/jvp()/dot_general" source_file="m.py" source_line=3}
}

%body (t: (s32[], f32[16,32])) -> (s32[], f32[16,32]) {
  %t = (s32[], f32[16,32]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[16,32]{1,0} get-tuple-element(%t), index=1
  %all-reduce.1 = f32[16,32]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1},{2,3}},
    use_global_device_ids=true, to_apply=%add
  ROOT %o = (s32[], f32[16,32]{1,0}) tuple(%i, %all-reduce.1)
}

%condition (t: (s32[], f32[16,32])) -> pred[] {
  %t.1 = (s32[], f32[16,32]{1,0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

%add (p: f32[], q: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  ROOT %sum = f32[] add(%p, %q)
}

ENTRY %main (p0: f32[16,64], p1: f32[64,32]) -> f32[16,32] {
  %p0 = f32[16,64]{1,0} parameter(0)
  %p1 = f32[64,32]{1,0} parameter(1)
  %fusion.1 = f32[16,32]{1,0} fusion(%p0, %p1), kind=kOutput, calls=%fused
  %zero = s32[] constant(0)
  %start = (s32[], f32[16,32]{1,0}) tuple(%zero, %fusion.1)
  %while.2 = (s32[], f32[16,32]{1,0}) while(%start), condition=%condition, body=%body,
    metadata={op_name="jit(step)/transpose(jvp())/while"}
  %got = f32[16,32]{1,0} get-tuple-element(%while.2), index=1
  %all-gather-start.3 = (f32[16,32]{1,0}, f32[32,32]{1,0}) all-gather-start(%got),
    channel_id=2, replica_groups={{0,2},{1,3}}, dimensions={0}
  %all-gather-done.4 = f32[32,32]{1,0} all-gather-done(%all-gather-start.3)
  ROOT %copy.5 = f32[32,32]{0,1} copy(%all-gather-done.4)
}
"""
PLAN = Plan.parse("data=2 tensor=2 micro_batch=1 accumulation=1 remat=none")


def test_work_of_one_run_of_each_instruction() -> None:
    rows = Facts(parse(TEXT)).rows()
    matmul = rows["fusion.1"]
    assert (matmul.category, matmul.phase, matmul.source) == ("matmul", "forward", "m.py:3")
    assert (matmul.flops, matmul.hbm_bytes) == (2 * 16 * 64 * 32, 4 * (16 * 64 + 64 * 32 + 16 * 32))
    assert rows["copy.5"].category == "copy"
    assert rows["while.2"].category == "other"
    assert all((row.count, row.seconds) == (1, 0) for row in rows.values())


def test_what_a_loop_runs_is_of_the_loops_phase() -> None:
    rows = Facts(parse(TEXT)).rows()
    assert rows["all-reduce.1"].phase == "backward"
    assert "sum" not in rows  # what a collective applies runs within it


def test_a_collective_has_its_bytes_and_with_a_plan_its_axes() -> None:
    """An all-reduce among two sends 2 x 1/2 of its 2 kB, a gather among two half of the 4 kB that it makes."""
    rows = Facts(parse(TEXT)).rows()
    assert (rows["all-reduce.1"].wire_bytes, rows["all-reduce.1"].axes) == (2048, ())
    assert (rows["all-gather-start.3"].category, rows["all-gather-start.3"].wire_bytes) == ("all_gather", 2048)
    planned = Facts(parse(TEXT), PLAN).rows()  # the header has lost the number of devices
    assert (planned["all-reduce.1"].axes, planned["all-reduce.1"].level) == (("tensor",), "ici")
    assert (planned["all-gather-start.3"].axes, planned["all-gather-start.3"].wire_bytes) == (("data",), 2048)


@pytest.mark.parametrize("line", ["fsdp=4", "fsdp=8"])
def test_devices_are_those_of_the_plan_that_hold_all_that_are_named(line: str) -> None:
    plan = Plan.parse(f"{line} micro_batch=1 accumulation=1 remat=none")
    assert Facts(parse(TEXT), plan).devices == math.prod(plan.sizes)

"""What is alive when most is: by hand for a small program, and beside what the compiler said of whole ones."""

from __future__ import annotations

import csv

import pytest

from asap_ray.compiler.hlo import parse
from asap_ray.compiler.live import largest, live_peak
from asap_ray.plan import Plan
from asap_ray.settings import data_dir
from tests.compiler.clean import PROGRAMS
from tests.compiler.programs import dump

KB = 1024.0
"""An array `f32[256]`."""
ADDED = """
%added (a: f32[256], b: f32[256]) -> f32[256] {
  %a = f32[256]{0} parameter(0)
  %b = f32[256]{0} parameter(1)
  ROOT %sum = f32[256]{0} add(%a, %b)
}
"""
STACKED = """
%stacked (stack: f32[8,256], x: f32[256], i: s32[]) -> f32[8,256] {
  %stack = f32[8,256]{1,0} parameter(0)
  %x = f32[256]{0} parameter(1)
  %i = s32[] parameter(2)
  %nought = s32[] constant(0)
  %row = f32[1,256]{1,0} bitcast(%x)
  ROOT %put = f32[8,256]{1,0} dynamic-update-slice(%stack, %row, %i, %nought)
}

%body (state: (s32[], f32[256], f32[8,256])) -> (s32[], f32[256], f32[8,256]) {
  %state = (s32[], f32[256]{0}, f32[8,256]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[256]{0} get-tuple-element(%state), index=1
  %stack = f32[8,256]{1,0} get-tuple-element(%state), index=2
  %wide = f32[4,256]{1,0} broadcast(%x), dimensions={1}
  %narrow = f32[256]{0} reduce(%wide, %x), dimensions={0}
  %next = f32[8,256]{1,0} fusion(%stack, %narrow, %i), kind=kLoop, calls=%stacked
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  ROOT %turn = (s32[], f32[256]{0}, f32[8,256]{1,0}) tuple(%j, %narrow, %next)
}

%condition (state: (s32[], f32[256], f32[8,256])) -> pred[] {
  %state = (s32[], f32[256]{0}, f32[8,256]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %eight = s32[] constant(8)
  ROOT %less = pred[] compare(%i, %eight), direction=LT
}
"""


def program(entry: str, before: str = "") -> str:
    body = "\n".join(f"  {line}" for line in entry.strip().splitlines())
    return f"HloModule small, is_scheduled=true\n{before}\nENTRY %main (p: f32[256]) -> f32[256] {{\n{body}\n}}\n"


def peak(entry: str, before: str = "") -> float:
    return live_peak(parse(program(entry, before))).bytes


def test_a_value_lives_from_where_it_is_made_to_where_it_is_last_read() -> None:
    # `a` is read once more after `b` is dead: a with b, then a with c; what is returned has its room elsewhere.
    entry = """
%p = f32[256]{0} parameter(0)
%a = f32[256]{0} cosine(%p)
%b = f32[3,256]{1,0} broadcast(%a), dimensions={1}
%c = f32[256]{0} reduce(%b, %p), dimensions={0}
ROOT %d = f32[256]{0} dot(%a, %c)
"""
    assert peak(entry) == (1 + 3 + 1) * KB


def test_a_result_may_lie_where_its_dying_operand_did() -> None:
    entry = """
%p = f32[256]{0} parameter(0)
%a = f32[256]{0} cosine(%p)
%b = f32[256]{0} sine(%p)
%c = f32[256]{0} fusion(%a, %b), kind=kLoop, calls=%added
%d = f32[256]{0} SECOND
ROOT %e = f32[256]{0} tanh(%d)
"""
    assert peak(entry.replace("SECOND", "exponential(%c)"), ADDED) == 2 * KB
    assert peak(entry.replace("SECOND", "multiply(%c, %a)"), ADDED) == 2 * KB  # into b, as a lives on


def test_what_a_loop_carries_lies_still_and_its_turn_comes_on_top() -> None:
    # Carried: x, i and the stack, all turns; on top of them the wide array of one turn.
    entry = """
%p = f32[256]{0} parameter(0)
%nought = s32[] constant(0)
%x = f32[256]{0} cosine(%p)
%zero = f32[] constant(0)
%stack = f32[8,256]{1,0} broadcast(%zero), dimensions={}
%given = (s32[], f32[256]{0}, f32[8,256]{1,0}) tuple(%nought, %x, %stack)
%loop = (s32[], f32[256]{0}, f32[8,256]{1,0}) while(%given), condition=%condition, body=%body
%last = f32[8,256]{1,0} get-tuple-element(%loop), index=2
ROOT %sum = f32[256]{0} reduce(%last, %p), dimensions={0}
"""
    module = parse(program(entry, STACKED))
    assert live_peak(module).bytes == pytest.approx((1 + 8 + 4) * KB, abs=32)  # and some scalars
    # The stack is told by what makes its rows.
    assert [what for what, _ in largest(module, 2)] == ["f32[8,256] narrow", "f32[4,256] wide"]


def test_a_start_holds_what_is_under_way_until_it_is_read() -> None:
    # Elements of a start's tuple are its operand and its result; VMEM (S(1)) is no HBM.
    entry = """
%p = f32[256]{0} parameter(0)
%a = f32[256]{0} cosine(%p)
%start = (f32[256]{0}, f32[4,256]{1,0}) all-gather-start(%a), dimensions={0}
%done = f32[4,256]{1,0} all-gather-done(%start)
%near = (f32[256]{0:S(1)}, f32[256]{0}, u32[]{:S(2)}) copy-start(%a)
%here = f32[256]{0:S(1)} copy-done(%near)
ROOT %b = f32[256]{0} dot(%done, %here)
"""
    assert peak(entry) == (1 + 4) * KB


def test_equal_buffers_of_one_place_are_one_line() -> None:
    entry = """
%p = f32[256]{0} parameter(0)
%a = f32[256]{0} cosine(%p), metadata={op_name="jit(f)/jvp()/cos" source_file="/x/asap_ray/m.py" source_line=7}
%b = f32[256]{0} sine(%p), metadata={op_name="jit(f)/jvp()/sin" source_file="/x/asap_ray/m.py" source_line=7}
ROOT %c = f32[256]{0} dot(%a, %b)
"""
    assert largest(parse(program(entry))) == (("2 x f32[256] asap_ray/m.py:7, forward", 2 * KB),)


RECORD = {"llama2_70b": "llama70b"}
APART = {
    # Both gather all of a wide head, and what the compiler does not hold beside it weighs much in a small program.
    "fsdp": 1.3,
    "slices": 1.60,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_schedule_holds_what_the_compiler_does_or_a_little_more(name: str) -> None:
    given = PROGRAMS[name]
    with (data_dir("knowledge") / "compiled" / "results.csv").open(newline="") as file:
        (said,) = (
            float(row["memory_temporaries_bytes"])
            for row in csv.DictReader(file)
            if (row["hardware"], row["model"]) == (given.slice, RECORD.get(given.model, given.model))
            if row["global_batch"] == str(given.batch) and Plan.parse(row["plan"]) == given.plan
        )
    assert 0.99 * said < live_peak(parse(dump(f"clean_{name}"))).bytes < APART.get(name, 1.15) * said


def test_the_inputs_of_all_layers_are_what_full_recomputation_holds() -> None:
    # By hand, Llama 3 8B with one sequence of 4096 a device: 32 layers x 4096 x 4096 numbers of 2 bytes.
    (what, size), *_ = largest(parse(dump("clean_fsdp")))
    assert what.startswith("bf16[32,1,4096,4096] ")
    assert size == 32 * 4096 * 4096 * 2

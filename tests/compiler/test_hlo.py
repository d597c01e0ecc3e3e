"""Reading programs: what real compilers print, and the traps in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from asap_ray.compiler.hlo import HloError, parse
from asap_ray.compiler.shapes import HOST, VMEM, Array, arrays
from tests.compiler import programs
from tests.compiler.conftest import PLANS, Read
from tests.compiler.programs import dump


@pytest.mark.parametrize("name", PLANS)
def test_every_instruction_of_a_program_is_read(name: str, module: Read) -> None:
    # Each instruction has one line that begins with its name; lines that go on an instruction have no name.
    lines = [line for line in dump(name).splitlines() if line.startswith(("  %", "  ROOT %"))]
    read = [each for c in module(name).computations.values() for each in c.instructions]
    assert len(read) == len(lines)
    assert all(
        operand in c.by_name
        for c in module(name).computations.values()
        for i in c.instructions
        for operand in i.operands
    )
    assert module(name).entry.startswith("main")


def test_a_custom_call_may_go_on_over_lines_that_begin_with_braces(module: Read) -> None:
    text, program = dump("splash"), module("splash")
    entry = program.computations[program.entry]
    kernels = [each for each in entry.instructions if "tpu_custom_call" in each.attributes]
    assert text.count("\n}}") == 9  # three kernels, and what takes their results apart
    assert [each.name.split(".")[0] for each in kernels] == [
        "splash_mha_fwd_residuals",
        "splash_mha_dq_no_residuals",
        "splash_mha_dkv_no_residuals",
    ]
    assert entry.root.opcode == "all-reduce"
    assert kernels[0].op_name.endswith("splash_mha_fwd_residuals/pallas_call")


def test_the_root_may_stand_before_the_last_instruction(module: Read) -> None:
    program = module("collective_matmul")
    entry = program.computations[program.entry]
    assert (entry.root.opcode, entry.instructions[-1].opcode) == ("add", "copy-done")


def test_sources_come_from_tables_of_stack_frames(module: Read) -> None:
    program = module("layers")
    entry = program.computations[program.entry]
    update = entry.by_name["multiply_subtract_fusion"]
    assert update.op_name == "jit(step)/shard_map/optimizer/sub"
    file, line = program.source(update).rsplit(":", 1)
    assert file == "tests/compiler/programs.py"
    assert "a - 0.1 * b" in Path(programs.__file__).read_text().splitlines()[int(line) - 1]


def test_of_a_stack_the_innermost_frame_of_the_package_is_the_source() -> None:
    text = """HloModule m, num_partitions=1
FileNames
1 "/somewhere/asap_ray/trainer/model.py"
2 "/lib/jax/_src/pallas.py"

FunctionNames
1 "layer"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=0 end_column=1}
2 {file_name_id=2 function_name_id=1 line=99 end_line=99 column=0 end_column=1}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

ENTRY %main (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  %a = f32[2]{0} add(%p, %p), metadata={op_name="x" source_file="/old/asap_ray/plan.py" source_line=7}
  ROOT %b = f32[2]{0} add(%p, %a), metadata={op_name="y" stack_frame_id=2}
}
"""
    program = parse(text)
    entry = program.computations["main"]
    assert program.source(entry.by_name["b"]) == "asap_ray/trainer/model.py:12"
    assert program.source(entry.by_name["a"]) == "asap_ray/plan.py:7"
    assert program.source(entry.by_name["p"]) == ""


def test_cycles_are_those_of_the_backend_config(module: Read) -> None:
    program = module("batched")
    entry = program.computations[program.entry]
    cycles = {each.name: each.cycles for each in entry.instructions if each.cycles is not None}
    assert len(cycles) == dump("batched").count('"estimated_cycles"') == 4


def test_shapes_have_their_layout_and_memory_space() -> None:
    text = "((f32[4,8]{1,0:T(8,128)}), bf16[2]{0:T(256)(128)(2,1)S(1)}, /*index=2*/s4[3]{0:S(5)}, token[], pred[])"
    assert arrays(text) == (
        Array("f32", (4, 8)),
        Array("bf16", (2,), VMEM),
        Array("s4", (3,), HOST),
        Array("token", ()),
        Array("pred", ()),
    )
    assert [each.bytes for each in arrays(text)] == [128, 4, 1.5, 0, 1]
    assert arrays("f8e4m3fn[10]{0}")[0].bytes == 10


def test_tuples_of_results_are_told_from_operands(module: Read) -> None:
    program = module("layers")
    starts = [i for c in program.computations.values() for i in c.instructions if i.opcode == "slice-start"]
    assert starts
    assert all(len(each.operands) == 1 and len(each.arrays) == 3 for each in starts)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no ENTRY computation"),
        ("HloModule m\n\nENTRY %main () -> f32[] {\n  %a = f32[] constant(1)\n", "cut off"),
        ("ENTRY %main () -> f32[] {\n  nonsense\n  %a = f32[] constant(1)\n}\n", "cannot read"),
    ],
)
def test_what_is_no_program_is_refused(text: str, said: str) -> None:
    with pytest.raises(HloError, match=said):
        parse(text)


def test_a_program_may_come_line_by_line(module: Read) -> None:
    lines = iter(dump("ring").splitlines(keepends=True))
    assert parse(lines).computations.keys() == module("ring").computations.keys()

"""How often loops run."""

from __future__ import annotations

import pytest

from asap_ray.compiler.hlo import parse
from asap_ray.compiler.loops import LoopReader
from tests.compiler.conftest import Read


def trips(program) -> dict[str, int | None]:
    reader = LoopReader(program)
    return {
        each.name: reader.trips(computation, each)
        for computation in program.computations.values()
        for each in computation.instructions
        if each.opcode == "while"
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("layers", [4, 4]),  # a scan over 4 layers, forward and backward
        ("layers_v5p", [4, 4]),
        ("layers_two_slices", [4, 4]),
        ("ring", [4, 4, 4, 4, 4]),  # two scans; in them the hops forward, again, and backward
        ("collective_matmul", [2]),  # a bound of 4, and two of 8 windows in each of its turns, one each way round
        ("grouped", [6]),  # a binary search in 32 + 1 places
        ("layers_h100", [3, 4]),  # the compiler has taken one backward turn out of its loop
    ],
)
def test_loops_of_real_programs(name: str, expected: list[int], module: Read) -> None:
    assert sorted(trips(module(name)).values()) == expected


LOOP = """HloModule m

%body (s: (s32[], f32[8], s32[])) -> (s32[], f32[8], s32[]) {{
  %s = (s32[], f32[8], s32[]) parameter(0)
  %step = s32[] constant({step})
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[8] get-tuple-element(%s), index=1
  %n = s32[] get-tuple-element(%s), index=2
  %copied = s32[] copy(%i)
  %next = s32[] {how}(%copied, %step)
  ROOT %t = (s32[], f32[8], s32[]) tuple(%next, %x, {kept})
}}

%condition (s: (s32[], f32[8], s32[])) -> pred[] {{
  %s = (s32[], f32[8], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] get-tuple-element(%s), index=2
  ROOT %less = pred[] compare({sides}), direction={direction}
}}

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8] parameter(0)
  %start = s32[] constant({start})
  %bound = s32[]{{:T(128)}} constant({bound})
  %t = (s32[], f32[8], s32[]) tuple(%start, %x, %bound)
  %w = (s32[], f32[8], s32[]) while(%t), condition=%condition, body=%body
  ROOT %out = f32[8] get-tuple-element(%w), index=1
}}
"""
PLAIN = {"step": 1, "how": "add", "kept": "%n", "sides": "%i, %n", "direction": "LT", "start": 0, "bound": 8}


def counted(start: int, bound: int, step: int, direction: str) -> int:
    """Trips, by running."""
    holds = {"LT": int.__lt__, "LE": int.__le__, "GT": int.__gt__, "GE": int.__ge__, "NE": int.__ne__}[direction]
    count = 0
    while holds(start, bound):
        start, count = start + step, count + 1
    return count


@pytest.mark.parametrize(
    ("start", "bound", "step", "direction"),
    [
        (0, 8, 1, "LT"),
        (0, 8, 2, "LT"),
        (1, 8, 3, "LT"),
        (0, 7, 2, "LE"),
        (5, 5, 1, "LT"),
        (0, 9, 3, "NE"),
        (7, 0, -1, "GE"),
        (9, 1, -2, "GT"),
        (3, -2, -5, "GT"),
    ],
)
def test_trips_are_those_that_running_takes(start: int, bound: int, step: int, direction: str) -> None:
    given = PLAIN | {"start": start, "bound": bound, "step": step, "direction": direction}
    assert trips(parse(LOOP.format(**given))) == {"w": counted(start, bound, step, direction)}


def test_the_bound_may_stand_on_the_left() -> None:
    assert trips(parse(LOOP.format(**PLAIN | {"sides": "%n, %i", "direction": "GT"}))) == {"w": 8}


@pytest.mark.parametrize(
    "changes",
    [
        {"how": "multiply", "start": 1, "step": 2},  # doubles: no step
        {"kept": "%next"},  # the bound changes from turn to turn
        {"step": -1},  # runs away from its bound
        {"direction": "EQ"},
        {"bound": "{...}"},  # a value that is not printed
    ],
)
def test_what_cannot_be_counted_has_no_trips(changes: dict[str, object]) -> None:
    assert trips(parse(LOOP.format(**PLAIN | changes))) == {"w": None}


def test_a_count_that_the_compiler_prints_is_taken() -> None:
    text = LOOP.format(**PLAIN | {"how": "multiply", "start": 1, "step": 2})
    known = 'body=%body, backend_config={"known_trip_count":{"n":"3"},"known_init_step":{"init":"1","step":"1"}}'
    assert trips(parse(text.replace("body=%body", known))) == {"w": 3}

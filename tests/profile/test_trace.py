"""Steps and rows of plain events, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from asap_ray.profile.kinds import Kind, kind_of
from asap_ray.profile.steps import Device, Host
from asap_ray.profile.table import Op, Profile
from asap_ray.profile.trace import DeviceSteps, middle, profile_of, steps_of

DOT = kind_of("dot.1", module="p", known=Op(name="dot.1", category="matmul", phase="forward", flops=10.0))
GATHER = kind_of("all-gather-start.1", module="p", known=Op(name="all-gather-start.1", category="all_gather"))
DONE = kind_of("%all-gather-done.7 = f32[8]{0} all-gather-done((f32[4]{0}, f32[8]{0}) %all-gather-start.1)", module="p")
Line = tuple[tuple[float, float, Kind], ...]


def turn(start: float, wait: float = 0.0) -> tuple[Line, Line]:
    """A step of 10 s: a dot of 4 s, a gather from 2 to 7 of which the core waits from 4 on, a dot of 2 s, a pause."""
    core = ((start, start + 4, DOT), (start + 4, start + 7 + wait, DONE), (start + 7 + wait, start + 9 + wait, DOT))
    return core, ((start + 2, start + 7 + wait, GATHER),)


def device(*turns: tuple[Line, Line], name: str = "TPU:0", launches: bool = True) -> Device:
    core, wires = (tuple(event for each in turns for event in each[line]) for line in (0, 1))
    runs = tuple((each[0][0][0], each[0][-1][1], "p") for each in turns)
    return Device(name=name, lines=(core, wires), launches=runs if launches else ())


def steps(*devices: Device, **host: Any) -> list[DeviceSteps]:
    return [steps_of(Host(name="h", **host), each) for each in devices]


def profile(*devices: Device, **host: Any) -> Profile:
    return profile_of(steps(*devices, **host))


def test_a_step_lasts_until_the_next_begins() -> None:
    (found,) = steps(device(turn(0), turn(10), turn(21)))
    assert found.found_by == "launches of the main program"
    assert found.seconds == (10, 11)


def test_rows_are_of_one_step_and_a_done_is_its_starts() -> None:
    found = profile(device(turn(0), turn(10), turn(20)))
    rows = {op.name: op for op in found.ops}
    assert found.step_time_s == 10
    assert (rows["dot.1"].count, rows["dot.1"].exposed_s, rows["dot.1"].flops) == (2, 6, 20)
    assert (rows["all-gather-start.1"].count, rows["all-gather-start.1"].seconds) == (1, 5)
    assert rows["all-gather-start.1"].exposed_s == 3
    assert rows["all-gather-start.1"].overlaps_with == ("dot.1",)
    assert rows["idle"].exposed_s == 1
    assert found.overlap() == pytest.approx(0.4)
    assert found.source == "trace"


def test_devices_and_steps_are_averaged_and_an_odd_step_left_out() -> None:
    """Two devices, the second waits 2 s longer; the third step of both is followed by a pause of 90 s."""
    first = device(turn(0), turn(20), turn(40), turn(150))
    second = device(turn(0, 2), turn(20, 2), turn(40, 2), turn(150, 2), name="TPU:1")
    found = profile(first, second)
    rows = {op.name: op for op in found.ops}
    assert found.step_time_s == 20
    assert rows["all-gather-start.1"].exposed_s == 4
    assert rows["idle"].exposed_s == 10


def test_the_middle_half_of_steps_is_by_their_time() -> None:
    assert middle([(0, 1), (1, 9), (9, 11), (11, 14)]) == [(9, 11), (11, 14)]
    assert middle([(0, 1), (1, 9)]) == [(0, 1), (1, 9)]
    assert middle([(0, 3), (3, 4), (4, 6)]) == [(4, 6)]


def test_the_hosts_steps_are_taken_where_the_work_lies_in_them() -> None:
    (found,) = steps(device(turn(1), turn(13)), annotated=((0, 10), (12, 22)))
    assert (found.seconds, found.found_by) == ((12,), "steps that the host annotates")
    (found,) = steps(device(turn(1), turn(13)), annotated=((0, 0.1), (0.2, 0.3)))
    assert found.found_by == "launches of the main program"


def test_launches_of_micro_batches_make_one_step() -> None:
    turns = (turn(0), turn(10), turn(20), turn(30))
    (found,) = steps(device(*turns), annotated=((-5, -4), (-3, -2)))
    assert found.seconds == (20,)
    assert found.found_by == "launches of the main program, 2 a step"


def test_small_programs_beside_the_main_one_make_no_steps() -> None:
    whole = device(turn(0), turn(10), turn(20))
    launches = tuple(sorted((*whole.launches, *((start, start + 0.1, "jit_add") for start in (9.2, 9.5, 19.3)))))
    (found,) = steps(replace(whole, launches=launches))
    assert found.seconds == (10, 10)


def test_streams_without_launches_are_cut_where_an_op_runs_once_a_step() -> None:
    """Each step runs one gather and two dots; a host that annotates as many steps far ahead says how many there are."""
    whole = device(turn(0), turn(10), turn(20), launches=False)
    norm = kind_of("loop_add_fusion", module="p")
    once = tuple((start + 9.5, start + 10, norm) for start in (0, 10, 20))
    (found,) = steps(replace(whole, lines=(*whole.lines, once)))
    assert found.found_by == "an op that runs once a step"
    assert found.seconds == (10, 10)


def test_gaps_are_laid_to_what_the_host_does_in_them() -> None:
    whole, busy = device(turn(0), turn(12)), {"input": ((9, 9.5), (11, 12)), "host": ((8, 10),)}
    (found,) = steps(whole, busy=busy)
    assert dict(found.account.waits) == {"input": 1.5, "host": 0.5, "idle": 1.0}
    told = profile(whole, busy=busy)
    rows = {op.name: op for op in told.ops}
    assert (rows["input"].category, rows["host"].category) == ("input", "other")
    assert told.step_time_s == 12

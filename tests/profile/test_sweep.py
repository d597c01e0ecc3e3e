"""Who is on the critical path, by intervals whose shares are worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asap_ray.profile.sweep import (
    CONTROL,
    COPY,
    CORE,
    INPUT,
    WIRE,
    Interval,
    Key,
    leaves,
    length,
    merged,
    shared,
    sweep,
    without,
)


def at(start: float, end: float, name: str, rank: int = CORE) -> Interval:
    return Interval(start, end, ("m", name), rank)


def named(found: dict[Key, float]) -> dict[str, float]:
    return {name: seconds for (_, name), seconds in found.items() if seconds}


def test_a_collective_is_exposed_where_no_core_works() -> None:
    """0 to 4 a matmul, 2 to 7 a gather, 6 to 9 another matmul, until 10 nothing: of the gather's 5 s, 4 to 6 count."""
    swept = sweep([at(0, 4, "a"), at(2, 7, "g", WIRE), at(6, 9, "b")], 0, 10)
    assert named(swept.exposed) == {"a": 4, "g": 2, "b": 3}
    assert named(swept.busy) == {"a": 4, "g": 5, "b": 3}
    assert swept.under == {(("m", "g"), ("m", "a")): 2, (("m", "g"), ("m", "b")): 1}
    assert swept.gaps == [(9, 10)]


def test_a_transfer_ranks_before_a_copy_before_input_before_a_loop() -> None:
    spans = [at(0, 8, "loop", CONTROL), at(1, 7, "in", INPUT), at(2, 6, "c", COPY), at(3, 5, "g", WIRE)]
    assert named(sweep(spans, 0, 8).exposed) == {"loop": 2, "in": 2, "c": 2, "g": 2}


def test_two_streams_share_the_moments_they_both_work() -> None:
    assert named(sweep([at(0, 4, "a"), at(2, 6, "b")], 0, 6).exposed) == {"a": 3, "b": 3}


def test_one_op_on_two_lines_at_once_is_busy_once() -> None:
    swept = sweep([at(0, 4, "g", WIRE), at(3, 6, "g", WIRE)], 0, 6)
    assert named(swept.busy) == {"g": 6}
    assert named(swept.exposed) == {"g": 6}


def test_a_window_takes_its_part_of_what_crosses_its_edges_and_counts_what_begins_in_it() -> None:
    swept = sweep([at(-1, 2, "a"), at(3, 9, "b")], 0, 5)
    assert named(swept.exposed) == {"a": 2, "b": 2}
    assert named(swept.runs) == {"b": 1}
    assert swept.gaps == [(2, 3)]


def test_of_nested_work_the_innermost_counts() -> None:
    """A loop from 0 to 10 holds an op from 1 to 4, in it one from 2 to 3, and another from 6 to 8."""
    found = leaves([at(0, 10, "loop", CONTROL), at(1, 4, "call"), at(2, 3, "a"), at(6, 8, "b")])
    pieces = sorted((each.start, each.end, each.key[1]) for each in found)
    assert pieces == [
        (0, 1, "loop"),
        (1, 2, "call"),
        (2, 3, "a"),
        (3, 4, "call"),
        (4, 6, "loop"),
        (6, 8, "b"),
        (8, 10, "loop"),
    ]
    assert {name: sum(e.counts for e in found if e.key[1] == name) for name in ("loop", "call", "a", "b")} == {
        "loop": 1,
        "call": 1,
        "a": 1,
        "b": 1,
    }


@given(
    st.lists(
        st.tuples(st.integers(-5, 30), st.integers(0, 20), st.sampled_from("abcd"), st.integers(0, 4)), max_size=12
    )
)
def test_exposed_seconds_and_gaps_fill_the_window_whatever_the_intervals(
    given_: list[tuple[int, int, str, int]],
) -> None:
    swept = sweep([at(start, start + wide, name, rank) for start, wide, name, rank in given_], 0, 25)
    assert math.fsum(swept.exposed.values()) + length(swept.gaps) == pytest.approx(25)
    assert all(swept.exposed[key] <= swept.busy[key] + 1e-9 for key in swept.busy)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12)), max_size=10))
def test_pieces_of_nested_work_cover_the_same_moments(given_: list[tuple[int, int]]) -> None:
    spans = [at(start, start + wide, str(i)) for i, (start, wide) in enumerate(given_)]
    covered = merged((each.start, each.end) for each in leaves(spans))
    assert covered == merged((each.start, each.end) for each in spans)


def test_spans_met_and_taken_out() -> None:
    held = merged([(5, 7), (1, 2), (2, 3), (6, 8), (9, 9)])
    assert held == [(1, 3), (5, 8)]
    assert shared([(0, 2), (2.5, 6)], held) == [(1, 2), (2.5, 3), (5, 6)]
    assert without([(0, 2), (2.5, 6)], held) == [(0, 1), (3, 5)]

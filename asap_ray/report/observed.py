"""What a profile shows, as blocks for a reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from asap_ray.diagnosis import avoidable_words, diagnose_observed, place_words, redundant_words
from asap_ray.report import sentences, units
from asap_ray.report.outline import Block, Grid

if TYPE_CHECKING:
    from asap_ray.observation import Observation, Wire


def observed_blocks(seen: Observation) -> Iterator[Block]:
    """The ops that cost most, collectives, redundant work, memory and what bounds the step."""
    yield Block(title=f"Ops that cost most, by {seen.source}", grid=ops_grid(seen))
    if seen.wires:
        yield Block(title="Collectives, by mesh axis", grid=wires_grid(seen))
    if whole := sum(seen.memory.values()):
        parts = sorted(((size, name) for name, size in seen.memory.items() if size > 0), reverse=True)
        rows = tuple((name, units.gigabytes(size), units.percent(size / whole)) for size, name in parts)
        grid = Grid(header=("part", "amount", "share"), rows=rows, words=("part",))
        yield Block(title=f"Memory at its peak, by {seen.source}", grid=grid)
    if seen.buffers:
        rows = tuple((units.gigabytes(size), name) for name, size in seen.buffers)
        grid = Grid(header=("size", "what"), rows=rows, words=("what",))
        yield Block(title="Largest temporaries at the peak of the schedule, not as the allocator packs them", grid=grid)
    yield Block(title="What the program shows", facts=tuple(observed_facts(seen)))


def ops_grid(seen: Observation) -> Grid:
    """The ops that add most to the step, with their lines in the model."""
    header = ("step", "exposed", "busy", "runs", "MXU", "HBM", "what", "where")
    rows = tuple(
        (
            units.percent(each.share),
            units.seconds(each.exposed_s),
            units.seconds(each.seconds),
            units.count(round(each.count)),
            f"{each.mxu:.0%}",
            f"{each.hbm:.0%}",
            f"{each.category}, {each.phase}",
            each.source or each.name,
        )
        for each in seen.top
    )
    return Grid(header=header, rows=rows, words=("what", "where"))


def wires_grid(seen: Observation) -> Grid:
    """Collectives by kind and axes: bytes, seconds, what does not hide, and whether the plan must move as much."""
    beyond = {each.need: each.wire_bytes for each in seen.unpredicted}
    header = ("over", "what", "level", "bytes", "busy", "exposed", "predicted")
    rows = tuple(
        (
            each.over,
            f"{each.category} for {each.serves_as}" if each.serves_as else each.category,
            each.level,
            units.gigabytes(each.wire_bytes),
            units.seconds(each.seconds),
            units.seconds(each.exposed_s),
            _predicted(each, beyond.get(each.need, 0.0)),
        )
        for each in seen.wires
    )
    return Grid(header=header, rows=rows, words=("over", "what", "level", "predicted"))


def _predicted(wire: Wire, beyond: float) -> str:
    if beyond:
        return f"NO, {units.gigabytes(beyond)} more"
    return "yes" if wire.predicted else "no, a few bytes"


def observed_facts(seen: Observation) -> Iterator[tuple[str, str]]:
    """What bounds the step by its program, in a few lines."""
    found = diagnose_observed(seen)
    yield "bound", sentences.RESOURCES.get(found.bound, found.bound)
    yield "place", place_words(seen)
    yield "path", sentences.parts_line(seen.seconds, seen.step_time_s) + " of the step"
    yield "use", f"matrix units at {seen.mxu:.0%} of their peak, HBM at {seen.hbm:.0%}"
    if found.overlap is not None:
        exposed = sum(each.exposed_s for each in seen.wires)
        yield "traffic", f"{units.percent(found.overlap)} hides, {units.seconds(exposed)} of the step is waited for"
    yield "redundant", redundant_words(seen)
    told = ", ".join(
        f"{each.category} over {each.over} {units.gigabytes(each.wire_bytes)}" for each in seen.unpredicted
    )
    if told:
        yield "UNPREDICTED", told
    if avoidable := avoidable_words(seen):
        yield "avoidable", avoidable
    yield "next wall", sentences.wall_line(found)
    if found.abstains:
        yield "abstains", found.abstains
    for doubt in seen.doubts:
        yield "not certain", doubt

"""Reading compiled programs: 2 MB of HLO, and the profile of it, well under 2 seconds."""

from __future__ import annotations

from typing import Any

from asap_ray.compiler.hlo import parse
from asap_ray.compiler.timeline import profile_of
from tests.compiler.conftest import PLANS, calibrated, planned
from tests.compiler.programs import dump


def two_megabytes() -> str:
    """A program of 2 MB: a real one whose entry is followed by the computations of others, renamed."""
    text = dump("layers")
    head, _, entry = text.rpartition("\nENTRY ")
    start = head.index("\n%") + 1
    tables, computations = head[:start], head[start:]
    copies = [computations]
    while sum(map(len, copies)) < 2e6:
        copies.append(computations.replace("%", f"%c{len(copies)}."))
    return f"{tables}{''.join(copies)}\n\nENTRY {entry}"


def test_two_megabytes_are_read(benchmark: Any) -> None:
    text = two_megabytes()
    assert len(text) >= 2e6
    module = benchmark(parse, text)
    assert len(module.computations) > 400
    if not benchmark.disabled:
        assert benchmark.stats["mean"] < 2.0


def test_and_profiled(benchmark: Any) -> None:
    text = two_megabytes()
    problem, plan = planned(*PLANS["layers"])
    calibration = calibrated(problem)
    benchmark(lambda: profile_of(parse(text), problem, plan, calibration))
    if not benchmark.disabled:
        assert benchmark.stats["mean"] < 2.0

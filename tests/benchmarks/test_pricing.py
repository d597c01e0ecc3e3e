"""Plans priced a second on one core: the floor (at least 1,000,000) and the full estimate (at least 300,000).

    pytest tests/benchmarks -n 0 --benchmark-enable

Each prints its plans a second, over the chunks that enumeration yields for published workloads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from asap_ray.physics.calibration import calibration_from_mapping
from asap_ray.physics.roofline import Pricer
from asap_ray.settings import load_group
from asap_ray.space import PlanColumns, Space
from tests.problems import make_problem

CASES = {
    "llama2_70b on v5p-128, maxtext": ("v5p-128", "maxtext", "llama2_70b"),
    "llama2_70b on h100x512, megatron": ("h100x512", "megatron", "llama2_70b"),
    "mixtral8x7b on v5e-256, maxtext": ("v5e-256", "maxtext", "mixtral8x7b"),
}
CALIBRATIONS = load_group("calibration")
MOST_PLANS = 300_000  # of each space: enough to average over its chunks


@cache
def case(name: str) -> tuple[Space, list[PlanColumns], int]:
    slice_, stack, model = CASES[name]
    space = Space(problem=make_problem(slice_, stack, model, batch=1024, seq_len=4096))
    chunks, plans = [], 0
    for rows in space.chunks():
        chunks.append(rows)
        plans += len(rows)
        if plans > MOST_PLANS:
            break
    return space, chunks, plans


def new_pricer(name: str) -> Pricer:
    """A pricer that has priced nothing yet, so that what it prepares once is timed too."""
    problem = case(name)[0].problem
    kind = problem.slice.chip.kind
    return Pricer(problem, calibration_from_mapping(kind, CALIBRATIONS[kind]))


Report = Callable[[int, Callable[[], object]], None]


@pytest.fixture
def report(benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]) -> Report:
    """Time some work on a number of plans, and print the plans a second."""

    def run(plans: int, work: Callable[[], object]) -> None:
        benchmark.pedantic(work, rounds=5, warmup_rounds=1)
        if benchmark.stats is not None:
            rate = round(plans / benchmark.stats["median"])
            benchmark.extra_info["plans_per_s"] = rate
            with capsys.disabled():
                print(f"\n{benchmark.name}: {rate:,} plans/s ({plans:,} plans)")

    return run


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("priced", [Pricer.floor, Pricer.price], ids=["floor", "estimate"])
def test_pricing(report: Report, name: str, priced: Callable[[Pricer, PlanColumns], object]) -> None:
    _, chunks, plans = case(name)

    def work() -> None:
        pricer = new_pricer(name)
        for rows in chunks:
            priced(pricer, rows)

    report(plans, work)


@pytest.mark.parametrize("name", CASES)
def test_enumeration(report: Report, name: str) -> None:
    space, _, _ = case(name)
    report(space.survey().legal, lambda: sum(len(rows) for rows in space.chunks()))

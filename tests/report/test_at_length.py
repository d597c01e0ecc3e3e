"""A report of many trials stays as long as a reader is: the fastest are listed, and it says where all of them are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asap_ray.report import leaderboard
from asap_ray.report.answer import Searched
from asap_ray.report.files import write_report
from asap_ray.report.outline import Grid, shortened
from asap_ray.report.rounds import Proposed, Round
from asap_ray.report.search import MOST_ROUNDS, told_rounds
from asap_ray.report.search_chart import MARKS, drawn
from asap_ray.report.summary import PLANS, summary
from tests.report.test_search import tried

COUNT = 4001


@pytest.fixture(scope="module")
def steps() -> list[float]:
    """The fastest is amid them: 101 s, at place 2,000."""
    return [101.0 + abs(number - 2000) / 10 for number in range(COUNT)]


def made(factory: Any, steps: list[float]) -> Searched:
    one = tried(factory, 0, factory.lines[0], 110.0, "sampler")
    estimate = one.finding.estimate
    assert estimate is not None
    trials = tuple(
        replace(one, number=n, finding=replace(one.finding, estimate=replace(estimate, step_time_s=step)))
        for n, step in enumerate(steps)
    )
    rounds = tuple(
        Round(
            number=n + 1,
            open=COUNT,
            closed={},
            proposed=(Proposed(trial=n, author="sampler", plan=factory.lines[0]),),
        )
        for n in range(COUNT)
    )
    return Searched(base="base", trials=trials, rounds=rounds, stopped="done")


def test_what_is_drawn_has_every_trial_that_was_the_fastest(factory: Any, steps: list[float]) -> None:
    found = [each.number for each in drawn(made(factory, steps).trials)]
    # Steps fall up to the 2,001st trial: all of those were the fastest of their time; of the others every third.
    assert found[:2001] == list(range(2001))
    assert found[2001:] == [n for n in range(2001, COUNT) if n % 3 == 0 or n == COUNT - 1]
    assert drawn(made(factory, steps).trials[:MARKS])[-1].number == MARKS - 1


def test_leaders_are_the_fastest(factory: Any, steps: list[float]) -> None:
    found = made(factory, steps)
    listed = [each.number for each in leaderboard.leading(found)]
    assert len(listed) == leaderboard.MOST
    assert sorted(listed) == list(range(2000 - 500, 2000 + 500)), "those nearest to the middle, of equals the first"


def test_rounds_that_are_told_are_the_first_the_last_and_those_that_gained(factory: Any, steps: list[float]) -> None:
    numbers = [each.number for each in told_rounds(made(factory, steps))]
    assert len(numbers) == MOST_ROUNDS == 60
    assert numbers == [*range(1, 21), *range(1982, 2002), *range(COUNT - 19, COUNT + 1)]


def test_a_table_says_where_its_other_rows_are() -> None:
    grid = Grid(header=("#", "plan"), rows=tuple((str(n), "p") for n in range(1234)), words=("plan",))
    found = shortened(grid, 200)
    assert found.rows[199:] == (("199", "p"), ("", "1,034 more, as all are, in trials.parquet"))
    assert shortened(found, 201) is found


def test_files_are_as_small_as_a_reader(factory: Any, steps: list[float], tmp_path: Path) -> None:
    one = replace(factory.slice_answer(), searched=made(factory, steps))
    told = summary(factory.answer(one))["searched"]
    assert (len(told["plans"]), told["plans_left_out"]) == (PLANS, COUNT - PLANS)
    paths = {path.name: path.stat().st_size for path in write_report(factory.answer(one), tmp_path)}
    assert paths["leaderboard.md"] < 0.3 * 2**20
    assert paths["report.html"] < 4 * 2**20

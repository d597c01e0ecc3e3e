"""What a search stands at in figures, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from asap_ray.tasks.standing import Standing
from tests.report.conftest import LINES, make_estimate
from tests.report.test_search import tried


class Factory:
    lines = LINES
    estimate = staticmethod(make_estimate)


def test_figures_follow_trials_as_they_begin_and_end() -> None:
    seen: dict[str, float] = {}
    said: list[str] = []

    def show(figures: list[Any]) -> None:
        seen.update({"/".join((name, *tags.values())): value for name, tags, value in figures})

    places = {"metrics": "http://127.0.0.1:1/metrics"}
    standing = Standing(show=show, tokens=lambda: 70, places=lambda: places, say=said.append)
    standing.stands("v5p-128", 1)
    standing.began("v5p-128", 0, "base")
    standing.began("v5p-128", 1, "base")
    assert seen["asap_trials/v5p-128/running"] == 2
    good = tried(Factory, 0, LINES[0], 110.0, "playbook")
    standing.ended(replace(good, finding=replace(good.finding, chip_hours=1.5)))
    standing.ended(tried(Factory, 1, LINES[1], None, "playbook"))
    standing.ended(tried(Factory, 2, LINES[2], 105.0, "playbook"))  # of an earlier run: it never began
    assert seen == {
        "asap_rounds/v5p-128": 1,
        "asap_chip_hours/v5p-128": 1.5,
        "asap_llm_tokens": 70,
        "asap_best_step_seconds/v5p-128": 105.0,
        "asap_trials/v5p-128/running": 0,
        "asap_trials/v5p-128/complete": 2,
        "asap_trials/v5p-128/infeasible": 1,
    }
    assert said == ["  metrics at http://127.0.0.1:1/metrics"]

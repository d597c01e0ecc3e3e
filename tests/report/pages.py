"""One page of each kind, with something in every part of it, and the marks that each of its pictures must have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from asap_ray.contest.methods import Method
from asap_ray.contest.play import Budget, Played
from asap_ray.physics.estimate import Estimate
from asap_ray.report.comparison import ComparisonAnswer, comparison_fields
from asap_ray.report.comparison_page import comparison_page
from asap_ray.report.night import Judged, Night, Row, night_page
from asap_ray.report.page import page
from tests.contest.grounds import small_replay
from tests.report.test_search import make_searched
from tests.report.test_validation_page import draw

LINE = "fsdp=16@4.4.1 tensor=4@1.1.4 micro_batch=2 accumulation=8 remat=full"
METHODS = ("random", "tpe", "playbook")
SEARCH, TIME, MEMORY, ROOFLINE, MAP = 4 + 4 + 1, 5 * 6 + 5, 6 * 5, 5 * 2 + 2, 400
"""Marks at least: trials with their estimates and the line; parts with floors; parts; points and roofs; the sample."""
MARKS: Mapping[str, Mapping[str, int]] = {
    "tune": {"0-time": TIME, "0-memory": MEMORY, "0-roofline": ROOFLINE, "0-map": MAP}
    | {"1-time": TIME, "1-memory": 5 * 5, "1-roofline": ROOFLINE, "1-map": MAP}
    | {"2-time": TIME, "2-memory": MEMORY, "2-roofline": ROOFLINE, "2-map": MAP, "2-search": SEARCH},
    "compare": {name: len(METHODS) * 3 for name in ("curves", "curves-0", "curves-1")},
    "night": {},
    "validate": {"scatter": 31, "ratio": 31},
}
"""Of each page the pictures by id, with how many marks each has at least."""


def tune(factory: Any) -> str:
    other = factory.slice_answer(factory.slice(name="v5p-256"))
    small = replace(other, slice=factory.slice(name="v5p-512"), ranked=tuple(map(_hundredth, other.ranked)), too_big=())
    return page(factory.answer(make_searched(factory), other, small))


def _hundredth(plan: Estimate) -> Estimate:
    """A plan that needs a hundredth of the memory: far from the limit."""
    parts = {name: value / 100 for name, value in plan.memory_parts.items()}
    return replace(plan, hbm_bytes=plan.hbm_bytes / 100, memory_parts=parts)


def compare(factory: Any) -> str:
    one = small_replay("a ground")
    grounds = (one, replace(one, name="another ground", source="somebody else"))
    methods = tuple(Method(name=name, about=f"what {name} does", make=_unmade) for name in METHODS)
    played = tuple(
        Played(
            method=method,
            ground=ground.name,
            seed=0,
            regret=tuple(max(0.0, 0.8 - 0.1 * trial * (place + 1)) for trial in range(20)),
            bad=(False,) * 20,
            chip_s=(1.0,) * 20,
            end_s=tuple(float(trial) for trial in range(20)),
            plans=(LINE,) * 20 if method == "playbook" else (),
            why=("because",) * 20 if method == "playbook" else (),
            stopped="as many as wanted",
        )
        for ground in grounds
        for place, method in enumerate(reversed(METHODS))
    )
    found = ComparisonAnswer(
        grounds=grounds,
        errors={each.name: 0.2 for each in grounds},
        methods=methods,
        played=played,
        budget=Budget(),
        seed=0,
        resumed=False,
        command="asap-ray task=compare",
        run_dir=Path("/runs/compare"),
        wall_s=3.0,
        versions={"asap_ray": "0.1.0"},
    )
    return comparison_page(found, comparison_fields(found))


def _unmade(*_: Any) -> Any:
    raise AssertionError("nothing is searched here")


def night(factory: Any) -> str:
    rows = {
        name: Row(
            night="20261202T010000Z",
            cell=f"llama70b-v5p-128-{name}",
            workload="llama70b",
            slice="v5p-128",
            stack="maxtext",
            words=("+model=llama70b",),
            ok=name != "failed",
            reason="lost" if name == "failed" else "",
            plan=LINE,
            source="compile",
            step_time_s=90.0,
            trials=7,
            trials_to_best=3,
            versions={"jax": "0.10.2"},
        )
        for name in ("failed", "regressed", "improved")
    }
    cells = tuple(
        Judged(row=row, verdict=name, cause="versions", why=("the same plan took longer",), before_s=80.0)  # pyright: ignore
        for name, row in rows.items()
    )
    found = Night(name="20261202T010000Z", matrix="m", cells=cells, wall_s=60.0, chip_hours=0.0, folder="/runs/n")
    return night_page(found, {row.cell: [row] for row in rows.values()})


PAGES: Mapping[str, Callable[[Any], str]] = {
    "tune": tune,
    "compare": compare,
    "night": night,
    "validate": lambda factory: draw(),
}

"""What the compile tier reaches on its record, with the roofline's figures of today.

The bounds are those of docs/accuracy.md with a little room; a change of the physics that makes them worse must be seen.
"""

from __future__ import annotations

import pytest

from asap_ray.config import Config, ValidateConfig
from asap_ray.interchange.measured_tables import read_tables
from asap_ray.report.compiled_validation import COMPILER, CompiledAnswer
from asap_ray.tasks.compiled_cases import cases, load_plans
from asap_ray.tasks.predictions import load_mapper, map_rows
from asap_ray.tasks.validate import carried_tables
from asap_ray.tasks.validate_compiled import compared

TABLES = [path for path in carried_tables() if path.endswith("training.parquet")]


@pytest.fixture(scope="module")
def reached() -> CompiledAnswer:
    config = Config(task="validate", tiers=["compile"], validate=ValidateConfig(), run_dir="run")
    mapper = load_mapper(margin=config.space.margin)
    runs = {row.id: row for row in map_rows(read_tables("tables", TABLES), mapper).rows}
    return compared(config, cases(config, runs), 0.0)


def test_the_roofline_agrees_with_compilers_in_memory(reached: CompiledAnswer) -> None:
    found = reached.memory()[0]
    assert found.n >= 40
    assert found.median_ape is not None
    assert found.median_ape <= 0.07


def test_the_roofline_lets_nothing_through_that_is_much_too_big(reached: CompiledAnswer) -> None:
    assert [row.recorded.plan for row in reached.let_through if row.over > 0.05] == []


def test_compiled_steps_agree_with_measured_ones(reached: CompiledAnswer) -> None:
    found = reached.steps()[-1][1][COMPILER]
    assert found.n >= 20
    assert found.median_ape is not None
    assert found.median_ape <= 0.15


def test_every_listed_plan_is_on_record(reached: CompiledAnswer) -> None:
    assert reached.unrecorded == ()


def test_every_run_on_a_tpu_is_compiled_or_left_out_with_a_reason() -> None:
    plans = load_plans()
    told = [*plans["measured"], *(name for entry in plans["left_out"] for name in entry["rows"])]
    tpus = [str(row["id"]) for row in read_tables("tables", TABLES) if str(row["hardware"]).lower().startswith("tpu")]
    assert sorted(told) == sorted(tpus)

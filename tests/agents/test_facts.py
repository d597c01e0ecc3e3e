"""Facts of a plan on a slice: which chip, whether its torus closes, how many rows its matmuls have."""

from __future__ import annotations

import pytest

from asap_ray.agents.facts import facts_of_result
from asap_ray.plan import Plan
from asap_ray.search.protocol import Candidate, Result
from tests.problems import make_problem


@pytest.mark.parametrize(
    ("slice_", "generation", "wrapped"),
    [
        ("v5e-4", "v5e", "true"),  # 2x2: nothing is long enough to close
        ("v5e-64", "v5e", "false"),  # 8x8
        ("v5e-256", "v5e", "true"),  # 16x16
        ("v5e-128", "v5e", "false"),  # 8x16: one axis is a line
        ("v5p-128", "v5p", "true"),  # 4x4x4
        ("v5p-32", "v5p", "false"),  # 2x2x4: no cube
        ("tpu7x-128", "tpu7x", "true"),
        ("h100x8", "h100", None),
    ],
)
def test_a_chip_is_known_by_name_and_a_torus_by_whether_it_closes(
    slice_: str, generation: str, wrapped: str | None
) -> None:
    problem = make_problem(slice_, "maxtext")
    result = Result(candidate=Candidate(number=0, plan=Plan(), author="x"), status="failed")
    facts = facts_of_result(problem, result)
    assert facts["generation"] == generation
    assert facts.get("wrapped") == wrapped


def test_tokens_are_the_rows_of_a_devices_matmuls() -> None:
    plan = Plan(ici=(1, 1, 1, 4, 1, 2), micro_batch=3, accumulation=2)
    result = Result(candidate=Candidate(number=0, plan=plan, author="x"), status="failed")
    facts = facts_of_result(make_problem("v5e-8", "maxtext", seq_len=4096), result)
    assert facts["tokens"] == 3 * 4096 // 4

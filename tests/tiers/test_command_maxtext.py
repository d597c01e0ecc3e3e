"""MaxText itself, tuned on a CPU: two plans of a tiny model, with step times and losses of real training.

Optional: `ASAP_RAY_MAXTEXT_PYTHON=~/maxtext/bin/python pytest tests/tiers/test_command_maxtext.py`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from asap_ray.executor import local
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.plan import Plan
from asap_ray.settings import load_group
from asap_ray.tasks.commanding import with_args
from asap_ray.tiers.command import Command, CommandOptions
from asap_ray.tiers.templates import template_from_mapping
from tests.problems import make_problem

MAXTEXT = os.environ.get("ASAP_RAY_MAXTEXT_PYTHON", "")
PLANS = (
    "fsdp=4 micro_batch=2 accumulation=1 remat=full attention=unfused",
    "fsdp=2 tensor=2 micro_batch=4 accumulation=1 sequence_parallel=true remat=full attention=unfused",
)


@pytest.mark.skipif(not MAXTEXT, reason="ASAP_RAY_MAXTEXT_PYTHON names no interpreter with MaxText")
def test_two_plans_of_a_tiny_model_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    monkeypatch.setenv("NPROC", "16")
    template = template_from_mapping("maxtext", load_group("command")["maxtext"])
    problem = make_problem("v5e-4", "maxtext", "tiny", batch=8, seq_len=256)
    constants = calibration_of(problem.slice.chip, "maxtext", calibrations_from_mappings(load_group("calibration")))
    options: dict[str, Any] = {"steps": 6, "timeout_s": 900.0, "folder": str(tmp_path)}
    command = Command(
        problem=problem,
        calibration=constants,
        template=with_args(template, ["hardware=cpu"]),
        options=CommandOptions(python=MAXTEXT, **options),
    )
    found = [command.read(outcome) for outcome in local.run([command.job(Plan.parse(line)) for line in PLANS], 1)]
    assert [(each.status, each.reason) for each in found] == [("complete", "")] * 2
    for each in found:
        print(each.plan.line, each.estimate and each.estimate.interval_s, each.facts)
        assert each.estimate is not None
        assert each.estimate.step_time_s > 0.01
        assert each.facts["shown"]["devices"] == "4"
    # The same model, seed and data: what a plan changes of a loss is rounding.
    first, second = (each.facts["losses"] for each in found)
    assert len(first) >= 6
    assert all(first[step] == pytest.approx(second[step], abs=0.05) for step in range(6))

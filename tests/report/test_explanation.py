"""One plan taken apart: every figure shown is the estimate's, and JSON holds them all."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from typing import Any

import pytest

from asap_ray.diagnosis import Diagnosis
from asap_ray.physics.estimate import Neighbour
from asap_ray.plan import Plan
from asap_ray.report.explanation import Explanation, blocks, closing, explanation_fields
from asap_ray.report.terminal import print_blocks

LINE = "fsdp=16@4.4.1 tensor=4@1.1.4 micro_batch=2 accumulation=8 remat=full"


@pytest.fixture
def made(factory: Any) -> Any:
    busy = {"compute": 70.0, "hbm": 25.0, "ici": 30.0, "dcn": 10.0, "pcie": 0.0, "bubble": 0.0, "host": 1.0}

    def make(**changes: Any) -> Explanation:
        estimate = factory.estimate(LINE, 100.0, serial_s=130.0, busy=busy)
        faster = factory.estimate(LINE.replace("micro_batch=2 accumulation=8", "micro_batch=4 accumulation=4"), 95.0)
        fields: dict[str, Any] = {
            "model": "llama70b",
            "stack": "maxtext",
            "seed": 0,
            "workload": factory.answer().workload,
            "slice": factory.slice(),
            "chosen": "The given plan",
            "estimate": estimate,
            "diagnosis": Diagnosis(
                bound="ici",
                evidence=("first reason", "second reason"),
                next_wall="hbm",
                headroom=0.2,
                overlap=0.75,
                redundant=0.33,
                abstains=None,
            ),
            "baseline": None,
            "steps": (
                Neighbour(field="micro_batch", value="4", estimate=dataclasses.replace(faster, hbm_bytes=99e9)),
                Neighbour(field="tensor", value="8", estimate=None, reason="tensor 8 does not divide 4 heads"),
            ),
            "wall_s": 0.5,
            "versions": {"asap_ray": "0.1.0"},
        }
        return Explanation(**{**fields, **changes})

    return make


def text(told: Explanation) -> str:
    stream = io.StringIO()
    print_blocks([*blocks(told), *closing(told, "/runs/one/explanation.json")], "plain", stream)
    return stream.getvalue()


def row(shown: str, label: str) -> list[str]:
    (line,) = (line for line in shown.splitlines() if line.startswith(f"  {label} "))
    return line.split()


def test_parts_are_shown_with_their_shares(made: Any) -> None:
    # The factory's shares: 60% of 100 s is matmul; 40% of 71.2 GB is the optimizer's.
    shown = text(made())
    assert row(shown, "matmul") == ["matmul", "60.0", "s", "60.0%"]
    assert "28.5 GB  40.0%" in shown
    assert row(shown, "compute") == ["compute", "80.0", "s", "80.0%"]


def test_parts_that_are_nothing_are_left_out(made: Any, factory: Any) -> None:
    told = made()
    parts = {**told.estimate.time_parts, "bubble": 0.0}
    assert "bubble" not in text(made(estimate=dataclasses.replace(told.estimate, time_parts=parts)))


def test_what_overlaps_is_the_gap_between_serial_and_step(made: Any) -> None:
    # 130 s with nothing hidden, 100 s as it is, and 30 + 10 s of traffic.
    shown = text(made())
    assert "hidden  30.0 s of 40.0 s of traffic" in shown
    assert "serial  130 s with nothing hidden" in shown
    still = dataclasses.replace(made().estimate, busy=dict.fromkeys(made().estimate.busy, 0.0))
    assert "there is no traffic" in text(made(estimate=still))


def test_a_step_shows_its_gain_and_what_changes_with_it(made: Any) -> None:
    shown = text(made())
    (line,) = (line for line in shown.splitlines() if line.startswith("  micro_batch 4"))
    assert "-5.0%" in line
    assert "99.0 GB (does not fit)" in line
    assert line.endswith("accumulation=4"), "the step itself is not told twice"
    assert "not legal: tensor 8 does not divide 4 heads" in shown


def test_only_the_field_itself_is_left_out_of_its_own_row(made: Any, factory: Any) -> None:
    moved = factory.estimate("fsdp=16@4.4.1 pipeline=4@1.1.4 micro_batch=2 schedule=1f1b remat=full", 120.0)
    told = made(steps=(Neighbour(field="pipeline", value="4", estimate=moved),))
    (line,) = (line for line in text(told).splitlines() if line.startswith("  pipeline 4"))
    assert {"tensor=1", "schedule=1f1b", "accumulation=1"} <= set(line.split())
    assert "pipeline=" not in line


def test_walls_are_told_in_words_and_reasons_in_full(made: Any) -> None:
    shown = text(made())
    assert "bound by the links inside a slice" in shown
    assert "next wall  HBM bandwidth" in shown
    assert "first reason" in shown
    assert "second reason" in shown
    assert "abstains" not in shown
    quiet = dataclasses.replace(made().diagnosis, abstains="nothing to gain")
    assert "abstains   nothing to gain" in text(made(diagnosis=quiet))


def test_a_plan_that_does_not_fit_says_so_first(made: Any) -> None:
    big = dataclasses.replace(made().estimate, hbm_bytes=100e9)
    assert "DOES NOT FIT, 11.0 GB over" in text(made(estimate=big))


def test_the_baseline_is_compared(made: Any, factory: Any) -> None:
    slower = factory.estimate(LINE.replace("full", "none"), 150.0, hbm_bytes=95e9)
    shown = text(made(baseline=slower))
    assert "150 s, 1.50x of this plan's" in shown
    assert "95.0 GB, does not fit" in shown


def test_it_closes_with_the_file_and_what_the_figures_are_worth(made: Any) -> None:
    lines = text(made()).splitlines()
    assert lines[-2].split() == ["file", "/runs/one/explanation.json"]
    assert "no trial stands behind these figures" in lines[-1]


def test_json_holds_every_part(made: Any) -> None:
    told = made()
    found = json.loads(json.dumps(explanation_fields(told), allow_nan=False))
    assert found["task"] == "explain"
    assert found["time_parts_s"] == told.estimate.time_parts
    assert found["memory_parts_bytes"] == told.estimate.memory_parts
    assert found["busy_s"] == told.estimate.busy
    assert found["flops_by_part"] == told.workload.flops_by_part()
    assert found["diagnosis"]["evidence"] == ["first reason", "second reason"]
    assert found["baseline"] is None
    legal, illegal = found["steps"]
    assert Plan.parse(legal["estimate"]["line"]).micro_batch == 4
    assert (illegal["estimate"], illegal["reason"]) == (None, "tensor 8 does not divide 4 heads")


def test_json_is_strict_even_where_a_figure_is_not_finite(made: Any) -> None:
    odd = dataclasses.replace(made().estimate, serial_s=math.inf)
    assert json.loads(json.dumps(explanation_fields(made(estimate=odd)), allow_nan=False))["best"]["serial_s"] is None

"""What recipes do to prices, against hand values and against stacks whose own policies say the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.physics.estimate import Estimate
from asap_ray.physics.recipes import shares_of
from asap_ray.physics.roofline import Pricer
from asap_ray.plan import Plan
from asap_ray.recipe import Recipe
from asap_ray.settings import load_group
from asap_ray.space import Space
from tests.problems import make_problem

PROBLEM = make_problem("v5e-64", "ours", "llama3_8b", batch=256, seq_len=512)
CONSTANTS = calibration_of(PROBLEM.slice.chip, "ours", calibrations_from_mappings(load_group("calibration")))
LINE = "fsdp=64@8.8 micro_batch=1 accumulation=4 remat=full"
LAYER_PARAMETERS = 8_030_261_248 - 2 * 128_256 * 4096 - 4096
"""Of all 32 layers: the published total without embedding, head and the last norm."""


def priced(recipe: str = "", line: str = LINE) -> Estimate:
    plan = Plan.parse(line)
    pricer = Pricer(PROBLEM, CONSTANTS, Recipe.parse(recipe))
    return pricer.estimates(Space(problem=PROBLEM).columns([plan]), [plan])[0]


def test_held_layers_lie_whole_in_16_bits() -> None:
    held = priced("hold=8").hbm_bytes - priced().hbm_bytes
    assert held == pytest.approx(8 / 32 * LAYER_PARAMETERS * 2, rel=1e-3)


def test_held_layers_gather_once_a_step() -> None:
    """Of 4 micro-batches' 8 gathers a layer all but one are spared: serially, half the layers' fsdp time loses 7/8 of
    its gathers, and scatters stay."""
    shares = shares_of(PROBLEM, Recipe(hold=16))
    assert shares.gathers(np.array([4.0])) == pytest.approx(0.5 * 2 + 0.5 / 4)
    serial = [priced(each).busy["ici"] for each in ("", "hold=8", "hold=16", "hold=32")]
    steps = np.diff(serial)
    assert steps[0] == pytest.approx(steps[1], rel=1e-6)
    assert steps[2] == pytest.approx(2 * steps[1], rel=1e-6)
    assert (steps < 0).all()


def test_a_save_list_is_the_policy_that_saves_the_same() -> None:
    listed, own = priced("save=query+key_value"), priced(line=LINE.replace("full", "save_qkv"))
    for name in ("step_time_s", "hbm_bytes", "floor_s", "serial_s", "redundant"):
        assert getattr(listed, name) == pytest.approx(getattr(own, name), rel=1e-9), name


def test_some_layers_that_save_more_are_between_none_and_all() -> None:
    none, some, all_ = (priced(each) for each in ("", "save=act/8", "save=act"))
    assert some.redundant == pytest.approx(0.75 * none.redundant + 0.25 * all_.redundant, rel=1e-9)
    kept = [each.memory_parts["activations"] for each in (none, some, all_)]
    assert kept[0] < kept[1] < kept[2]
    assert all_.floor_s <= some.floor_s <= none.floor_s


def test_flags_tiles_and_nothing_have_no_price() -> None:
    assert priced("vmem block_q=512") == priced()


def test_the_price_of_the_case_that_was_compiled() -> None:
    """docs/recipes.md: the compiler says 10.6% less for 8.6 GB more."""
    problem = make_problem("v5e-64", "ours", "llama3_8b", batch=64, seq_len=512)
    plan = Plan.parse("fsdp=64@8.8 micro_batch=1 accumulation=1 remat=full")
    columns = Space(problem=problem).columns([plan])
    plain, held = (Pricer(problem, CONSTANTS, Recipe(hold=n)).estimates(columns, [plan])[0] for n in (0, 20))
    assert held.step_time_s / plain.step_time_s == pytest.approx(0.894, abs=0.02)
    assert held.hbm_bytes - plain.hbm_bytes == pytest.approx(8.6e9, rel=0.03)
    assert replace(held, plan=plan).fits

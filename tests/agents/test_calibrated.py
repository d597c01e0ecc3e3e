"""What trials that tell only their steps make of the roofline's parts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from asap_ray.agents.calibrated import step_ratios
from asap_ray.physics.estimate import TIME_PARTS

AT = {name: place for place, name in enumerate(TIME_PARTS)}


def trial(step: float, **parts: float) -> SimpleNamespace:
    priced = dict.fromkeys(TIME_PARTS, 0.0) | parts
    return SimpleNamespace(
        step_time_s=step, roofline=SimpleNamespace(step_time_s=sum(priced.values()), time_parts=priced)
    )


def ratios(*trials: SimpleNamespace) -> np.ndarray:
    return step_ratios(trials)  # pyright: ignore[reportArgumentType]


def test_before_any_trial_prices_stand() -> None:
    assert (ratios() == 1.0).all()


def test_one_trial_moves_the_scale_of_all_parts_alike() -> None:
    found = ratios(trial(10.0, matmul=0.6, fsdp=0.4))
    assert 0.6 * found[AT["matmul"]] + 0.4 * found[AT["fsdp"]] == pytest.approx(10, rel=0.05)
    assert found[AT["bubble"]] == pytest.approx(10, rel=0.25)  # of what it says nothing, the scale alone is known


def test_trials_that_differ_in_a_part_say_what_that_part_takes() -> None:
    """Matmuls take twice their price and gathers six times: more gathers, more time."""
    mixes = [(0.9, 0.1), (0.7, 0.3), (0.5, 0.5), (0.8, 0.2)]
    found = ratios(*(trial(2 * m + 6 * f, matmul=m, fsdp=f) for m, f in mixes))
    assert found[AT["fsdp"]] > 1.3 * found[AT["matmul"]]
    few = list(found)
    found = ratios(*(trial(2 * m + 6 * f, matmul=m, fsdp=f) for m, f in 40 * mixes))
    assert found[AT["fsdp"]] / found[AT["matmul"]] > few[AT["fsdp"]] / few[AT["matmul"]]
    for m, f in (*mixes, (0.6, 0.4)):
        assert found[AT["matmul"]] * m + found[AT["fsdp"]] * f == pytest.approx(2 * m + 6 * f, rel=0.15)

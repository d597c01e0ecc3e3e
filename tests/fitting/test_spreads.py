"""Widths of intervals from errors that were drawn with known widths."""

from __future__ import annotations

import numpy as np
import pytest

from asap_ray.fitting.parameters import Parameter
from asap_ray.fitting.spreads import HELD, fit_spreads, half_widths

KINDS = np.eye(3)


def test_half_widths_add_as_squares() -> None:
    # (0.6 x 0.1)^2 + (0.4 x 0.2)^2 = 0.1^2.
    assert half_widths(np.array([[0.6, 0.4, 0.0]]), np.array([0.1, 0.2, 9.0])) == pytest.approx([0.1])


def test_spreads_are_found_again_and_hold_what_they_are_to_hold() -> None:
    rng = np.random.default_rng(0)
    true = {"stack_a": np.array([0.05, 0.4, 0.3]), "stack_b": np.array([0.15, 0.4, 0.3])}
    files = [name for name in true for _ in range(1500)]
    shares = KINDS[rng.integers(0, 3, len(files))]
    widths = np.array([half_widths(share[None], true[name])[0] for share, name in zip(shares, files, strict=True)])
    errors = rng.laplace(scale=widths / -np.log(1 - HELD))
    found = fit_spreads(errors, shares, files)
    for name, spreads in true.items():
        for kind, spread in zip(("compute", "network", "host"), spreads, strict=True):
            assert found[Parameter(name, f"spread_{kind}")] == pytest.approx(spread, rel=0.15)
    drawn = np.array(
        [[found[Parameter(name, f"spread_{k}")] for k in ("compute", "network", "host")] for name in files]
    )
    inside = np.abs(errors) <= np.sqrt(np.square(shares * drawn).sum(axis=1))
    assert np.mean(inside) == pytest.approx(HELD, abs=0.01)


def test_a_stack_with_one_run_takes_the_spread_of_all() -> None:
    rng = np.random.default_rng(1)
    errors = np.append(rng.laplace(scale=0.2 / np.log(10), size=400), 0.0)
    found = fit_spreads(errors, np.tile(KINDS[0], (401, 1)), ["stack_a"] * 400 + ["stack_b"])
    ratio = found[Parameter("stack_b", "spread_compute")] / found[Parameter("stack_a", "spread_compute")]
    assert 0.4 < ratio <= 1.0

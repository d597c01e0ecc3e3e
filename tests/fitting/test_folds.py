"""Fits to runs whose times are made from known constants, and folds that must not see what they leave out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from asap_ray.fitting.folds import ENOUGH, Fitter, sample, weights
from asap_ray.fitting.observations import Observations
from asap_ray.fitting.parameters import Parameter, Values, beliefs_of
from asap_ray.interchange.measured import MeasuredRow
from asap_ray.settings import load_group
from tests.fitting.measured import rows_of

TRUE = {
    Parameter("v5e", "matmul_fraction"): 0.80,
    Parameter("v5p", "matmul_fraction"): 0.75,
    Parameter("stack_maxtext", "elementwise_passes"): 1.6,
}
SLOW = 3.0


@pytest.fixture(scope="module")
def beliefs():
    return beliefs_of(load_group("calibration"), keeps_fits=False)


@pytest.fixture(scope="module")
def made(beliefs) -> list[MeasuredRow]:
    """Runs of two sources with the times of known constants."""
    rows = [*rows_of("MaxText README")[:16:2], *rows_of("trillium README")[:9]]
    observed = Observations(rows, beliefs)
    steps = np.exp(observed.errors(TRUE) + observed.measured)
    return [replace(row, step_time_s=float(step)) for row, step in zip(rows, steps, strict=True)]


def fitter(rows: Sequence[MeasuredRow], beliefs) -> Fitter:
    observed = Observations(rows, beliefs)

    def columns(jobs: list[tuple[Values, np.ndarray]]) -> list[np.ndarray]:
        return [observed.errors(*job) for job in jobs]

    return Fitter(observed, columns)


def test_known_constants_are_found_again(made, beliefs) -> None:
    found = fitter(made, beliefs)
    whole = found.whole(rounds=4)
    # The belief holds back a little; what is predicted must be right to a percent or so.
    assert np.median(np.abs(whole.errors[found.sampled])) < 0.01
    for parameter in (p for p in TRUE if p.constant == "matmul_fraction"):
        assert whole.values[parameter] == pytest.approx(TRUE[parameter], rel=0.05)


def test_what_is_left_out_decides_nothing(made, beliefs) -> None:
    """Chips' constants must not change with any row of the source, stacks' with none of the same source and model."""
    source = made[0].source
    model = made[0].model
    before = fitter(made, beliefs)
    whole = before.whole(rounds=1)
    first = [fold for fold in before.folds(whole) if fold.source == source]
    slower = [replace(row, step_time_s=row.step_time_s * SLOW) if row.source == source else row for row in made]
    other = fitter(slower, beliefs)
    # The same slopes and the same start: only the errors of the rows that a fold uses may tell the two apart.
    second = [fold for fold in other.folds(whole) if fold.source == source]
    for one, two in zip(first, second, strict=True):
        chips = [p for p in one.values if not p.file.startswith("stack_")]
        assert chips
        for parameter in chips:
            assert one.values[parameter] == pytest.approx(two.values[parameter], rel=1e-9), parameter
    own = [replace(r, step_time_s=r.step_time_s * SLOW) if (r.source, r.model) == (source, model) else r for r in made]
    third = [fold for fold in fitter(own, beliefs).folds(whole) if (fold.source, fold.model) == (source, model)]
    same = [fold for fold in first if fold.model == model]
    assert same[0].values == pytest.approx(third[0].values, rel=1e-9)


def test_many_runs_of_one_source_count_no_more_than_so_many(made) -> None:
    many = [replace(made[0], source="one", quality="A")] * 400 + [replace(made[0], source="two", quality="B")]
    found = weights(many)
    assert found[:400].sum() == pytest.approx(400 / (1 + 400 / ENOUGH))
    assert found[400] == pytest.approx(0.25 / (1 + 1 / ENOUGH))


def test_a_run_whose_plan_is_guessed_counts_a_quarter(made) -> None:
    stated, cited, guessed = (
        replace(made[0], source="one", quality="A", inferred=inferred)
        for inferred in ((), ("batch: the paper's table 2",), ("remat: not stated; the least work",))
    )
    each = 1 / (1 + 3 / ENOUGH)
    assert weights([stated, cited, guessed]) == pytest.approx([each, each, each / 4])


def test_the_sample_depends_on_names_alone(made, beliefs) -> None:
    one, two = Observations(made, beliefs), Observations(list(reversed(made)), beliefs)
    names = [{row.id for row, taken in zip(each.rows, sample(each), strict=True) if taken} for each in (one, two)]
    assert names[0] == names[1]

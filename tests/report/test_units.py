import math

import pytest

from asap_ray.report import units


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0512, "0.0512"), (5.432, "5.43"), (9.996, "10.0"), (99.96, "100"), (71.24, "71.2"), (2765.4, "2765")],
)
def test_three_digits(value: float, text: str) -> None:
    assert units.three_digits(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(459e12, "459 TFLOP"), (999.7e9, "1.00 TFLOP"), (12.0, "12.0 FLOP"), (math.nan, "-")]
)
def test_metric_prefix_moves_up_when_rounding_does(value: float, text: str) -> None:
    assert units.scaled(value, "FLOP") == text


def test_parameters_are_written_as_billions() -> None:
    assert units.parameters(68_976_648_192) == "69.0B"
    assert units.parameters(1.008e12) == "1.01T"


@pytest.mark.parametrize(
    ("value", "text"),
    [(5.431, "5.43 s"), (0.0123, "12.3 ms"), (8.1e-6, "8.10 us"), (0.0, "0 s"), (math.inf, "-"), (None, "-")],
)
def test_seconds(value: float | None, text: str) -> None:
    assert units.seconds(value) == text


def test_what_is_not_known_is_a_dash_and_never_zero() -> None:
    assert units.dollars(None) == units.percent(math.nan) == units.gigabytes(None) == units.times(math.inf) == "-"

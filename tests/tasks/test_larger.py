"""Sizes of slices, against every name that parses."""

from __future__ import annotations

from contextlib import suppress
from itertools import takewhile

import pytest

from asap_ray.errors import ConfigError
from asap_ray.hardware import Slice, parse_slice
from asap_ray.tasks.larger import sizes
from tests.problems import CHIPS


@pytest.mark.parametrize(
    ("chip", "stem"), [("v5e", "v5e-"), ("v5p", "v5p-"), ("a100_40", "a100-40x"), ("gb200", "gb200x")]
)
def test_sizes_are_all_counts_that_can_be_asked_for(chip: str, stem: str) -> None:
    name = next(each for each in CHIPS if each.replace("-", "_") == chip)
    most = 512
    expected: list[Slice] = []
    for count in range(1, 2 * most + 1):
        with suppress(ConfigError):
            expected.append(parse_slice(f"{stem}{count}", CHIPS))
    one_slice = [each for each in expected if each.devices <= most]
    found = list(takewhile(lambda each: each.devices <= most, sizes(CHIPS[name])))
    joined = [each for each in found if each.slices > 1 and each.chip.kind == "tpu"]
    assert [each.name for each in found if each not in joined] == [each.name for each in one_slice]
    assert [each.name for each in joined] == [f"{n}x{stem}256" for n in range(2, most // 256 + 1) if chip == "v5e"]
    assert [each.devices for each in found] == sorted(each.devices for each in found)

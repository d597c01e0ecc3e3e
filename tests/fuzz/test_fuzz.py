"""The short form of `python -m tests.fuzz`: every reader with a few inputs, the same in every run."""

from __future__ import annotations

import pytest

from tests.fuzz.everything import everything
from tests.fuzz.running import Reader, fuzz

EXAMPLES = 25


@pytest.mark.parametrize("reader", everything(), ids=lambda reader: reader.name)
def test_any_input_is_read_or_refused_in_one_line(reader: Reader) -> None:
    found = fuzz(reader, EXAMPLES, at=0, bombs=False)
    assert not found.crashes, "\n".join(found.crashes.values())

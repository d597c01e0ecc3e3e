"""All readers of what others wrote."""

from __future__ import annotations

from itertools import chain

from tests.fuzz import answer_readers, foreign_readers, program_readers, run_readers, settings_readers
from tests.fuzz.running import Reader


def everything() -> tuple[Reader, ...]:
    """Each reader once, in the order of the table."""
    parts = (settings_readers, foreign_readers, program_readers, run_readers, answer_readers)
    return tuple(chain.from_iterable(part.readers() for part in parts))

"""Cells of a measured row as values: numbers, flags, and words that a list of patterns translates."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

LARGEST = 2**31
"""Of any whole number in a row; a larger one is a slip that would only overflow further on."""
WORDS = re.compile(
    "id|source_|date|model|hardware|precision|sp$|fsdp_zero|remat|attention_kernel|framework|notes|family|status|quality|"
    "derived_basis|inferred_values|rank_group|workload|table"
)
"""Columns that hold words, by the beginning of their name; all others hold numbers."""


def cell(name: str, value: Any) -> Any:
    """A cell as it came from a file: None where it holds nothing, a number where the column holds numbers.

    One word in a column of numbers makes a CSV reader take the whole column for text.
    """
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float):
        return value
    value = str(value).strip()
    if WORDS.match(name) or not value:
        return value or None
    try:
        number = float(value)
    except ValueError:
        return value
    return (int(number) if number.is_integer() else number) if math.isfinite(number) else None


class Unmappable(Exception):
    """A row stands for no plan, a verdict that the mapper counts; the text is `field: what is wrong`."""


def number(row: Row, name: str) -> float | None:
    """A cell as a number; None where it is empty or is none."""
    try:
        value = float(str(row.get(name)))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def whole(row: Row, name: str, default: int | None = None) -> int:
    """A cell as a positive whole number.

    Raises:
        Unmappable: it is empty and there is no default, or it is no such number.
    """
    value = number(row, name)
    if value is None:
        if default is None:
            raise Unmappable(f"{name}: not stated")
        return default
    if value != int(value) or not 1 <= value <= LARGEST:
        raise Unmappable(f"{name}: {value:g} is not a positive whole number")
    return int(value)


def text(row: Row, name: str) -> str:
    """A cell as text; Unmappable where it is empty."""
    value = row.get(name)
    if value is None or value == "":
        raise Unmappable(f"{name}: not stated")
    return str(value)


def flag(row: Row, name: str) -> bool | None:
    """A cell that says yes or no; None where it says neither."""
    return {"yes": True, "no": False}.get(str(row.get(name) or "").strip().lower())


def first_match(
    entries: Sequence[Mapping[str, Any]], given: str, field: str
) -> tuple[Mapping[str, Any], re.Match[str]]:
    """The first entry whose pattern is found in `given`.

    Raises:
        Unmappable: none is.
    """
    for entry in entries:
        if found := re.search(entry["match"], given, re.IGNORECASE):
            return entry, found
    raise Unmappable(f"{field}: {given} has no translation")


def chosen(entries: Sequence[Mapping[str, Any]], given: str, field: str) -> str:
    """What the first matching entry translates `given` to."""
    return str(first_match(entries, given, field)[0]["is"])

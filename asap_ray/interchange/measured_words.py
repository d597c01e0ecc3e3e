"""Cells of a measured row as values: numbers, flags, and words that a list of patterns translates."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


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
    if value != int(value) or value < 1:
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

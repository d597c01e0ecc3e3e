"""What a compiler says of a program that does not fit in memory, read as bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"": 1.0, "B": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}
_SIZE = r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?(?:ytes)?"
_MARKS = ("RESOURCE_EXHAUSTED", "CompileTimeHbmOom", "Ran out of memory in memory space hbm")
_FORMS = tuple(
    re.compile(form.replace("SIZE", _SIZE), re.IGNORECASE)
    for form in (
        r"memory required for .{0,80}? \(SIZE\) exceeds available HBM \(SIZE\)",
        r"Used SIZE of SIZE hbm",
        r"requires? SIZE .{0,120}? (?:only|available|limit).{0,40}? SIZE",
    )
)
"""Sentences that give the need first and then what there is, the exact ones first."""
_OVER = re.compile(rf"Exceeded hbm capacity by {_SIZE}", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A program that does not fit: bytes of one device needed and there, 0 where the text does not say; and how many
    are missing. The compiler rounds to 0.01 of a unit."""

    needed_bytes: float
    limit_bytes: float
    over_bytes: float


def refusal(text: str) -> Refusal | None:
    """What an error's text says of device memory; None where it is of something else.

    Scratch memory that a kernel asks too much of (vmem, smem) is a fault of the kernel, not a want of HBM.
    """
    if not any(mark in text for mark in _MARKS) or _of_scratch(text):
        return None
    for form in _FORMS:
        if found := form.search(text):
            needed, limit = _bytes(found[1], found[2]), _bytes(found[3], found[4])
            over = _OVER.search(text)
            exact = _bytes(over[1], over[2]) if over else 0.0
            return Refusal(needed_bytes=needed, limit_bytes=limit, over_bytes=exact or max(0.0, needed - limit))
    return Refusal(needed_bytes=0.0, limit_bytes=0.0, over_bytes=0.0)


def _of_scratch(text: str) -> bool:
    return "memory space vmem" in text or "memory space smem" in text


def _bytes(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit.upper()]

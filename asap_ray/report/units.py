"""Figures as people write them: one place decides the digits and the unit of every number shown.

Bytes are decimal (1 GB = 1e9 bytes), as datasheets give them. A figure that is missing or not finite shows as a dash.
"""

from __future__ import annotations

import math

DASH = "-"
SCALES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def three_digits(value: float) -> str:
    """Three significant digits, never in powers of ten: 0.0512, 5.43, 71.2, 459, 2765."""
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    # 9.996 is written with one digit too many once it is rounded up
    return f"{float(text):.{max(0, 2 - math.floor(math.log10(abs(float(text)))))}f}" if float(text) else text


def scaled(value: float | None, unit: str = "") -> str:
    """A figure with its metric prefix: 459 TFLOP, 4.19M, 772k."""
    if value is None or not math.isfinite(value):
        return DASH
    space = " " if unit else ""
    for scale, prefix in SCALES:
        if abs(value) >= 0.9995 * scale:
            return f"{three_digits(value / scale)}{space}{prefix}{unit}"
    return f"{three_digits(value)}{space}{unit}"


def parameters(value: float) -> str:
    """A parameter count as the field writes it, with B for 1e9: 69.0B."""
    return scaled(value).replace("G", "B")


def seconds(value: float | None) -> str:
    """A time with the unit that keeps it readable: 5.43 s, 12.3 ms, 8.10 us."""
    if value is None or not math.isfinite(value):
        return DASH
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= 0.9995 * scale or (unit == "us" and value):
            return f"{three_digits(value / scale)} {unit}"
    return "0 s"


def gigabytes(value: float | None) -> str:
    """Bytes in decimal GB: 71.2 GB."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{three_digits(value / 1e9)} GB"


def percent(value: float | None) -> str:
    """A fraction as a percentage with one decimal: 55.2%."""
    return DASH if value is None or not math.isfinite(value) else f"{100 * value:.1f}%"


def times(value: float | None) -> str:
    """A ratio: 1.26x."""
    return DASH if value is None or not math.isfinite(value) else f"{value:.2f}x"


def count(value: int) -> str:
    """A whole number with thousands marked: 1,234,567."""
    return f"{int(value):,}"


def dollars(value: float | None) -> str:
    """An amount of money with three digits; a dash where the price is not known."""
    return DASH if value is None or not math.isfinite(value) else f"${three_digits(value)}"

"""What all pictures share. Colours of text and rules are left to the page's style sheet, which knows light and dark."""

from __future__ import annotations

from typing import Any

LIMIT = "#d64550"
"""Colour of marks that no plan can pass: a floor, the memory there is."""


FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
"""As in report.css. Vega measures text with it, and cannot measure what it would inherit."""
TEXT_PX = 12
"""Of all text in a picture: less cannot be read on a phone."""


def finish(chart: Any, height: int) -> dict[str, Any]:
    """An Altair chart as a Vega-Lite specification that fills the width it is given, `height` pixels high."""
    # Whether it is as Vega-Lite's schema has it is tested; to ask at each report takes longer than to make it.
    spec = chart.properties(width="container", height=height, background="transparent").to_dict(validate=False)
    spec.pop("config", None)  # Altair's default size, which would fight the container's
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    sizes = {"labelFontSize": TEXT_PX, "titleFontSize": TEXT_PX}
    spec["config"] = {
        "view": {"stroke": None},
        "axis": {"gridDash": [2, 3], "labelSeparation": 8, **sizes},
        "legend": sizes,
        "text": {"fontSize": TEXT_PX},
        "font": FONT,
    }
    return spec

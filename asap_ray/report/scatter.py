"""Pictures of a validation: predicted against measured step times, and how far off each group is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asap_ray.comparison import Compared
from asap_ray.report import units
from asap_ray.report.space_map import SERIES
from asap_ray.report.summary import finite
from asap_ray.report.vega import LIMIT, finish
from asap_ray.validation import Validation

if TYPE_CHECKING:
    import altair as alt

MOST_OFF = 100.0
"""Factor at which the picture by group ends; rows further off are drawn at its edge."""
ROW_HEIGHT = 38
DASHES = ("circle", "square", "diamond", "triangle-up")


def scatter_chart(found: Validation) -> dict[str, Any]:
    """Every timed row, predicted over measured, both logarithmic; colour by group, hollow where a field is assumed."""
    import altair as alt

    shown = [name for name in found.order if any(row.group == name for row in found.timed)]
    columns = point_columns(found.timed)
    low, high = _ends(columns["measured"] + columns["predicted"])
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    base = alt.Chart(alt.NamedData(name="plans"))
    tooltip = [alt.Tooltip(f"{name}:N", title=name) for name in columns if name not in ("measured", "predicted")]
    legend = alt.Legend(title=None, orient="bottom", columns=1, labelLimit=0)
    dots = base.mark_point(size=28, opacity=0.7, strokeWidth=1.2).encode(
        x=alt.X("measured:Q", title="measured step, s", scale=scale),
        y=alt.Y("predicted:Q", title="predicted step, s", scale=scale),
        color=alt.Color(
            "group:N",
            scale=alt.Scale(domain=shown, range=_colours(len(shown))),
            legend=legend,
        ),
        shape=alt.Shape(
            "group:N",
            scale=alt.Scale(domain=shown, range=[DASHES[i // len(SERIES) % len(DASHES)] for i in range(len(shown))]),
            legend=legend,
        ),
        fill=alt.condition("datum.assumed == 'nothing'", "group:N", alt.value("transparent"), legend=None),
        tooltip=tooltip,
    )
    lines = [
        {"measured": end, "predicted": end * factor, "line": str(factor)}
        for factor in (0.5, 1.0, 2.0)
        for end in (low, high)
    ]
    guide = (
        alt.Chart(alt.Data(values=finite(lines)))
        .mark_line(color=LIMIT, clip=True)
        .encode(
            x=alt.X("measured:Q", scale=scale),
            y=alt.Y("predicted:Q", scale=scale),
            detail="line:N",
            strokeDash=alt.condition("datum.line == '1.0'", alt.value([1, 0]), alt.value([3, 4])),
            strokeWidth=alt.condition("datum.line == '1.0'", alt.value(1.5), alt.value(1)),
        )
    )
    return finish(alt.layer(guide, dots), height=460) | {"usermeta": {"columns": columns}}


def _colours(count: int) -> list[str]:
    return [SERIES[i % len(SERIES)] for i in range(count)]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return (min(values) / 1.3, max(values) * 1.3) if values else (0.1, 10.0)


def point_columns(rows: Sequence[Compared]) -> dict[str, list[Any]]:
    """What the picture shows of each timed row, by columns: a third of the size of records."""
    return {
        "measured": [_digits(row.measured_s or 0.0) for row in rows],
        "predicted": [_digits(row.estimate.step_time_s) for row in rows],
        "group": [row.group for row in rows],
        "run": [f"{row.id}: {row.model} on {row.problem.slice.name}" for row in rows],
        "plan": [row.estimate.plan.line for row in rows],
        "times": [f"{units.seconds(row.estimate.step_time_s)} for {units.seconds(row.measured_s)}" for row in rows],
        "assumed": [f"{len(row.inferred)} field(s)" if row.inferred else "nothing" for row in rows],
    }


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def _names_above_rows() -> alt.Axis:
    """Long names have no room beside the rows of a picture on a phone."""
    import altair as alt

    inside = {"labelAlign": "left", "labelPadding": -2, "labelOffset": -14, "labelLimit": 0}
    return alt.Axis(**inside, ticks=False, domain=False)


def ratio_chart(found: Validation) -> dict[str, Any]:
    """Predicted over measured in each group: every row as a tick, with the median and the middle half."""
    import altair as alt

    rows = found.timed
    order = [name for name in found.order if any(row.group == name for row in rows)]
    columns = {
        "group": [row.group for row in rows],
        "ratio": [_digits(min(max(row.ratio, 1 / MOST_OFF), MOST_OFF)) for row in rows],
    }
    off = max((abs(math.log(ratio)) for ratio in columns["ratio"]), default=1.0)
    edge = min(math.exp(off) * 1.1, MOST_OFF)
    x = alt.X(
        "ratio:Q", title="predicted over measured", scale=alt.Scale(type="log", domain=[1 / edge, edge], nice=False)
    )
    y = alt.Y("group:N", title=None, sort=order, axis=_names_above_rows())
    base = alt.Chart(alt.NamedData(name="plans"))
    ticks = base.mark_tick(size=12, opacity=0.25, color=SERIES[0], thickness=1).encode(x=x, y=y)
    half = base.mark_rule(size=4, color=SERIES[1], strokeWidth=4, opacity=0.8).encode(
        x=alt.X("q1(ratio):Q", title="predicted over measured"), x2="q3(ratio):Q", y=y
    )
    middle = base.mark_point(filled=True, color=SERIES[1], size=90, opacity=1).encode(x="median(ratio):Q", y=y)
    one = alt.Chart(alt.Data(values=[{"ratio": 1.0}])).mark_rule(color=LIMIT).encode(x="ratio:Q")
    return finish(alt.layer(ticks, half, middle, one), height=ROW_HEIGHT * len(order)) | {
        "usermeta": {"columns": columns}
    }

"""Regret curves: how much slower than the best plan the best one so far is, trial by trial, with bands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asap_ray.contest.figures import WORST, figure, mean, regret_after
from asap_ray.contest.ground import Named
from asap_ray.report.comparison import ComparisonAnswer
from asap_ray.report.space_map import SERIES
from asap_ray.report.summary import finite
from asap_ray.report.vega import finish

SHOWN = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20)
"""Trials at which a curve has a point."""
LEAST = 1e-4
"""Regret below which a logarithmic axis shows no difference."""


def curves(answer: ComparisonAnswer, grounds: Sequence[Named]) -> dict[str, Any]:
    """Mean regret over grounds by method, with the bootstrap's 95% band."""
    import altair as alt

    palette = method_colours(answer)
    names = list(palette)
    rows = [row for name in names for row in curve_rows(answer, name, grounds)]
    colours = alt.Scale(domain=names, range=list(palette.values()))
    colour = alt.Color("method:N", scale=colours, legend=None)
    choose = alt.binding_select(options=[None, *names], labels=["all", *names], name="show ")
    picked = alt.selection_point(fields=["method"], bind=choose)
    base = alt.Chart(alt.Data(values=finite(rows)))
    x = alt.X("trials:Q", title="trials", axis=alt.Axis(tickMinStep=1, format="d"))
    scale = alt.Scale(type="log", nice=False)
    axis = alt.Axis(format="%")
    y = alt.Y("regret:Q", title="slower than the best plan", scale=scale, axis=axis)
    tooltip = [alt.Tooltip("method:N"), alt.Tooltip("trials:Q"), alt.Tooltip("regret:Q", format=".2%")]
    shown = {"opacity": alt.condition(picked, alt.value(1.0), alt.value(0.08))}
    faint = {"opacity": alt.condition(picked, alt.value(0.15), alt.value(0.0))}
    line = base.mark_line(strokeWidth=2, point=True).encode(x=x, y=y, color=colour, tooltip=tooltip, **shown)
    low = alt.Y("low:Q", scale=scale)
    band = base.mark_area().encode(x=x, y=low, y2="high:Q", color=colour, **faint)
    return finish(alt.layer(band, line.add_params(picked)), height=360)


def method_colours(answer: ComparisonAnswer) -> dict[str, str]:
    """Name and colour of each method that was played, for a legend."""
    names = [each.name for each in answer.methods if any(one.method == each.name for one in answer.played)]
    return {name: SERIES[i % len(SERIES)] for i, name in enumerate(names)}


def curve_rows(answer: ComparisonAnswer, method: str, grounds: Sequence[Named]) -> list[dict[str, Any]]:
    """The points of one method's curve: regret capped at `WORST`, the mean over seeds, then over grounds."""
    names = {each.name for each in grounds}
    by_ground: dict[str, list[list[float]]] = {}
    for each in answer.played:
        if each.method == method and each.ground in names:
            values = [min(regret_after(each, k), WORST) for k in SHOWN]
            by_ground.setdefault(each.ground, []).append(values)
    found = np.array([np.mean(each, axis=0) for each in by_ground.values()])
    rows = []
    for i, k in enumerate(SHOWN):
        told = figure(found[:, i], mean) if len(found) else None
        if told and told.value is not None:
            ends = {"regret": told.value, "low": told.low or 0.0, "high": told.high or 0.0}
            rows.append({"method": method, "trials": k, **{name: max(v, LEAST) for name, v in ends.items()}})
    return rows

"""The pictures of the page, as Vega-Lite specifications; colours of text and rules are left to the page's style sheet.

Altair is imported when a chart is made, not before: it is by far the slowest import of the report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from asap_ray.report import units
from asap_ray.report.answer import SliceAnswer
from asap_ray.report.summary import finite

if TYPE_CHECKING:
    import altair as alt

    from asap_ray.physics.roofline import Estimate

TIME_COLOURS = {
    # the model's own work in blue, work done twice in violet, traffic in warm and green, waiting in red and grey
    "matmul": "#2f6db5",
    "attention": "#6aa5dd",
    "elementwise": "#a9cbea",
    "head": "#1b4a80",
    "recompute": "#9b7fc9",
    "tensor": "#e07b39",
    "context": "#f0a868",
    "expert": "#b9502b",
    "fsdp": "#2f9a6a",
    "gradient": "#7cc29f",
    "pipeline": "#b3cf6a",
    "offload": "#cdb23f",
    "bubble": "#d64550",
    "optimizer": "#7d838c",
    "host": "#b4b9c0",
}
MEMORY_COLOURS = {
    "weights": "#2f6db5",
    "gradients": "#7cc29f",
    "optimizer": "#7d838c",
    "activations": "#e07b39",
    "logits": "#f0c268",
    "gathered": "#2f9a6a",
    "workspace": "#b4b9c0",
}
OTHER = "#c58fb2"
FLOOR = "#d64550"
SERIES = ("#2f6db5", "#e07b39", "#2f9a6a", "#9b7fc9", "#cdb23f", "#1b9aaa", "#b9502b", "#e58fb1")
MAP_FIELDS = ("remat", "tensor", "fsdp", "pipeline", "context", "expert", "data", "micro_batch")
TOP = 8
ROW_HEIGHT = 26


def charts(answer: SliceAnswer, points: int) -> dict[str, dict[str, Any]]:
    """The specifications of one slice's pictures by name; a picture that has nothing to show is left out.

    `points` is how many plans the map may hold, so that a page with many slices stays small.
    """
    found: dict[str, dict[str, Any]] = {}
    if answer.ranked:
        found["time"] = time_chart(answer)
    if answer.ranked or answer.too_big:
        found["memory"] = memory_chart(answer)
    if len(answer.sample.get("step_time_s", ())):
        found["map"] = map_chart(answer, points)
    return found


def colours(parts: set[str], known: dict[str, str]) -> dict[str, str]:
    """The colour of each part that occurs, in the order in which bars are stacked."""
    ordered = [name for name in known if name in parts] + sorted(parts - known.keys())
    return {name: known.get(name, OTHER) for name in ordered}


def shown_parts(kind: str, answer: SliceAnswer) -> dict[str, str]:
    """Parts and colours of the time or memory chart: what has any share in one of its plans."""
    plans = answer.ranked[:TOP] if kind == "time" else answer.ranked[:TOP] + answer.too_big[:3]
    parts = {name for each in plans for name, value in getattr(each, f"{kind}_parts").items() if value > 0}
    return colours(parts, TIME_COLOURS if kind == "time" else MEMORY_COLOURS)


def time_chart(answer: SliceAnswer) -> dict[str, Any]:
    """Seconds by part of the best plans, stacked, with a mark at each plan's floor."""
    import altair as alt

    palette = shown_parts("time", answer)
    plans = list(enumerate(answer.ranked[:TOP], start=1))
    rows = [row for rank, each in plans for row in _part_rows(f"#{rank}", each, each.time_parts, palette, "s")]
    floors = [
        {"plan": f"#{rank}", "floor": each.floor_s, "text": units.seconds(each.floor_s), "line": each.plan.line}
        for rank, each in plans
    ]
    bars = _bars(rows, palette, "seconds on the critical path")
    marks = (
        alt.Chart(alt.Data(values=floors))
        .mark_tick(color=FLOOR, thickness=4, size=ROW_HEIGHT - 2, stroke="#ffffff", strokeWidth=1)
        .encode(
            y=alt.Y("plan:N", sort=None),
            x=alt.X("floor:Q"),
            tooltip=[alt.Tooltip("line:N", title="plan"), alt.Tooltip("text:N", title="floor")],
        )
    )
    return _finish(bars + marks, height={"step": ROW_HEIGHT})


def memory_chart(answer: SliceAnswer) -> dict[str, Any]:
    """Bytes by part of the best plans and of the fastest that do not fit, stacked, against the limit."""
    import altair as alt

    palette = shown_parts("memory", answer)
    named = [(f"#{rank}", each) for rank, each in enumerate(answer.ranked[:TOP], start=1)]
    named += [(f"too big {rank}", each) for rank, each in enumerate(answer.too_big[:3], start=1)]
    rows = [row for name, each in named for row in _part_rows(name, each, each.memory_parts, palette, "GB", 1e9)]
    limit = named[0][1].hbm_limit_bytes / 1e9
    rule = (
        alt.Chart(alt.Data(values=[{"limit": limit, "text": f"{limit:.1f} GB usable"}]))
        .mark_rule(color=FLOOR, strokeWidth=2, strokeDash=[5, 3])
        .encode(x="limit:Q", tooltip=alt.Tooltip("text:N", title="limit"))
    )
    return _finish(_bars(rows, palette, "GB on a device") + rule, height={"step": ROW_HEIGHT})


def _part_rows(
    name: str, plan: Estimate, parts: Any, palette: dict[str, str], unit: str, scale: float = 1.0
) -> list[dict[str, Any]]:
    total = sum(parts.values())
    order = {part: place for place, part in enumerate(palette)}
    return [
        {
            "plan": name,
            "part": part,
            "order": order[part],
            "value": value / scale,
            "text": f"{units.three_digits(value / scale)} {unit} ({units.percent(value / total)})",
            "line": plan.plan.line,
        }
        for part, value in sorted(parts.items(), key=lambda pair: order.get(pair[0], 0))
        if value > 0
    ]


def _bars(rows: list[dict[str, Any]], palette: dict[str, str], title: str) -> alt.Chart:
    import altair as alt

    return (
        alt.Chart(alt.Data(values=finite(rows)))
        .mark_bar(height={"band": 0.72})
        .encode(
            y=alt.Y("plan:N", sort=None, title=None),
            x=alt.X("value:Q", title=title, stack="zero"),
            color=alt.Color("part:N", scale=alt.Scale(domain=list(palette), range=list(palette.values())), legend=None),
            order="order:Q",
            tooltip=[
                alt.Tooltip("line:N", title="plan"),
                alt.Tooltip("part:N", title="part"),
                alt.Tooltip("text:N", title="share"),
            ],
        )
    )


def map_chart(answer: SliceAnswer, points: int) -> dict[str, Any]:
    """The space: step time against memory, coloured by a knob of the reader's choice; what does not fit is grey."""
    import altair as alt

    columns = thinned(answer, points)
    fields = [name for name in MAP_FIELDS if name in columns and len(np.unique(columns[name])) > 1]
    choice = alt.param(
        name=f"colour_{_identifier(answer.slice.name)}",
        value=fields[0] if fields else "fits",
        bind=alt.binding_select(options=fields or ["fits"], name="colour by "),
    )
    x = alt.X("memory:Q", title="GB on a device", scale=alt.Scale(type="log", nice=False, padding=8))
    y = alt.Y("step:Q", title="step time, s", scale=alt.Scale(type="log", nice=False, padding=8))
    base = alt.Chart(alt.NamedData(name="plans"))
    tooltip = [alt.Tooltip(f"{name}:N") for name in columns]
    grey = (
        base.transform_filter("!datum.fits")
        .mark_circle(size=14, color="#9aa0a8", opacity=0.3)
        .encode(x=x, y=y, tooltip=tooltip)
    )
    fitting = (
        base.transform_filter("datum.fits")
        .transform_calculate(shade=f"'' + datum[{choice.name}]")
        .mark_circle(size=26, opacity=0.75)
        .encode(
            x=x,
            y=y,
            color=alt.Color(
                "shade:N",
                scale=alt.Scale(range=list(SERIES)),
                legend=alt.Legend(title=None, orient="bottom", columns={"expr": "max(2, floor(width / 90))"}),
            ),
            tooltip=tooltip,
        )
    )
    spec = _finish(alt.layer(grey, fitting, *_marks(answer)).add_params(choice), height=380)
    # by columns it is a third of the size of rows; the page makes rows of them
    return spec | {"usermeta": {"columns": {name: column.tolist() for name, column in columns.items()}}}


def _marks(answer: SliceAnswer) -> list[alt.Chart]:
    import altair as alt

    known = answer.ranked or answer.too_big
    found = []
    if known:
        limit = [{"memory": known[0].hbm_limit_bytes / 1e9, "text": "usable on a device"}]
        found.append(
            alt.Chart(alt.Data(values=limit))
            .mark_rule(color=FLOOR, strokeWidth=2, strokeDash=[5, 3])
            .encode(x="memory:Q", tooltip=alt.Tooltip("text:N", title="limit"))
        )
    if answer.best is not None:
        best = answer.best
        star = [{"memory": best.hbm_bytes / 1e9, "step": best.step_time_s, "line": best.plan.line}]
        found.append(
            alt.Chart(alt.Data(values=finite(star)))
            .mark_point(shape=STAR, size=260, filled=True, color="#ffb703", stroke="#5c4300", strokeWidth=1, opacity=1)
            .encode(x="memory:Q", y="step:Q", tooltip=alt.Tooltip("line:N", title="best"))
        )
    return found


STAR = "M0,-1L0.23,-0.32L0.95,-0.31L0.37,0.12L0.59,0.81L0,0.4L-0.59,0.81L-0.37,0.12L-0.95,-0.31L-0.23,-0.32Z"


def thinned(answer: SliceAnswer, points: int) -> dict[str, np.ndarray]:
    """At most `points` plans of the sample, evenly over it, as columns of figures rounded for a picture."""
    size = len(answer.sample["step_time_s"])
    keep = np.unique(np.linspace(0, size - 1, min(size, points)).round().astype(int))
    sample = {name: np.asarray(column)[keep] for name, column in answer.sample.items()}
    finite_rows = np.isfinite(sample["step_time_s"]) & np.isfinite(sample["hbm_bytes"])
    sample = {name: column[finite_rows] for name, column in sample.items()}
    columns = {
        "step": significant(sample.pop("step_time_s")),
        "memory": significant(sample.pop("hbm_bytes") / 1e9),
        "fits": sample.pop("fits").astype(bool),
    }
    if "floor_s" in sample:
        columns["floor"] = significant(sample.pop("floor_s"))
    return columns | sample


def significant(values: np.ndarray) -> np.ndarray:
    """The values [plans] rounded to four significant digits."""
    return np.array([float(f"{value:.4g}") for value in values])


def _identifier(text: str) -> str:
    return "".join(each if each.isascii() and each.isalnum() else "_" for each in text)


def _finish(chart: Any, height: Any) -> dict[str, Any]:
    spec = chart.properties(width="container", height=height, background="transparent").to_dict()
    spec.pop("config", None)  # Altair's default size, which would fight the container's
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    spec["config"] = {"view": {"stroke": None}, "axis": {"gridDash": [2, 3], "labelSeparation": 8}, "font": "inherit"}
    return spec

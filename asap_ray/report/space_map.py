"""The map of the space: step time against memory of a sample of the legal plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from asap_ray.report.answer import SliceAnswer
from asap_ray.report.summary import finite
from asap_ray.report.vega import LIMIT, finish

if TYPE_CHECKING:
    import altair as alt

# fmt: off
SERIES = (
    "#2f6db5", "#e07b39", "#2f9a6a", "#9b7fc9", "#cdb23f", "#1b9aaa", "#b9502b", "#e58fb1", "#7d838c", "#8fbf3f",
    "#5b4b8a", "#7a3b2e", "#0f6b4f", "#c79ad6",
)
# fmt: on
LONG_LABEL = 14
"""Characters from which on each label of the legend has a line of its own."""
FIELDS = ("remat", "tensor", "fsdp", "pipeline", "context", "expert", "data", "micro_batch")
STAR = "M0,-1L0.23,-0.32L0.95,-0.31L0.37,0.12L0.59,0.81L0,0.4L-0.59,0.81L-0.37,0.12L-0.95,-0.31L-0.23,-0.32Z"


def map_chart(answer: SliceAnswer, points: int) -> dict[str, Any]:
    """The space: step time against memory, coloured by a knob of the reader's choice; what does not fit is grey."""
    import altair as alt

    columns = thinned(answer, points)
    fields = [name for name in FIELDS if name in columns and len(np.unique(columns[name])) > 1]
    choice = alt.param(
        name=f"colour_{_identifier(answer.slice.name)}",
        value=fields[0] if fields else "fits",
        bind=alt.binding_select(options=fields or ["fits"], name="colour by "),
    )
    longest = max((len(str(value)) for name in fields for value in np.unique(columns[name])), default=1)
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
                legend=alt.Legend(title=None, orient="bottom", columns=1 if longest > LONG_LABEL else 3, labelLimit=0),
            ),
            tooltip=tooltip,
        )
    )
    spec = finish(alt.layer(grey, fitting, *_marks(answer)).add_params(choice), height=380)
    # by columns it is a third of the size of rows; the page makes rows of them
    return spec | {"usermeta": {"columns": {name: column.tolist() for name, column in columns.items()}}}


def _marks(answer: SliceAnswer) -> list[alt.Chart]:
    import altair as alt

    known = answer.ranked or answer.too_big
    found = []
    if known:
        limit = [{"memory": known[0].hbm_limit_bytes / 1e9, "text": "allowed on a device"}]
        found.append(
            alt.Chart(alt.Data(values=limit))
            .mark_rule(color=LIMIT, strokeWidth=2, strokeDash=[5, 3])
            .encode(x="memory:Q", tooltip=alt.Tooltip("text:N", title="limit"))
        )
    if answer.priced is not None:
        best = answer.priced
        star = [{"memory": best.hbm_bytes / 1e9, "step": best.step_time_s, "line": best.plan.line}]
        found.append(
            alt.Chart(alt.Data(values=finite(star)))
            .mark_point(shape=STAR, size=260, filled=True, color="#ffb703", stroke="#5c4300", strokeWidth=1, opacity=1)
            .encode(x="memory:Q", y="step:Q", tooltip=alt.Tooltip("line:N", title="best"))
        )
    return found


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

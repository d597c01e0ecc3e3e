"""Stacked bars: the seconds and the bytes of the best plans by part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from asap_ray.report import units
from asap_ray.report.answer import SliceAnswer
from asap_ray.report.summary import finite
from asap_ray.report.vega import LIMIT, finish

if TYPE_CHECKING:
    import altair as alt

    from asap_ray.physics.estimate import Estimate

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
    "input": "#7d6b91",
}
MEMORY_COLOURS = {
    "weights": "#2f6db5",
    "gradients": "#7cc29f",
    "optimizer": "#7d838c",
    "activations": "#e07b39",
    "passing": "#f0a868",
    "logits": "#f0c268",
    "gathered": "#2f9a6a",
    "fragmentation": "#c9ced4",
    "workspace": "#b4b9c0",
}
OTHER = "#c58fb2"
TOP = 8
TOO_BIG = 3
ROW_HEIGHT = 26
SLIVER = 0.001
"""A part with a smaller share of every plan cannot be seen, and is left out of the legend."""
OVER = 1.8
"""The memory chart ends at this multiple of the limit, so that a plan that is far too big does not flatten the rest."""
FAR = 4.0
"""A limit beyond this multiple of all plans is told in words: on the chart it would flatten them."""


def colours(parts: set[str], known: dict[str, str]) -> dict[str, str]:
    """The colour of each part that occurs, in the order in which bars are stacked."""
    ordered = [name for name in known if name in parts] + sorted(parts - known.keys())
    return {name: known.get(name, OTHER) for name in ordered}


def shown_parts(kind: str, answer: SliceAnswer) -> dict[str, str]:
    """Parts and colours of the time or memory chart: what has any share in one of its plans."""
    plans = answer.ranked[:TOP] if kind == "time" else answer.ranked[:TOP] + answer.too_big[:TOO_BIG]
    shares = [getattr(each, f"{kind}_parts") for each in plans]
    parts = {name for each in shares for name, value in each.items() if value > SLIVER * sum(each.values())}
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
    longest = 1.02 * max(each.step_time_s for _, each in plans)
    bars = _bars(rows, palette, "seconds on the critical path", longest)
    marks = (
        alt.Chart(alt.Data(values=floors))
        .mark_tick(color=LIMIT, thickness=4, size=ROW_HEIGHT - 2, stroke="#ffffff", strokeWidth=1)
        .encode(
            y=alt.Y("plan:N", sort=None),
            x=alt.X("floor:Q"),
            tooltip=[alt.Tooltip("line:N", title="plan"), alt.Tooltip("text:N", title="floor")],
        )
    )
    return finish(bars + marks, height=ROW_HEIGHT * len(plans))


def memory_chart(answer: SliceAnswer) -> dict[str, Any]:
    """Bytes by part of the best plans and of the fastest that do not fit, stacked, against the limit."""
    import altair as alt

    palette = shown_parts("memory", answer)
    named = [(f"#{rank}", each) for rank, each in enumerate(answer.ranked[:TOP], start=1)]
    named += [(f"too big {rank}", each) for rank, each in enumerate(answer.too_big[:TOO_BIG], start=1)]
    rows = [row for name, each in named for row in _part_rows(name, each, each.memory_parts, palette, "GB", 1e9)]
    limit = named[0][1].hbm_limit_bytes / 1e9
    most = max(each.hbm_bytes for _, each in named) / 1e9
    far = limit > FAR * most
    end = 1.02 * most if far else min(1.02 * max(most, limit), OVER * limit)
    rule = (
        alt.Chart(alt.Data(values=[{"limit": limit, "text": f"{limit:.1f} GB allowed"}]))
        .mark_rule(color=LIMIT, strokeWidth=2, strokeDash=[5, 3])
        .encode(x="limit:Q", tooltip=alt.Tooltip("text:N", title="limit"))
    )
    cut = [
        {"plan": name, "end": end, "text": f"{units.gigabytes(each.hbm_bytes)} \u2192"}
        for name, each in named
        if each.hbm_bytes / 1e9 > end
    ]
    beyond = (
        alt.Chart(alt.Data(values=cut))
        .mark_text(align="right", dx=-6, fontWeight="bold")
        .encode(y=alt.Y("plan:N", sort=None), x="end:Q", text="text:N")
    )
    bars = _bars(rows, palette, f"GB on a device, {limit:.1f} GB allowed" if far else "GB on a device", end)
    return finish(alt.layer(bars, *([] if far else [rule]), *([beyond] if cut else [])), height=ROW_HEIGHT * len(named))


def _part_rows(
    name: str, plan: Estimate, parts: Mapping[str, float], palette: dict[str, str], unit: str, scale: float = 1.0
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
        for part, value in sorted(parts.items(), key=lambda pair: order.get(pair[0], len(order)))
        if part in palette and value > 0
    ]


def _bars(rows: list[dict[str, Any]], palette: dict[str, str], title: str, end: float) -> alt.Chart:
    import altair as alt

    return (
        alt.Chart(alt.Data(values=finite(rows)))
        .mark_bar(height={"band": 0.72}, clip=True)
        .encode(
            y=alt.Y("plan:N", sort=None, title=None),
            x=alt.X("value:Q", title=title, stack="zero", scale=alt.Scale(domain=[0, end], nice=False)),
            color=alt.Color("part:N", scale=alt.Scale(domain=list(palette), range=list(palette.values())), legend=None),
            order="order:Q",
            tooltip=[
                alt.Tooltip("line:N", title="plan"),
                alt.Tooltip("part:N", title="part"),
                alt.Tooltip("text:N", title="share"),
            ],
        )
    )

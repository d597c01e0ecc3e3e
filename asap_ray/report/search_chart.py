"""The search curve: the step of each trial by author, the best so far, and beside it what the roofline had foretold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asap_ray.report import units
from asap_ray.report.answer import Searched, Tried
from asap_ray.report.compiled import NOT_COMPILED
from asap_ray.report.space_map import SERIES
from asap_ray.report.summary import finite
from asap_ray.report.vega import LIMIT, finish

MARKS = 2000
"""Trials that are drawn, the fastest of their time beside them."""
WIDE = 3.0
"""Ratio of the slowest to the fastest step from which the axis is logarithmic."""
ROOFLINE, BEST = "#9aa3ae", "#9b7fc9"


def search_chart(found: Searched) -> dict[str, Any]:
    """Trials in the order of their numbers; a cross at the top is one that came to no step time."""
    import altair as alt

    trials = drawn(sorted(found.trials, key=lambda each: each.number))
    steps = [_step(each) for each in trials]
    seen = [*(step for step in steps if step), *(each.roofline.step_time_s for each in trials)]
    top, bottom = 1.05 * max(seen), 0.97 * min(seen)
    wide = max(seen) / min(seen) > WIDE
    scale = alt.Scale(type="log" if wide else "linear", domain=[bottom, top], nice=False, zero=False)
    authors = list(dict.fromkeys(each.author for each in trials))
    colours = alt.Scale(domain=authors, range=[SERIES[i % len(SERIES)] for i in range(len(authors))])
    x = alt.X("trial:Q", title="trial", axis=alt.Axis(tickMinStep=1, format="d"))
    y = alt.Y("step:Q", title="step, s", scale=scale)
    tooltip = [alt.Tooltip(f"{name}:N", title=name) for name in ("plan", "by", "came to", "roofline said")]
    rows = [_row(each, top) for each in trials]
    done = [row for row, step in zip(rows, steps, strict=True) if step]
    lost = [row for row, step in zip(rows, steps, strict=True) if not step]
    foretold = [{**row, "step": each.roofline.step_time_s} for row, each in zip(rows, trials, strict=True)]
    marks = [
        _chart(foretold).mark_tick(thickness=2, size=12, color=ROOFLINE, orient="horizontal").encode(x=x, y=y),
        _chart(_best_so_far(rows, steps))
        .mark_line(interpolate="step-after", strokeWidth=2, color=BEST)
        .encode(x=x, y=y),
        _chart(done)
        .mark_point(filled=True, size=60, opacity=0.9)
        .encode(x=x, y=y, color=alt.Color("by:N", scale=colours, legend=None), tooltip=tooltip),
    ]
    if lost:
        crosses = _chart(lost).mark_point(shape="cross", angle=45, filled=True, size=70, color=LIMIT)
        marks.append(crosses.encode(x=x, y=y, tooltip=tooltip))
    return finish(alt.layer(*marks), height=260)


def drawn(trials: Sequence[Tried]) -> list[Tried]:
    """Trials in their order, or of more than an eye tells apart an even share, and every one that was the fastest."""
    every = -(-len(trials) // MARKS)
    best, found = float("inf"), list[Tried]()
    for place, each in enumerate(trials):
        step = _step(each) or float("inf")
        if step < best or place % every == 0 or place == len(trials) - 1:
            found.append(each)
        best = min(best, step)
    return found


def author_colours(found: Searched) -> dict[str, str]:
    """Who asked for trials, with the colour of each."""
    authors = dict.fromkeys(each.author for each in sorted(found.trials, key=lambda each: each.number))
    return {author: SERIES[i % len(SERIES)] for i, author in enumerate(authors)} | {
        "best so far": BEST,
        "roofline": ROOFLINE,
    }


def _chart(rows: list[dict[str, Any]]) -> Any:
    import altair as alt

    return alt.Chart(alt.Data(values=finite(rows)))


def _row(each: Tried, top: float) -> dict[str, Any]:
    step = _step(each)
    return {
        "trial": each.number,
        "step": step or top,
        "by": each.author,
        "plan": each.finding.plan.line,
        "came to": units.seconds(step) if step else NOT_COMPILED[each.finding.status],
        "roofline said": units.seconds(each.roofline.step_time_s),
    }


def _best_so_far(rows: list[dict[str, Any]], steps: list[float | None]) -> list[dict[str, Any]]:
    """The fastest step up to each trial, from the first that came to one."""
    best, found = float("inf"), list[dict[str, Any]]()
    for row, step in zip(rows, steps, strict=True):
        best = min(best, step or best)
        if best < float("inf"):
            found.append({"trial": row["trial"], "step": best})
    return found


def _step(each: Tried) -> float | None:
    return each.finding.estimate.step_time_s if each.finding.estimate else None

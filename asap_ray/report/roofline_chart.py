"""The roofline picture: what each resource alone would allow at a plan's intensity, and what the step reaches.

A classic roofline (Williams et al. 2009, doi 10.1145/1498765.1498785) with one slanted roof for each resource that
moves bytes. A plan has one height, its model FLOP/s, and one point for each resource: as far right as the model's FLOPs
for each byte that the resource could have moved in the time it is busy. So the roof above a point is what that resource
alone would allow, and a plan that keeps a resource busy all the time touches its roof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asap_ray.hardware import Slice
from asap_ray.physics.calibration import peak_flops
from asap_ray.plan import PRECISIONS
from asap_ray.report import units
from asap_ray.report.answer import SliceAnswer
from asap_ray.report.summary import finite
from asap_ray.report.vega import finish
from asap_ray.workload import Workload

if TYPE_CHECKING:
    import altair as alt

ROOFS = {"hbm": ("HBM", "#2f6db5"), "ici": ("links inside a slice", "#2f9a6a"), "dcn": ("network between", "#e07b39")}
PLANS = 5


def roof_colours(where: Slice) -> dict[str, str]:
    """Name and colour of each roof of a slice, for a legend."""
    return {ROOFS[name][0]: ROOFS[name][1] for name in device_bytes_per_s(where)}


def device_bytes_per_s(where: Slice) -> dict[str, float]:
    """Datasheet rate of each resource of one device, bytes/s one way; the networks where there are any."""
    rates = {"hbm": where.chip.device_hbm_bytes_per_s, "ici": where.ici_bytes_per_s}
    if where.slices > 1:
        rates["dcn"] = where.chip.device_nic_bytes_per_s
    return {name: rate for name, rate in rates.items() if rate > 0}


def points(answer: SliceAnswer, workload: Workload) -> list[dict[str, Any]]:
    """One record for each of the best plans and each resource it uses; intensities in FLOP a byte, rates in TFLOP/s."""
    flops = workload.model_flops / answer.slice.devices
    found = []
    for rank, each in enumerate(answer.ranked[:PLANS], start=1):
        for name, rate in device_bytes_per_s(answer.slice).items():
            busy = each.busy.get(name, 0.0)
            if not busy > 0:
                continue
            found.append(
                {
                    "plan": f"#{rank}",
                    "size": 200 if rank == 1 else 70,
                    "roof": ROOFS[name][0],
                    "intensity": flops / (busy * rate),
                    "reached": flops / each.step_time_s / 1e12,
                    "text": f"busy {units.seconds(busy)} of {units.seconds(each.step_time_s)}",
                    "alone": f"{units.scaled(flops / busy, 'FLOP/s')} a device",
                    "line": each.plan.line,
                }
            )
    return found


def roofs(where: Slice, peak: float, lowest: float, right: float) -> list[dict[str, Any]]:
    """Each roof as a line: up from `lowest` FLOP/s to the ridge, then along the peak to `right` FLOP a byte."""
    return [
        {
            "roof": ROOFS[name][0],
            "intensity": at,
            "height": min(peak, at * rate) / 1e12,
            "text": f"{units.three_digits(peak / rate)} FLOP a byte at {units.scaled(rate, 'B/s')}",
        }
        for name, rate in device_bytes_per_s(where).items()
        for at in (lowest / rate, peak / rate, right)
    ]


def roofline_chart(answer: SliceAnswer, workload: Workload) -> dict[str, Any]:
    """The specification of the picture."""
    import altair as alt

    chip = answer.slice.chip
    peak = float(peak_flops(chip)[PRECISIONS.index(answer.ranked[0].plan.precision)])
    dots = points(answer, workload)
    ridges = [peak / rate for rate in device_bytes_per_s(answer.slice).values()]
    lowest = min([record["reached"] * 1e12 for record in dots] + [peak]) / 5
    right = 2 * max([record["intensity"] for record in dots] + ridges)
    lines = roofs(answer.slice, peak, lowest, right)
    left = min(record["intensity"] for record in dots + lines)
    palette = roof_colours(answer.slice)
    across = alt.Scale(type="log", domain=[left, right], nice=False)
    shared = {
        "x": alt.X("intensity:Q", title="model FLOPs for each byte", scale=across),
        "color": alt.Color("roof:N", scale=alt.Scale(domain=list(palette), range=list(palette.values())), legend=None),
    }
    heights = alt.Scale(type="log", domain=[lowest / 1e12, 1.5 * peak / 1e12], nice=False)
    layers = (*_roof_layers(lines, shared, heights), _plan_layer(dots, shared, heights))
    return finish(alt.layer(*layers), height=380)


def _roof_layers(
    lines: list[dict[str, Any]], shared: dict[str, Any], heights: alt.Scale
) -> tuple[alt.Chart, alt.Chart]:
    import altair as alt

    y = alt.Y("height:Q", title="TFLOP/s of a device", scale=heights)
    tooltip = [alt.Tooltip("roof:N", title="resource"), alt.Tooltip("text:N", title="ridge")]
    roof = alt.Chart(alt.Data(values=finite(lines))).mark_line(strokeWidth=2.5).encode(y=y, **shared)
    corner = (
        alt.Chart(alt.Data(values=finite(lines[1::3])))
        .mark_point(shape="diamond", size=80, filled=True, opacity=1)
        .encode(y=y, tooltip=tooltip, **shared)
    )
    return roof, corner


def _plan_layer(dots: list[dict[str, Any]], shared: dict[str, Any], heights: alt.Scale) -> alt.Chart:
    import altair as alt

    return (
        alt.Chart(alt.Data(values=finite(dots)))
        .mark_circle(opacity=0.85, stroke="#ffffff", strokeWidth=1)
        .encode(
            y=alt.Y("reached:Q", title="TFLOP/s of a device", scale=heights),
            size=alt.Size("size:Q", scale=None),
            tooltip=[
                alt.Tooltip("plan:N", title="place"),
                alt.Tooltip("line:N", title="plan"),
                alt.Tooltip("roof:N", title="resource"),
                alt.Tooltip("text:N", title="busy"),
                alt.Tooltip("alone:N", title="alone allows"),
            ],
            **shared,
        )
    )

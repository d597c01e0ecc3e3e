"""The pictures of one slice, as Vega-Lite specifications.

Altair is imported when a chart is made, not before: it is by far the slowest import of the report.
"""

from __future__ import annotations

from typing import Any

from asap_ray.report.answer import SliceAnswer
from asap_ray.report.bars import memory_chart, time_chart
from asap_ray.report.roofline_chart import roofline_chart
from asap_ray.report.search_chart import search_chart
from asap_ray.report.space_map import map_chart
from asap_ray.workload import Workload

PICTURES = ("search", "time", "memory", "roofline", "map")


def charts(answer: SliceAnswer, workload: Workload, points: int) -> dict[str, dict[str, Any]]:
    """The specifications by name; a picture that has nothing to show is left out.

    `points` is how many plans the map may hold, so that a page with many slices stays small.
    """
    found: dict[str, dict[str, Any]] = {}
    if answer.searched and answer.searched.trials:
        found["search"] = search_chart(answer.searched)
    if answer.ranked:
        found["time"] = time_chart(answer)
        found["roofline"] = roofline_chart(answer, workload)
    if answer.ranked or answer.too_big:
        found["memory"] = memory_chart(answer)
    if len(answer.sample.get("step_time_s", ())):
        found["map"] = map_chart(answer, points)
    return found

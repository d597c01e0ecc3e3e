"""What a study stands at as metrics of Ray, for its dashboard and for who scrapes it. Ray puts `ray_` before each name.

They are gauges, not counters: each is what the record holds, so that a study that is taken up again goes on from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ray.util.metrics import Gauge

Figure = tuple[str, Mapping[str, str], float]
"""A name of `METRICS`, its tags and its value."""
METRICS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "asap_best_step_seconds": ("the fastest step of a trial so far", ("slice",)),
    "asap_trials": ("trials by how they ended; running are those that have not", ("slice", "status")),
    "asap_rounds": ("rounds that were released", ("slice",)),
    "asap_chip_hours": ("chip-hours that trials have taken", ("slice",)),
    "asap_llm_tokens": ("tokens that language models were asked and have answered", ()),
}
"""Each metric with what it says and its tags."""


class Metrics:
    """The metrics of one study; made where Ray runs."""

    def __init__(self) -> None:
        self._gauges = {name: Gauge(name, about, tags) for name, (about, tags) in METRICS.items()}

    def show(self, figures: Iterable[Figure]) -> None:
        """Set each to its value."""
        for name, tags, value in figures:
            self._gauges[name].set(value, dict(tags))

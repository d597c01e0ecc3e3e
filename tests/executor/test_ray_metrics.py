"""What a study stands at, read from the metrics of a real Ray as Prometheus reads them."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable
from importlib.util import find_spec

import pytest
from executor_chores import add

from asap_ray.executor.ray_tune import RayTune
from asap_ray.tiers.protocol import Job

pytestmark = pytest.mark.skipif(find_spec("aiohttp_cors") is None, reason="no metrics: they come with ray[default]")
FIGURES = [
    ("asap_best_step_seconds", {"slice": "v5e-8"}, 1.5),
    ("asap_trials", {"slice": "v5e-8", "status": "complete"}, 3.0),
    ("asap_trials", {"slice": "v5e-8", "status": "running"}, 1.0),
    ("asap_llm_tokens", {}, 700.0),
]


def test_a_study_is_seen_in_the_metrics_of_ray(until: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_metrics_report_interval_ms", "300")
    with RayTune(address="local", workers=1, dashboard=True) as executor:
        assert executor.places == {}
        executor.show(FIGURES)  # before Ray is there they are let go
        (outcome,) = list(executor.stream(iter([Job(name="a", work=add, arguments=(3, 5)), None]).__next__))
        assert outcome.value == 8
        executor.show(FIGURES)
        assert executor.places["dashboard"].startswith("http://127.0.0.1:")
        found: dict[str, float] = {}

        def read() -> bool:
            with urllib.request.urlopen(executor.places["metrics"], timeout=60) as answer:
                for line in answer.read().decode().splitlines():
                    if told := re.fullmatch(r"ray_(asap_\w+)\{(.*)\} (\S+)", line):
                        tags = dict(re.findall(r'(\w+)="([^"]*)"', told[2]))
                        ours = [tags[name] for name in ("slice", "status") if tags.get(name)]
                        found["/".join([told[1], *ours])] = float(told[3])
            return len(found) == len(FIGURES)

        until(read)
    assert found == {
        "asap_best_step_seconds/v5e-8": 1.5,
        "asap_trials/v5e-8/complete": 3.0,
        "asap_trials/v5e-8/running": 1.0,
        "asap_llm_tokens": 700.0,
    }

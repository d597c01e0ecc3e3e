import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

from asap_ray.plan import Plan
from asap_ray.report.summary import finite, places, summary, summary_text

KEYS = {
    "task", "model", "hardware", "stack", "seed", "best", "baseline", "space", "trials", "resumed", "stop_reason",
    "agents", "llm", "wall_s", "versions", "certificate",
}  # fmt: skip
BEST_KEYS = {
    "plan", "line", "step_time_s", "interval_s", "floor_s", "serial_s", "mfu", "tokens_per_s", "hbm_bytes", "source",
}  # fmt: skip


def test_keys_are_those_of_the_contract(factory: Any) -> None:
    found = summary(factory.answer())
    assert set(found) == KEYS
    assert set(found["best"]) == BEST_KEYS
    assert set(found["space"]) == {"total", "legal", "fitting", "removed"}
    assert found["trials"] == {"complete": 0, "pruned": 0, "infeasible": 0, "failed": 0, "timeout": 0}
    assert set(found["agents"]) == {"brain", "rounds", "proposals", "refused"}
    assert found["llm"] == {"calls": 0, "tokens": 0, "usd": 0.0}


def test_best_is_the_first_plan_and_its_line_reads_back(factory: Any) -> None:
    found = summary(factory.answer())["best"]
    assert found["step_time_s"] == 100.0
    assert found["plan"]["tensor"] == 4
    assert Plan.parse(found["line"]).as_dict() == found["plan"] | {
        "layout": Plan.parse(found["line"]).as_dict()["layout"]
    }


def test_text_is_strict_json_even_where_a_figure_is_not_finite(factory: Any) -> None:
    bad = dataclasses.replace(factory.estimate(factory.lines[0], 100.0), serial_s=math.inf, mfu=math.nan)
    text = summary_text(factory.answer(factory.slice_answer(ranked=(bad,))))

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(text, parse_constant=refuse)
    assert found["best"]["serial_s"] is None
    assert found["best"]["mfu"] is None


def test_several_slices_are_ranked_by_time_throughput_and_cost(factory: Any) -> None:
    # 64 chips at 100 s for 4,194,304 tokens: 64 * 4.20 / 3600 * 100 / 4.194304 = 1.78019... dollars a million
    fast = factory.slice_answer(factory.slice("v6e-256", 256, None), 0.5)
    cheap = factory.slice_answer(factory.slice("v5e-64", 64, 1.2), 2.0)
    none = factory.slice_answer(factory.slice("v5e-16", 16, 1.2), ranked=())
    found = summary(factory.answer(none, factory.slice_answer(), fast, cheap))
    assert found["hardware"] == "v6e-256"
    ranking = found["hardware_ranking"]
    assert [each["hardware"] for each in ranking] == ["v6e-256", "v5p-128", "v5e-64", "v5e-16"]
    assert [each["rank"]["step_time_s"] for each in ranking] == [1, 2, 3, None]
    assert [each["rank"]["tokens_per_s"] for each in ranking] == [1, 2, 3, None]
    assert [each["rank"]["usd_per_million_tokens"] for each in ranking] == [None, 2, 1, None]
    assert ranking[0]["usd_per_million_tokens"] is None
    assert ranking[1]["usd_per_million_tokens"] == pytest.approx(1.780192, rel=1e-6)
    assert ranking[1]["tokens_per_s_per_chip"] == pytest.approx(4_194_304 / 100 / 64)
    assert ranking[3]["best"] is None


def test_one_slice_has_no_ranking_and_no_fit_has_no_best(factory: Any) -> None:
    found = summary(factory.answer(factory.slice_answer(ranked=(), diagnosis=None)))
    assert found["best"] is None
    assert "hardware_ranking" not in found


def test_equal_figures_share_a_place() -> None:
    assert places([3.0, 1.0, None, 1.0]) == [3, 1, None, 1]


def test_finite_turns_numpy_into_plain_values() -> None:
    assert finite({"a": np.float32(0.5), "b": np.array([1, 2]), "c": (np.bool_(True), float("nan"))}) == {
        "a": 0.5,
        "b": [1, 2],
        "c": [True, None],
    }

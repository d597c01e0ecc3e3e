import csv
import io
import json
from typing import Any

import pyarrow.csv
import pyarrow.json
import pytest

from asap_ray.plan import Plan
from asap_ray.report.leaderboard import csv_text, json_text, markdown_text, plan_id, records


def test_id_is_stable_and_tells_plans_apart(factory: Any) -> None:
    first, second = (Plan.parse(line) for line in factory.lines[:2])
    assert plan_id(first) == "feeaee0440"  # a change here breaks every id that a user has written down
    assert plan_id(first) != plan_id(second)


def test_rows_are_ranked_over_all_slices_and_what_does_not_fit_comes_last(factory: Any) -> None:
    fast = factory.slice_answer(factory.slice("v6e-256", 256, None), 0.97)
    rows = records(factory.answer(factory.slice_answer(), fast))
    ranked = [row for row in rows if row["fits"]]
    assert [row["step_time_s"] for row in ranked] == pytest.approx(
        [97, 99.425, 100, 100.88, 102.5, 104, 107.67, 111, 126.1, 130]
    )
    assert [row["rank"] for row in ranked] == list(range(1, 11))
    assert [row["rank"] for row in rows[10:]] == [None, None]
    assert not any(row["fits"] for row in rows[10:])
    assert ranked[0]["hardware"] == "v6e-256"
    assert ranked[0]["usd_per_million_tokens"] is None


def test_csv_reads_back_with_arrow(factory: Any) -> None:
    rows = records(factory.answer())
    table = pyarrow.csv.read_csv(io.BytesIO(csv_text(rows).encode()))
    assert table.num_rows == 6
    assert table["step_time_s"].to_pylist()[:2] == [100.0, 102.5]
    assert table["plan"].to_pylist()[0] == factory.lines[0]
    assert table["time_matmul_s"].to_pylist()[0] == pytest.approx(60.0)
    assert table["memory_weights_bytes"].to_pylist()[0] == pytest.approx(0.2 * 71.2e9)
    assert table["tensor"].to_pylist()[1] == 8


def test_csv_and_json_hold_the_same(factory: Any) -> None:
    rows = records(factory.answer())
    from_json = json.loads(json_text(rows))
    from_csv = list(csv.DictReader(io.StringIO(csv_text(rows))))
    assert [row["plan_id"] for row in from_json] == [row["plan_id"] for row in from_csv]
    assert [row["step_time_s"] for row in from_json] == [float(row["step_time_s"]) for row in from_csv]


def test_markdown_is_a_table_with_as_many_cells_in_each_row(factory: Any) -> None:
    lines = markdown_text(records(factory.answer())).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert "51.0 GB too big" in lines[-1]
    assert f"`{factory.lines[0]}`" in lines[2]


def test_an_answer_without_plans_gives_empty_files(factory: Any) -> None:
    rows = records(factory.answer(factory.slice_answer(ranked=(), too_big=())))
    assert json_text(rows) == "[]\n"
    assert csv_text(rows) == "\n"

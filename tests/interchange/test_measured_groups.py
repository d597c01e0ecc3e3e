"""Which row of the table of results a run belongs to, and with which others it is ranked."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from asap_ray.interchange.measured import MeasuredRow
from asap_ray.interchange.measured_groups import MeasuredGroups
from asap_ray.interchange.measured_tables import read_table
from asap_ray.settings import data_dir, read_settings
from asap_ray.tasks.predictions import load_mapper

TABLES = data_dir("knowledge") / "measured"
GROUPS = MeasuredGroups(read_settings(TABLES / "groups.yaml"))


@pytest.fixture(scope="module")
def rows() -> list[MeasuredRow]:
    mapper = load_mapper()
    mapped = [mapper.map(row) for path in sorted(TABLES.glob("*.parquet")) for row in read_table(path)]
    return [row for row in mapped if isinstance(row, MeasuredRow)]


def test_every_run_has_one_group(rows: list[MeasuredRow]) -> None:
    counts = Counter(GROUPS.group_of(row)[0] for row in rows if row.status == "ok")
    assert counts["vTrain, one node"] == 774
    assert counts["vTrain, many nodes"] == 73
    assert (counts["Megatron 2021"], counts["Megatron 2022"]) == (10, 6)
    assert (counts["LLaMA layouts on A100"], counts["BLOOM"]) == (189, 64)
    assert counts["Ultra-Scale, TP <= 8 and <= 128 GPUs"] + counts["Ultra-Scale, the rest"] == 997
    assert set(counts) == set(GROUPS.names)


def test_the_collapse_is_all_that_the_headline_leaves_out(rows: list[MeasuredRow]) -> None:
    for row in rows:
        collapsed = "Ultra-Scale" in row.source and (row.plan.axes["tensor"] > 8 or row.problem.slice.chips > 128)
        assert GROUPS.group_of(row)[1] is not collapsed, row.id


def test_tpus_are_grouped_by_their_chip(rows: list[MeasuredRow]) -> None:
    kinds: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        kinds[GROUPS.group_of(row)[0]].add(row.problem.slice.chip.kind)
    assert {name for name, found in kinds.items() if "tpu" in found} == {
        "TPU: MaxText, tpu-recipes, MLPerf",
        "other TPU rows",
    }
    assert all(len(found) == 1 for found in kinds.values())


def test_a_cell_may_name_several_workloads_or_none(rows: list[MeasuredRow]) -> None:
    row = next(row for row in rows if "Ultra-Scale" in row.source)
    assert GROUPS.ranks_of(replace(row, rank_group="a|b; c;a|b")) == ("a|b", "c")
    (own,) = GROUPS.ranks_of(replace(row, rank_group=""))
    alike = [other for other in rows if GROUPS.ranks_of(replace(other, rank_group="")) == (own,)]
    assert {other.rank_group for other in alike if "Ultra-Scale" in other.source} == {row.rank_group}
    assert GROUPS.ranks_of(replace(row, rank_group=" ", source="elsewhere")) == ()

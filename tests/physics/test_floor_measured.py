"""The floor means something: no public measurement is below it, and good runs are not far above."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from asap_ray.chip import chip_from_mapping
from asap_ray.interchange.measured import Mapper, MeasuredRow, by_problem
from asap_ray.interchange.measured_tables import read_table
from asap_ray.physics.floor import FLOOR_PARTS, FloorPricer
from asap_ray.physics.state import state_shards
from asap_ray.settings import data_dir, load_group, read_settings
from asap_ray.space import Space
from asap_ray.stack import stack_from_mapping

TABLES = data_dir("knowledge") / "measured"
KINDS = {"a100": "A100", "a100_40": "A100", "h100": "H100"}
GOOD_MFU = 0.4
LEAST_MEDIAN = 0.4


@dataclass(frozen=True)
class Floored:
    """A measured run and the least seconds of each resource."""

    row: MeasuredRow
    parts: np.ndarray

    @property
    def share(self) -> float:
        assert self.row.step_time_s
        return float(self.parts.max()) / self.row.step_time_s

    @property
    def chip(self) -> str:
        chip = self.row.problem.slice.chip
        return "TPU" if chip.kind == "tpu" else KINDS.get(chip.name, chip.name)


@pytest.fixture(scope="module")
def floored() -> list[Floored]:
    mapper = Mapper(
        chips={name: chip_from_mapping(given) for name, given in load_group("hardware").items()},
        stacks={name: stack_from_mapping(given) for name, given in load_group("stack").items()},
        models=load_group("model"),
        defaults=read_settings(TABLES / "defaults.yaml"),
    )
    mapped = [mapper.map(row) for path in sorted(TABLES.glob("*.parquet")) for row in read_table(path)]
    timed = [row for row in mapped if isinstance(row, MeasuredRow) and row.step_time_s is not None]
    found = []
    for problem, rows in by_problem(timed):
        plans = Space(problem=problem).columns([row.plan for row in rows])
        pricer = FloorPricer(problem, plans.meshes, state_shards(problem, plans.meshes.columns))
        found += [Floored(row, parts) for row, parts in zip(rows, pricer.parts(plans).T, strict=True)]
    return found


def test_no_measured_step_is_faster_than_its_floor(floored: list[Floored]) -> None:
    below = [
        f"{run.row.id}: floor {run.parts.max():.4g} s ({FLOOR_PARTS[int(run.parts.argmax())]}), "
        f"measured {run.row.step_time_s:.4g} s, {run.row.problem.slice.name}, {run.row.plan.line}"
        for run in floored
        if run.share > 1
    ]
    assert len(floored) > 2500
    assert not below, "\n".join(below)


@pytest.mark.parametrize(("chip", "at_least"), [("A100", 100), ("H100", 80), ("TPU", 50)])
def test_good_dense_runs_are_near_their_floor(floored: list[Floored], chip: str, at_least: int) -> None:
    # MFU against the bf16 peak for every precision: the stricter choice, since floors of 8-bit runs use the 8-bit peak.
    good = [
        run.share
        for run in floored
        if run.row.table == "training"
        and run.chip == chip
        and run.row.problem.workload.architecture.experts is None
        and (run.row.model_mfu or 0) > GOOD_MFU
    ]
    print(f"{chip}: median floor / measured {np.median(good):.3f} on {len(good)} dense rows above {GOOD_MFU:.0%} MFU")
    assert len(good) >= at_least
    assert np.median(good) >= LEAST_MEDIAN


def test_the_floor_of_the_tightest_run_by_hand(floored: list[Floored]) -> None:
    # MaxText's 32B on one v5e-256, full recomputation: layers cost 8 FLOPs a weight and token, the head 6; attention
    # attends to (2048 + 1) / 2 keys on average, forward and again (2 passes each of scores and values), backward twice.
    run = next(run for run in floored if run.row.id == "maxtext-021")
    tokens, peak = 1024 * 2048, 256 * 197e12
    weights = 32 * (4 * 10240 * 32 * 256 + 2 * 10240 * 32768)
    # The last matmul of a block is not needed again: its output is the next layer's input, which is kept.
    again = 32 * (4 * 10240 * 32 * 256 + 10240 * 32768)
    scores = 32 * 2 * (2049 / 2) * 32 * (256 + 256)
    seconds = tokens * (6 * weights + 2 * again + 4 * scores + 6 * 10240 * 32768) / peak
    assert run.parts[0] == pytest.approx(seconds, rel=1e-6)
    assert run.share == pytest.approx(seconds / 12.3195, rel=1e-6)

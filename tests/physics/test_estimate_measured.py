"""Estimates against runs that happened, by the constants that users get: bias by chip, what fits, and legal plans.

The shipped constants were fitted to these rows, so the bounds say how well a few constants a chip and a stack explain
the public runs; tests/tasks/test_accuracy_reached.py says how well rows that a fit has not seen are predicted. Bounds
are a little looser than what is reached.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import numpy as np
import pytest

from asap_ray.chip import chip_from_mapping
from asap_ray.interchange.measured import Mapper, MeasuredRow, by_problem
from asap_ray.interchange.measured_tables import read_table
from asap_ray.physics.calibration import CONSTANTS, calibration_of, calibrations_from_mappings
from asap_ray.physics.estimate import Estimate
from asap_ray.physics.roofline import Pricer
from asap_ray.rules import broken
from asap_ray.settings import data_dir, load_group, read_settings
from asap_ray.space import Space
from asap_ray.stack import stack_from_mapping

TABLES = data_dir("knowledge") / "measured"
CALIBRATIONS = load_group("calibration")
ENOUGH = 10
GOOD_MFU = 0.3
"""Of runs that somebody tuned."""
BIAS = (0.95, 1.05)
"""Of the median estimate over measured; 0.987 to 1.021 is reached."""
ILLEGAL = {
    # Megatron Core has an FSDP of its own; the stack describes the trainer without it.
    "mbridge-250": "axes",
    "mbridge-277": "axes",
}


@dataclass(frozen=True)
class Run:
    row: MeasuredRow
    estimate: Estimate

    @property
    def chip(self) -> str:
        return self.row.problem.slice.chip.name

    @property
    def ratio(self) -> float:
        assert self.row.step_time_s
        return self.estimate.step_time_s / self.row.step_time_s

    @property
    def tuned(self) -> bool:
        return (self.row.model_mfu or 0) > GOOD_MFU and self.row.quality == "A"


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    mapper = Mapper(
        chips={name: chip_from_mapping(given) for name, given in load_group("hardware").items()},
        stacks={name: stack_from_mapping(given) for name, given in load_group("stack").items()},
        models=load_group("model"),
        defaults=read_settings(TABLES / "defaults.yaml"),
    )
    calibrations = calibrations_from_mappings(CALIBRATIONS)
    mapped = [mapper.map(row) for path in sorted(TABLES.glob("*.parquet")) for row in read_table(path)]
    found = []
    for problem, rows in by_problem(row for row in mapped if isinstance(row, MeasuredRow)):
        pricer = Pricer(problem, calibration_of(problem.slice.chip, problem.stack.name, calibrations))
        plans = [row.plan for row in rows]
        estimates = pricer.estimates(Space(problem=problem).columns(plans), plans)
        found += [Run(row, estimate) for row, estimate in zip(rows, estimates, strict=True)]
    return found


def test_no_chip_is_estimated_far_from_what_it_does(runs: list[Run]) -> None:
    ratios: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if run.tuned:
            ratios[run.chip].append(run.ratio)
    enough = {chip: float(np.median(found)) for chip, found in ratios.items() if len(found) >= ENOUGH}
    for chip, median in sorted(enough.items()):
        print(f"{chip}: median estimate / measured {median:.3f} on {len(ratios[chip])} tuned runs")
    assert set(enough) >= {"a100", "a100-40", "b200", "gb200", "gb300", "h100", "h100-efa", "v5e", "v5p", "v6e"}
    for chip, median in enough.items():
        assert BIAS[0] <= median <= BIAS[1], chip


def fitting(runs: list[Run]) -> dict[str, Counter[tuple[str, bool]]]:
    """Runs of the table that keeps its failures, by chip (and `all`), by outcome and whether we say that they fit."""
    found: dict[str, Counter[tuple[str, bool]]] = defaultdict(Counter)
    for run in runs:
        if run.row.table == "training" and run.row.status in ("ok", "oom"):
            for name in ("all", run.chip):
                found[name][run.row.status, run.estimate.fits] += 1
    return found


def test_what_runs_out_of_memory_is_told_from_what_runs(runs: list[Run]) -> None:
    found = fitting(runs)
    for chip, count in sorted(found.items()):
        print(f"{chip}: {count['ok', False]} of {count['ok', True] + count['ok', False]} that ran are refused, "
              f"{count['oom', False]} of {count['oom', True] + count['oom', False]} failures recognised")  # fmt: skip
    every = found["all"]
    assert every["oom", False] + every["oom", True] >= 200
    assert every["oom", False] / (every["oom", False] + every["oom", True]) >= 0.93
    assert every["ok", False] / (every["ok", False] + every["ok", True]) <= 0.05
    for chip, count in found.items():
        ran = count["ok", False] + count["ok", True]
        assert ran < ENOUGH or count["ok", False] / ran < 0.5, chip


def test_what_ran_with_a_stated_policy_is_hardly_refused(runs: list[Run]) -> None:
    stated = [
        run
        for run in runs
        if run.row.table == "training"
        and run.row.status == "ok"
        and not any(reason.startswith("remat") for reason in run.row.inferred)
    ]
    assert len(stated) >= 500
    assert np.mean([not run.estimate.fits for run in stated]) <= 0.06


def test_what_ran_is_a_legal_plan(runs: list[Run]) -> None:
    faults = {}
    for run in runs:
        if run.row.step_time_s is not None and (fault := broken(run.row.problem, run.row.plan)):
            faults[run.row.id] = fault[0]
    assert faults == ILLEGAL


# --- where the constants are from ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_every_constant_has_a_source_or_is_assumed(name: str) -> None:
    given = CALIBRATIONS[name]
    figures = {key for key in given if key not in ("sources", "base", "stack", "fitted", "rows")}
    assert figures == set(given.get("sources", {}))
    for key, text in given.get("sources", {}).items():
        assert len(text.split()) >= 4, key  # a source or a reason, not a mark alone


@pytest.mark.parametrize("name", [name for name, given in CALIBRATIONS.items() if "base" in given])
def test_a_file_of_one_chip_changes_what_it_names_alone(name: str) -> None:
    found, given = calibrations_from_mappings(CALIBRATIONS), CALIBRATIONS[name]
    own, base = found[name], found[given["base"]]
    fitted = {key: value for key, (value, _) in given.get("fitted", {}).items()}
    stated = {key: value for key, value in given.items() if key in CONSTANTS}
    for key in CONSTANTS:
        assert getattr(own, key) == {**stated, **fitted}.get(key, getattr(base, key)), key
        assert own.sources[key] == given.get("sources", {}).get(key, base.sources[key]), key


def test_a_chip_that_says_how_far_estimates_are_off_says_so_for_any_stack() -> None:
    found = calibrations_from_mappings(CALIBRATIONS)
    h100 = chip_from_mapping(load_group("hardware")["h100"])
    chip = replace(h100, name="local")
    for stack in ("maxtext", "ours", "megatron"):
        mine, others = calibration_of(chip, stack, found), calibration_of(h100, stack, found)
        assert mine.spread_compute == CALIBRATIONS["local"]["spread_compute"]
        assert others.spread_compute != mine.spread_compute
        assert mine.overlap_fsdp == others.overlap_fsdp

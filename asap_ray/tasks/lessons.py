"""What a policy learns from: tables of measured runs, the ledgers of the user's own runs, and problems made up.

A lesson made up is a real problem on which the roofline is off by what is drawn: a factor for each part of the step,
and one mechanism that costs more. As no draw is like another, what is learnt from them is to trust the roofline.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from asap_ray.agents.lessons import Lesson, learnable
from asap_ray.architecture import architecture_from_mapping
from asap_ray.chip import chip_from_mapping
from asap_ray.hardware import parse_slice
from asap_ray.interchange.measured_tables import read_tables
from asap_ray.ledger import Ledger
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.physics.estimate import TIME_PARTS, Estimate
from asap_ray.physics.roofline import Pricer
from asap_ray.plan import AXES, Plan
from asap_ray.problem import Problem
from asap_ray.search.pool import Pool, pool_of_estimates, pool_of_space
from asap_ray.settings import load_group
from asap_ray.space import Space
from asap_ray.stack import stack_from_mapping
from asap_ray.tasks import record
from asap_ray.tasks.predictions import load_constants, load_mapper, map_rows, predict
from asap_ray.tasks.trajectories import problems_of
from asap_ray.tiers.roofline import Roofline
from asap_ray.workload import Workload

LEAST = 3
"""Distinct plans that a lesson has at least."""
MADE_UP = "made up"
PROBLEMS = (
    ("llama3_1_8b", "v5e-32", "maxtext", 64, 4096),
    ("llama3_1_8b", "h100x16", "megatron", 64, 4096),
    ("mixtral8x7b", "v5p-64", "maxtext", 128, 4096),
    ("llama2_70b", "h100x64", "megatron", 128, 4096),
)
"""Model, slice, stack, sequences a step, tokens a sequence."""
PLANS = 120
"""Plans of a lesson that is made up: as many as a large table of measurements has, drawn from the fastest."""
AMONG = 2000
APART, SICK, NOISE = 0.2, 0.5, 0.02
"""Standard deviation of the logarithm of a part's factor; most that the mechanism costs; run to run."""


@dataclass
class _Told:
    """What is known of the plans of a workload."""

    problem: Problem
    source: str
    estimates: dict[Plan, Estimate] = field(default_factory=dict)
    steps: dict[Plan, list[float]] = field(default_factory=dict)

    def add(self, estimate: Estimate, step_s: float) -> None:
        self.estimates.setdefault(estimate.plan, estimate)
        self.steps.setdefault(estimate.plan, []).append(step_s)

    def lesson(self, name: str) -> Lesson:
        """The lesson: the median of what runs took, inf where none did."""
        ran = [[step for step in steps if np.isfinite(step)] for steps in self.steps.values()]
        return Lesson(
            name=name,
            source=self.source,
            pool=pool_of_estimates(self.problem, list(self.estimates.values())),
            steps_s=np.array([statistics.median(steps) if steps else np.inf for steps in ran]),
        )


def lessons_of_tables(tables: Sequence[str | Path]) -> list[Lesson]:
    """A lesson for each workload of tables of which enough plans ran, priced with constants fitted without its source.

    Plans that do not fit by the roofline are left out, as searches leave them out; of what failed only what ran out of
    memory counts, since other failures are their cluster's.

    Raises:
        ConfigError: a table cannot be used.
    """
    mapped = map_rows(read_tables("train_policy.tables", tables), load_mapper())
    found: dict[str, _Told] = {}
    for row, estimate in zip(mapped.rows, predict(mapped.rows, load_constants()), strict=True):
        usable = not isinstance(estimate, str) and (
            row.step_time_s is not None if row.status == "ok" else row.status == "oom" and estimate.fits
        )
        if isinstance(estimate, str) or not usable:
            continue
        job, where = row.problem.workload, row.problem.slice
        shape = f"{job.global_batch} x {job.seq_len} on {where.name} with {row.problem.stack.name}"
        told = found.setdefault(
            f"{row.source or row.table}: {job.architecture.name}, {shape}", _Told(row.problem, row.source or row.table)
        )
        told.add(estimate, row.step_time_s or np.inf)
    return _enough((name, told) for name, told in found.items())


def lessons_of_runs(ledgers: Iterable[Ledger]) -> list[Lesson]:
    """A lesson for each slice of each run: the plans that were tried, as its trials found them.

    Raises:
        ConfigError: a ledger cannot be read.
    """
    lessons: list[Lesson] = []
    for ledger in ledgers:
        found: list[tuple[str, _Told]] = []
        run_dir = ledger.path.parent
        events = list(ledger.events())
        with ledger.understood():
            last = record.last_job(events)
            trials = [record.read_tried(each) for each in last if each["kind"] == "tried" and "trial" in each]
            for problem, where in problems_of(last, run_dir):
                told = _Told(problem, str(run_dir))
                for each in trials:
                    status, seen = each.finding.status, each.finding.estimate
                    if each.where == where and (seen is not None or status == "infeasible"):
                        told.add(each.roofline, seen.step_time_s if seen and status != "infeasible" else np.inf)
                found.append((f"{run_dir.name} on {where}", told))
            lessons += _enough(found)
    return lessons


def _enough(told: Iterable[tuple[str, _Told]]) -> list[Lesson]:
    lessons = (each.lesson(name) for name, each in told if len(each.steps) >= LEAST)
    return [each for each in lessons if learnable(each)]


def lessons_made_up(count: int, seed: int) -> list[Lesson]:
    """So many lessons in which the roofline is off by what is drawn, on the problems in turn."""
    rng, pools = np.random.default_rng(seed), [_pool(*PROBLEMS[i]) for i in range(min(count, len(PROBLEMS)))]
    return [_made_up(f"{MADE_UP} {number}", pools[number % len(pools)], rng) for number in range(count)]


def _pool(model: str, slice_: str, stack: str, batch: int, seq_len: int) -> Pool:
    """The pool of a problem, its `AMONG` fastest plans."""
    chips = {name: chip_from_mapping(given) for name, given in load_group("hardware").items()}
    architecture = architecture_from_mapping(load_group("model")[model])
    workload = Workload(architecture=architecture, global_batch=batch, seq_len=seq_len, precision="bf16")
    problem = Problem(
        workload=workload, slice=parse_slice(slice_, chips), stack=stack_from_mapping(load_group("stack")[stack])
    )
    known = calibrations_from_mappings(load_group("calibration"))
    calibration = calibration_of(problem.slice.chip, stack, known)
    tier, space = Roofline(problem=problem, calibration=calibration), Space(problem=problem)
    return pool_of_space(space, Pricer(problem, calibration), tier.fitting(space), most=AMONG)


def _made_up(name: str, pool: Pool, rng: np.random.Generator) -> Lesson:
    """A lesson of some plans of a pool, in which parts have factors of their own and one axis in use costs more."""
    rows = np.sort(rng.choice(len(pool), min(PLANS, len(pool)), replace=False))
    some = pool.only(rows)
    factors = np.exp(rng.normal(0.0, APART, len(TIME_PARTS)))
    axis, cost = AXES[int(rng.integers(len(AXES)))], float(rng.uniform(0.0, SICK))
    steps = some.parts @ factors * np.where(some.columns[axis] > 1, 1.0 + cost, 1.0)
    return Lesson(name=name, source=MADE_UP, pool=some, steps_s=steps * np.exp(rng.normal(0.0, NOISE, len(rows))))

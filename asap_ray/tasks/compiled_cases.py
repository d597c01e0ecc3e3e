"""Which plans the compile tier is validated on: those of `knowledge/compiled/plans.yaml`, as problems of our trainer.

They are plans that use every mesh axis, and the plans of public runs on TPUs. What was compiled of them is kept in
`results.csv` beside it, so that the comparison needs no compiler.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asap_ray.architecture import architecture_from_mapping
from asap_ray.config import Config
from asap_ray.drafts import write_whole
from asap_ray.errors import AsapError, ConfigError
from asap_ray.executor import local
from asap_ray.hardware import parse_slice
from asap_ray.interchange.measured import MeasuredRow
from asap_ray.physics.calibration import Calibration, calibration_of, calibrations_from_mappings
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.report.leaderboard import csv_text
from asap_ray.report.progress import progress
from asap_ray.settings import data_dir, load_group, read_settings
from asap_ray.stack import stack_from_mapping
from asap_ray.tasks.bundles import load_bundles
from asap_ray.tasks.compiling import compile_options, workers
from asap_ray.tasks.setting import load_chips
from asap_ray.tasks.trial_tiers import OURS, in_our_trainer
from asap_ray.tiers.compile import Compile
from asap_ray.tiers.protocol import Job
from asap_ray.tiers.recorded import Key, Recorded, recorded
from asap_ray.workload import Workload

RESULTS = "results.csv"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A plan that is compiled: a problem of our trainer, its constants, the measured run that it is of, if any, and the
    bundles of flags that stand for those of the run."""

    model: str
    problem: Problem
    calibration: Calibration
    plan: Plan
    run: MeasuredRow | None = None
    xla: tuple[str, ...] = ("default",)

    @property
    def row(self) -> str:
        """The id of the measured run."""
        return self.run.id if self.run else ""

    @property
    def key(self) -> Key:
        """What its line of the record is found by."""
        workload = self.problem.workload
        shape = (workload.global_batch, workload.seq_len)
        return (self.row, self.model, self.problem.slice.name, *shape, self.plan.line)


def described(models: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A model of conf/model/, with what it takes from the one that its defaults name."""
    own = dict(models[name])
    bases = [base for base in own.pop("defaults", []) if base != "_self_"]
    return {key: value for base in bases for key, value in described(models, base).items()} | own


def record_dir() -> Path:
    """Where the plans and what was compiled of them lie."""
    return data_dir("knowledge") / "compiled"


def load_plans() -> dict[str, Any]:
    """The list of plans, with what is left out."""
    return read_settings(record_dir() / "plans.yaml")


def cases(config: Config, runs: Mapping[str, MeasuredRow]) -> list[Case]:
    """The plans of the list, those of no run first.

    Args:
        config: what was asked for.
        runs: measured runs by id.

    Raises:
        AsapError: the list names a run that no table has.
    """
    listed, stacks, chips = load_plans(), load_group("stack"), load_chips(config)
    ours = stack_from_mapping(stacks[OURS])
    calibrations = calibrations_from_mappings(load_group("calibration", config.config_dir))
    models = load_group("model")
    found = []
    for given in listed["axes"]:
        workload = Workload(
            architecture=architecture_from_mapping(described(models, given["model"])),
            global_batch=int(given["global_batch"]),
            seq_len=int(given["seq_len"]),
            precision="bf16",
        )
        where = parse_slice(given["hardware"], chips)
        problem = Problem(workload=workload, slice=where, stack=ours, margin=config.space.margin)
        constants = calibration_of(where.chip, OURS, calibrations)
        plan = Plan.parse(given["plan"])
        found.append(Case(model=given["model"], problem=problem, calibration=constants, plan=plan))
    for name in listed["measured"]:
        if name not in runs:
            raise AsapError(f"{record_dir() / 'plans.yaml'}: no table has a run {name} that can be priced")
        run = runs[name]
        problem = in_our_trainer(run.problem, ours, "compile")
        constants = calibration_of(problem.slice.chip, OURS, calibrations)
        xla = tuple(source_of(listed, run.source).get("xla") or ("default",))
        found.append(Case(model=run.model, problem=problem, calibration=constants, plan=run.plan, run=run, xla=xla))
    return found


def source_of(plans: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """What the list says of the runs of a source."""
    found = (entry for entry in plans["sources"] if re.search(entry["match"], source, re.IGNORECASE))
    return next(found, {})


def compiled_anew(config: Config, wanted: Sequence[Case]) -> list[Recorded]:
    """Every plan through its compiler, those in the cache at once; in the order of the plans.

    Raises:
        AsapError: the compiler of a chip is not installed.
    """
    tiers = [_tier(config, case) for case in wanted]
    for tier in tiers:
        if missing := tier.missing:
            raise AsapError(f"validate.recompile: {missing}")
    found = {i: tier.known(case.plan) for i, (case, tier) in enumerate(zip(wanted, tiers, strict=True))}
    jobs = [_numbered(tiers[i].job(wanted[i].plan), i) for i, known in found.items() if known is None]
    with progress("compiling", sys.stderr) as told:
        for done, outcome in enumerate(local.run(jobs, workers(config)), start=1):
            i = int(outcome.job.name.split()[0])
            found[i] = tiers[i].read(outcome)
            if told:
                told(done / len(jobs))
    lines = []
    for i, case in enumerate(wanted):
        one = found[i]
        assert one is not None
        lines.append(recorded(one, case.problem, case.model, case.row, "+".join(case.xla)))
    return lines


def _numbered(job: Job, number: int) -> Job:
    return replace(job, name=f"{number} {job.name}")


def _tier(config: Config, case: Case) -> Compile:
    chip = case.problem.slice.chip
    bundles = load_bundles(case.xla, [chip], config.config_dir)
    flags = {flag: value for bundle in bundles for flag, value in (bundle.flags_for(chip) or {}).items()}
    return Compile(problem=case.problem, calibration=case.calibration, options=compile_options(config, flags))


def write_record(lines: Sequence[Recorded]) -> Path:
    """Write the record anew.

    Raises:
        ConfigError: it cannot be written, as in a package that others own.
    """
    path = record_dir() / RESULTS
    try:
        return write_whole(path, csv_text([line.as_row() for line in lines]))
    except OSError as error:
        raise ConfigError("validate.recompile", True, f"{path} must be writable ({error.strerror or error})") from error

"""`plans/` of a run directory: the best plan as configs of the trainers it is meant for, each with where it is from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TextIO

from asap_ray.architecture import Architecture, architecture_from_mapping
from asap_ray.config import Config
from asap_ray.drafts import write_whole
from asap_ray.interchange import plain_jax
from asap_ray.interchange.exchange import Written
from asap_ray.interchange.projects import writers_of
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.report.answer import Answer
from asap_ray.report.outline import Block
from asap_ray.report.terminal import print_blocks
from asap_ray.settings import load_group
from asap_ray.tasks.setting import Setting

FOLDER = "plans"


def write_plans(config: Config, setting: Setting, answer: Answer) -> tuple[Written, ...]:
    """Write the best plan for every trainer that can say it, where one fits, and return what was written.

    Raises:
        OSError: the directory cannot be made or written.
    """
    folder = config.run_path / FOLDER
    for old in folder.glob("best.*"):  # of an earlier run in this directory, maybe for other trainers
        old.unlink(missing_ok=True)
    best = answer.winner.best
    if best is None:
        return ()
    problem = next(tier.problem for tier in setting.tiers if tier.problem.slice == answer.winner.slice)
    preset = preset_of(problem.workload.architecture, config.config_dir)
    found = [writer(problem, best.plan, preset) for writer in writers_of(problem.stack.name).values()]
    for each in found:
        write_configs(each, header(config.run_path, problem, best.plan, best, each), folder)
    return tuple(found)


def tell_plans(written: Iterable[Written], output: str, stream: TextIO) -> None:
    """Say what of the best plan the trainers it is written for have no word for; plain JAX has the mesh alone."""
    trainers = [each for each in written if each.project != plain_jax.PROJECT]
    facts = [(each.project, f"{knob}: {why}") for each in trainers for knob, why in each.cannot.items()]
    if facts:
        print_blocks([Block(title="Not said in plans/", facts=tuple(facts))], output, stream)


def write_configs(written: Written, head: str, folder: Path, name: str = "best") -> list[Path]:
    """Write the files of one trainer; one of words alone, to be pasted, has no header.

    Raises:
        OSError: the directory cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {file: text if file.endswith(".txt") else head + text for file, text in written.files.items()}
    return [write_whole(folder / f"{name}.{file}", text) for file, text in texts.items()]


def header(run: Path, problem: Problem, plan: Plan, estimate: Estimate | None, written: Written) -> str:
    """Comment lines: the run, the plan, what says how fast it is, and what the trainer has no word for."""
    shape = f"{problem.workload.global_batch} sequences of {problem.workload.seq_len} tokens"
    lines = [f"{problem.workload.architecture.name} on {problem.slice.name}, {shape}: a plan of {run.name}", plan.line]
    if estimate is not None:
        memory = f"memory {estimate.hbm_bytes / 1e9:.4g} GB a device"
        lines.append(f"step: {estimate.step_time_s:.4g} s by {estimate.source}; {memory}")
    lines += [f"{written.project} cannot say {knob}: {why}" for knob, why in written.cannot.items()]
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)


def preset_of(architecture: Architecture, config_dir: str | None) -> str:
    """The file of conf/model with these very sizes, whatever its name; empty where there is none."""
    for name, mapping in load_group("model", config_dir).items():
        if "defaults" in mapping:
            continue  # short for another one
        other = architecture_from_mapping(mapping)
        if asdict(replace(other, name="same", source="")) == asdict(replace(architecture, name="same", source="")):
            return name
    return ""

"""A baseline that is another trainer's own config: the job in it, and how it agrees with what was asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from asap_ray.architecture import Architecture, architecture_from_mapping
from asap_ray.config import Config
from asap_ray.errors import ConfigError
from asap_ray.interchange.exchange import Foreign
from asap_ray.interchange.foreign import LARGEST_FILE_BYTES
from asap_ray.interchange.projects import WRITERS, read_job
from asap_ray.ledger import Ledger
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.report.outline import Block
from asap_ray.report.terminal import print_blocks
from asap_ray.settings import load_group

KEY = "baseline"
SHOWN = 8
"""Names that are printed of a list; all of them are in the run's events."""


def foreign_baseline(config: Config) -> Foreign | None:
    """The job that `baseline` names; None where it is a plan, a file that holds one, or nothing.

    Raises:
        ConfigError: the file is a trainer's config that cannot be used, or is for another stack.
    """
    if config.baseline is None or _is_plan(config.baseline):
        return None
    foreign = read_job(KEY, os.path.expanduser(config.baseline))
    if foreign is None:
        return None
    of_others = {stack for stacks, _ in WRITERS.values() for stack in stacks} - set(foreign.stacks)
    if config.stack_name in of_others:
        raise foreign.error(f"is {foreign.project}'s, and stack={config.stack_name}; allowed: {_stacks(foreign)}")
    return foreign


def _stacks(foreign: Foreign) -> str:
    return " or ".join(f"stack={name}" for name in foreign.stacks)


def _is_plan(text: str) -> bool:
    """Whether it is no file that could be a config: a plan in one line, a summary, or a file that holds a line."""
    try:
        path = Path(os.path.expanduser(text))
        if not path.is_file() or path.stat().st_size > LARGEST_FILE_BYTES or path.suffix == ".json":
            return True
        first = path.read_text(encoding="utf-8").strip().partition("\n")[0]
        return bool(Plan.parse(first or "?", KEY))
    except ConfigError:
        return False
    except (OSError, ValueError):
        return True  # such as a name that no file system takes; who reads plans says what is wrong


def model_of(foreign: Foreign, config_dir: str | None) -> Mapping[str, Any]:
    """The model that a job trains, as a file of conf/model says it.

    Raises:
        ConfigError: the file does not say.
    """
    models = load_group("model", config_dir)
    if foreign.preset in models:
        return models[foreign.preset]
    if foreign.model is None:
        names = "+model=NAME or +model.hf_config=PATH"
        raise foreign.error(f"does not say enough of the model it trains; allowed: with {names}")
    return {"name": Path(foreign.path).stem, "source": f"{foreign.project} config", **foreign.model}


def check_model(foreign: Foreign, architecture: Architecture, config_dir: str | None) -> None:
    """Refuse a model other than the one that the job trains.

    Raises:
        ConfigError: they differ; the text says in what.
    """
    told = foreign.differences(architecture)
    if foreign.preset:
        theirs = architecture_from_mapping(load_group("model", config_dir)[foreign.preset])
        told += [
            f"{name} is {getattr(theirs, name)} here and {getattr(architecture, name)} there"
            for name in ("layers", "d_model", "vocab", "parameters")
            if getattr(theirs, name) != getattr(architecture, name)
        ]
    if told:
        raise foreign.error(f"trains another model than {architecture.name}: {'; '.join(told[:3])}")


def check_shape(foreign: Foreign, name: str, asked: int | None, theirs: int | None) -> int | None:
    """A size of the training shape: what the job has, unless it has none; asked for, it must agree.

    Raises:
        ConfigError: they differ.
    """
    if asked is not None and theirs is not None and asked != theirs:
        raise foreign.error(f"has {name}={theirs}, and workload.{name}={asked}; allowed: leave that out")
    return asked if theirs is None else theirs


def tell_baseline(
    foreign: Foreign | None, baseline: Estimate | None, ledger: Ledger, output: str, stream: TextIO
) -> None:
    """Say and record how a trainer's config was read, where the baseline is one."""
    if foreign is None or baseline is None:
        return
    fields = {"project": foreign.project, "path": foreign.path, "plan": baseline.plan.line}
    lists = {"defaults": foreign.defaults, "notes": foreign.notes, "unread": foreign.unread}
    ledger.append("baseline_read", {**fields, **lists})
    print_blocks([baseline_block(foreign, baseline.plan.line)], output, stream)


def baseline_block(foreign: Foreign, line: str) -> Block:
    """How a trainer's config was read, for a reader."""
    facts = [("plan", line)]
    if foreign.defaults:
        facts.append(("default", f"left to {foreign.project}: {_some(foreign.defaults)}"))
    facts += [("read as", note) for note in foreign.notes]
    if foreign.unread:
        facts.append(("unread", _some(foreign.unread)))
    return Block(title=f"Baseline of {foreign.path}, a config of {foreign.project}", facts=tuple(facts))


def _some(names: tuple[str, ...]) -> str:
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more

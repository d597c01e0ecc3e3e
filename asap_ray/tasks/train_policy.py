"""`task=train_policy`: train the policy of `agents=policy`, and hold it against the playbook on what was left out.

It learns from tables of measured runs, from the trials of the user's own runs, and from workloads with errors that are
made up. What `train_policy.leave_out` names has no part in the training, and is what the policy is tested on: so no
figure that is told is of a table that the policy has seen.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from asap_ray.agents.learned import Weights
from asap_ray.agents.lessons import Lesson
from asap_ray.config import Config
from asap_ray.errors import ConfigError
from asap_ray.ledger import NAME as EVENTS
from asap_ray.report.outline import Block
from asap_ray.tasks.brains import NAME
from asap_ray.tasks.held_out import AFTER, LEAST, makers, regrets
from asap_ray.tasks.lessons import lessons_made_up, lessons_of_runs, lessons_of_tables
from asap_ray.tasks.running import begin, tell, write_files
from asap_ray.tasks.training import trained
from asap_ray.tasks.trajectories import ledgers_in
from asap_ray.tasks.validate import carried_tables

FEWEST = 2
"""Lessons that there must be to learn anything."""


def run(config: Config) -> int:
    """Run the task; returns the exit status.

    Raises:
        ConfigError: a table or a run cannot be used, or nothing is left to learn from.
    """
    started = time.monotonic()
    known = _known(config)
    held, kept = _parted(known, config.train_policy.leave_out)
    if len(kept) < FEWEST:
        raise ConfigError("train_policy.leave_out", ", ".join(config.train_policy.leave_out), "less than all there is")
    ledger = begin(config)
    asked = config.train_policy
    lessons = [*kept, *lessons_made_up(asked.made_up, config.seed)]
    weights = trained(lessons, left_out=asked.leave_out, seed=config.seed, steps=asked.steps)
    path = config.run_path / NAME
    write_files(config, lambda: weights.save(path))
    tested = _tested(held, weights)
    origin = asdict(weights.origin)
    fields = {
        "task": config.task,
        "run_dir": str(config.run_path),
        "policy": str(path),
        **{name: origin[name] for name in ("workloads", "sources", "left_out", "seed")},
        "after_trials": list(AFTER),
        "regret": tested,
        "tested_on": len([each for each in held if len(each.pool) >= LEAST]),
        "wall_s": time.monotonic() - started,
    }
    ledger.append("trained", fields)
    tell(config, fields, _blocks(fields, weights, tested))
    return 0


def _known(config: Config) -> list[Lesson]:
    """All lessons that are asked for.

    Raises:
        ConfigError: a table cannot be used, or a folder has no runs in it.
    """
    found = lessons_of_tables(config.train_policy.tables or carried_tables())
    for folder in config.train_policy.runs:
        ledgers = ledgers_in(Path(folder).expanduser())
        if not ledgers:
            raise ConfigError("train_policy.runs", folder, f"directories of runs, or folders of them, with {EVENTS}")
        found += lessons_of_runs(ledgers)
    return found


def _parted(lessons: Sequence[Lesson], leave_out: Sequence[str]) -> tuple[list[Lesson], list[Lesson]]:
    """Lessons that are left out, and the others.

    Raises:
        ConfigError: nothing is called so.
    """

    def named(lesson: Lesson, text: str) -> bool:
        return text.lower() in f"{lesson.name} {lesson.source}".lower()

    for text in leave_out:
        if not any(named(each, text) for each in lessons):
            sources = sorted({each.source for each in lessons})
            raise ConfigError("train_policy.leave_out", text, f"part of the name of a source: {'; '.join(sources)}")
    held = [any(named(each, text) for text in leave_out) for each in lessons]
    return [e for e, out in zip(lessons, held, strict=True) if out], [
        e for e, out in zip(lessons, held, strict=True) if not out
    ]


def _tested(held: Sequence[Lesson], weights: Weights) -> dict[str, list[float]]:
    """The regret of each brain on what was left out; nothing where nothing is large enough to search."""
    large = [each for each in held if len(each.pool) >= LEAST and np.isfinite(each.steps_s).sum() > 1]
    return {name: regrets(large, make).tolist() for name, make in makers(weights).items()} if large else {}


def _blocks(fields: Mapping[str, object], weights: Weights, tested: Mapping[str, Sequence[float]]) -> list[Block]:
    origin = weights.origin
    facts = [
        ("policy", str(fields["policy"])),
        ("learnt from", f"{origin.workloads} workloads: {'; '.join(origin.sources)}"),
        ("use it", f"agents=policy agents.policy={fields['policy']}"),
    ]
    blocks = [Block(title="trained", facts=tuple(facts))]
    if tested:
        header = f"slower than the best after {', '.join(map(str, AFTER))} trials"
        told = [(name, ", ".join(f"{each:.1%}" for each in figures)) for name, figures in tested.items()]
        title = f"on {fields['tested_on']} workloads left out: {header}"
        blocks.append(Block(title=title, facts=tuple(told)))
    return blocks

"""What a run asks of other programs: the interpreter of the user's own trainer."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from asap_ray.config import Config
from asap_ray.report.health import Check
from asap_ray.tasks.commanding import command_options, load_template
from asap_ray.tiers.protocol import Job, Outcome

AREA = "Other programs"
TRAINER = "command.python"
"""The name of the job that asks the trainer's interpreter."""
ASK_S = 150.0


def service_jobs(config: Config) -> list[Job]:
    """The work that asks other programs, where the command has any."""
    asked = config.commands or config.compile.trainer != "ours" or config.command.python is not None
    return [Job(name=TRAINER, work=trainer, arguments=(config,), timeout_s=ASK_S, isolated=True)] if asked else []


def trainer(config: Config) -> str:
    """The user's trainer with its version, as its interpreter tells: the work of a job.

    Raises:
        ConfigError: there is no template, or the interpreter, the script or the trainer is missing.
    """
    return command_options(config, load_template(config)).trainer


def services(config: Config, outcome: Outcome | None) -> Iterator[Check]:
    """All checks of other programs, given how the job ended."""
    if outcome is None:
        return
    if outcome.status == "complete":
        yield Check(area=AREA, name=TRAINER, status="ok", found=outcome.value)
        return
    python = config.command.python or sys.executable
    fix = f"{python} -m pip install the trainer, or command.python=PATH of an interpreter that has it"
    if outcome.error is not None and ": " in outcome.reason:
        fix = outcome.reason.rpartition(": ")[2] if " -m pip install " in outcome.reason else fix
    yield Check(area=AREA, name=TRAINER, status="lacking", found=" ".join(outcome.reason.split()), fix=fix)

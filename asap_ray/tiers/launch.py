"""Runs the user's trainer for one trial: the work of a job of the command tier.

The trainer runs below a guard (`guard.py`), so that nothing of it is left whatever becomes of this process. Its log is
followed; it is ended as soon as enough steps are there, or the log shows that it will come to nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import yaml

from asap_ray.errors import printable
from asap_ray.plan import Plan
from asap_ray.profile.table import Profile
from asap_ray.tiers.following import Follower, Reading, SlowPatternError, Step
from asap_ray.tiers.placeholders import Value
from asap_ray.tiers.template import Template, fill
from asap_ray.tiers.trainer_process import TrainerProcess, trainer_environment

POLL_S = 0.05
MOST_LOG = 256 << 20
"""Bytes of a log after which a trainer is ended: it would fill the disk."""
Ended = Literal["enough", "exited", "deadline", "memory", "diverged", "another plan", "slow pattern", "long log"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What is to be run: a template with the values of a plan, by whose interpreter, which script of the user's (where
    the template names one), where, and for how long.

    `steps` are wanted after the template's first ones. `pass_env` are names of variables that the trainer gets besides
    those that every trainer does. `folder` is where each trial has a folder of its own; None is a temporary one, which
    is removed.
    """

    plan: Plan
    template: Template
    values: Mapping[str, Value]
    tokens_per_step: float
    python: str
    script: str
    steps: int
    timeout_s: float
    folder: str | None = None
    cwd: str | None = None
    pass_env: tuple[str, ...] = ()

    @property
    def total_steps(self) -> int:
        """Steps that the trainer is told to take."""
        return self.template.skip + self.steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What came of a trainer: why it was over, with which exit status (negative: a signal; None: it was ended), its
    steps in order, and what its log shows.

    `other` are the placeholders for which it showed another value than the plan's, `unseen` the patterns by which it
    should have shown the plan. `first_s` is when the first step was there. `killed_for_memory` says that the machine's
    kernel ended a process for want of memory meanwhile. `profile` is what a trace that it left says
    of a step, `trace_fault` why it says nothing.
    """

    ended: Ended
    status: int | None = None
    steps: tuple[Step, ...] = ()
    shown: Mapping[str, str] = field(default_factory=dict)
    other: Mapping[str, str] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    oom: Mapping[str, float] | None = None
    oom_line: str = ""
    diverged: str = ""
    peak_bytes: float = 0.0
    tail: tuple[str, ...] = ()
    reason: str = ""
    first_s: float | None = None
    wall_s: float = 0.0
    killed_for_memory: bool = False
    log: str = ""
    trace: str = ""
    profile: Profile | None = None
    trace_fault: str = ""


def ran(order: Order) -> Ran:
    """Run a trainer until enough is known; nothing of it is left when this returns.

    Raises:
        OSError: its folder cannot be made or written to.
    """
    root = order.folder and Path(order.folder)
    if root:
        root.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="trial_" if root else "asap_ray_", dir=root))
    try:
        return _ran_in(place, order)
    finally:
        shutil.rmtree(place if root is None else place / "scratch", ignore_errors=True)


def profiled(order: Order) -> Ran:
    """As `ran`, with what the trace says that the trainer left, if it is one of JAX's profiler."""
    run = ran(order)
    if not run.trace or not order.template.trace.endswith(".xplane.pb"):
        return run
    from asap_ray.profile import xplane, xspace  # takes as long to load as all else here, and few trainers trace

    try:
        return replace(run, profile=xplane.profile_of(run.trace, plan=order.plan))
    except xspace.TraceError as error:  # cut short, as where the trainer was ended meanwhile: its steps hold
        return replace(run, trace_fault=str(error))


def _ran_in(place: Path, order: Order) -> Ran:
    run = _made(place, order)
    made = fill(order.template, order.values, run)
    if order.template.file:
        (place / order.template.file.name).write_text(file_text(order.template.file.name, made.content))
    follower = Follower(
        reading=Reading(
            log=order.template.log,
            wanted=made.wanted,
            plan_used=made.plan_used,
            tokens_per_step=order.tokens_per_step,
            devices=int(order.values["devices"]),
        )
    )
    environment = trainer_environment(os.environ, order.pass_env) | dict(made.env)
    begun, kills = time.monotonic(), _kernel_kills()
    with TrainerProcess(made.argv, place / "trainer.log", order.cwd or str(place / "scratch"), environment) as trainer:
        ended, first_s, reason = _follow(trainer, follower, order, begun)
        status = trainer.end()
    secrets = [value for name in order.pass_env if len(value := os.environ.get(name, "")) > 3]
    if order.folder:  # else the log goes with its place
        _scrub(place / "trainer.log", secrets)
    return Ran(
        ended=ended,
        status=status,
        steps=tuple(follower.steps[number] for number in sorted(follower.steps)),
        shown=follower.shown,
        other=follower.other,
        unseen=tuple(follower.unseen),
        oom=follower.oom,
        oom_line=_clean(follower.oom_line, secrets),
        diverged=_clean(follower.diverged, secrets),
        peak_bytes=follower.peak_bytes,
        tail=tuple(_clean(line, secrets) for line in follower.tail),
        reason=reason,
        first_s=first_s,
        wall_s=time.monotonic() - begun,
        killed_for_memory=_kernel_kills() > kills,
        log=str(place / "trainer.log") if order.folder else "",
        trace=_trace(place / "trace", order.template.trace) if order.folder else "",
    )


def _made(place: Path, order: Order) -> dict[str, str]:
    """The placeholders of a trial, whose folders are made."""
    for name in ("scratch", "trace"):
        (place / name).mkdir()
    return {
        "python": order.python,
        "script": order.script,
        "run_dir": str(place / "scratch"),
        "trace_dir": str(place / "trace"),
        "file": str(place / order.template.file.name) if order.template.file else "",
        "steps": str(order.steps),
        "total_steps": str(order.total_steps),
    }


def _follow(trainer: TrainerProcess, follower: Follower, order: Order, begun: float) -> tuple[Ended, float | None, str]:
    """Read the log until there is a reason to end; that reason, when the first step was there, and a sentence."""
    first_s: float | None = None
    while True:
        gone = trainer.gone()
        try:
            if more := trainer.read():
                follower.take(more)
            elif gone:
                follower.finish()
        except SlowPatternError as error:
            return "slow pattern", first_s, str(error)
        if first_s is None and follower.steps:
            first_s = time.monotonic() - begun
        if (found := _seen(follower, order.total_steps)) is not None:
            return found, first_s, ""
        if trainer.size > MOST_LOG:
            return "long log", first_s, f"its log is longer than {MOST_LOG >> 20} MiB"
        if gone and not more:
            return "exited", first_s, ""
        if time.monotonic() - begun > order.timeout_s:
            return "deadline", first_s, f"not done after {order.timeout_s:g} s"
        if not more:
            time.sleep(POLL_S)


def _seen(follower: Follower, steps: int) -> Ended | None:
    if follower.other:
        return "another plan"
    if follower.oom is not None:
        return "memory"
    if follower.diverged:
        return "diverged"
    return "enough" if len(follower.steps) >= steps else None


def file_text(name: str, content: Mapping[str, Any]) -> str:
    """Nested mappings as JSON, TOML or YAML, by the ending of a file's name."""
    if name.endswith(".json"):
        return json.dumps(content, indent=2) + "\n"
    if name.endswith(".toml"):
        return "\n".join(_toml(content, ())) + "\n"
    return yaml.safe_dump(dict(content), sort_keys=False)


def _toml(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    # A text in JSON is a text in TOML, and so are lists, numbers and truth values; but for escapes in pairs, which JSON
    # has for what lies beyond 16 bits, so that nothing is escaped that need not be.
    written = partial(json.dumps, ensure_ascii=False)
    own = [f"{written(key)} = {written(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    lines = [f"[{'.'.join(map(written, path))}]", *own] if path else own
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", *_toml(value, (*path, key))]
    return lines


def _clean(line: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        line = line.replace(secret, "***")
    return printable(line)


def _scrub(log: Path, secrets: Sequence[str]) -> None:
    """Take out of a log that is kept what its trainer was given and has printed."""
    data = log.read_bytes()
    if any(secret.encode() in data for secret in secrets):
        for secret in secrets:
            data = data.replace(secret.encode(), b"***")
        log.write_bytes(data)


def _trace(folder: Path, pattern: str) -> str:
    """Where a profile was left; empty where there is none."""
    if not pattern:
        return ""
    return next((str(folder) for _ in folder.glob(pattern)), "")


def _kernel_kills() -> int:
    """How many processes this machine's kernel has ended for want of memory so far (Linux)."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

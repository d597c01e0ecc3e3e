"""Checks of task=launch: each target has keys of its own, and what is written must be what its tools take."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from asap_ray.checks.values import is_address
from asap_ray.config import Config
from asap_ray.errors import ConfigError

LAUNCHING: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("storage", "schedule", "time_zone"), ("kuberay",)),
    **dict.fromkeys(("project", "zone"), ("gce_tpu",)),
    "address": ("ray_job",),
    "options": ("slurm",),
}
"""Keys that only some targets read."""
ELSEWHERE = ("kuberay", "gce_tpu")
"""Targets whose run directory is a place on other machines, named from their root."""
MOST_HOURS = 10_000
"""More than a year; Kubernetes counts seconds in 32 bits."""
CRON = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 6)}
"""The fields of a schedule, with their numbers."""
CRON_NAMES = {
    "month": ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    "weekday": ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
}


def check_launch(config: Config) -> None:
    """What only task=launch reads needs that task, and makes sense for its target."""
    given, plain = asdict(config.launch), asdict(Config().launch)
    if config.task != "launch":
        if key := next((name for name in given if given[name] != plain[name]), None):
            raise ConfigError(f"launch.{key}", given[key], "only with task=launch")
        return
    for key, targets in LAUNCHING.items():
        if given[key] != plain[key] and given["target"] not in targets:
            raise ConfigError(f"launch.{key}", given[key], f"only with launch.target={' or '.join(targets)}")
    if given["target"] == "gce_tpu" and (missing := next((key for key in ("project", "zone") if not given[key]), None)):
        raise ConfigError(f"launch.{missing}", None, f"with launch.target=gce_tpu, the {missing} of Google Cloud")
    for key, allowed in _mistakes(given):
        raise ConfigError(f"launch.{key}", given[key], allowed)
    if config.ray.address is not None:
        raise ConfigError("ray.address", config.ray.address, "left out: the job finds the cluster that it is on")


def _mistakes(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys whose values no cluster would take, with what is allowed."""
    from zoneinfo import available_timezones  # most commands have no use for it

    if given["name"] is not None and not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", given["name"]):
        yield "name", "a name of at most 40 small letters, digits and dashes, with a letter first"
    if given["hours"] > MOST_HOURS:
        yield "hours", f"a number above 0, up to {MOST_HOURS:,}"
    if given["schedule"] is not None and not is_schedule(given["schedule"]):
        yield "schedule", "five fields as cron has them (minute, hour, day, month, weekday), such as 0 1 * * *"
    if given["time_zone"] is not None and given["schedule"] is None:
        yield "time_zone", "only with launch.schedule"
    if given["time_zone"] is not None and given["time_zone"] not in available_timezones():
        yield "time_zone", "a name of the time zone database, such as Europe/Zurich"
    if not is_address(given["address"]):
        yield "address", "an address such as http://127.0.0.1:8265"
    if not all(each.startswith("-") for each in given["options"]):
        yield "options", "options as sbatch takes them: [--partition=gpu,--account=me]"
    if given["target"] in ELSEWHERE and not (given["results"] or "/").startswith("/"):
        yield "results", f"a path from the root: with launch.target={given['target']} it is on other machines"


def is_schedule(text: str) -> bool:
    """Whether a text is a schedule of five fields, each of numbers or names, ranges and steps of them, or a star."""
    fields = text.split()
    return len(fields) == len(CRON) and all(map(_is_field, CRON, fields))


def _is_field(name: str, text: str) -> bool:
    low, high = CRON[name]
    for part in text.lower().split(","):
        span, slash, step = part.partition("/")
        if slash and not (step.isdecimal() and int(step) > 0):
            return False
        ends = [] if span in ("*", "?") else span.split("-")
        numbers = [_number(name, each) for each in ends]
        if len(ends) > 2 or None in numbers or not all(low <= (n or 0) <= high for n in numbers):
            return False
        if len(ends) == 2 and (numbers[0] or 0) > (numbers[1] or 0):
            return False
    return True


def _number(name: str, text: str) -> int | None:
    names = CRON_NAMES.get(name, ())
    if text in names:
        return names.index(text) + CRON[name][0]
    return int(text) if text.isdecimal() and text.isascii() else None

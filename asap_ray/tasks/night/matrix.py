"""The matrix of a night: workloads, slices and stacks of `conf/nightly/NAME.yaml`, each combination a cell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asap_ray.config import MEASURING, Config
from asap_ray.errors import ConfigError
from asap_ray.settings import load_group

FIELDS = ("about", "workloads", "slices", "stacks", "words", "leave_out")
AXES = ("workload", "slice", "stack")
OURS = ("task", "run_dir", "output", "budget.minutes", "budget.chip_hours", "agents.memory_dir")
"""Keys that a night gives each cell itself, or that are of the night."""
TRIALS = ("auto", "compile", "run", "command")
"""Tiers that a command with trials names."""
LONGEST = 200
"""Bytes of a cell's name, which is a folder's: file systems take 255."""
NAMED = ("model", "scenario", "hardware", "hardware.slices", "stack")
"""Keys that the matrix says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One study: a workload on a slice for a stack, and the words of its command."""

    workload: str
    slice: str
    stack: str
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """A name that is a folder's too."""
        return re.sub(r"[^\w.+-]+", "_", f"{self.workload}-{self.slice}-{self.stack}")


def cells_of(config: Config) -> list[Cell]:
    """The cells of the matrix that the command names, in its order.

    Raises:
        ConfigError: there is none of that name, or a field of it is not what it should be.
    """
    known, name = load_group("nightly", config.config_dir), config.nightly.matrix
    if name not in known:
        raise ConfigError("nightly", name, f"a matrix of conf/nightly/: {', '.join(known)}", known)
    cells = cells_from_mapping(name, known[name], _further(config))
    if config.nightly.parallel > 1 and any(_disturbed(each) for each in cells):
        text = "1 where trials are timed on this machine: they would disturb each other; ray.address takes a cluster"
        raise ConfigError("nightly.parallel", config.nightly.parallel, text)
    return cells


def _disturbed(cell: Cell) -> bool:
    """Whether a clock times the trials of a cell on what others may use."""
    last = {word.partition("=")[0]: word.partition("=")[2] for word in cell.words}
    timed = any(tier in last.get("tiers", "") for tier in MEASURING)
    return timed and last.get("ray.address", "auto") in ("auto", "local", "null")


def _further(config: Config) -> tuple[str, ...]:
    """What the command says of all cells."""
    found = []
    for word in config.words:
        key = word.lstrip("+").partition("=")[0]
        if key in NAMED or key.startswith("model."):
            raise ConfigError(key, word.partition("=")[2], "said by the matrix of task=nightly")
        if key not in OURS and not key.startswith("nightly"):
            found.append(word)
    return tuple(found)


def cells_from_mapping(name: str, mapping: Mapping[str, Any], further: tuple[str, ...] = ()) -> list[Cell]:
    """The cells of one file of `conf/nightly/`, those left out taken away.

    Raises:
        ConfigError: of the field that is missing, unknown or of another shape.
    """
    if unknown := next((key for key in mapping if key not in FIELDS), None):
        raise ConfigError(f"nightly.{name}", unknown, f"allowed: {', '.join(FIELDS)}", FIELDS)
    workloads = mapping.get("workloads")
    if not isinstance(workloads, Mapping) or not workloads:
        raise ConfigError(f"nightly.{name}.workloads", workloads, "a mapping of names to words: {tiny: [+model=tiny]}")
    slices, stacks = (_texts(name, key, mapping.get(key)) for key in ("slices", "stacks"))
    shared = _texts(name, "words", mapping.get("words", []), empty=True)
    entries = mapping.get("leave_out") or []
    left_out = [_left_out(name, each) for each in (entries if isinstance(entries, list) else [entries])]
    found = [
        Cell(
            workload=str(workload),
            slice=slice_,
            stack=stack,
            words=(
                *_texts(name, f"workloads.{workload}", words),
                f"hardware={slice_}",
                f"stack={stack}",
                *shared,
                *_fitting(further, shared),
            ),
        )
        for workload, words in workloads.items()
        for slice_ in slices
        for stack in stacks
    ]
    kept = [each for each in found if not any(_matches(each, entry) for entry in left_out)]
    if not kept:
        raise ConfigError(f"nightly.{name}.leave_out", left_out, "less than all cells")
    names = [each.name for each in kept]
    if twice := next((each for each in names if names.count(each) > 1), None):
        raise ConfigError(f"nightly.{name}", twice, "workloads, slices and stacks whose cells have names of their own")
    if long := next((each for each in names if len(each.encode()) > LONGEST), None):
        raise ConfigError(f"nightly.{name}", long, f"names that are {LONGEST} bytes long together, at most")
    return kept


def _fitting(further: tuple[str, ...], shared: list[str]) -> tuple[str, ...]:
    """What the command says of all cells: where Ray is only matters to those that have trials."""
    tiers = [word for word in (*shared, *further) if word.partition("=")[0] == "tiers"]
    if not tiers or any(name in tiers[-1] for name in TRIALS):
        return further
    return tuple(word for word in further if not word.startswith("ray."))


def _texts(name: str, key: str, given: Any, *, empty: bool = False) -> list[str]:
    whole = isinstance(given, list) and all(isinstance(each, str) and each.strip() for each in given)
    if not whole or not (given or empty):
        raise ConfigError(f"nightly.{name}.{key}", given, "a list of texts: [a, b]")
    return list(given)


def _left_out(name: str, entry: Any) -> Mapping[str, str]:
    if not isinstance(entry, Mapping) or not entry or any(key not in AXES for key in entry):
        raise ConfigError(f"nightly.{name}.leave_out", entry, f"mappings with any of {', '.join(AXES)}")
    return {str(key): str(value) for key, value in entry.items()}


def _matches(cell: Cell, entry: Mapping[str, str]) -> bool:
    return all(getattr(cell, key) == value for key, value in entry.items())

"""What stood in the files that the words of a cell name: a name that says something else now is a cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from asap_ray.chip import Chip
from asap_ray.errors import ConfigError
from asap_ray.settings import load_group
from asap_ray.tasks.bundles import bundle_from_mapping

SPOKEN = ("about", "source", "sources", "notes", "name")
"""Keys that no figure depends on."""


def settings_of(events: Sequence[Mapping[str, Any]], chip: Chip, bundle: str) -> dict[str, dict[str, Any]]:
    """What the best step of a study depends on, by file (`stack/maxtext`) and key: the stack, the model, the chip and
    the flags of its bundle.

    Args:
        events: of the study, with its configuration at the start.
        chip: that the plan is for.
        bundle: the flags that the best trial had; "" where nothing was compiled.
    """
    given = next(event["config"] for event in events if event["kind"] == "start")
    found: dict[str, Mapping[str, Any]] = {f"chip/{chip.name}": asdict(chip)}
    for group in ("stack", "model"):
        if name := given[group].get("name"):
            found[f"{group}/{name}"] = given[group]
    if (flags := _flags(bundle, chip, given.get("config_dir"))) is not None:
        found[f"xla/{bundle}"] = flags
    return {name: {key: value for key, value in _flat(each) if _counts(key)} for name, each in found.items()}


def _flags(bundle: str, chip: Chip, config_dir: str | None) -> Mapping[str, str] | None:
    """The flags of a bundle; None where there is none of its name any more."""
    try:
        known = load_group("xla", config_dir)
        return bundle_from_mapping(bundle, known[bundle]).flags_for(chip) if bundle in known else None
    except ConfigError:
        return None


def _counts(key: str) -> bool:
    return not any(part in SPOKEN for part in key.split("."))


def _flat(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The plain values of nested mappings, with the keys to each; lists as text."""
    for key, each in value.items():
        if isinstance(each, Mapping):
            yield from _flat(each, f"{above}{key}.")
        else:
            yield f"{above}{key}", each if isinstance(each, str | int | float | bool | None) else str(list(each))

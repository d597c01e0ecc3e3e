"""Values from a file that someone else wrote, each checked as it is asked for.

All text in such a file is data: it reaches a message only escaped and cut, and every fault is one ConfigError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asap_ray.errors import ConfigError, shown

LARGEST_FILE_BYTES = 4 * 2**20  # a config has a few KB; what is larger is another file
DEEPEST = 64
"""Mappings and lists that lie in each other: a config has a few."""
LARGEST_SIZE = 2**31
LONGEST_SHOWN = 60


def told(value: object) -> str:
    """A foreign value in a few printable words, text in quotes."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return shown(repr(value) if isinstance(value, str) else value, LONGEST_SHOWN)


def read_text(key: str, path: str | Path, what: str) -> bytes:
    """The bytes of a file that should be `what`.

    Raises:
        ConfigError: it is missing, a directory, unreadable or too large.
    """
    file = Path(path)
    try:
        if not file.exists():
            raise ConfigError(key, path, f"does not exist; allowed: {what}")
        if file.is_dir():
            raise ConfigError(key, path, f"is a directory; allowed: {what}")
        if not file.is_file() or file.stat().st_size > LARGEST_FILE_BYTES:
            raise ConfigError(key, path, f"allowed: a file of at most {LARGEST_FILE_BYTES} bytes, {what}")
        return file.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(key, path, f"cannot be read; allowed: {what}") from error


def too_deep(values: object) -> bool:
    """Whether mappings and lists lie in each other deeper than whoever walks them can go."""
    level: list[object] = [values]
    for _ in range(DEEPEST):
        level = [
            inner
            for each in level
            if isinstance(each, Mapping | list)
            for inner in (each.values() if isinstance(each, Mapping) else each)
        ]
        if not level:
            return False
    return True


class ForeignConfig:
    """The object in a file, with the config key under which the user named that file."""

    def __init__(self, key: str, path: str | Path, values: Mapping[str, Any]) -> None:
        """Wrap values that are read already; `load` reads them."""
        self.key, self.path, self.values = key, path, values

    @classmethod
    def load(cls, key: str, path: str | Path, what: str) -> ForeignConfig:
        """Read a JSON file that should be `what`.

        Raises:
            ConfigError: it cannot be read, is no JSON, or no JSON object.
        """
        text = read_text(key, path, what)
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            # Not JSON, not Unicode, a number of thousands of digits, or nested beyond reason.
            raise ConfigError(key, path, f"is not JSON; allowed: {what}") from error
        if too_deep(values):
            raise ConfigError(key, path, f"is nested too deeply; allowed: {what}")
        if not isinstance(values, dict):
            raise ConfigError(key, path, f"holds {told(values)}, not a JSON object; allowed: {what}")
        return cls(key, path, values)

    def error(self, rule: str) -> ConfigError:
        """The error that says what the file would have to hold."""
        return ConfigError(self.key, self.path, rule)

    def having(self, values: Mapping[str, Any]) -> ForeignConfig:
        """The same file with some values put in or replaced."""
        return ForeignConfig(self.key, self.path, {**self.values, **values})

    def has(self, name: str) -> bool:
        """Whether the name is there and not null."""
        return self.values.get(name) is not None

    def name(self, name: str) -> str:
        """A string."""
        value = self.values.get(name)
        if not isinstance(value, str):
            raise self.error(f"{name} is {'missing' if value is None else told(value)}; allowed: a name")
        return value

    def size(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least`; where it is missing or null its default."""
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise self.error(f"{name} is missing; allowed: a whole number from {least} to {LARGEST_SIZE}")
            return default
        if type(value) is not int or not least <= value <= LARGEST_SIZE:
            raise self.error(f"{name}={told(value)}; allowed: a whole number from {least} to {LARGEST_SIZE}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false; where it is missing or null its default."""
        value = self.values.get(name)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.error(f"{name}={told(value)}; allowed: true or false")
        return value

    def choice(self, name: str, allowed: Sequence[str], default: str | None = None) -> str | None:
        """One of some names; where it is missing or null its default."""
        value = self.values.get(name)
        if value is None:
            return default
        if value not in allowed:
            raise self.error(f"{name}={told(value)}; allowed: {', '.join(allowed)}")
        return str(value)

    def number(self, name: str, default: float) -> float:
        """A finite number from 0; where it is missing or null its default."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_SIZE:
            raise self.error(f"{name}={told(value)}; allowed: a number from 0 to {LARGEST_SIZE}")
        return float(value)

    def any_above_zero(self, *names: str) -> bool:
        """Whether any of these numbers is there and above 0."""
        values = [self.values.get(name) for name in names]
        return any(isinstance(value, int | float) and value > 0 for value in values)

    def only(self, name: str, allowed: object) -> None:
        """Refuse a setting whose other values would be something else than what is read."""
        value = self.values.get(name)
        if value is not None and value != allowed:
            raise self.error(f"{name}={told(value)} is not supported; allowed: {allowed}")

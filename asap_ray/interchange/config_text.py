"""Text of other projects' configs as plain values: YAML, TOML, and words of a shell line or script, never executed.

Aliases, objects and keys that come twice are refused: nothing is loaded but text, numbers, flags, lists and mappings.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml

from asap_ray.errors import ConfigError, shown
from asap_ray.interchange.foreign import LONGEST_SHOWN, read_text, told, too_deep

MOST_WORDS = 100_000
LARGEST_YAML = 2**19
"""Characters of a YAML document: MaxText's base.yml has 60,000, and half a million take a second to read."""
LONGEST_NUMBER = 400
"""Characters of whatever is no text; 1:59:59:… is a number to YAML, worked out digit by digit."""
_TEXT = "tag:yaml.org,2002:str"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNED = re.compile(rf"({_NAME})=([\w.,:/+-]*|\$\{{{_NAME}:-[\w.,:/+-]*\}})")
_USED = re.compile(rf"\$(?:({_NAME})|\{{({_NAME})(?::-([\w.,:/+-]*))?\}})")


def decoded(key: str, path: str | Path, what: str) -> str:
    """The text of a file that should be `what`.

    Raises:
        ConfigError: it cannot be read, is too large, or is not text.
    """
    try:
        return read_text(key, path, what).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(key, path, f"is not text; allowed: {what}") from error


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, without aliases and without keys that come twice."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias (*name)")
        return super().compose_node(parent, index)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.tag != _TEXT and len(node.value) > LONGEST_NUMBER:
            raise yaml.YAMLError(f"a number or a date of {len(node.value):,} characters")
        return super().construct_object(node, deep)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise yaml.YAMLError(f"{twice[:LONGEST_SHOWN]} is given twice")
        return super().construct_mapping(node, deep)


def yaml_values(key: str, path: str | Path, text: str) -> Any:
    """What a YAML document holds.

    Raises:
        ConfigError: it is no YAML, or has an alias, an object's tag, or a key twice.
    """
    if len(text) > LARGEST_YAML:
        raise ConfigError(key, path, f"has {len(text):,} characters; allowed: YAML of at most {LARGEST_YAML:,}")
    try:
        values = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: {getattr(error, 'problem', '')}" if mark else str(error)
        raise ConfigError(key, path, f"cannot be read as YAML: {shown(where or 'nested too deeply')}") from error
    return _shallow(key, path, values)


def _shallow(key: str, path: str | Path, values: Any) -> Any:
    if too_deep(values):
        raise ConfigError(key, path, "is nested too deeply")
    return values


def toml_values(key: str, path: str | Path, text: str) -> dict[str, Any]:
    """What a TOML document holds.

    Raises:
        ConfigError: it is no TOML.
    """
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: no TOML, or a number of thousands of digits
        raise ConfigError(key, path, f"cannot be read as TOML: {shown(str(error) or 'nested too deeply')}") from error
    return _shallow(key, path, values)


def shell_words(key: str, path: str | Path, text: str) -> list[str]:
    """The words of a shell line or script, comments left out and plain variables put in.

    Only `NAME=word` and `${NAME:-word}` stand for something: what a script would compute stays as it is written.

    Raises:
        ConfigError: a quotation does not end, or there are too many words.
    """
    plain = re.sub(r"^[ \t]*#.*$", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    try:
        words = shlex.split(plain, comments=True)
    except ValueError as error:
        raise ConfigError(key, path, f"cannot be read as words of a shell: {error}") from error
    if len(words) > MOST_WORDS:
        raise ConfigError(key, path, f"holds {len(words):,} words; allowed: at most {MOST_WORDS:,}")
    values = _variables(words)
    return [_put_in(word, values) for word in words]


def _variables(words: Iterable[str]) -> dict[str, str]:
    """What plain assignments give; a name that is given several values has none."""
    found: dict[str, str | None] = {}
    for word in words:
        if match := _ASSIGNED.fullmatch(word):
            name, value = match[1], _put_in(match[2], {})
            found[name] = value if found.get(name, value) == value else None
    return {name: value for name, value in found.items() if value is not None}


def _put_in(word: str, values: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        default = match[3] if match[3] is not None else match[0]
        return values.get(match[1] or match[2], default)

    return _USED.sub(value, word)


def scalar(text: str) -> Any:
    """A word of a command line as YAML reads it: a number, a flag, null, a list of them, or text."""
    try:
        value = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    return text if isinstance(value, dict) else value


def collected(key: str, path: str | Path, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Pairs as a mapping; a name may come twice with the same value only.

    Raises:
        ConfigError: a name has two values.
    """
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found and (type(found[name]), found[name]) != (type(value), value):
            raise ConfigError(key, path, f"{name} is given twice: {told(found[name])} and {told(value)}")
        found[name] = value
    return found

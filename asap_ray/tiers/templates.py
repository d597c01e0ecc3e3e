"""Reads command templates from the plain mappings of `conf/command/*.yaml`, and says what is wrong with one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from asap_ray.errors import ConfigError
from asap_ray.plan import AXES, KNOBS
from asap_ray.tiers.placeholders import NAMES, check_names, written
from asap_ray.tiers.template import Condition, File, Log, Template, Used, Words, leaves

LONGEST_PATTERN = 1000
TIMES = ("seconds", "ms", "tokens_per_s", "tokens_per_s_per_device")
SIZES = ("needed", "limit", "tried", "free")
FORMATS = (".yaml", ".yml", ".toml", ".json")
_VARIABLE = re.compile("[A-Z_][A-Z0-9_]*")
_FORBIDDEN = re.compile("LD_PRELOAD|.*(KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL).*")


def template_from_mapping(name: str, given: Mapping[str, Any]) -> Template:
    """Build a template from the plain mapping of a `conf/command/*.yaml`.

    Raises:
        ConfigError: a field is missing, unknown or of the wrong type, a placeholder is unknown, or a pattern is none.
    """
    key = f"command.{name}"
    given = {field: value for field, value in given.items() if field != "name"}
    given = _fields(key, given, Template, needed=("argv", "log"), without=("name",))
    models = {str(model): _texts(f"{key}.models.{model}", own) for model, own in _map(f"{key}.models", given).items()}
    allowed = (*NAMES, *dict.fromkeys(word for own in models.values() for word in own if word not in NAMES))
    words = {str(word): _texts(f"{key}.words.{word}", own) for word, own in _map(f"{key}.words", given).items()}
    for word in words:
        _one_of(f"{key}.words", word, allowed)
    template = Template(
        name=name,
        argv=tuple(_words(f"{key}.argv[{i}]", each, allowed) for i, each in enumerate(_list(f"{key}.argv", given))),
        log=_log(f"{key}.log", given["log"], allowed),
        env=_env(f"{key}.env", given.get("env") or {}, allowed),
        file=_file(f"{key}.file", given["file"], allowed) if given.get("file") else None,
        words=words,
        models=models,
        fixed=_fixed(f"{key}.fixed", given.get("fixed") or {}),
        hosts=_one_of(f"{key}.hosts", given.get("hosts", "one"), ("one", "any")),
        order=tuple(_one_of(f"{key}.order", axis, AXES) for axis in _list(f"{key}.order", given)),
        rest=_one_of(f"{key}.rest", given.get("rest", ""), ("", *AXES)),
        skip=_count(f"{key}.skip", given.get("skip", 3), 0),
        steps=_count(f"{key}.steps", given.get("steps", 10), 2),
        plain=given.get("plain", False) is True,
        stacks=tuple(map(str, _list(f"{key}.stacks", given))),
        sources=tuple(map(str, _list(f"{key}.sources", given))),
        **{text: _text(f"{key}.{text}", given.get(text, "")) for text in _PLAIN},
    )
    if not template.argv:
        raise ConfigError(f"{key}.argv", "[]", 'a list of words: ["{python}", train.py, …]')
    return template


_PLAIN = ("about", "module", "package", "requires", "trace")


def _words(key: str, given: object, allowed: Sequence[str]) -> Words:
    condition = Condition()
    if isinstance(given, Mapping):
        _known(key, given, ("when", "unless", "words"))
        condition = _condition(key, given, allowed)
        given = given.get("words")
    listed = given if isinstance(given, (list, tuple)) else [given]
    words = tuple(_text(key, each) for each in listed)
    for word in words:
        check_names(key, word, allowed)
    return Words(words=words, condition=condition)


def _condition(key: str, given: Mapping[str, Any], allowed: Sequence[str]) -> Condition:
    parts: dict[str, dict[str, tuple[str, ...]]] = {}
    for part in ("when", "unless"):
        wanted = _map(f"{key}.{part}", given, part)
        for name in wanted:
            _one_of(f"{key}.{part}", name, allowed)
        parts[part] = {
            str(name): tuple(written(each) for each in (value if isinstance(value, list) else [value]))
            for name, value in wanted.items()
        }
    return Condition(**parts)


def _log(key: str, given: object, allowed: Sequence[str]) -> Log:
    given = _fields(key, given, Log, needed=("step",))
    step = _pattern(f"{key}.step", given["step"], (*TIMES, "step", "loss"))
    if not any(f"(?P<{time}>" in step for time in TIMES):
        raise ConfigError(f"{key}.step", step, f"a pattern with one of the groups {', '.join(TIMES)}: (?P<seconds>…)")
    sized = {"oom": SIZES, "memory": ("peak",)}
    kept = {
        part: tuple(
            _pattern(f"{key}.{part}", each, (*names, *(f"{name}_unit" for name in names)))
            for each in _list(f"{key}.{part}", given)
        )
        for part, names in sized.items()
    }
    return Log(
        step=step,
        **kept,
        diverged=tuple(_pattern(f"{key}.diverged", each, ()) for each in _list(f"{key}.diverged", given)),
        plan_used=tuple(_used(f"{key}.plan_used", each, allowed) for each in _list(f"{key}.plan_used", given)),
    )


def _used(key: str, given: object, allowed: Sequence[str]) -> Used:
    if not isinstance(given, Mapping):
        return Used(pattern=_pattern(key, given, allowed, least=1))
    _known(key, given, ("when", "unless", "pattern"))
    return Used(
        pattern=_pattern(key, given.get("pattern"), allowed, least=1), condition=_condition(key, given, allowed)
    )


def _pattern(key: str, given: object, allowed: Sequence[str], least: int = 0) -> str:
    """A regular expression whose named groups are all known; how long it may take is for who matches it to see to."""
    text = _text(key, given)
    if len(text) > LONGEST_PATTERN:
        raise ConfigError(key, text, f"a pattern of at most {LONGEST_PATTERN} characters")
    try:
        groups = re.compile(text).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(key, text, f"a regular expression: {error}") from error
    for group in groups:
        _one_of(key, group, allowed)
    if len(groups) < least:
        raise ConfigError(key, text, "a pattern with a named group for what it shows: (?P<tensor>[0-9]+)")
    return text


def _env(key: str, given: object, allowed: Sequence[str]) -> Mapping[str, str]:
    found = _texts(key, given)
    for name, text in found.items():
        if not _VARIABLE.fullmatch(name) or _FORBIDDEN.fullmatch(name):
            raise ConfigError(f"{key}.{name}", text, "no such variable here: secrets go by name, command.env=[NAME]")
        check_names(f"{key}.{name}", text, allowed)
    return found


def _file(key: str, given: object, allowed: Sequence[str]) -> File:
    given = _fields(key, given, File, needed=("name", "content"))
    name = _text(f"{key}.name", given["name"])
    if not name.endswith(FORMATS) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ConfigError(f"{key}.name", name, f"a file name ending in {', '.join(FORMATS)}")
    if not isinstance(given["content"], Mapping):
        raise ConfigError(f"{key}.content", given["content"], "a mapping of what is in the file")
    for text in leaves(given["content"]):
        check_names(f"{key}.content", text, allowed)
    return File(name=name, content=given["content"])


def _fixed(key: str, given: object) -> Mapping[str, str]:
    found = _texts(key, given)
    for name in found:
        _one_of(key, name, KNOBS)
    return found


def _fields(
    key: str, given: object, kind: type, needed: Sequence[str], without: Sequence[str] = ()
) -> Mapping[str, Any]:
    names = [entry.name for entry in fields(kind) if entry.name not in without]
    if not isinstance(given, Mapping):
        raise ConfigError(key, given, f"a mapping of {', '.join(names)}")
    _known(key, given, names)
    for name in needed:
        if given.get(name) is None:
            raise ConfigError(f"{key}.{name}", None, "a value; it is missing")
    return given


def _known(key: str, given: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            raise ConfigError(f"{key}.{name}", given[name], f"no such field; allowed: {', '.join(names)}", names)


def _map(key: str, given: Mapping[str, Any], name: str | None = None) -> Mapping[str, Any]:
    value = given.get(name or key.rpartition(".")[2]) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(key, value, "a mapping")
    return value


def _list(key: str, given: Mapping[str, Any]) -> list[Any]:
    value = given.get(key.rpartition(".")[2])
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _texts(key: str, given: object) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise ConfigError(key, given, "a mapping from names to texts")
    return {written(name): _text(f"{key}.{name}", value) for name, value in given.items()}


def _text(key: str, given: object) -> str:
    if isinstance(given, (Mapping, list, tuple)) or given is None:
        raise ConfigError(key, given, "a text")
    text = written(given)
    if not text.isprintable():
        raise ConfigError(key, text, "one line of text")
    return text


def _one_of(key: str, given: object, allowed: Sequence[str]) -> str:
    if given not in allowed:
        raise ConfigError(key, given, f"allowed: {', '.join(allowed)}", allowed)
    return str(given)


def _count(key: str, given: object, least: int) -> int:
    if type(given) is not int or not least <= given <= 10_000:
        raise ConfigError(key, given, f"a whole number from {least} to 10,000")
    return given

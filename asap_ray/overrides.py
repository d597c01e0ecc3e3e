"""Command-line words to a checked `Config`: Hydra's grammar and groups, but our keys and one-line errors.

Words are parsed by Hydra, checked against the keys of `Config`, and only then composed, because Hydra's own messages
are several lines deep. Three spellings are normalised on the way:

- `model=X` is `+model=X`, since `model` stays out of the defaults list;
- `hardware=X` sets `hardware.slices`: conf/hardware/ holds chips, and slices are parsed, not listed;
- every other key is forced (`++key`), so that `+key`, `key` and entries of open mappings all work.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from asap_ray.checks import check
from asap_ray.checks.folders import check_config_dir, check_run_dir
from asap_ray.checks.keys import LIMITS, NAMES, SHORT, range_text, spoken
from asap_ray.config import Config, default_run_dir
from asap_ray.errors import AsapError, ConfigError, nearest, shown
from asap_ray.settings import data_dir, setting_files

GROUPS = ("model", "stack", "scenario")
OPEN = ("model", "stack", "space.fix", "llm.prices")  # mappings whose entries are checked by their owners
RAW_TEXT = (
    "plan",
    "baseline",
    "run_dir",
    "config_dir",
    "compile.cache",
    "command.python",
    "command.script",
    "command.cwd",
    "agents.memory_dir",
    "agents.policy",
    "llm.base_url",
    "llm.model",
    "llm.expert",
    *("launch.wheel", "launch.results", "launch.schedule", "launch.image", "launch.address", "launch.time_zone"),
    "model.hf_config",
)  # taken as typed: paths and plans need no quotes
WRAPPED = (
    "to",
    "hardware.slices",
    "tiers",
    "space.numerics",
    "validate.tables",
    "calibrate.tables",
    "compare.tables",
    "compare.tasks",
    "compare.methods",
    "train_policy.tables",
    "train_policy.runs",
    "train_policy.leave_out",
    "compile.xla",
    "command.args",
    "command.env",
    "launch.options",
    "nightly.webhook_hosts",
)  # one item may be given without brackets
RAW_LISTS = (
    "command.args",
    "launch.options",
)  # its items are words of another program, with signs that mean something to Hydra
MAX_WORD = 10_000
_ITEM = re.compile(r"\s*('[^']*'|\"[^\"]*\"|[^,]+)\s*,?")


class Word(NamedTuple):
    """One `key=value` of the command line: its key without + signs, the value as typed, and what Hydra read in it."""

    key: str
    text: str
    parsed: Override


def all_keys(owner: Any = Config, prefix: str = "") -> Iterator[str]:
    """Every dotted key of the configuration, sections included."""
    for field in dataclasses.fields(owner):
        if field.name == "words" and owner is Config:
            continue
        yield prefix + field.name
        if isinstance(field.default_factory, type) and dataclasses.is_dataclass(field.default_factory):
            yield from all_keys(field.default_factory, f"{prefix}{field.name}.")


def parse_word(word: str) -> Word:
    """Read one word by Hydra's grammar and check that its key exists.

    Raises:
        ConfigError: no such key, or a value that the grammar cannot read.
    """
    sign, text = word.partition("=")[::2]
    key = sign.lstrip("+")
    if "=" not in word or not key:
        raise AsapError(f"{shown(word)}: options are written key=value, e.g. +model=llama70b; see --help")
    _check_key(key, text)
    typed = text
    if key in RAW_TEXT and text != "null" and text[:1] not in ("'", '"', ""):
        typed = QuotedString(text, quote=Quote.single).with_quotes()
    elif key in RAW_LISTS and text.startswith("[") and text.endswith("]"):
        typed = f"[{','.join(map(_quoted, _ITEM.findall(text[1:-1])))}]"
    elif key in RAW_LISTS and text != "null":
        typed = _quoted(text)
    try:
        parsed = OverridesParser.create().parse_override(f"{sign}={typed}")
    except (HydraException, ValueError) as error:  # ValueError: more digits than Python turns into a number
        raise ConfigError(key, text, "cannot be read; put text with special characters in quotes") from error
    if len(word) > MAX_WORD:
        raise ConfigError(key, text, f"at most {MAX_WORD:,} characters")
    return Word(key, text, parsed)


def _quoted(text: str) -> str:
    """A text as Hydra reads it letter by letter; one in quotes already is left as it is."""
    bare = text.strip()
    if bare[:1] in ("'", '"') and bare[-1:] == bare[:1] and len(bare) > 1:
        return bare
    return QuotedString(bare, quote=Quote.single).with_quotes()


def jobs(words: Sequence[str], *, multirun: bool) -> list[list[str]]:
    """The words of each job: one, or with `multirun` one for each combination of the values given as a,b,c."""
    choices: list[list[str]] = []
    for word in map(parse_word, words):
        if not word.parsed.is_sweep_override():
            choices.append([f"{word.key}={word.text}"])
        elif multirun:
            choices.append([f"{word.key}={value}" for value in word.parsed.sweep_string_iterator()])
        else:
            advice = f"one value, or a list in brackets: [{word.text}]; -m runs one job for each value"
            raise ConfigError(word.key, word.text, advice)
    return [list(job) for job in itertools.product(*choices)]


def configure(words: Sequence[str]) -> Config:
    """Compose and check the configuration of one job.

    Raises:
        ConfigError: naming the key, what was given, and what is allowed.
    """
    parsed = [parse_word(word) for word in words]
    given = [word.parsed.value() for word in parsed if word.key == "config_dir"]
    config_dir = check_config_dir(str(given[-1]) if given and given[-1] is not None else None)
    chosen = [word.key for word in parsed if word.key in GROUPS]
    if twice := next((word for word in parsed if chosen.count(word.key) > 1), None):
        raise ConfigError(twice.key, twice.text, "given more than once")
    if {"model", "scenario"} <= {*chosen}:
        model = next(word for word in parsed if word.key == "model")
        raise ConfigError("+model", model.text, "not with +scenario, which names its own")
    overrides = [_to_hydra(word, config_dir) for word in parsed]
    if config_dir:
        place = QuotedString(f"file://{Path(config_dir).absolute()}", quote=Quote.single)
        overrides.append(f"hydra.searchpath=[{place.with_quotes()}]")
    config = to_config(_compose(overrides), {word.key: word.text for word in parsed if word.key in GROUPS})
    if config.task == "scenario" and not config.scenario:
        raise ConfigError("+scenario", "", f"one of {', '.join(setting_files('scenario', config_dir))}")
    if not config.model and config.needs_model:
        names = ", ".join(setting_files("model", config_dir))
        raise ConfigError("+model", "", f"a model is needed: one of {names}; or +model.hf_config=PATH of a config.json")
    return _placed(check(dataclasses.replace(config, words=list(words))), parsed)


def _placed(config: Config, words: Sequence[Word]) -> Config:
    """The configuration with its run directory, which only the words can tell: models and stacks come whole."""
    if config.run_dir is not None:
        return config
    changes = {word.key: word.text for word in words if word.key.startswith(("model.", "stack."))}
    changes.pop("model.hf_config", None)
    placed = dataclasses.replace(config, run_dir=default_run_dir(config, changes))
    check_run_dir(placed)
    return placed


def _compose(overrides: list[str]) -> DictConfig:
    try:
        with initialize_config_dir(str(data_dir("conf")), version_base="1.3", job_name="asap_ray"):
            composed = compose("config", overrides)
        OmegaConf.resolve(composed)
        return composed
    except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: a name as the index of a list
        first = next(iter(str(error).splitlines()), "a value cannot be worked out")
        raise AsapError(f"the configuration cannot be composed: {first}; see --help") from error
    except YAMLError as error:  # a file of the user's own; the text says which, and where in it
        raise AsapError(f"the configuration cannot be composed: {' '.join(str(error).split())}") from error


def to_config(composed: DictConfig, chosen: dict[str, str]) -> Config:
    """Merge what Hydra composed into the dataclasses; types are checked here.

    Raises:
        ConfigError: a key that does not exist, or a value that is missing or of the wrong type.
    """
    schema = OmegaConf.structured(Config)
    if missing := sorted(OmegaConf.missing_keys(composed)):
        raise ConfigError(_shown(missing[0]), "???", f"{_wanted(schema, missing[0])}; ??? stands for what is missing")
    for key in WRAPPED:
        owner, _, _ = key.rpartition(".")
        if owner and not isinstance(OmegaConf.select(composed, owner), DictConfig):
            continue  # told with its key when shapes are checked
        value = OmegaConf.select(composed, key)
        if value is not None and not isinstance(value, ListConfig | DictConfig):
            OmegaConf.update(composed, key, [value])
    for node in (schema, *schema.values()):  # frozen dataclasses come as read-only nodes, which cannot be merged into
        if isinstance(node, DictConfig):
            OmegaConf.set_readonly(node, False)
    _check_shapes(schema, composed, "")
    try:
        config = OmegaConf.to_object(OmegaConf.merge(schema, composed))
    except ConfigKeyError as error:
        raise _unknown_key(str(error.full_key), OmegaConf.select(composed, str(error.full_key))) from error
    except OverflowError as error:  # a whole number beyond any float, where a float belongs
        values = ((key, OmegaConf.select(composed, key)) for key in all_keys())
        key, value = next(pair for pair in values if isinstance(pair[1], int) and abs(pair[1]) > 1e300)
        raise ConfigError(key, value, _wanted(schema, key)) from error
    except OmegaConfBaseException as error:
        key = str(error.full_key or "")
        raise ConfigError(key, OmegaConf.select(composed, key), _wanted(schema, key)) from error
    assert isinstance(config, Config)
    for group, name in chosen.items():
        getattr(config, group).setdefault("name", name)
    return config


def _check_key(key: str, value: str) -> None:
    inside = any(key.startswith(f"{name}.") for name in OPEN)
    if not inside and key not in {*all_keys(), *SHORT}:
        raise _unknown_key(key, value)


def _unknown_key(key: str, value: object) -> ConfigError:
    return ConfigError(
        key, value, f"{nearest(key.removeprefix('~'), all_keys())}no such key; --help lists what is allowed"
    )


def _to_hydra(word: Word, config_dir: str | None) -> str:
    """The override in the spelling that Hydra composes."""
    if word.key in GROUPS:
        names = tuple(setting_files(word.key, config_dir))
        if str(word.parsed.value()) not in names:
            raise ConfigError(word.key, word.text, f"allowed: {', '.join(names)}", names)
        return f"{'' if word.key == 'stack' else '+'}{word.key}={word.parsed.value()}"
    key = SHORT.get(word.key, word.key)
    return f"++{key}={(word.parsed.input_line or '').partition('=')[2]}"


def _check_shapes(schema: Any, given: Any, key: str) -> None:
    """A mapping where a mapping belongs, a list where a list does: OmegaConf's messages for these name no key."""
    # A list that may be null has a schema that is null.
    if isinstance(schema, ListConfig) or (key in WRAPPED and schema is None and given is not None):
        if not isinstance(given, ListConfig):
            raise ConfigError(_shown(key), given, "a list: [a,b]")
        holds_mappings = key == "space.forbid"
        for item in given:
            if item is None or isinstance(item, DictConfig) != holds_mappings or isinstance(item, ListConfig):
                wanted = "a list of mappings: [{key: value}]" if holds_mappings else "a list of names: [a,b]"
                raise ConfigError(_shown(key), given, wanted)
            if isinstance(item, DictConfig):
                _check_shapes(OmegaConf.create({}), item, key)
    if not isinstance(schema, DictConfig):
        return
    if not isinstance(given, DictConfig):
        raise ConfigError(key, given, "a mapping: {key: value}")
    for name in given:
        if not isinstance(name, str):  # YAML reads 1 and true as no text
            raise ConfigError(_shown(key), given, "a mapping from names: {name: value}")
        if name in schema:
            _check_shapes(schema[name], given[name], f"{key}.{name}".lstrip("."))


def _wanted(schema: DictConfig, key: str) -> str:
    """What belongs at `key`, in words."""
    plain = key.split("[")[0]
    if plain in NAMES:
        return f"allowed: {', '.join(NAMES[plain])}"
    owner, _, name = plain.rpartition(".")
    section = OmegaConf.get_type(OmegaConf.select(schema, owner)) if owner else Config
    if not (isinstance(section, type) and dataclasses.is_dataclass(section)):  # an entry of an open mapping
        return "a value: a number, a word, or a list of them"
    kind = {field.name: str(field.type) for field in dataclasses.fields(section)}.get(name, "")
    words = {
        "int": range_text(plain) if plain in LIMITS else "a whole number",
        "float": "a number",
        "bool": "true or false",
        "str": "text",
        "list[str]": "a list of names: [a,b]",
    }
    wanted = words.get(kind.removesuffix(" | None"), "a mapping: {key: value}")
    return wanted + (", or null" if kind.endswith("None") else "")


def _shown(key: str) -> str:
    plain, bracket, index = key.partition("[")
    return spoken(plain) + bracket + index

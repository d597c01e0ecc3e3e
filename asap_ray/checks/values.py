"""Checks of single keys, and of those that every task reads: model, slices, space, search and language model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from urllib.parse import urlsplit

from asap_ray.checks.keys import (
    LATER,
    LIMITS,
    NAMES,
    NOT_YET,
    POSITIVE,
    SHARES,
    TEXTS,
    items,
    range_text,
    share_text,
    spoken,
    value_at,
)
from asap_ray.config import MODEL_FREE, Config
from asap_ray.errors import ConfigError

MODELS_OF: Mapping[str, str] = {
    **dict.fromkeys(("validate", "calibrate", "train_policy"), "rows name their own models"),
    "show": "it tells what is in run_dir",
    "remember": "it adds what is in run_dir",
    "export": "it writes what is in run_dir",
    "doctor": "it looks at this machine",
    "nightly": "its matrix names them",
}
"""Where tasks that take no model have theirs from."""


def check_names(config: Config) -> None:
    """Choices by name: an unknown one is refused with the nearest, a planned one with what works today."""
    for key, allowed in NAMES.items():
        given = value_at(config, key)
        for name in items(given):
            if name in LATER.get(key, ()):
                raise ConfigError(spoken(key), name, f"{NOT_YET}; allowed now: {', '.join(allowed)}")
            if name is not None and name not in allowed:
                raise ConfigError(spoken(key), name, f"allowed: {', '.join(allowed)}", allowed)
        if given == []:
            raise ConfigError(spoken(key), "[]", f"at least one of: {', '.join(allowed)}")


def check_limits(config: Config) -> None:
    """Whole numbers that must lie in a range."""
    for key, (low, high) in LIMITS.items():
        value = value_at(config, key)
        if value is not None and not low <= value <= high:
            raise ConfigError(key, value, range_text(key))


def check_positive(config: Config) -> None:
    """Numbers that must be above 0."""
    for key in POSITIVE:
        value = value_at(config, key)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(key, value, "a number above 0")


def check_texts(config: Config) -> None:
    """Texts and paths may be left out, but not be empty or hold control characters."""
    for key in TEXTS:
        for text in items(value_at(config, key)):
            if text is not None and (not str(text).strip() or not str(text).isprintable()):
                raise ConfigError(spoken(key), text, "text that is not empty, on one line")


def check_tables(config: Config) -> None:
    """A list of tables names at least one."""
    for key in ("validate", "calibrate", "compare", "train_policy"):
        if value_at(config, key).tables == []:
            raise ConfigError(f"{key}.tables", "[]", "at least one table, or null for those that are carried")


def check_model(config: Config) -> None:
    """A model is named or read from a file, not both."""
    if config.task in MODEL_FREE:
        if config.model:
            raise ConfigError("+model", config.model_name, f"not for task={config.task}: {MODELS_OF[config.task]}")
        return
    if not config.model:
        if config.needs_model:
            raise ConfigError("+model", "", "a model is needed")
        return
    if "hf_config" not in config.model:
        return
    file = config.model["hf_config"]
    if len(config.model) > 1:
        raise ConfigError("+model.hf_config", file, "a config.json or a named model, not both")
    if not isinstance(file, str):
        raise ConfigError("+model.hf_config", file, "the path of a Hugging Face config.json")


def check_profile(config: Config) -> None:
    """A trace is for task=explain; beside a model it is of a plan that is named."""
    if config.profile is None:
        return
    if config.task != "explain":
        raise ConfigError("profile", config.profile, "only with task=explain")
    if config.model and config.plan is None:
        raise ConfigError("plan", None, "with profile= and +model=, the plan that was run when the trace was taken")
    for key in ("plan", "baseline"):
        if not config.model and (given := value_at(config, key)) is not None:
            raise ConfigError(key, given, "with profile=, only beside +model=; a trace by itself needs none")


def check_slices(config: Config) -> None:
    """At least one slice, none of them twice."""
    slices = config.hardware.slices
    if not slices:
        raise ConfigError("hardware", "[]", "at least one slice, e.g. hardware=v5p-128")
    if twice := next((name for name in slices if slices.count(name) > 1), None):
        raise ConfigError("hardware", twice, "each slice once")


def check_space(config: Config) -> None:
    """`fix` and `forbid` give plain values; an empty entry of `forbid` would leave nothing."""
    for index, entry in enumerate(config.space.forbid):
        if not entry:
            raise ConfigError(f"space.forbid[{index}]", "{}", "at least one axis or knob, e.g. {pipeline: 2}")
    for key, entry in (("space.fix", config.space.fix), *(("space.forbid", entry) for entry in config.space.forbid)):
        for name, value in entry.items():
            if any(item is None or item == "" or isinstance(item, list | Mapping) for item in items(value)):
                raise ConfigError(f"{key}.{name}", value, "a number, a word, or a list of them")


def check_shares(config: Config) -> None:
    """Shares lie between none and the most that makes sense."""
    for key, most in SHARES.items():
        if not 0 <= value_at(config, key) <= most:
            raise ConfigError(key, value_at(config, key), share_text(key))


def is_address(text: str) -> bool:
    """Whether a text is the address of an HTTP server, without a name or a password in it."""
    try:
        url = urlsplit(text)
        named = bool(url.hostname) and url.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        return False
    return url.scheme in ("http", "https") and named and not (url.username or url.query or url.fragment)


def check_llm(config: Config) -> None:
    """What is said of a language model makes sense, and is said where one may be asked."""
    llm = config.llm
    if config.agents.brain not in ("auto", "llm") and llm != type(llm)():
        given, plain = asdict(llm), asdict(type(llm)())
        key = next(name for name in given if given[name] != plain[name])
        raise ConfigError(f"llm.{key}", given[key], "only with agents=llm or agents=auto")
    if llm.base_url is not None and not is_address(llm.base_url):
        allowed = "an address such as http://localhost:8000/v1; a key comes from the environment"
        raise ConfigError("llm.base_url", llm.base_url.split("@")[-1].split("?")[0], allowed)
    for name, price in llm.prices.items():
        pair = price if isinstance(price, list) else []
        if len(pair) != 2 or not all(isinstance(each, int | float) and 0 <= each < math.inf for each in pair):
            raise ConfigError(f"llm.prices.{name}", price, "[dollars for a million tokens asked, answered]")

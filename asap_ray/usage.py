"""The text of --help: written from the settings and the configuration, so that it cannot fall behind them.

The site's reference (docs/hooks/reference.py) is written from the same rows.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from asap_ray.checks.keys import LIMITS, NAMES, POSITIVE, SHARES, TASKS, range_text, share_text, spoken
from asap_ray.config import Config
from asap_ray.errors import AsapError, nearest
from asap_ray.settings import load_group, setting_files

HEAD = """\
usage: asap-ray [task=NAME] +model=NAME [key=value ...] [--config-dir DIR] [--cfg job] [-m]
       python -m asap_ray +model=llama70b

Find the parallel plan with the shortest training step that fits in memory, prove it, and say why. No chip is needed."""
FLAGS = """\
  --help KEY         only that key, or all keys below it: --help budget
  --config-dir DIR   a folder of your own laid out as conf/: model/, stack/, hardware/, xla/
  --cfg job          print the configuration and stop
  -m, --multirun     one job for each value of a key given as a,b,c
  --version          print the version"""
EXAMPLES = """\
  asap-ray +model=llama70b
  asap-ray +model=mixtral8x7b 'hardware=[v5p-128,h100x64]' workload.global_batch=512
  asap-ray +model.hf_config=config.json hardware=2xv5e-256 output=json
  asap-ray +model=llama70b 'space.fix={tensor: 4}' 'space.forbid=[{pipeline: 2}]'
  asap-ray +model=llama70b 'tiers=[roofline,compile]' budget.compile=4
  asap-ray baseline=my_maxtext.yml hardware=v5p-128
  asap-ray task=explain +model=llama70b plan='fsdp=16 tensor=4 micro_batch=2 remat=full'
  asap-ray task=explain profile=trace/
  asap-ray task=show run_dir=runs/llama70b-v5p-128-maxtext
  asap-ray task=export run_dir=runs/llama70b-v5p-128-maxtext to=maxtext
  asap-ray task=validate 'validate.tables=[mine.csv]' output=json"""


def help_text(config_dir: str | None = None) -> str:
    """The whole text, with the user's own models, stacks and chips where `config_dir` names them."""
    parts = (
        HEAD,
        "tasks:\n" + _table(TASKS.items()),
        "models (+model=NAME, or +model.hf_config=PATH of a Hugging Face config.json):\n" + _models(config_dir),
        "slices (hardware=NAME, or a list in brackets):\n" + _slices(config_dir),
        "scenarios (+scenario=NAME, each with its model, hardware and space):\n" + _names("scenario", config_dir),
        "stacks (stack=NAME):\n" + _names("stack", config_dir),
        "matrices of task=nightly (nightly=NAME):\n" + _table(_about("nightly", config_dir)),
        "bundles of compiler flags (compile.xla=NAME, or a list in brackets):\n" + _table(_about("xla", config_dir)),
        "keys and defaults:\n" + _table(_in_a_line(each) for each in keys()),
        "flags:\n" + FLAGS,
        "examples:\n" + EXAMPLES,
    )
    return "\n\n".join(parts)


def key_text(names: Sequence[str]) -> str:
    """What --help prints of single keys, or of all keys below a name such as `budget`.

    Raises:
        AsapError: there is no key of that name.
    """
    every = list(keys())
    found = {name: [key for key in every if key.is_of(name)] for name in names}
    if wrong := next((name for name in names if not found[name]), None):
        hint = nearest(wrong, [key.name for key in every])
        raise AsapError(f"--help {wrong}: {hint}allowed: a key, or the first part of one; --help lists all")
    return "\n".join(_told(key) for name in names for key in found[name])


def _in_a_line(key: Key) -> tuple[str, str]:
    return f"{key.name}={key.default}", f"{key.help} ({key.allowed})" if key.allowed else key.help


def _told(key: Key) -> str:
    allowed = [f"  allowed: {key.allowed}"] if key.allowed else []
    return "\n".join([f"{key.name}={key.default} ({key.type})", f"  {key.help}", *allowed])


def _models(config_dir: str | None) -> str:
    """Every model; a short name says which one it is short for."""
    names = []
    for name, path in setting_files("model", config_dir).items():
        short_for = re.search(r"^defaults: \[(\w+), _self_\]", path.read_text(encoding="utf-8"), re.MULTILINE)
        names.append(f"{name} (= {short_for[1]})" if short_for else name)
    return textwrap.fill(", ".join(names), 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def _about(group: str, config_dir: str | None) -> Iterator[tuple[str, str]]:
    """Every file of a group with what it is for."""
    return ((name, str(given.get("about", ""))) for name, given in load_group(group, config_dir).items())


def _names(group: str, config_dir: str | None) -> str:
    return textwrap.fill(", ".join(setting_files(group, config_dir)), 100, initial_indent="  ", subsequent_indent="  ")


def _table(rows: Iterable[tuple[str, str]]) -> str:
    rows = list(rows)
    width = max(len(left) for left, _ in rows)
    return "\n".join(f"  {left:<{width}}  {right}" for left, right in rows)


def _slices(config_dir: str | None) -> str:
    """How slices are written, then the chips that may stand in them."""
    forms = (
        ("v5p-128", "a TPU slice by its product name"),
        ("v5p:8x8x8", "a TPU slice by its topology in chips"),
        ("2xv5e-256", "two slices over the data-centre network"),
        ("h100x64", "GPUs in all; h100:8x8 is NVLink domains x GPUs in each"),
    )
    chips = load_group("hardware", config_dir)
    kinds = {kind: [str(c["name"]) for c in chips.values() if c.get("kind") == kind] for kind in ("tpu", "gpu")}
    lines = (f"{kind.upper()} chips: {', '.join(names)}" for kind, names in kinds.items() if names)
    wrapped = (textwrap.fill(line, 100, initial_indent="  ", subsequent_indent="    ") for line in lines)
    return "\n".join((_table(forms), *wrapped))


class Key(NamedTuple):
    """What is told of one key; `name` is as the command line has it (`search` for the path `search.method`), and
    `allowed` is empty where any value of the type may be tried."""

    path: str
    name: str
    type: str
    default: str
    allowed: str
    help: str

    def is_of(self, name: str) -> bool:
        """Whether this is the key of that name, or one below it."""
        return name in (self.path, self.name) or self.path.startswith(f"{name}.")


TYPES = {
    "int": "whole number",
    "float": "number",
    "str": "text",
    "bool": "true or false",
    "list[str]": "list",
    "list[dict[str, Any]]": "list of mappings",
    "dict[str, Any]": "mapping",
}
"""Types of the configuration as they are told; `| None` is seen by the default, null."""


def keys(owner: Any = Config, prefix: str = "") -> Iterator[Key]:
    """Every key of the command line, in the order of the configuration; models, stacks and scenarios are names."""
    for field in dataclasses.fields(owner):
        key, factory = prefix + field.name, field.default_factory
        if owner is Config and field.name == "words":
            continue
        if "help" not in field.metadata:
            assert isinstance(factory, type)
            yield from keys(factory, f"{key}.")
        elif key not in ("model", "stack", "scenario"):
            default = factory() if factory is not dataclasses.MISSING else field.default
            kind = TYPES[str(field.type).removesuffix(" | None")]
            yield Key(key, spoken(key), kind, _written(default), _allowed(key), field.metadata["help"])


def _allowed(key: str) -> str:
    if key in NAMES:
        return ", ".join(NAMES[key])
    if key in LIMITS:
        return range_text(key)
    return share_text(key) if key in SHARES else "above 0" if key in POSITIVE else ""


def _written(default: Any) -> str:
    """A default as it would be typed."""
    if isinstance(default, list):
        return str(default[0]) if len(default) == 1 else f"[{','.join(map(str, default))}]"
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    return f"{default:g}" if isinstance(default, float) else str(default)

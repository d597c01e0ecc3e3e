"""Where the package's data lie (beside it in a checkout, inside it in a wheel), and how its YAML files are read."""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError
from yaml.constructor import ConstructorError

from asap_ray.errors import ConfigError, shown

try:
    from yaml import CSafeLoader as _SafeLoader  # ten times as fast; wheels of PyYAML have it
except ImportError:
    from yaml import SafeLoader as _SafeLoader

REPLACED = "calibration"
"""The group whose files a user's own may replace."""
DEEPEST = 32
"""Mappings and lists of a settings file that lie in each other."""
LARGEST_BYTES = 2**19
"""Of a settings file: ours have a few KB, and YAML of half a megabyte takes a second to read."""
_LONG_NUMBER = re.compile(r"[0-9_:.]{400}")
INSIDE = {"launch": "launch/files"}
"""Where folders lie in a wheel whose name a part of the package has."""
_PACKAGE = Path(__file__).resolve().parent


class _Loader(_SafeLoader):  # pyright: ignore[reportGeneralTypeIssues]
    """YAML as Hydra reads it: 1e9 is a number, a date is text, and no key comes twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConstructorError(None, None, f"found duplicate key {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


_FLOAT, _DATE = "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"
_DIGITS, _EXPONENT = r"\d[\d_]*", r"[eE][-+]?\d+"
_NUMBER = rf"{_DIGITS}\.[\d_]*({_EXPONENT})?|{_DIGITS}{_EXPONENT}|\.{_DIGITS}({_EXPONENT})?"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag not in (_FLOAT, _DATE)]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _FLOAT, re.compile(rf"([-+]?({_NUMBER}|\.(inf|Inf|INF))|\.(nan|NaN|NAN))$"), list("-+0123456789.")
)


def data_dir(name: str) -> Path:
    """The folder `name` (conf, knowledge, launch): in the package where it is a wheel's, beside it in a checkout."""
    inside = _PACKAGE / INSIDE.get(name, name)
    return inside if inside.is_dir() else _PACKAGE.parent / name


def setting_files(group: str, config_dir: str | None = None) -> dict[str, Path]:
    """Files of `conf/<group>/` by name, sorted, with those of the user's own `config_dir`.

    Raises:
        ConfigError: a file of `config_dir` has a name that is taken; it would be ignored. A calibration is no name to
            choose by, so that there it goes before ours.
    """
    if config_dir:
        _check_files(config_dir)
    ours = {path.stem: path for path in (data_dir("conf") / group).glob("*.yaml")}
    theirs = {path.stem: path for path in (Path(config_dir) / group).glob("*.yaml")} if config_dir else {}
    if (taken := sorted(ours.keys() & theirs.keys())) and group != REPLACED:
        raise ConfigError("config_dir", theirs[taken[0]], f"a name of its own: {group}={taken[0]} is built in")
    return dict(sorted((ours | theirs).items()))


def own_files(config_dir: str) -> list[Path]:
    """The settings files of a user's own folder, laid out as `conf/`: what lies deeper is none, such as of a project
    that has its settings at its root."""
    return sorted(path for form in ("*.yaml", "*/*.yaml") for path in Path(config_dir).glob(form))


@lru_cache(maxsize=8)
def _check_files(config_dir: str) -> None:
    # Aliases can make a few lines stand for more than any memory holds, and no setting needs one. Hydra reads some of
    # these files itself, so what it would not survive is refused before.
    for path in own_files(config_dir):
        try:
            _check_shape(path)
        except ConfigError:
            raise
        except (OSError, ValueError, YAMLError):
            continue  # whoever needs this file reads it, and says what is wrong with it


def _check_shape(path: Path) -> None:
    depth = 0
    for event in yaml.parse(_text(path), _SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError("config_dir", path, "a settings file without YAML aliases (*name)")
        if depth > DEEPEST:
            raise ConfigError("config_dir", path, f"a settings file nested at most {DEEPEST} deep")


def _text(path: Path) -> str:
    """The text of a file that is small enough for settings, and is a file.

    Raises:
        ConfigError: it is not.
        OSError, ValueError: it cannot be read, or is no text.
    """
    if path.exists() and (not path.is_file() or path.stat().st_size > LARGEST_BYTES):
        raise ConfigError("config_dir", path, f"a settings file of at most {LARGEST_BYTES:,} bytes")
    text = path.read_text(encoding="utf-8")
    if _LONG_NUMBER.search(text):  # 1:59:59:… is a number to YAML, worked out digit by digit
        raise ConfigError("config_dir", path, "a settings file without numbers of hundreds of digits")
    return text


def read_settings(path: Path) -> dict[str, Any]:
    """One YAML file as plain data, read as Hydra reads it (1e9 is a number).

    Raises:
        ConfigError: it cannot be read, is not YAML, or holds no mapping.
    """
    try:
        text = _text(path)
        data = yaml.load(text, _Loader)  # noqa: S506 - a safe loader
        if "${" in text:  # few files have interpolations, and OmegaConf's containers take longer than all else
            data = OmegaConf.to_container(OmegaConf.create(data), resolve=True)
    except (OSError, ValueError, RecursionError, YAMLError, OmegaConfBaseException) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("config_dir", path, f"a settings file in YAML; {shown(error, 400)}") from error
    if not isinstance(data, dict):
        raise ConfigError("config_dir", path, "a settings file holds a mapping (key: value)")
    return {str(key): value for key, value in data.items()}


def load_group(group: str, config_dir: str | None = None) -> dict[str, dict[str, Any]]:
    """All of `conf/<group>/` as plain data by name."""
    return {name: read_settings(path) for name, path in setting_files(group, config_dir).items()}

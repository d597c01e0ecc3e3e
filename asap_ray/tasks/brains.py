"""The brain that proposes by rules or by what it has learnt; a policy that has no weights that fit is the playbook.

A language model (`thinking.py`) has one of them behind it.
"""

from __future__ import annotations

import zipfile
from functools import lru_cache
from pathlib import Path

from asap_ray.agents.brief import Brain
from asap_ray.agents.learned import Policy, Weights, read_weights
from asap_ray.agents.playbook import Playbook
from asap_ray.agents.trusted import Trusted
from asap_ray.config import Config
from asap_ray.errors import AsapError, ConfigError
from asap_ray.knowledge import Card, load_cards
from asap_ray.settings import data_dir

FOLDER, NAME = "policy", "policy.npz"


def rules_of(config: Config) -> Brain:
    """The brain that asks nobody.

    Raises:
        ConfigError: a card or the file of `agents.policy` cannot be read.
    """
    rules = Playbook(cards=cards_of(config))
    if config.agents.brain == "policy" and isinstance(found := _weights(_path(config)), Weights):
        return Trusted(inner=Policy(weights=found), rules=rules, share=config.search.share)
    return rules


def cards_of(config: Config) -> tuple[Card, ...]:
    """The cards that agents read.

    Raises:
        ConfigError: a card cannot be read.
    """
    return load_cards() if config.agents.knowledge else ()


def untrained(config: Config) -> str:
    """Why the playbook proposes in the place of the policy that was asked for, in one line; empty where it does not.

    Raises:
        ConfigError: the file of `agents.policy` cannot be read.
    """
    if config.agents.brain != "policy" or isinstance(found := _weights(_path(config)), Weights):
        return ""
    return f"agents=policy: {found}; the playbook proposes instead (task=train_policy trains another)"


def carried_weights() -> Weights:
    """The weights that the package carries.

    Raises:
        AsapError: they do not fit this version.
    """
    found = _weights(data_dir("knowledge") / FOLDER / NAME)
    if not isinstance(found, Weights):
        raise AsapError(f"the policy: {found}")
    return found


def _path(config: Config) -> Path:
    """The file of weights.

    Raises:
        ConfigError: the user's own is not there, or is no such file.
    """
    if config.agents.policy is None:
        return data_dir("knowledge") / FOLDER / NAME
    path = Path(config.agents.policy).expanduser()
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise ConfigError("agents.policy", config.agents.policy, f"a file that task=train_policy wrote, {NAME}")
    return path


@lru_cache(maxsize=4)
def _weights(path: Path) -> Weights | str:
    """The weights of a file, or why there are none."""
    try:
        return read_weights(path)
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror or error})"
    except ValueError as error:
        return f"{path.name} does not fit: {error}"

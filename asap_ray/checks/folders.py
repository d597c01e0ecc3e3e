"""Checks of the user's folders: they exist or can be made."""

from __future__ import annotations

import os
from pathlib import Path

from asap_ray.config import Config
from asap_ray.errors import ConfigError
from asap_ray.remote import check_scheme


def check_config_dir(config_dir: str | None) -> str | None:
    """The user's own folder of settings exists; checked before it is searched."""
    try:
        there = config_dir is None or Path(config_dir).is_dir()
    except OSError:  # such as a name that no file system takes
        there = False
    if not there:
        raise ConfigError(
            "config_dir", config_dir, "an existing folder with model/, stack/, hardware/ or calibration/ in it"
        )
    return config_dir


def check_run_dir(config: Config) -> None:
    """The run directory exists or can be made; to be shown it need not be writable. A URI is one that can be reached
    by what is installed; whether it may be written to is seen when the task begins, before Ray does."""
    if config.remote_dir is not None:
        check_scheme("run_dir", config.remote_dir)
    _check_folder("run_dir", config.run_path, written=config.task not in ("show", "remember", "doctor"))


def check_memory_dir(config: Config) -> None:
    """The folder of the memory, where one is given, exists or can be made."""
    if (given := config.agents.memory_dir) is not None:
        _check_folder("agents.memory_dir", Path(os.path.expanduser(given)).absolute(), written=config.agents.memory)


def _check_folder(key: str, path: Path, *, written: bool) -> None:
    places = (path, *path.parents)
    try:
        blocked = [place for place in places if place.exists() and not place.is_dir()]
    except OSError as error:
        raise ConfigError(key, f"{path.name[:60]}…", f"a folder, but: {error.strerror}") from error
    if blocked:
        raise ConfigError(key, path, f"a folder, but {blocked[0]} is a file")
    nearest = next(place for place in places if place.exists())
    if written and not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(key, path, f"a folder, but {nearest} cannot be written to")

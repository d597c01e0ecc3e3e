"""Checks of keys that one task reads: said with another, they would do nothing."""

from __future__ import annotations

from dataclasses import asdict

from asap_ray.checks.keys import spoken, value_at
from asap_ray.config import Config
from asap_ray.errors import ConfigError


def check_compare(config: Config) -> None:
    """Keys of a comparison are for one; with a model there is no table, and without one no tier."""
    given, plain = asdict(config.compare), asdict(Config().compare)
    if config.task != "compare":
        if changed := next((name for name in given if given[name] != plain[name]), None):
            raise ConfigError(f"compare.{changed}", given[changed], "only with task=compare")
        return
    if not config.compare.methods:
        raise ConfigError("compare.methods", "[]", "at least one method, or auto")
    if config.model:
        for name in ("tasks", "tables", "only", "truths", "leave_out"):
            if given[name] != plain[name]:
                raise ConfigError(f"compare.{name}", given[name], "not with +model: its own plans are what is searched")
    elif config.tiers != Config().tiers:
        raise ConfigError("tiers", config.tiers, "with +model only: tables say what came of each plan")


def check_show(config: Config) -> None:
    """What is to be shown or exported is named; nothing else is exported."""
    if config.task in ("show", "export", "remember") and config.run_dir is None:
        raise ConfigError("run_dir", None, f"for task={config.task}, the directory of a run")
    if config.watch and config.task != "show":
        raise ConfigError("watch", True, "for task=show")
    if config.watch and config.output == "json":
        raise ConfigError("output", "json", "rich or plain with watch=true; the object is what task=show prints")
    if config.to is not None and config.task != "export":
        raise ConfigError("to", ", ".join(config.to), "for task=export")


def check_learning(config: Config) -> None:
    """What is exported, and what a policy is trained on, is asked of the task that does it."""
    if config.export.what != "plans":
        if config.task != "export":
            raise ConfigError("export.what", config.export.what, "for task=export")
        for key in ("plan", "to"):
            if (given := value_at(config, key)) is not None:
                raise ConfigError(key, given, "only with export.what=plans")
    if config.agents.policy is not None and config.agents.brain != "policy":
        raise ConfigError("agents.policy", config.agents.policy, "only with agents=policy")
    given, plain = asdict(config.train_policy), asdict(Config().train_policy)
    if config.task != "train_policy" and given != plain:
        key = next(name for name in given if given[name] != plain[name])
        raise ConfigError(f"train_policy.{key}", given[key], "for task=train_policy")


def check_nightly(config: Config) -> None:
    """A night has a matrix, and only a night has what is said of one."""
    given, plain = config.nightly, Config().nightly
    if config.task != "nightly":
        names = asdict(given)
        if key := next((name for name in names if names[name] != asdict(plain)[name]), None):
            raise ConfigError(spoken(f"nightly.{key}"), names[key], "only with task=nightly")
        return
    if given.matrix is None:
        raise ConfigError("nightly", None, "the name of a matrix: small, or a file of your own conf/nightly/")
    if not 0 < given.tolerance < 1:
        raise ConfigError("nightly.tolerance", given.tolerance, "a share above 0 and below 1")

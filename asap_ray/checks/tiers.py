"""Checks of what is compiled, run, or left to the user's own trainer: keys of a tier need that tier."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec

from asap_ray.checks.keys import spoken, value_at
from asap_ray.config import TUNING, CommandConfig, Config
from asap_ray.errors import ConfigError

BUDGETS = ("budget.trials", "budget.compile", "budget.minutes", "budget.chip_hours")
RAY = ("ray.address", "ray.retries", "ray.reserve_s", "ray.dashboard")
COMPILING = (
    *(*BUDGETS, *RAY),
    *("compile.workers", "compile.cache", "compile.timeout_s", "compile.xla", "compile.trainer"),
)
"""Keys that only the compile tier reads, and some of them the run tier."""
RUNNING = (*BUDGETS, *RAY, "compile.xla")
"""Those that the run tier reads too."""
COMMANDING = tuple(f"command.{name}" for name in CommandConfig.__dataclass_fields__)
"""Keys that only a trainer of the user's own needs."""


def check_compile(config: Config) -> None:
    """What only the compile tier reads needs that tier, and a task that compiles."""
    if "compile" in config.tiers and config.task == "calibrate":
        raise ConfigError("tiers", "compile", "for task=tune, explain and validate; task=calibrate needs no compiler")
    _check_recompile(config)
    bundles = config.compile.xla
    if not bundles:
        raise ConfigError("compile.xla", "[]", "at least one bundle of conf/xla/, such as default")
    if twice := next((name for name in bundles if bundles.count(name) > 1), None):
        raise ConfigError("compile.xla", twice, "each bundle once")
    if config.ray.dashboard and find_spec("aiohttp_cors") is None:
        raise ConfigError("ray.dashboard", "true", "with Ray's dashboard installed: pip install 'ray[default]'")
    plain = Config()
    for key in COMPILING:
        if (value := value_at(config, key)) == value_at(plain, key):
            continue
        if not (config.may_compile or (config.measures and key in RUNNING)):
            raise ConfigError(key, value, "only with the compile tier: tiers=[roofline,compile]")
        if key.startswith("budget.") and config.task not in TUNING:
            raise ConfigError(key, value, f"for task=tune; task={config.task} compiles what it is given")
        if key.startswith("compile.") and config.task == "validate" and not config.validate.recompile:
            raise ConfigError(key, value, "only with validate.recompile=true; else the record is read")


def _check_recompile(config: Config) -> None:
    """The record of compiled plans belongs to the tables that are carried, and is made with the compiler's defaults."""
    if config.validate.recompile and not (config.task == "validate" and "compile" in config.tiers):
        raise ConfigError("validate.recompile", True, "only with task=validate tiers=[compile]")
    if config.task != "validate" or "compile" not in config.tiers:
        return
    if config.validate.tables:
        text = "not with tiers=[compile]: the record is of the tables that are carried"
        raise ConfigError("validate.tables", config.validate.tables, text)
    if config.compile.xla != Config().compile.xla:
        text = "not for task=validate: the record has the bundles of its list"
        raise ConfigError("compile.xla", config.compile.xla, text)


def check_run(config: Config) -> None:
    """What only the run tier reads needs that tier, and a task that runs plans."""
    trials = [name for name in ("compile", "run", "command") if name in config.tiers]
    if config.measures and config.task not in TUNING:
        raise ConfigError("tiers", trials[-1], f"for task=tune; task={config.task} runs nothing")
    if config.runs and config.commands:
        raise ConfigError("tiers", config.tiers, "one of run and command: each measures another trainer")
    if config.cascades and config.runs == (config.compile.trainer != Config().compile.trainer):
        wanted = "with tiers=[compile,run] ours, with tiers=[compile,command] maxtext: what is compiled is what runs"
        raise ConfigError("compile.with", config.compile.trainer, wanted)
    if not config.measures and config.run != Config().run:
        given, plain = asdict(config.run), asdict(Config().run)
        key = next(name for name in given if given[name] != plain[name])
        if not (key in ("devices", "cores") and "local" in config.hardware.slices):
            raise ConfigError(f"run.{key}", given[key], "only with the run tier: tiers=[roofline,run]")


def check_command(config: Config) -> None:
    """What a trainer of the user's own needs is given where one runs or compiles."""
    if "command" in config.tiers or config.compile.trainer != "ours":
        return
    plain = Config()
    for key in COMMANDING:
        if (value := value_at(config, key)) != value_at(plain, key):
            wanted = "only where your own trainer runs or compiles: tiers=[roofline,command] or compile.with=maxtext"
            raise ConfigError(spoken(key), value, wanted)

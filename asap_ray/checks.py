"""What a configuration may hold: small checks, each of which raises `ConfigError` for one kind of mistake.

Only what needs neither a file nor the physics is checked here. Slice names, axes and sizes that must divide are checked
by those who own them, before anything is printed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from asap_ray.config import MODEL_FREE, TUNING, CommandConfig, Config
from asap_ray.errors import ConfigError
from asap_ray.recipe import GENES

TASKS: Mapping[str, str] = MappingProxyType(
    {
        "tune": "find the plan with the shortest step on each slice, and say why",
        "explain": "take one plan apart, or with profile=PATH a trace: time by part, its floor, what one step would do",
        "scenario": "take up a published case, +scenario=NAME: its baseline, three proposals, and what it came to",
        "doctor": "tell what this machine and its cluster can do, and what to type where they cannot (no model needed)",
        "calibrate": "fit the roofline's constants to measured runs, and test them on runs left out (no model needed)",
        "compare": "hold search methods against each other on measured tables, planted faults, or with +model your job",
        "nightly": "tune all cells of a matrix, nightly=NAME, and say what improved or regressed since, and why",
        "launch": "write what runs this command on a cluster: KubeRay, Slurm, ray job submit, TPU VMs",
        "export": "write a plan of run_dir as configs of trainers, to=maxtext and so on (no model needed)",
        "train_policy": "train the policy of agents=policy on measured runs and your own (no model needed)",
        "show": "tell what a run directory holds: of run_dir, be it over, going on or killed (no model needed)",
        "remember": "add the trials of the runs in run_dir and below it to the memory of agents (no model needed)",
        "validate": "hold the roofline against public measurements: errors, rankings, memory, floors (no model needed)",
    }
)
# The command line is a contract: these names are taken, and say so, before what they name is there.
LATER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "tiers": ("replay",),
    }
)
LATER_KEYS: tuple[str, ...] = ()
NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "task": tuple(TASKS),
        "tiers": ("auto", "roofline", "compile", "run", "command"),
        "agents.brain": ("auto", "playbook", "llm", "policy", "none"),
        "export.what": ("plans", "trajectories"),
        "search.method": ("random", "tpe", "gp", "cmaes", "nsga2", "qmc", "grid"),
        "search.vary": (*GENES, "none"),
        "output": ("auto", "rich", "plain", "json"),
        "compile.trainer": ("ours", "maxtext"),
        "compare.tasks": ("replay", "planted"),
        "compare.leave_out": ("source", "model"),
        "launch.target": ("local", "ray_job", "slurm", "kuberay", "gce_tpu"),
        "launch.task": ("tune", "nightly", "doctor", "calibrate", "compare", "validate"),
        "workload.optimizer": ("adamw",),
    }
)
# Wide enough for any real job, narrow enough that a slip of the keyboard is caught.
LIMITS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "workload.global_batch": (1, 2**24),
        "workload.seq_len": (1, 2**24),
        "budget.compile": (1, 1000),
        "budget.trials": (0, 10_000),
        "search.proposals": (1, 100),
        "agents.population": (0, 10_000),
        "train_policy.made_up": (0, 1000),
        "train_policy.steps": (1, 100_000),
        "llm.max_calls": (0, 1_000_000),
        "llm.max_tokens": (0, 2**40),
        "command.steps": (2, 10_000),
        "command.workers": (1, 256),
        "compile.workers": (1, 256),
        "run.steps": (3, 10_000),
        "run.warmup": (1, 1000),
        "run.confirm": (0, 100),
        "run.best": (1, 100),
        "run.devices": (1, 64),
        "run.proxy_layers": (1, 10_000),
        "run.cores": (1, 1024),
        "compare.seeds": (1, 10_000),
        "compare.trials": (1, 10_000),
        "compare.truths": (1, 1000),
        "ray.retries": (0, 100),
        "launch.replicas": (1, 10_000),
        "nightly.retries": (0, 10),
        "launch.cpus": (1, 1024),
        "launch.memory_gb": (1, 65_536),
        "seed": (0, 2**32 - 1),
        "top": (1, 1000),
    }
)
TEXTS = (
    *("plan", "baseline", "profile", "run_dir", "config_dir", "model.hf_config", "workload.precision"),
    *(
        "to",
        "hardware.slices",
        "validate.tables",
        "calibrate.tables",
        "compare.tables",
        "compare.only",
        "compare.methods",
        "compile.cache",
        "compile.xla",
        "ray.address",
        "run.proxy_hardware",
    ),
    *("agents.memory_dir", "agents.policy", "llm.base_url", "llm.model", "llm.expert"),
    *(f"launch.{name}" for name in ("name", "image", "wheel", "results", "storage", "schedule", "time_zone")),
    *(f"launch.{name}" for name in ("address", "options", "project", "zone")),
    *("nightly.matrix", "nightly.webhook_hosts"),
    *("train_policy.tables", "train_policy.runs", "train_policy.leave_out"),
    *("command.template", "command.python", "command.script", "command.cwd", "command.args", "command.env"),
)
BUDGETS = ("budget.trials", "budget.compile", "budget.minutes", "budget.chip_hours")
RAY = ("ray.address", "ray.retries", "ray.reserve_s")
COMPILING = (
    *(*BUDGETS, *RAY),
    *("compile.workers", "compile.cache", "compile.timeout_s", "compile.xla", "compile.trainer"),
)
"""Keys that only the compile tier reads, and some of them the run tier."""
RUNNING = (*BUDGETS, *RAY, "compile.xla")
"""Those that the run tier reads too."""
SECONDS = ("ray.reserve_s", "compile.timeout_s", "run.timeout_s", "run.seconds", "launch.hours")
COMMANDING = tuple(f"command.{name}" for name in CommandConfig.__dataclass_fields__)
"""Keys that only a trainer of the user's own needs."""
SHORT: Mapping[str, str] = MappingProxyType(
    {
        "hardware": "hardware.slices",
        "agents": "agents.brain",
        "search": "search.method",
        "command": "command.template",
        "nightly": "nightly.matrix",
        "compile.with": "compile.trainer",  # a name that Python has taken
    }
)
"""Words of the command line that stand for a key."""
MODELS_OF: Mapping[str, str] = {
    **dict.fromkeys(("validate", "calibrate", "train_policy"), "rows name their own models"),
    "show": "it tells what is in run_dir",
    "remember": "it adds what is in run_dir",
    "export": "it writes what is in run_dir",
    "doctor": "it looks at this machine",
    "nightly": "its matrix names them",
}
"""Where tasks that take no model have theirs from."""
LAUNCHING: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("storage", "schedule", "time_zone"), ("kuberay",)),
    **dict.fromkeys(("project", "zone"), ("gce_tpu",)),
    "address": ("ray_job",),
    "options": ("slurm",),
}
"""Keys that only some targets read."""
CRON_FIELDS = 5
MOST_MARGIN = 0.9
NOT_YET = "not part of this version"


def value_at(config: Any, key: str) -> Any:
    """The value at a dotted key of a dataclass or mapping; None where a mapping lacks it."""
    return reduce(
        lambda node, name: node.get(name) if isinstance(node, Mapping) else getattr(node, name), key.split("."), config
    )


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def spoken(key: str) -> str:
    """A key as the command line has it."""
    return next((short for short, long in SHORT.items() if long == key), key)


def check_names(config: Config) -> None:
    """Choices by name: an unknown one is refused with the nearest, a planned one with what works today."""
    for key, allowed in NAMES.items():
        given = value_at(config, key)
        for name in _items(given):
            if name in LATER.get(key, ()):
                raise ConfigError(spoken(key), name, f"{NOT_YET}; allowed now: {', '.join(allowed)}")
            if name is not None and name not in allowed:
                raise ConfigError(spoken(key), name, f"allowed: {', '.join(allowed)}", allowed)
        if given == []:
            raise ConfigError(spoken(key), "[]", f"at least one of: {', '.join(allowed)}")


def check_later_keys(config: Config) -> None:
    """Keys that are promised but would do nothing today are refused rather than ignored."""
    for key in LATER_KEYS:
        if hasattr(config, key.split(".")[0]) and (given := value_at(config, key)) is not None:
            raise ConfigError(key, given, f"{NOT_YET}; leave it out")


def range_text(key: str) -> str:
    """The numbers allowed at a key of `LIMITS`, in words."""
    low, high = LIMITS[key]
    return f"a whole number from {low:,} to {high:,}"


def check_limits(config: Config) -> None:
    """Whole numbers that must lie in a range."""
    for key, (low, high) in LIMITS.items():
        value = value_at(config, key)
        if value is not None and not low <= value <= high:
            raise ConfigError(key, value, range_text(key))


def check_texts(config: Config) -> None:
    """Texts and paths may be left out, but not be empty or hold control characters."""
    for key in TEXTS:
        for text in _items(value_at(config, key)):
            if text is not None and (not str(text).strip() or not str(text).isprintable()):
                raise ConfigError(spoken(key), text, "text that is not empty, on one line")


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
            if any(item is None or item == "" or isinstance(item, list | Mapping) for item in _items(value)):
                raise ConfigError(f"{key}.{name}", value, "a number, a word, or a list of them")


def check_margin(config: Config) -> None:
    """The memory kept free is a share; all of it would leave no plan."""
    if not 0 <= config.space.margin <= MOST_MARGIN:
        raise ConfigError("space.margin", config.space.margin, f"allowed: a share from 0 to {MOST_MARGIN}")


def check_compile(config: Config) -> None:
    """What only the compile tier reads needs that tier, and a task that compiles."""
    if "compile" in config.tiers and config.task == "calibrate":
        raise ConfigError("tiers", "compile", "for task=tune, explain and validate; task=calibrate needs no compiler")
    _check_recompile(config)
    for key in (*("budget.minutes", "budget.chip_hours", "llm.timeout_s", "llm.max_usd"), *SECONDS):
        value = value_at(config, key)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(key, value, "a number above 0")
    bundles = config.compile.xla
    if not bundles:
        raise ConfigError("compile.xla", "[]", "at least one bundle of conf/xla/, such as default")
    if twice := next((name for name in bundles if bundles.count(name) > 1), None):
        raise ConfigError("compile.xla", twice, "each bundle once")
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


def check_command(config: Config) -> None:
    """What a trainer of the user's own needs is given where one runs or compiles."""
    if not 0 < config.command.timeout_s < math.inf:
        raise ConfigError("command.timeout_s", config.command.timeout_s, "a number above 0")
    if "command" in config.tiers or config.compile.trainer != "ours":
        return
    plain = Config()
    for key in COMMANDING:
        if (value := value_at(config, key)) != value_at(plain, key):
            wanted = "only where your own trainer runs or compiles: tiers=[roofline,command] or compile.with=maxtext"
            raise ConfigError(spoken(key), value, wanted)


def check_search(config: Config) -> None:
    """Shares lie between none and all; a gap is a share above nothing."""
    for key in ("search.share", "search.gap"):
        if not 0 <= value_at(config, key) <= 1:
            raise ConfigError(key, value_at(config, key), "a share from 0 to 1")


def _is_address(text: str) -> bool:
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
    if llm.base_url is not None and not _is_address(llm.base_url):
        allowed = "an address such as http://localhost:8000/v1; a key comes from the environment"
        raise ConfigError("llm.base_url", llm.base_url.split("@")[-1].split("?")[0], allowed)
    for name, price in llm.prices.items():
        pair = price if isinstance(price, list) else []
        if len(pair) != 2 or not all(isinstance(each, int | float) and 0 <= each < math.inf for each in pair):
            raise ConfigError(f"llm.prices.{name}", price, "[dollars for a million tokens asked, answered]")


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


def check_run_dir(config: Config) -> None:
    """The run directory exists or can be made; to be shown it need not be writable."""
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


def check_launch(config: Config) -> None:
    """What only task=launch reads needs that task, and each target has keys of its own."""
    given, plain = asdict(config.launch), asdict(Config().launch)
    if config.task != "launch":
        if key := next((name for name in given if given[name] != plain[name]), None):
            raise ConfigError(f"launch.{key}", given[key], "only with task=launch")
        return
    for key, targets in LAUNCHING.items():
        if given[key] != plain[key] and given["target"] not in targets:
            raise ConfigError(f"launch.{key}", given[key], f"only with launch.target={' or '.join(targets)}")
    if given["schedule"] is not None and len(given["schedule"].split()) != CRON_FIELDS:
        raise ConfigError("launch.schedule", given["schedule"], "five fields as cron has them, such as 0 1 * * *")
    if given["name"] is not None and not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", given["name"]):
        allowed = "a name of at most 40 small letters, digits and dashes, with a letter first"
        raise ConfigError("launch.name", given["name"], allowed)
    if given["target"] == "gce_tpu" and (missing := next((key for key in ("project", "zone") if not given[key]), None)):
        raise ConfigError(f"launch.{missing}", None, f"with launch.target=gce_tpu, the {missing} of Google Cloud")
    if config.ray.address is not None:
        raise ConfigError("ray.address", config.ray.address, "left out: the job finds the cluster that it is on")


def check_nightly(config: Config) -> None:
    """A night has a matrix, and only a night has what is said of one."""
    given, plain = config.nightly, Config().nightly
    launched = config.task == "launch" and config.launch.task == "nightly"
    if config.task != "nightly" and not launched:
        names = asdict(given)
        if key := next((name for name in names if names[name] != asdict(plain)[name]), None):
            raise ConfigError(spoken(f"nightly.{key}"), names[key], "only with task=nightly")
        return
    if given.matrix is None:
        raise ConfigError("nightly", None, "the name of a matrix: small, or a file of your own conf/nightly/")
    if not 0 < given.tolerance < 1:
        raise ConfigError("nightly.tolerance", given.tolerance, "a share above 0 and below 1")


def check_tables(config: Config) -> None:
    """A list of tables names at least one."""
    for key in ("validate", "calibrate", "compare", "train_policy"):
        if value_at(config, key).tables == []:
            raise ConfigError(f"{key}.tables", "[]", "at least one table, or null for those that are carried")


CHECKS: Iterable[Callable[[Config], None]] = (
    check_names,
    check_later_keys,
    check_limits,
    check_texts,
    check_model,
    check_profile,
    check_slices,
    check_space,
    check_margin,
    check_tables,
    check_compile,
    check_command,
    check_run,
    check_search,
    check_compare,
    check_llm,
    check_show,
    check_launch,
    check_nightly,
    check_learning,
    check_run_dir,
    check_memory_dir,
)


def check(config: Config) -> Config:
    """Return `config` if every check passes.

    Raises:
        ConfigError: the first mistake found, naming its key.
    """
    for each in CHECKS:
        each(config)
    return config

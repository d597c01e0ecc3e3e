"""The command tier as tasks use it: all that a trial would stumble over is refused before anything starts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from asap_ray.config import Config
from asap_ray.errors import ConfigError
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.problem import Problem
from asap_ray.settings import load_group
from asap_ray.tasks.setting import Setting
from asap_ray.tiers.command import Command, CommandOptions
from asap_ray.tiers.compile import CompileOptions
from asap_ray.tiers.compile_with import CompileWith, CompileWithOptions
from asap_ray.tiers.placeholders import DERIVED, OF_PLAN, names_in
from asap_ray.tiers.roofline import Roofline
from asap_ray.tiers.template import Template, Words
from asap_ray.tiers.templates import template_from_mapping
from asap_ray.tiers.trainer_process import trainer_environment

MAXTEXT = "maxtext"
SAID = ("global_batch", "seq_len", "steps", "total_steps")
"""What else the command says for the user: asap_ray's own keys have it."""
PROBE_S = 120.0
"""How long an interpreter may take to say what is installed: a network drive may be slow."""
PROBE = """
import importlib.metadata, importlib.util, json, sys
module, *packages = sys.argv[1:]
def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
found = not module or importlib.util.find_spec(module) is not None
versions = {package: version(package) for package in packages}
print(json.dumps({"python": list(sys.version_info[:3]), "found": found, "versions": versions}))
"""


def command_tier(config: Config, setting: Setting) -> dict[str, Command]:
    """The command tier of each slice by its name, checked before anything starts.

    Raises:
        ConfigError: there is no such template or it is not for the stack or the slice, or the interpreter, the script
            or the trainer is missing.
    """
    template = with_args(load_template(config), config.command.args)
    calibrations = calibrations_from_mappings(load_group("calibration", config.config_dir))
    for tier in setting.tiers:
        _check_hosts(template, tier.problem)
    options = command_options(config, template)
    tiers = {}
    for tier in setting.tiers:
        problem = tier.problem
        constants = calibration_of(problem.slice.chip, problem.stack.name, calibrations)
        tiers[problem.slice.name] = Command(
            problem=problem, calibration=constants, template=_for_model(config, template), options=options
        )
    return tiers


def load_template(config: Config) -> Template:
    """The template that a command names, or that is called after its stack.

    Raises:
        ConfigError: there is none of that name, it cannot be read, or it is not for the stack.
    """
    name, known = config.command.template or config.stack_name, load_group("command", config.config_dir)
    if name not in known:
        key = "command" if config.command.template else "stack"
        more = "" if config.command.template else "; command=NAME names a template"
        raise ConfigError(key, name, f"a trainer with a template: {', '.join(known)}{more}", known)
    template = template_from_mapping(name, known[name])
    if template.stacks and config.stack_name not in template.stacks:
        raise ConfigError("command", name, f"for stack={', '.join(template.stacks)}, not {config.stack_name}")
    return template


def command_options(config: Config, template: Template) -> CommandOptions:
    """How trainers are run, by what was asked for.

    Raises:
        ConfigError: the interpreter, the script, the folder or what the template needs of it is missing.
    """
    asked = config.command
    python, script = _python(asked.python), _script(asked.script, template)
    if asked.cwd is not None and not Path(os.path.expanduser(asked.cwd)).is_dir():
        raise ConfigError("command.cwd", asked.cwd, "an existing folder")
    for name in asked.env:
        if name not in os.environ:
            raise ConfigError("command.env", name, "names of variables that are set here")
    return CommandOptions(
        python=python,
        script=script,
        trainer=_installed(python, template, asked.env),
        steps=asked.steps or template.steps,
        timeout_s=asked.timeout_s,
        folder=str(config.run_path / "command"),
        cwd=str(Path(os.path.expanduser(asked.cwd)).absolute()) if asked.cwd else None,
        pass_env=tuple(asked.env),
    )


def with_args(template: Template, args: Sequence[str]) -> Template:
    """The template with the user's further words at the end; a `key=value` takes the place of the word with that key.

    Raises:
        ConfigError: a word says what the plan says.
    """
    groups = list(template.argv)
    for word in args:
        name = word.partition("=")[0]
        for i, each in enumerate(groups):
            for place, old in enumerate(each.words):
                if _key(old) == name:
                    _check_free(word, each, place)
            groups[i] = replace(each, words=tuple(old for old in each.words if _key(old) != name))
    return replace(template, argv=(*groups, Words(words=tuple(map(_literal, args))))) if args else template


def _check_free(word: str, group: Words, place: int) -> None:
    """A word of the template is the user's to say: no plan decides it, and both are written key=value."""
    old = group.words[place]
    beside = [old] if "=" in old else list(group.words[place : place + 2])
    said = {name for text in beside for name in names_in(text)}
    if (said | {*group.condition.when, *group.condition.unless}) & {*OF_PLAN, *DERIVED, *SAID}:
        raise ConfigError("command.args", word, f"a word that the plan does not say: {' '.join(beside)}")
    if "=" not in word or "=" not in old:
        raise ConfigError("command.args", word, f"written as in the template, {_key(old)}=VALUE: it has {old}")


def _key(word: str) -> str:
    return word.partition("=")[0] if "=" in word or word.startswith("-") else ""


def _literal(word: str) -> str:
    """The user's word as it is: braces in it name nothing."""
    return word.replace("{", "{{").replace("}", "}}")


def _for_model(config: Config, template: Template) -> Template:
    """Without the template's own names for a model that the command has changed: they would be of another model."""
    name = config.model_name
    carried = load_group("model", config.config_dir).get(name, {})
    changed = "defaults" not in carried and any(config.model.get(key) != value for key, value in carried.items())
    return replace(template, models={key: own for key, own in template.models.items() if not changed or key != name})


def _check_hosts(template: Template, problem: Problem) -> None:
    slice_ = problem.slice
    hosts = -(-slice_.chips // slice_.chip.chips_per_host)
    if template.hosts == "one" and hosts > 1:
        text = f"command={template.name} starts the trainer on one machine, and this slice has {hosts}"
        raise ConfigError("hardware", slice_.name, f"{text}; a template with hosts: any starts it on all of them")


def _python(given: str | None) -> str:
    if given is None:
        return sys.executable
    found = shutil.which(os.path.expanduser(given))
    if found is None:
        raise ConfigError("command.python", given, "the path of a Python interpreter that can be run")
    return os.path.abspath(found)  # not resolved: a virtual environment's python is a link


def _script(given: str | None, template: Template) -> str:
    named = any("script" in names_in(word) for each in template.argv for word in each.words)
    if named and given is None:
        raise ConfigError("command.script", None, f"the path of your trainer's script: command={template.name} runs it")
    if given is None:
        return ""
    if not named:
        raise ConfigError("command.script", given, f"left out: command={template.name} runs no script")
    path = Path(os.path.expanduser(given))
    if not path.is_file():
        raise ConfigError("command.script", given, "the path of your trainer's script")
    return str(path.absolute())


def _installed(python: str, template: Template, pass_env: Sequence[str], beside: Sequence[str] = ()) -> str:
    """The trainer, what is named `beside` it and the Python that runs it, as evidence names them.

    Raises:
        ConfigError: the interpreter does not run, is too old, or has no such trainer.
    """
    environment = trainer_environment(os.environ, pass_env)
    packages = [name for name in (template.package, *beside) if name]
    said = _asked([python, "-c", PROBE, template.module, *packages], environment)
    version = ".".join(map(str, said["python"]))
    if template.requires and tuple(said["python"]) < tuple(int(part) for part in template.requires.split(".")):
        text = f"Python {template.requires} or newer: command={template.name} needs it, and this is {version}"
        raise ConfigError("command.python", python, text)
    if not said["found"]:
        package = template.package or template.module
        text = f"an interpreter that has {template.module}: {python} -m pip install {package}"
        raise ConfigError("command.python", python, text)
    found = [f"{name} {number}" for name, number in said["versions"].items() if number]
    return ", ".join((*found, f"python {version}"))


def _asked(argv: Sequence[str], environment: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        ended = subprocess.run(
            argv, capture_output=True, text=True, timeout=PROBE_S, env=dict(environment), stdin=subprocess.DEVNULL
        )
        said = json.loads(ended.stdout.splitlines()[-1])
        if not isinstance(said, dict) or not isinstance(said.get("versions"), dict):
            raise ValueError("it says something else")
        return said
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        raise ConfigError("command.python", argv[0], "the path of a Python interpreter that can be run") from error


def maxtext_compiler(config: Config, tier: Roofline, options: CompileOptions) -> CompileWith:
    """The compile tier of one slice with the train step of the user's own MaxText.

    Raises:
        ConfigError: the stack is another's, or the interpreter or MaxText is missing.
    """
    template = template_from_mapping(MAXTEXT, load_group("command")[MAXTEXT])
    if config.stack_name not in template.stacks:
        raise ConfigError("compile.with", MAXTEXT, f"for stack={MAXTEXT}, not {config.stack_name}")
    python = _python(config.command.python)
    calibrations = calibrations_from_mappings(load_group("calibration", config.config_dir))
    problem = tier.problem
    return CompileWith(
        problem=problem,
        calibration=calibration_of(problem.slice.chip, problem.stack.name, calibrations),
        template=_for_model(config, with_args(template, config.command.args)),
        options=CompileWithOptions(
            python=python,
            trainer=_installed(python, template, config.command.env, ("jax", "libtpu")),
            flags=options.flags,
            timeout_s=options.timeout_s,
            cache=options.cache,
            pass_env=tuple(config.command.env),
        ),
    )

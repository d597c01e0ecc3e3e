"""Which project a config is of, and which projects a stack's plans can be written for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from asap_ray.interchange import bridge, maxtext, megatron, plain_jax, torchtitan
from asap_ray.interchange.config_text import decoded, shell_words, toml_values, yaml_values
from asap_ray.interchange.exchange import Foreign, Written
from asap_ray.interchange.foreign import ForeignConfig
from asap_ray.plan import Plan
from asap_ray.problem import Problem

WHAT = "a config of MaxText, Megatron-LM, Megatron Bridge or torchtitan: YAML, TOML, or a command line"


class Writer(Protocol):
    """Writes a plan as a project's config; `preset` is the file of conf/model with the model's very sizes, or empty."""

    def __call__(self, problem: Problem, plan: Plan, preset: str = "") -> Written:
        """The plan's files, with what the project has no word for."""
        ...


WRITERS: Mapping[str, tuple[tuple[str, ...], Writer]] = {
    "maxtext": (maxtext.STACKS, maxtext.write),
    "megatron": (megatron.STACKS, megatron.write),
    "bridge": (bridge.STACKS, bridge.write),
    "torchtitan": (torchtitan.STACKS, torchtitan.write),
}
"""Names of trainers: the stacks whose plans they can say, and what writes them."""
ANY: Mapping[str, Writer] = {"jax": plain_jax.write}
"""What writes plans of every stack."""


def writers_of(stack: str) -> dict[str, Writer]:
    """What can write plans of a stack, by name."""
    return {name: writer for name, (stacks, writer) in WRITERS.items() if stack in stacks} | dict(ANY)


def read_job(key: str, path: str | Path) -> Foreign | None:
    """A file as a job of the project that its names tell; None where they tell none.

    Raises:
        ConfigError: the file cannot be read, or is a project's and holds what cannot be used.
    """
    text, suffix = decoded(key, path, WHAT), Path(path).suffix.lower()
    if suffix == ".toml":
        values = toml_values(key, path, text)
        return torchtitan.read(ForeignConfig(key, path, values)) if torchtitan.is_one(values) else None
    if suffix in (".yml", ".yaml"):
        values = yaml_values(key, path, text)
        if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
            return None
        config = ForeignConfig(key, path, values)
        for project, reader in ((maxtext, maxtext.read), (megatron, megatron.read_yaml), (bridge, bridge.read)):
            if project.is_one(values):
                return reader(config)
        return None
    words = shell_words(key, path, text)
    found = (project.read_words(key, str(path), words) for project in (megatron, bridge, maxtext))
    return next((job for job in found if job is not None), None)

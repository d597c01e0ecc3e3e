"""What a command template may name in braces: a closed set of words, with their values for one plan of a problem."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Mapping

from asap_ray.errors import ConfigError
from asap_ray.layers import Attention
from asap_ray.plan import AXES, KNOBS, Plan
from asap_ray.problem import Problem, batch_shards

Value = int | float | bool | str
RUN = ("python", "script", "run_dir", "trace_dir", "file", "steps", "total_steps")
"""Known when a trial starts: the interpreter, the user's script, a scratch folder of the trial, where a profile goes,
the file that the template writes, the steps that are timed, and those with the ones before them that are not."""
OF_PLAN = (*AXES, *(f"{level}_{axis}" for level in ("ici", "dcn") for axis in AXES), *KNOBS)
DERIVED = (
    *("per_device_batch", "per_device_step_batch", "shard_batch", "batch_shards", "layers_per_chunk"),
    *("data_ranks", "weight_replicas"),
)
"""Made of a plan and its workload; they change with the plan."""
OF_PROBLEM = (
    *("global_batch", "seq_len", "model", "known_model", "layers", "d_model", "vocab", "heads", "kv_heads", "head_dim"),
    *("d_ff", "experts", "topk", "tied", "chip", "vendor", "slice", "devices", "ici_devices", "slices"),
)
NAMES = (*OF_PLAN, *DERIVED, *OF_PROBLEM, *RUN)
_NAME = re.compile("[a-z][a-z0-9_]*")


def values_of(problem: Problem, plan: Plan, known_model: bool) -> dict[str, Value]:
    """The value of every placeholder that a plan and its problem give; what a model lacks (experts) is 0.

    `per_device_batch` is sequences of one micro-batch over all devices, which may be a fraction;
    `per_device_step_batch` is of a whole step. `shard_batch` is a step's sequences of one batch shard.
    `layers_per_chunk` are a pipeline stage's layers, or those of one of its virtual chunks.
    """
    axes, workload = plan.axes, problem.workload
    model, devices = workload.architecture, problem.slice.devices
    found: dict[str, Value] = {**axes, **{knob: getattr(plan, knob) for knob in KNOBS}}
    for level, sizes in (("ici", plan.ici), ("dcn", plan.dcn)):
        found |= {f"{level}_{axis}": size for axis, size in zip(AXES, sizes, strict=True)}
    shards = batch_shards(problem.stack, axes)
    found |= {
        "per_device_batch": _whole(workload.global_batch / plan.accumulation / devices),
        "per_device_step_batch": _whole(workload.global_batch / devices),
        "shard_batch": _whole(workload.global_batch / shards),
        "batch_shards": shards,
        "layers_per_chunk": _whole(model.layers / (axes["pipeline"] * plan.virtual)),
        "data_ranks": axes["data"] * axes["fsdp"],
        "weight_replicas": axes["data"],
    }
    attention, experts = model.attention, model.experts
    plain = attention if isinstance(attention, Attention) else None
    return found | {
        "global_batch": workload.global_batch,
        "seq_len": workload.seq_len,
        "model": model.name,
        "known_model": known_model,
        "layers": model.layers,
        "d_model": model.d_model,
        "vocab": model.vocab,
        "heads": attention.heads,
        "kv_heads": attention.kv_heads,
        "head_dim": plain.head_dim if plain else 0,
        "d_ff": model.ffn.d_ff if model.ffn else 0,
        "experts": experts.experts if experts else 0,
        "topk": experts.topk if experts else 0,
        "tied": model.tied,
        "chip": problem.slice.chip.name,
        "vendor": problem.slice.chip.vendor,
        "slice": problem.slice.name,
        "devices": devices,
        "ici_devices": problem.slice.ici_devices,
        "slices": problem.slice.slices,
    }


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value


def written(value: object) -> str:
    """A value as a command line has it: truth in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def names_in(text: str) -> Iterator[str]:
    """Placeholders of a template's text, in order. `{{` and `}}` stand for braces.

    Raises:
        ValueError: a brace that is not closed, or more in it than a name.
    """
    for _, name, spec, conversion in string.Formatter().parse(text):
        if name is None:
            continue
        if spec or conversion or not _NAME.fullmatch(name):
            raise ValueError(f"{{{name}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}}}")
        yield name


def check_names(key: str, text: str, allowed: Iterable[str]) -> None:
    """Every placeholder of a text is a known one.

    Raises:
        ConfigError: one is not, or a brace stands for nothing.
    """
    names = tuple(allowed)
    try:
        found = list(names_in(text))
    except ValueError as error:
        raise ConfigError(key, text, f"a placeholder is a name in braces, such as {{tensor}}: {error}") from error
    for name in found:
        if name not in names:
            raise ConfigError(key, text, f"no placeholder {{{name}}}; allowed: {', '.join(names)}", names)


def filled(text: str, values: Mapping[str, str]) -> str:
    """A text with each placeholder's value in its place.

    Raises:
        KeyError: a placeholder has no value.
    """
    parts = []
    for literal, name, _, _ in string.Formatter().parse(text):
        parts.append(literal)
        if name is not None:
            parts.append(values[name])
    return "".join(parts)

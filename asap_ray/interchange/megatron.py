"""Megatron-LM: options of a command line, of a script around it or of an args file, and its YAML; plans as args files.

Scripts are read as words and never run (`config_text.shell_words`). Of an option given twice both values must agree.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asap_ray.interchange import megatron_core, megatron_model
from asap_ray.interchange.config_text import collected, scalar
from asap_ray.interchange.exchange import Foreign, Written, slips
from asap_ray.interchange.foreign import ForeignConfig
from asap_ray.interchange.megatron_core import Source
from asap_ray.plan import Plan
from asap_ray.problem import Problem

STACKS = ("megatron", "megatron_2021", "megatron_2022", "megatron_vtrain")
SOURCE = Source(project="Megatron-LM", stacks=(*STACKS, "nemo", "bridge", "bridge_fused"), rest="")
"""Its options say plans of every stack on Megatron-Core; `STACKS` are those whose plans are written so."""
SIGNS = frozenset(megatron_core.SIZES.values()) | {"micro_batch_size", "global_batch_size", "num_layers", "hidden_size"}
FLAGS = frozenset(
    {
        *("sequence_parallel", "use_distributed_optimizer", "recompute_activations", "use_flash_attn", "bf16", "fp16"),
        *("grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32", "use_tp_pp_dp_mapping", "swiglu"),
        *("squared_relu", "add_qkv_bias", "qk_layernorm", "group_query_attention", "multi_latent_attention"),
        *("moe_router_enable_expert_bias", *megatron_core.FULLY_SHARDED, *megatron_model.OPPOSITE),
    }
)
"""Options without a value."""
LISTS = frozenset({"recompute_modules", "rampup_batch_size"})
KNOWN = (*megatron_core.READ, *megatron_model.TRANSLATED, *megatron_model.OPPOSITE)


def read_words(key: str, path: str, words: Sequence[str]) -> Foreign | None:
    """A command line, script or args file of Megatron-LM; None where it is none.

    Raises:
        ConfigError: a value is of the wrong kind, says what no plan can, or an option has two values.
    """
    pairs = list(_options(words))
    if len(SIGNS & {name for name, _ in pairs}) < 2:
        return None
    given = collected(key, path, pairs)
    config = ForeignConfig(key, path, given)
    if slip := slips(given, KNOWN):
        raise config.error(slip)
    config = ForeignConfig(key, path, dict(core_names(given)))
    return megatron_core.job(config, SOURCE, megatron_core.precision_of(config))


def _options(words: Sequence[str]) -> Iterable[tuple[str, Any]]:
    """Each option with its value; words that belong to none are passed over."""
    bare = (re.sub(r"^\w+\+?=\(", "", word) for word in words)  # the first of an array: ARGS=(--bf16
    split = [part for word in bare for part in (word.split() if word.startswith("--") else [word])]
    split = [part.rstrip(")") if "(" not in part else part for part in split]
    split = [part for part in split if part]
    starts = [i for i, word in enumerate(split) if re.match(r"--[a-z]", word)]
    for start, end in itertools.pairwise([*starts, len(split)]):
        name, assigned, value = split[start][2:].partition("=")
        name, values = name.replace("-", "_"), [value] if assigned else split[start + 1 : end]
        if name in FLAGS:
            yield name, True
        elif name in LISTS:
            yield name, [scalar(word) for word in values if re.fullmatch(r"[\w.]+", word)]
        else:
            yield name, scalar(values[0]) if values else True


def core_names(given: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Options in the names of Megatron-Core; flags for the opposite are turned round."""
    for name, value in given.items():
        if name in megatron_model.OPPOSITE:
            yield megatron_model.OPPOSITE[name], not value
        else:
            yield megatron_model.TRANSLATED.get(name, name), value


def is_one(values: Mapping[str, Any]) -> bool:
    """Whether a mapping is a YAML config of Megatron-LM, as `--yaml-cfg` takes it."""
    return "language_model" in values and "model_parallel" in values


def read_yaml(config: ForeignConfig) -> Foreign:
    """A YAML config of Megatron-LM: sections of the model and of its parallelism beside options.

    Raises:
        ConfigError: as `read_words`.
    """
    sections = ("language_model", "model_parallel")
    pairs = [(name, value) for name, value in config.values.items() if name not in sections]
    for section in sections:
        if not isinstance(inner := config.values[section], Mapping):
            raise config.error(f"{section}; allowed: a mapping of options")
        pairs += inner.items()
    given = {str(name): value for name, value in pairs if value is not None}
    # A gate is said twice there: by the option, and by what the model's own section calls it.
    given["gated_linear_unit"] = bool(given.pop("swiglu", False) or given.get("gated_linear_unit"))
    flat = ForeignConfig(config.key, config.path, {})
    if slip := slips(given, KNOWN):
        raise flat.error(slip)
    flat = flat.having(dict(core_names(given)))
    return megatron_core.job(flat, SOURCE, megatron_core.precision_of(flat))


def write(problem: Problem, plan: Plan, preset: str = "") -> Written:
    """A plan as an args file, one option a line, with what Megatron-LM has no word for."""
    fields, unsaid = megatron_model.written(problem.workload.architecture)
    options = megatron_core.options(problem, plan)
    if "virtual_pipeline_model_parallel_size" in options:  # the option's name
        options["num_virtual_stages_per_pipeline_rank"] = options.pop("virtual_pipeline_model_parallel_size")
    positions = fields.get("max_position_embeddings", problem.workload.seq_len)
    options |= {**fields, "max_position_embeddings": positions, **_precision(plan.precision)}
    cannot = megatron_core.unsaid(problem, plan)
    if unsaid:
        cannot["model"] = f"not said of the model: {unsaid}"
    if plan.precision not in _FORMATS:
        cannot["precision"] = f"no option for {plan.precision}"
    text = "".join(f"{word}\n" for name, value in options.items() if (word := _word(name, value)))
    return Written(project=SOURCE.project, files={"megatron.args": text}, cannot=cannot)


_FORMATS: Mapping[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "fp8": {"bf16": True, "fp8_format": "hybrid"},
    "mxfp8": {"bf16": True, "fp8_format": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"bf16": True, "fp4_format": "e2m1"},
}


def _precision(precision: str) -> dict[str, Any]:
    return _FORMATS.get(precision, {})


def _word(name: str, value: object) -> str:
    """An option with its value; empty where its absence says the same."""
    flags = {theirs: name for name, theirs in megatron_model.OPPOSITE.items()}
    if name in flags:
        return "" if value else f"--{flags[name].replace('_', '-')}"
    option = {core: name for name, core in megatron_model.TRANSLATED.items()}.get(name, name).replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else ""
    if isinstance(value, list):
        return f"--{option} {' '.join(map(str, value))}"
    return f"--{option} {shlex.quote(str(value))}"

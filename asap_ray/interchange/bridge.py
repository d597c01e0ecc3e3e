"""Megatron Bridge: overrides of a recipe, as YAML or as `section.name=value` words, read and written.

What a recipe itself sets is in its code and not in these files; what they leave out is read as Megatron-Core's default,
and told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from asap_ray.interchange import megatron_core
from asap_ray.interchange.config_text import collected, scalar
from asap_ray.interchange.exchange import Foreign, Written, slips
from asap_ray.interchange.foreign import ForeignConfig, told
from asap_ray.interchange.megatron_core import Source
from asap_ray.plan import Plan
from asap_ray.problem import Problem

STACKS = ("bridge", "bridge_fused", "nemo")
SOURCE = Source(project="Megatron Bridge", stacks=STACKS, rest="where the recipe sets nothing else")
SECTIONS = ("model", "train", "ddp", "optimizer", "mixed_precision", "dataset", "comm_overlap", "dist")
"""Sections of its ConfigContainer that have a part in a plan; its first releases called them `model_config`, …"""
MIXED = {"bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_current_scaling_mixed"}
MIXED |= {"mxfp8": "bf16_with_mxfp8_mixed", "nvfp4": "bf16_with_nvfp4_mixed"}
"""Our precision -> the name of a recipe of mixed precision."""


def is_one(values: Mapping[str, Any]) -> bool:
    """Whether a mapping is an override file of Megatron Bridge."""
    inner = _sections(values)
    model, train = (each if isinstance(each := inner.get(name), Mapping) else {} for name in ("model", "train"))
    return any(size in model for size in megatron_core.SIZES.values()) or "micro_batch_size" in train


def _sections(values: Mapping[str, Any]) -> dict[str, Any]:
    whole = values.get("ConfigContainer", values)
    if not isinstance(whole, Mapping):
        return {}
    return {str(name).removesuffix("_config"): inner for name, inner in whole.items() if isinstance(name, str)}


def read_words(key: str, path: str, words: Sequence[str]) -> Foreign | None:
    """A command line with overrides of a recipe; None where there are none.

    Raises:
        ConfigError: as `read`, or a name has two values.
    """
    split = [word.lstrip("+").partition("=") for word in words if re.match(r"\+*[a-z_]+\.[a-z0-9_]+=", word)]
    nested: dict[str, Any] = {}
    for name, value in collected(key, path, [(name, scalar(text)) for name, _, text in split]).items():
        section, _, field = name.partition(".")
        nested.setdefault(section, {})[field] = value
    return read(ForeignConfig(key, path, nested)) if is_one(nested) else None


def read(config: ForeignConfig) -> Foreign:
    """Overrides of a recipe as a job.

    Raises:
        ConfigError: a value is of the wrong kind, says what no plan can, or two sections disagree.
    """
    pairs: list[tuple[str, Any]] = []
    sections = _sections(config.values)
    for section in SECTIONS:
        inner = sections.get(section)
        if isinstance(inner, Mapping):
            pairs += [(str(name), value) for name, value in inner.items() if value is not None]
        elif inner is not None and section != "mixed_precision":
            raise config.error(f"{section}={told(inner)}; allowed: a mapping")
    pairs = [
        (name, value) for name, value in pairs if name in megatron_core.READ or megatron_core.OF_SPEED.search(name)
    ]
    given = collected(config.key, config.path, pairs)
    flat = ForeignConfig(config.key, config.path, given)
    if slip := slips(given, megatron_core.READ):
        raise flat.error(slip)
    return megatron_core.job(flat, SOURCE, _precision(config, sections.get("mixed_precision"), flat))


def _precision(config: ForeignConfig, mixed: object, flat: ForeignConfig) -> str:
    """By the name of a recipe of mixed precision, or by flags of that section or the model; bf16 where neither is."""
    if isinstance(mixed, str):
        for name, pattern in (
            ("nvfp4", "nvfp4"),
            ("mxfp8", "mxfp8"),
            ("fp8", "fp8"),
            ("fp16", "fp16"),
            ("bf16", "bf16"),
        ):
            if pattern in mixed:
                return name
        raise config.error(f"mixed_precision={told(mixed)}; allowed: {', '.join(MIXED.values())}")
    said = any(flat.has(name) for name in ("bf16", "fp16", "fp8", "fp8_format", "fp4"))
    return megatron_core.precision_of(flat) if said else "bf16"


def write(problem: Problem, plan: Plan, preset: str = "") -> Written:
    """A plan as overrides of a recipe, in YAML, with what Megatron Bridge has no word for."""
    options = megatron_core.options(problem, plan)
    train = {name: options.pop(name) for name in ("global_batch_size", "micro_batch_size")}
    sharded = bool(options.pop("use_distributed_optimizer", False))
    # A recipe may set what this plan does without: every choice is spelt out.
    plain = {"virtual_pipeline_model_parallel_size": None, "pipeline_model_parallel_layout": None}
    plain |= {"sequence_parallel": False, "recompute_granularity": None, "recompute_method": None}
    model = {**plain, **options, "recompute_num_layers": options.get("recompute_num_layers")}
    sections: dict[str, Any] = {
        "model": model,
        "train": train,
        "dataset": {"seq_length": problem.workload.seq_len},
        "ddp": {"use_distributed_optimizer": sharded},
        "optimizer": {"use_distributed_optimizer": sharded},
    }
    cannot = megatron_core.unsaid(problem, plan)
    if plan.precision in MIXED:
        sections["mixed_precision"] = MIXED[plan.precision]
    else:
        cannot["precision"] = f"no recipe of mixed precision for {plan.precision}"
    lines = []
    for section, inner in sections.items():
        if isinstance(inner, dict):
            lines += [f"{section}:", *(f"  {name}: {_yaml(value)}" for name, value in inner.items())]
        else:
            lines.append(f"{section}: {_yaml(inner)}")
    return Written(project=SOURCE.project, files={"bridge.yaml": "\n".join(lines) + "\n"}, cannot=cannot)


def _yaml(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return text if re.fullmatch(r"[\w.]+", text) else f'"{text}"'

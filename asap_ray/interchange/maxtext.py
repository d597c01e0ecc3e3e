"""MaxText: its YAML configs and its `key=value` command lines, read as jobs, and plans written as both.

Names, defaults and arithmetic are those of MaxText's configs/base.yml and pyconfig: a step is `per_device_batch_size` ×
devices × `gradient_accumulation_steps` sequences, the product of devices and batch rounded down; a pipeline splits each
accumulation step into `num_pipeline_microbatches`, and goes `num_pipeline_repeats` times round its stages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from asap_ray.interchange import maxtext_model, maxtext_remat
from asap_ray.interchange.config_text import collected, scalar
from asap_ray.interchange.exchange import REST, Foreign, Written, slips
from asap_ray.interchange.foreign import ForeignConfig, told
from asap_ray.meshes import layouts_of
from asap_ray.plan import AXES, Plan
from asap_ray.problem import Problem, batch_shards
from asap_ray.workload import Workload

PROJECT, STACKS = "MaxText", ("maxtext",)
INEXPRESSIBLE = (
    *("diloco", "fsdp_transpose", "sequence", "context_usp_ulysses", "context_autoregressive"),
    *("tensor_transpose", "tensor_sequence", "autoregressive"),
)
"""Mesh axes of MaxText that a plan has no word for."""

READ = (
    *(f"{level}_{axis}_parallelism" for level in ("ici", "dcn") for axis in (*AXES, *INEXPRESSIBLE)),
    *("model_name", "per_device_batch_size", "gradient_accumulation_steps", "max_target_length", "remat_policy"),
    *("attention", "dtype", "quantization", "shard_optimizer_over_data", "num_pipeline_microbatches"),
    *("num_pipeline_repeats", "num_layers_per_pipeline_stage", "pipeline_parallel_layers", "scan_layers"),
    *("pipeline_delay_activation_forwarding", "optimizer_memory_host_offload", "parameter_memory_host_offload"),
    *maxtext_model.FIELDS,
    *maxtext_remat.PLACED,
)
SIGNS = frozenset(READ) - {"attention", "dtype", "context", "head_dim", "vocab_size", "num_experts", "scan_layers"}
"""Names that tell a config of MaxText from others."""
OF_SPEED = re.compile(
    "^(ici|dcn)_|parallel|pipeline|remat|offload|shard|mesh|quant|dtype|kernel|flash|sa_|megablox|sparse_matmul|capacity|"
    "expansion_factor|tiling|tile|batch_split|ring|fused|context|packing|optimizer|opt_type|mtp|indexer|moba"
)
"""Names that may change how long a step takes: of those not read, these are told."""


def is_one(values: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of MaxText."""
    return len(SIGNS & set(values)) > 0


def read_words(key: str, path: str, words: Sequence[str]) -> Foreign | None:
    """A command line or script of MaxText; None where it is none.

    Raises:
        ConfigError: as `read`, or a name has two values.
    """
    split = (word.partition("=") for word in words if re.match("[a-z][a-z0-9_]*=", word))
    pairs = [(name, scalar(text)) for name, _, text in split]
    return read(ForeignConfig(key, path, collected(key, path, pairs))) if is_one(dict(pairs)) else None


def read(config: ForeignConfig) -> Foreign:
    """A config of MaxText as a job.

    Raises:
        ConfigError: a value is of the wrong kind, or says what no plan can.
    """
    if slip := slips(config.values, READ):
        raise config.error(slip)
    inside, across = _axes(config, "ici", "fsdp"), _axes(config, "dcn", "data")
    steps = config.size("gradient_accumulation_steps", 1)
    name = config.values.get("model_name", "default")
    model = maxtext_model.model(config) if name == "default" else None
    preset = "" if name == "default" else maxtext_model.MODELS.get(config.name("model_name"), "")
    if REST in (inside["pipeline"], across["pipeline"]):
        raise config.error(f"a pipeline of {REST} stages cannot be read; allowed: how many there are")
    pipelined = inside["pipeline"] * across["pipeline"]
    each, virtual = _pipeline(config, pipelined)
    return Foreign(
        project=PROJECT,
        stacks=STACKS,
        key=config.key,
        path=str(config.path),
        preset=preset,
        model=model if config.has("base_emb_dim") or config.has("global_parameter_scale") else None,
        claims=maxtext_model.claims(config),
        seq_len=config.size("max_target_length", 2048),
        per_device=_per_device(config) * steps,
        precision=_precision(config),
        inside=inside,
        across=across,
        accumulation=steps * each,
        chunk_layers=config.size("num_layers_per_pipeline_stage", 1) if virtual is None else None,
        knobs={
            "zero": int(config.flag("shard_optimizer_over_data")),
            "schedule": "none" if pipelined == 1 else "interleaved" if (virtual or 1) > 1 else "gpipe",
            "virtual": virtual or 1,
            "sequence_parallel": True,
            "remat": maxtext_remat.policy(config),
            "attention": _attention(config),
        },
        notes=tuple(_notes(config, steps, pipelined, str(name))),
        defaults=tuple(_left_out(config)),
        unread=tuple(sorted(each for each in config.values if each not in READ and OF_SPEED.search(str(each)))),
    )


def _axes(config: ForeignConfig, level: str, default: str) -> dict[str, int]:
    sizes = {}
    for axis in (*AXES, *INEXPRESSIBLE):
        name = f"{level}_{axis}_parallelism"
        value = config.values.get(name, REST if axis == default else 1)
        size = REST if value == REST and type(value) is int else config.size(name, 1)
        if axis in AXES:
            sizes[axis] = size
        elif size != 1:
            raise config.error(f"{name}={size} is no axis of a plan; allowed: 1, and sizes of {', '.join(AXES)}")
    return sizes


def _per_device(config: ForeignConfig) -> Fraction:
    given = config.number("per_device_batch_size", 12.0)
    if not given:
        raise config.error("per_device_batch_size=0; allowed: a number above 0")
    # A share of a sequence is one divided by devices, rounded to a float: the nearest fraction of a mesh's size.
    return Fraction(given).limit_denominator(2**20)


def _pipeline(config: ForeignConfig, stages: int) -> tuple[int, int | None]:
    """Micro-batches of an accumulation step, and times round the stages, None where these follow from the layers."""
    if stages == 1:
        return 1, 1
    delayed = config.flag("pipeline_delay_activation_forwarding")
    micro = config.values.get("num_pipeline_microbatches", REST)
    count = stages * (2 if delayed else 1) if micro == REST else config.size("num_pipeline_microbatches")
    repeats = config.values.get("num_pipeline_repeats", REST)
    return count, None if repeats == REST else config.size("num_pipeline_repeats")


def _precision(config: ForeignConfig) -> str:
    kind = config.choice("dtype", ("bfloat16", "float32", "float16"), "bfloat16")
    narrow = config.values.get("quantization") or ""
    if narrow:
        found = {"int8": "int8", "fp8": "fp8", "nanoo_fp8": "fp8", "fp8_full": "fp8", "fp8_gpu": "fp8"}.get(str(narrow))
        if found is None:
            raise config.error(f"quantization={told(narrow)}; allowed: int8, fp8, nanoo_fp8, fp8_full, or none")
        return found
    return {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}[str(kind)]


def _attention(config: ForeignConfig) -> str:
    kind = config.choice("attention", ("autoselected", "flash", "cudnn_flash_te", "cudnn_flash_jax", "dot_product"))
    return "unfused" if kind == "dot_product" else "flash"


def _notes(config: ForeignConfig, steps: int, stages: int, name: str) -> list[str]:
    found = []
    if steps > 1 and stages > 1:
        found.append(
            f"gradient_accumulation_steps={steps} fills and drains the pipeline {steps} times; the plan does it once"
        )
    if name != "default" and name not in maxtext_model.MODELS:
        found.append(f"model_name={told(name)} is no model of ours; what it is made of is not compared")
    for flag in ("optimizer_memory_host_offload", "parameter_memory_host_offload"):
        if config.flag(flag):
            found.append(f"{flag}=true has no word in a plan: this state is counted on the device")
    if config.values.get("pipeline_parallel_layers", REST) != REST and stages > 1:
        found.append("pipeline_parallel_layers has no word in a plan: all layers are taken to be in the pipeline")
    return found


def _left_out(config: ForeignConfig) -> list[str]:
    """What decides the plan and is left to MaxText's defaults."""
    defaults = {
        "per_device_batch_size": 12.0,
        "max_target_length": 2048,
        "remat_policy": "full",
        "attention": "autoselected",
        "ici_fsdp_parallelism": REST,
        "dcn_data_parallelism": REST,
    }
    return [f"{name}={value}" for name, value in defaults.items() if not config.has(name)]


def write(problem: Problem, plan: Plan, preset: str = "") -> Written:
    """A plan as a YAML config of MaxText and as `key=value` words, with what MaxText has no word for.

    `preset` is the file of conf/model with the model's very sizes, empty where there is none.
    """
    workload, where = problem.workload, problem.slice
    fields, unsaid = maxtext_model.written(workload.architecture, preset)
    fields |= {"max_target_length": workload.seq_len, **_batch_fields(problem, plan)}
    for level, sizes in (("ici", plan.ici), ("dcn", plan.dcn)):
        fields |= {f"{level}_{axis}_parallelism": size for axis, size in zip(AXES, sizes, strict=True)}
    fields |= _pipeline_fields(workload, plan) if plan.axes["pipeline"] > 1 else {}
    fields |= maxtext_remat.fields(plan.remat, workload.architecture.experts is not None)
    gpu = where.chip.kind == "gpu"
    flash = "cudnn_flash_te" if gpu else "flash"
    fields |= {
        "attention": "dot_product" if plan.attention == "unfused" else flash,
        "quantization": "" if plan.precision in ("bf16", "fp16", "fp32") else plan.precision,
        "dtype": {"fp32": "float32", "fp16": "float16"}.get(plan.precision, "bfloat16"),
        "shard_optimizer_over_data": plan.zero > 0 and plan.axes["fsdp"] == 1,
        **({"hardware": "gpu"} if gpu else {}),
    }
    cannot = {}
    if plan.layout and len(layouts_of(problem, plan.ici)) > 1:
        cannot["layout"] = "MaxText lets JAX lay the mesh on the torus (mesh_utils), which may choose another layout"
    if plan.zero and plan.axes["fsdp"] > 1:
        cannot["zero"] = "it takes shard_optimizer_over_data without fsdp only (0.2.5, config validation)"
    elif plan.zero > 1:
        cannot["zero"] = "shard_optimizer_over_data shards the optimizer's state alone (ZeRO-1)"
    if unsaid:
        cannot["model"] = f"not said of the model: {unsaid}; set its own model_name"
    text = "base_config: base.yml\n" + "".join(f"{name}: {_yaml(value)}\n" for name, value in fields.items())
    line = " ".join(f"{name}={_word(value)}" for name, value in fields.items()) + "\n"
    return Written(project=PROJECT, files={"maxtext.yml": text, "maxtext.txt": line}, cannot=cannot)


def _yaml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    if isinstance(value, str):
        return f'"{value}"' if not value or not value.replace("_", "a").isalnum() else value
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _word(value: object) -> str:
    text = f"[{','.join(map(str, value))}]" if isinstance(value, list) else _yaml(value)
    return text if re.fullmatch(r"[\w.\-]+", text) else f"'{text.strip(chr(34))}'"


def _batch_fields(problem: Problem, plan: Plan) -> dict[str, Any]:
    """With a pipeline all micro-batches go through it at once; else they are accumulation steps."""
    steps = plan.accumulation if plan.axes["pipeline"] == 1 else 1
    sequences = plan.micro_batch * int(batch_shards(problem.stack, plan.axes)) * (plan.accumulation // steps)
    devices = problem.slice.devices
    share = sequences / devices
    while int(share * devices) < sequences:  # MaxText rounds the product down
        share = math.nextafter(share, math.inf)
    return {"per_device_batch_size": share, "gradient_accumulation_steps": steps}


def _pipeline_fields(workload: Workload, plan: Plan) -> dict[str, Any]:
    return {
        "num_pipeline_microbatches": plan.accumulation,
        "num_pipeline_repeats": plan.virtual,
        "num_layers_per_pipeline_stage": workload.architecture.layers // (plan.axes["pipeline"] * plan.virtual),
    }

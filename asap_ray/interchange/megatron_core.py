"""What Megatron-LM and Megatron Bridge share: names of Megatron-Core's TransformerConfig, and options of its trainers.

Defaults and arithmetic are those of megatron/training/arguments.py and megatron/core/transformer/transformer_config.py:
data parallelism is what tensor, pipeline and context leave; experts lie within data and context; virtual stages are
given as their number, as layers of each, or by a layout string.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from asap_ray.interchange import megatron_model
from asap_ray.interchange.exchange import REST, Foreign, laid
from asap_ray.interchange.foreign import ForeignConfig, told
from asap_ray.plan import AXES, Plan, six
from asap_ray.problem import Problem

SIZES = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "context": "context_parallel_size",
    "expert": "expert_model_parallel_size",
}
FULLY_SHARDED = ("use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2")
BACKENDS = {"auto": "flash", "flash": "flash", "fused": "flash", "unfused": "unfused", "local": "unfused"}
MODULES = {
    frozenset({"core_attn"}): "selective",
    frozenset({"layernorm", "moe_act"}): "layernorm_moe_act",
    frozenset({"mla_up_proj"}): "mla_up_proj",
}
"""`recompute_modules` -> the policy of a stack that computes these again."""
NARROW = {"fp8": ("hybrid", "e4m3"), "fp4": ("e2m1",)}
READ = (
    *SIZES.values(),
    *FULLY_SHARDED,
    *("micro_batch_size", "global_batch_size", "rampup_batch_size", "seq_length", "sequence_parallel"),
    *("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank", "use_distributed_optimizer"),
    *("num_layers_per_virtual_pipeline_stage", "pipeline_model_parallel_layout", "expert_tensor_parallel_size"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"),
    *("recompute_activations", "attention_backend", "use_flash_attn", "bf16", "fp16", "fp8", "fp8_format"),
    *(
        "fp8_recipe",
        "fp4",
        "fp4_format",
        "grad_reduce_in_bf16",
        "grad_reduce_in_fp32",
        "data_parallel_sharding_strategy",
    ),
    *("accumulate_allreduce_grads_in_fp32", "use_tp_pp_dp_mapping"),
    *megatron_model.FIELDS,
)
OF_SPEED = re.compile(
    "parallel|pipeline|recompute|offload|overlap|fusion|fused|fp8|fp4|moe_|_graph|optimizer|grad_reduce|comm|pad|mtp|"
    "fsdp|dispatcher|deepep|transformer_impl|decoder_(first|last)"
)
"""Names that may change how long a step takes: of those not read, these are told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where a config is from: the project, the stacks of its plans, and what decides what it leaves out."""

    project: str
    stacks: tuple[str, ...]
    rest: str


def job(config: ForeignConfig, source: Source, precision: str) -> Foreign:
    """A flat config of Megatron's names as a job.

    Raises:
        ConfigError: a value is of the wrong kind, or says what no plan can.
    """
    for name in FULLY_SHARDED:
        if config.flag(name):
            raise config.error(f"{name}=true shards weights over the data ranks, which a plan of Megatron cannot say")
    sizes = {axis: config.size(name, 1) for axis, name in SIZES.items()}
    micro = config.size("micro_batch_size")
    batch = config.size("global_batch_size") if config.has("global_batch_size") else None
    alone = Fraction(micro, sizes["tensor"] * sizes["pipeline"] * sizes["context"])
    virtual, chunk_layers = _chunks(config, sizes["pipeline"])
    remat, note = _policy(config)
    model = megatron_model.model(config)
    return Foreign(
        project=source.project,
        stacks=source.stacks,
        key=config.key,
        path=str(config.path),
        model=model,
        claims=megatron_model.claims(config),
        seq_len=config.size("seq_length") if config.has("seq_length") else None,
        global_batch=batch,
        per_device=alone,
        precision=precision,
        inside={**sizes, "data": REST},
        micro_batch=micro,
        chunk_layers=chunk_layers,
        knobs={
            "zero": int(config.flag("use_distributed_optimizer")),
            "schedule": "none" if sizes["pipeline"] == 1 else "interleaved" if virtual > 1 else "1f1b",
            "virtual": virtual,
            "sequence_parallel": config.flag("sequence_parallel"),
            "remat": remat,
            "attention": _attention(config),
        },
        notes=(*note, *_notes(config, sizes)),
        defaults=tuple(_left_out(config, source.rest)),
        unread=tuple(sorted(each for each in config.values if each not in READ and OF_SPEED.search(str(each)))),
    )


def _chunks(config: ForeignConfig, stages: int) -> tuple[int, int | None]:
    """Chunks of a stage, or the layers of each chunk, from which they follow."""
    names = ("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank")
    given = [name for name in (*names, "num_layers_per_virtual_pipeline_stage") if config.has(name)]
    if len(given) > 1:
        raise config.error(f"{' and '.join(given)} say the same; allowed: one of them")
    if config.has("pipeline_model_parallel_layout"):
        chunks = layout_stages(config)
        if len(chunks) % stages:
            raise config.error(f"pipeline_model_parallel_layout has {len(chunks)} stages, no multiple of {stages}")
        return len(chunks) // stages, None
    if given and given[0] in names:
        return config.size(given[0]) if stages > 1 else 1, None
    return 1, config.size(given[0]) if given and stages > 1 else None


def layout_stages(config: ForeignConfig) -> list[int]:
    """Layers of each stage in a layout such as `Et*3|(tt|)*29,m|L`, in the order of the layers.

    Raises:
        ConfigError: it cannot be read.
    """
    text = re.sub(r"[\s'\",]", "", config.name("pipeline_model_parallel_layout"))
    rule = f"pipeline_model_parallel_layout={told(text)}; allowed: a text such as Et*3|(tt|)*29m|L"
    for pattern in (r"\(([EtmL|*\d]*)\)\*(\d{1,4})", r"([EtmL|])\*(\d{1,4})"):
        while match := re.search(pattern, text):
            if len(match[1]) * int(match[2]) > 10_000:
                raise config.error(rule)
            text = text[: match.start()] + match[1] * int(match[2]) + text[match.end() :]
    if not re.fullmatch(r"[EtmL|]+", text) or len(text) > 100_000:
        raise config.error(rule)
    return [stage.count("t") for stage in text.split("|")]


def _policy(config: ForeignConfig) -> tuple[str, list[str]]:
    """The recomputation policy by the stack's name, and what it only approximates."""
    kind = config.choice("recompute_granularity", ("selective", "full"))
    if kind is None:
        kind = "selective" if config.flag("recompute_activations") else "none"
    if kind == "selective":
        given = config.values.get("recompute_modules") or ["core_attn"]
        modules = frozenset(map(str, given if isinstance(given, list) else [given]))
        if modules not in MODULES:
            allowed = "; ".join(", ".join(sorted(each)) for each in MODULES)
            raise config.error(f"recompute_modules={', '.join(sorted(modules))}; allowed: {allowed}")
        return MODULES[modules], []
    if kind == "full":
        method = config.choice("recompute_method", ("uniform", "block"), "uniform")
        count = config.size("recompute_num_layers", 1)
        if method == "block" and count != config.values.get("num_layers"):
            return kind, [f"recompute_method=block of {count} layers a stage is taken to be of all layers"]
        if method == "uniform" and count > 1:
            return kind, [
                f"recompute_num_layers={count} keeps one input of so many layers; the plan keeps each layer's"
            ]
    return kind, []


def _attention(config: ForeignConfig) -> str:
    text = str(config.values.get("attention_backend") or "auto").removeprefix("AttnBackend.")
    if text not in BACKENDS:
        raise config.error(f"attention_backend={told(text)}; allowed: {', '.join(BACKENDS)}")
    return BACKENDS[text]


def precision_of(config: ForeignConfig) -> str:
    """The number format of the matmuls, as flags and formats say it."""
    for name in ("fp4", "fp4_format", "fp8", "fp8_format"):
        kind = config.choice(name, NARROW[name[:3]])
        if kind is not None:
            recipe = str(config.values.get("fp8_recipe") or "")
            return "nvfp4" if name.startswith("fp4") else "mxfp8" if recipe == "mxfp8" else "fp8"
    return "bf16" if config.flag("bf16") else "fp16" if config.flag("fp16") else "fp32"


def _notes(config: ForeignConfig, sizes: Mapping[str, int]) -> list[str]:
    found = []
    etp = config.size("expert_tensor_parallel_size", sizes["tensor"])
    if sizes["expert"] > 1 and etp != sizes["tensor"]:
        found.append(
            f"expert_tensor_parallel_size={etp} beside tensor {sizes['tensor']}: a plan splits experts over tensor, too"
        )
    if config.has("rampup_batch_size"):
        found.append("rampup_batch_size: the batch at the end of the ramp is taken")
    if config.flag("grad_reduce_in_bf16"):
        found.append(
            "gradients in bf16 are the habit of stack=nemo and stack=bridge; stack=megatron keeps them in fp32"
        )
    if config.flag("use_tp_pp_dp_mapping"):
        found.append("use_tp_pp_dp_mapping lays pipeline ranks inside data ranks; a plan has them outside")
    if config.has("pipeline_model_parallel_layout"):
        found.append("the layers of a pipeline_model_parallel_layout are taken to be dealt out evenly")
    return found


def _left_out(config: ForeignConfig, rest: str) -> list[str]:
    defaults = {**dict.fromkeys(SIZES.values(), 1), "recompute_granularity": "none", "attention_backend": "auto"}
    found = [f"{name}={value}" for name, value in defaults.items() if not config.has(name)]
    return [*found, f"({rest})"] if found and rest else found


def options(problem: Problem, plan: Plan) -> dict[str, Any]:
    """A plan in Megatron-Core's names: flags, numbers, names and lists; what is off is left out."""
    axes = plan.axes
    found: dict[str, Any] = {name: axes[axis] for axis, name in SIZES.items()}
    found |= {"micro_batch_size": plan.micro_batch, "global_batch_size": problem.workload.global_batch}
    found |= {"seq_length": problem.workload.seq_len}
    if axes["expert"] > 1:
        found["expert_tensor_parallel_size"] = axes["tensor"]
    chunks = axes["pipeline"] * plan.virtual
    if chunks > 1 and problem.workload.architecture.layers % chunks:
        found["pipeline_model_parallel_layout"] = _layout(problem.workload.architecture.layers, chunks)
    elif plan.virtual > 1:
        found["virtual_pipeline_model_parallel_size"] = plan.virtual
    found |= {"sequence_parallel": True} if plan.sequence_parallel else {}
    found |= {"use_distributed_optimizer": True} if plan.zero else {}
    found |= _recompute(plan.remat)
    return {**found, "attention_backend": "unfused" if plan.attention == "unfused" else "flash"}


def _layout(layers: int, chunks: int) -> str:
    """Layers dealt out evenly, what is left over from the second chunk on: the first has the embedding, too."""
    even, over = divmod(layers, chunks)
    counts = [even + (0 < chunk <= over) for chunk in range(chunks)]
    stages = [f"t*{count}" if count else "" for count in counts]
    return f"E{'|'.join(stages)}L"


def _recompute(remat: str) -> dict[str, Any]:
    if remat == "none":
        return {}
    if remat == "full":
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    modules = next(sorted(modules) for modules, policy in MODULES.items() if policy == remat)
    return {"recompute_granularity": "selective", "recompute_modules": modules}


def unsaid(problem: Problem, plan: Plan) -> dict[str, str]:
    """What of a plan Megatron has no word for."""
    ici, dcn = laid(problem, plan.axes)
    found = {}
    if (six(ici[axis] for axis in AXES), six(dcn[axis] for axis in AXES)) != (plan.ici, plan.dcn):
        found["mesh"] = "ranks are laid tensor innermost, then context, data and pipeline: not as this plan has them"
    if plan.zero > 1:
        found["zero"] = "its distributed optimizer is ZeRO-1"
    return found

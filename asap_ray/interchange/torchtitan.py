"""torchtitan: its TOML configs, read as jobs, and plans written as them.

Names, defaults and arithmetic are those of its config/job_config.py and distributed/pipeline_parallel.py of 2025: the
batch of a data rank is `local_batch_size`, which a pipeline splits into `pipeline_parallel_microbatch_size`; stages are
as many as layers, with those that the first and last stage have less, make of `pipeline_parallel_layers_per_stage`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from asap_ray.interchange.exchange import REST, Foreign, Written, laid, slips
from asap_ray.interchange.foreign import ForeignConfig, told
from asap_ray.plan import AXES, Plan, six
from asap_ray.problem import Problem

PROJECT, COMPILED, EAGER = "torchtitan", "torchtitan", "torchtitan_eager"
STACKS = (COMPILED, EAGER)
MODELS: Mapping[str, str] = {
    "llama3 8B": "llama3_8b",
    "llama3 70B": "llama3_70b",
    "llama3 405B": "llama3_1_405b",
    "deepseek_v3 671B": "deepseek_v3",
    **{
        f"qwen3 {size}": f"qwen3_{size.lower().replace('.', '_')}"
        for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B")
    },
    "qwen3 30B-A3B": "qwen3_30b_a3b",
    "qwen3 235B-A22B": "qwen3_235b_a22b",
}
"""`name flavor` of a model -> the same model of conf/model; of those with the same sizes the first is written."""
SAME = {"llama3_1_8b": "llama3_8b", "llama3_1_70b": "llama3_70b"}
DEGREES = {
    "data": "data_parallel_replicate_degree",
    "fsdp": "data_parallel_shard_degree",
    "pipeline": "pipeline_parallel_degree",
    "context": "context_parallel_degree",
    "expert": "expert_parallel_degree",
    "tensor": "tensor_parallel_degree",
}
SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
    "zbvzerobubble": "zero_bubble",
    "interleavedzerobubble": "zero_bubble",
}
CONVERTERS = {"fp8": "quantize.linear.float8", "mxfp8": "quantize.linear.mx"}
WRITTEN = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "zero_bubble": "ZBVZeroBubble"}
READ = (
    *(f"parallelism.{name}" for name in DEGREES.values()),
    *("parallelism.expert_tensor_parallel_degree", "parallelism.pipeline_parallel_schedule"),
    *("parallelism.pipeline_parallel_layers_per_stage", "parallelism.pipeline_parallel_microbatch_size"),
    *("parallelism.pipeline_parallel_first_stage_less_layers", "parallelism.fsdp_reshard_after_forward"),
    *("parallelism.pipeline_parallel_last_stage_less_layers", "parallelism.enable_async_tensor_parallel"),
    *("parallelism.pipeline_parallel_split_points", "parallelism.module_fqns_per_model_part"),
    *("training.local_batch_size", "training.global_batch_size", "training.seq_len", "training.batch_size"),
    *("training.compile", "training.enable_cpu_offload", "training.mixed_precision_param"),
    *("training.mixed_precision_reduce", "model.name", "model.flavor", "model.converters", "compile.enable"),
    *("activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"),
)
OF_SPEED = re.compile(r"^(parallelism|activation_checkpoint|compile|float8|quantize|mx)\.|offload|precision|batch")
"""Names that may change how long a step takes: of those not read, these are told."""


def is_one(values: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of torchtitan."""
    return isinstance(values.get("parallelism"), Mapping) or {"training.seq_len", "model.flavor"} <= set(_flat(values))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def read(config: ForeignConfig) -> Foreign:
    """A config of torchtitan as a job.

    Raises:
        ConfigError: a value is of the wrong kind, or says what no plan can.
    """
    flat = ForeignConfig(config.key, config.path, _flat(config.values))
    if slip := slips(flat.values, READ):
        raise flat.error(slip)
    sizes = {axis: _degree(flat, f"parallelism.{name}", axis) for axis, name in DEGREES.items()}
    piped = sizes["pipeline"] > 1
    local = _local_batch(flat)
    micro = flat.size("parallelism.pipeline_parallel_microbatch_size", 1) if piped else local
    stated = flat.values.get("training.global_batch_size", REST)
    compiled = flat.flag("compile.enable", flat.flag("training.compile"))
    schedule = _schedule(flat) if piped else "none"
    virtual, chunk_layers, less_layers = _chunks(flat, schedule)
    remat, notes = _policy(flat)
    model = f"{flat.values.get('model.name', 'llama3')} {flat.values.get('model.flavor', 'debugmodel')}"
    return Foreign(
        project=PROJECT,
        stacks=(COMPILED if compiled else EAGER,),
        key=flat.key,
        path=str(flat.path),
        preset=MODELS.get(model, ""),
        seq_len=flat.size("training.seq_len", 2048),
        global_batch=None if stated == REST else flat.size("training.global_batch_size"),
        per_device=Fraction(local, sizes["tensor"] * sizes["pipeline"] * sizes["context"]),
        precision=_precision(flat),
        inside=sizes,
        micro_batch=micro,
        chunk_layers=chunk_layers,
        less_layers=less_layers,
        knobs={
            "schedule": schedule,
            "virtual": virtual,
            "sequence_parallel": True,
            "remat": remat,
        },
        notes=(*notes, *_notes(flat, sizes, model), *(_accumulated(flat, sizes, local) if piped else ())),
        defaults=tuple(_left_out(flat)),
        unread=tuple(sorted(name for name in flat.values if name not in READ and OF_SPEED.search(name))),
    )


def _degree(flat: ForeignConfig, name: str, axis: str) -> int:
    value = flat.values.get(name, REST if axis == "fsdp" else 1)
    if value == REST and axis == "fsdp":
        return REST
    return flat.size(name, 1)


def _local_batch(flat: ForeignConfig) -> int:
    """The batch of a data rank, by its name of today or the one until mid-2025."""
    if flat.has("training.batch_size") and flat.has("training.local_batch_size"):
        raise flat.error("training.batch_size and training.local_batch_size say the same; allowed: one of them")
    return flat.size("training.batch_size" if flat.has("training.batch_size") else "training.local_batch_size", 8)


def _schedule(flat: ForeignConfig) -> str:
    text = str(flat.values.get("parallelism.pipeline_parallel_schedule", "1F1B"))
    if text.lower() not in SCHEDULES:
        allowed = ", ".join(WRITTEN.values())
        raise flat.error(f"parallelism.pipeline_parallel_schedule={told(text)}; allowed: {allowed}")
    return SCHEDULES[text.lower()]


def _chunks(flat: ForeignConfig, schedule: str) -> tuple[int, int | None, int | None]:
    """Chunks of a stage; or the layers of a chunk, and those that first and last have less, from which they follow."""
    if schedule != "interleaved":
        return 1, None, None
    if not flat.has("parallelism.pipeline_parallel_layers_per_stage"):
        return 2, None, None
    less = [flat.size(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 1, 0) for end in ("first", "last")]
    return 1, flat.size("parallelism.pipeline_parallel_layers_per_stage"), sum(less)


def _policy(flat: ForeignConfig) -> tuple[str, list[str]]:
    mode = flat.choice("activation_checkpoint.mode", ("none", "selective", "full"), "selective")
    option = str(flat.values.get("activation_checkpoint.selective_ac_option", "2"))
    if mode == "selective" and option != "op":
        return "selective", [
            f"activation_checkpoint.selective_ac_option={told(option)} computes every so many layers again; "
            "the plan's selective is its op"
        ]
    return str(mode), []


def _precision(flat: ForeignConfig) -> str:
    given = flat.values.get("model.converters") or []
    words = given.split(",") if isinstance(given, str) else given
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise flat.error(f"model.converters={told(given)}; allowed: a list of names")
    if any("float8" in word for word in words):
        return "fp8"
    if any(re.search(r"\bmx", word) for word in words):
        return "mxfp8"
    return "fp32" if flat.values.get("training.mixed_precision_param") == "float32" else "bf16"


def _accumulated(flat: ForeignConfig, sizes: Mapping[str, int], local: int) -> list[str]:
    """That a pipeline is filled once an accumulation step, where there is or may be more than one."""
    batch, shards = flat.values.get("training.global_batch_size", REST), sizes["data"] * sizes["fsdp"]
    if batch == REST or batch == local * shards:
        return []
    steps = "each accumulation step (if there are several)" if shards < 0 else "each accumulation step"
    return [f"{steps} fills and drains the pipeline; the plan does it once"]


def _notes(flat: ForeignConfig, sizes: Mapping[str, int], model: str) -> list[str]:
    found = []
    if model not in MODELS and flat.has("model.flavor"):
        found.append(f"model {told(model)} is none of ours; what it is made of is not compared")
    if sizes["expert"] > 1 and sizes["tensor"] > 1:
        etp = flat.size("parallelism.expert_tensor_parallel_degree", 1)
        if etp != sizes["tensor"]:
            found.append(f"expert_tensor_parallel_degree={etp}: a plan splits experts over tensor, too")
    if flat.flag("training.enable_cpu_offload"):
        found.append("training.enable_cpu_offload=true has no word in a plan: all state is counted on the device")
    if flat.values.get("parallelism.pipeline_parallel_schedule") == "InterleavedZeroBubble":
        found.append("InterleavedZeroBubble is read as a zero-bubble schedule of one chunk a stage")
    for name in ("pipeline_parallel_split_points", "module_fqns_per_model_part"):
        if flat.values.get(f"parallelism.{name}"):
            found.append(f"parallelism.{name}: the layers are taken to be dealt out evenly")
    if flat.values.get("parallelism.fsdp_reshard_after_forward") == "never":
        found.append("fsdp_reshard_after_forward=never keeps gathered weights; the plan gathers them twice")
    return found


def _left_out(flat: ForeignConfig) -> list[str]:
    defaults = {
        "training.seq_len": 2048,
        "training.global_batch_size": REST,
        "parallelism.data_parallel_shard_degree": REST,
        "activation_checkpoint.mode": "selective",
        "compile.enable": "false",
    }
    if flat.has("training.compile"):
        defaults.pop("compile.enable")
    if not flat.has("training.batch_size"):
        defaults["training.local_batch_size"] = 8
    return [f"{name}={value}" for name, value in defaults.items() if not flat.has(name)]


def write(problem: Problem, plan: Plan, preset: str = "") -> Written:
    """A plan as a TOML config of torchtitan, with what it has no word for."""
    ours = SAME.get(preset, preset)
    model = next((theirs for theirs, name in MODELS.items() if name == ours), "")
    piped = plan.axes["pipeline"] > 1
    selective = {"selective_ac_option": "op"} if plan.remat == "selective" else {}
    narrow = {"converters": [CONVERTERS[plan.precision]]} if plan.precision in CONVERTERS else {}
    tables: dict[str, dict[str, Any]] = {
        "model": {**(dict(zip(("name", "flavor"), model.split(), strict=True)) if model else {}), **narrow},
        "training": {
            "local_batch_size": plan.micro_batch * (plan.accumulation if piped else 1),
            "global_batch_size": problem.workload.global_batch,
            "seq_len": problem.workload.seq_len,
            **({"mixed_precision_param": "float32"} if plan.precision == "fp32" else {}),
        },
        "parallelism": {name: plan.axes[axis] for axis, name in DEGREES.items()} | _stages(problem, plan),
        "activation_checkpoint": {"mode": plan.remat, **selective},
        "compile": {"enable": problem.stack.name != EAGER},
    }
    if plan.axes["expert"] > 1:
        tables["parallelism"]["expert_tensor_parallel_degree"] = plan.axes["tensor"]
    text = "\n".join(
        f"[{table}]\n" + "".join(f"{name} = {_toml(value)}\n" for name, value in inner.items())
        for table, inner in tables.items()
        if inner
    )
    return Written(project=PROJECT, files={"torchtitan.toml": text}, cannot=_unsaid(problem, plan, model))


def _unsaid(problem: Problem, plan: Plan, model: str) -> dict[str, str]:
    """What of a plan torchtitan has no word for."""
    found = {} if model else {"model": "set model.name and model.flavor to your own model"}
    if _layers_per_stage(problem.workload.architecture.layers, plan) is None:
        chunks = plan.axes["pipeline"] * plan.virtual
        found["virtual"] = f"no layers a stage make {chunks} stages of this model: module_fqns_per_model_part can"
    ici, dcn = laid(problem, plan.axes)
    if (six(ici[axis] for axis in AXES), six(dcn[axis] for axis in AXES)) != (plan.ici, plan.dcn):
        found["mesh"] = "ranks are laid tensor innermost, then context, shards, replicas and pipeline: not as here"
    if plan.zero:
        found["zero"] = "replicas keep whole optimizer states"
    if plan.attention != "flash":
        found["attention"] = "its attention is a fused kernel"
    if plan.precision not in ("bf16", "fp32", *CONVERTERS):
        found["precision"] = f"no converter for {plan.precision}"
    return found


def _stages(problem: Problem, plan: Plan) -> dict[str, Any]:
    """The settings of a pipeline; none without one."""
    if plan.axes["pipeline"] == 1:
        return {}
    more = _layers_per_stage(problem.workload.architecture.layers, plan) or {}
    named = {"pipeline_parallel_schedule": WRITTEN[plan.schedule]}
    return {**named, "pipeline_parallel_microbatch_size": plan.micro_batch, **more}


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _layers_per_stage(layers: int, plan: Plan) -> dict[str, int] | None:
    """What makes this many chunks of a stage: nothing for the two that are its default; None where nothing does."""
    if plan.schedule != "interleaved" or plan.virtual == 2:
        return {}
    chunks = plan.axes["pipeline"] * plan.virtual
    for less in (2, 0):
        each = math.ceil((layers + less) / chunks)
        if math.ceil((layers + less) / each) == chunks:
            ends = {f"pipeline_parallel_{end}_stage_less_layers": less // 2 for end in ("first", "last")}
            return {"pipeline_parallel_layers_per_stage": each, **(ends if less == 0 else {})}
    return None

"""Ways in for files of other projects: models, trainers' configs, tables of measurements."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
from hypothesis import strategies as st

from asap_ray.interchange.exchange import plan_of
from asap_ray.interchange.huggingface import read_config
from asap_ray.interchange.measured_tables import read_table, read_tables
from asap_ray.interchange.projects import read_job
from asap_ray.problem import Problem
from asap_ray.settings import data_dir
from asap_ray.tasks.predictions import load_mapper, map_rows
from tests.fuzz import bombs
from tests.fuzz.mutations import as_json, as_yaml, lines, mappings, torn
from tests.fuzz.places import placed
from tests.fuzz.running import Reader
from tests.interchange import test_huggingface, test_maxtext, test_megatron, test_torchtitan
from tests.problems import make_problem

MAXTEXT = {
    **{"base_config": "base.yml", "model_name": "default", "base_emb_dim": 512, "base_num_decoder_layers": 8},
    **{"base_num_query_heads": 8, "base_num_kv_heads": 2, "head_dim": 64, "base_mlp_dim": 1024, "vocab_size": 32000},
    **{
        "per_device_batch_size": 1.5,
        "gradient_accumulation_steps": 2,
        "max_target_length": 2048,
        "remat_policy": "full",
    },
    **{"ici_fsdp_parallelism": -1, "ici_tensor_parallelism": 2, "dcn_data_parallelism": -1, "quantization": "fp8"},
    **{"num_pipeline_microbatches": 4, "num_pipeline_repeats": 2, "ici_pipeline_parallelism": 2, "attention": "flash"},
    **{
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "decoder_block": "mixtral",
        "dtype": "bfloat16",
        "mlp_activations": ["silu", "linear"],
    },
}
MEGATRON_YAML = {
    "language_model": {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 128},
    "model_parallel": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "context_parallel_size": 1},
    **{"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 128, "bf16": True, "recompute_granularity": "full"},
    "pipeline_model_parallel_layout": "E(t|)*3,m|L",
}
BRIDGE = {
    "model": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "num_layers": 8, "hidden_size": 64},
    "train": {"micro_batch_size": 1, "global_batch_size": 16},
    **{
        "ddp": {"use_distributed_optimizer": True},
        "mixed_precision": "bf16_mixed",
        "optimizer": {},
        "dataset": {"seq_length": 64},
    },
}
TOML = tuple(value for value in vars(test_torchtitan).values() if isinstance(value, str) and "[training]" in value)
SHELL = tuple(
    value
    for module in (test_megatron, test_maxtext)
    for value in vars(module).values()
    if isinstance(value, str) and value.count("=") + value.count("--") > 3
)


def readers() -> Iterator[Reader]:
    """All of them."""
    published = [config for config, _ in test_huggingface.PUBLISHED.values()]
    yield Reader(
        name="HuggingFace config.json",
        read=placed("config.json", read_config),
        inputs=torn(mappings(published).map(as_json)),
        bombs=bombs.JSON,
    )
    for name, samples in (
        ("MaxText yml", [MAXTEXT]),
        ("Megatron yaml", [MEGATRON_YAML]),
        ("Bridge and NeMo yaml", [BRIDGE]),
    ):
        yield Reader(
            name=name, read=placed("job.yaml", _job), inputs=torn(mappings(samples).map(as_yaml)), bombs=bombs.YAML
        )
    yield Reader(name="torchtitan toml", read=placed("job.toml", _job), inputs=torn(lines(TOML)), bombs=bombs.TOML)
    yield Reader(
        name="shell scripts of trainers", read=placed("job.sh", _job), inputs=torn(lines(SHELL)), bombs=bombs.TEXT
    )
    yield Reader(name="words of trainers", read=placed("job.txt", _job), inputs=torn(lines(SHELL, " ")))
    yield Reader(
        name="tables, CSV",
        read=placed("table.csv", _table),
        inputs=st.deferred(lambda: torn(st.builds(_csv, mappings(_rows())))),
        bombs=(
            *bombs.TEXT,
            *bombs.JSON[:4],
            lambda: _csv({"hardware": ["x" * 2**20] * 60, "framework": ["a"] * 60, "chips": [1] * 60}),
        ),
        share=0.5,
    )
    yield Reader(
        name="tables, Parquet",
        read=placed("table.parquet", _table),
        inputs=st.deferred(lambda: torn(st.builds(_parquet, mappings(_rows())))),
        bombs=(
            partial(bombs.parquet_bomb, ("hardware", "framework", "chips")),
            lambda: b"PAR1" + b"\0" * 100 + b"PAR1",
            lambda: b"PAR1" + b"\xff" * 100 + b"\xff\xff\xff\x7fPAR1",
        ),
        share=0.5,
    )


@cache
def _problems() -> tuple[Problem, ...]:
    return tuple(
        make_problem(where, stack, model="tiny", batch=16)
        for where, stack in (
            ("v5e-8", "maxtext"),
            ("h100x8", "megatron"),
            ("h100x16", "torchtitan"),
            ("h100x8", "bridge"),
        )
    )


def _job(path: Path) -> None:
    job = read_job("baseline", path)
    if job is None:
        return
    for problem in _problems():
        if problem.stack.name in job.stacks:
            job.batch_on(problem.slice.devices)
            job.differences(problem.workload.architecture)
            plan_of(job, problem)


def _table(path: Path) -> None:
    map_rows(read_tables("compare.tables", [path]), _mapper())


@cache
def _mapper() -> Any:
    return load_mapper()


@cache
def _rows() -> list[dict[str, list[Any]]]:
    """Columns of a few rows of each table that the package carries."""
    found = []
    for path in sorted((data_dir("knowledge") / "measured").glob("*.parquet")):
        for start in (0, 40):
            rows = read_table(path)[start : start + 4]
            names = [name for name in rows[0] if any(row.get(name) is not None for row in rows) and name != "table"]
            found.append({name: [row.get(name) for row in rows] for name in names})
    return found


def _lists(columns: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: cells if isinstance(cells, list) else [cells] for name, cells in columns.items()}


def _csv(columns: dict[str, Any]) -> bytes:
    lists = _lists(columns)
    quoted = ",".join('"' + name.replace('"', '""') + '"' for name in lists)
    count = max((len(cells) for cells in lists.values()), default=0)
    body = "".join(
        ",".join(_cell(cells[row] if row < len(cells) else "") for cells in lists.values()) + "\n"
        for row in range(count)
    )
    return f"{quoted}\n{body}".encode("utf-8", "surrogatepass")


def _cell(value: Any) -> str:
    try:
        text = "" if value is None else str(value)
    except ValueError:  # an integer of more digits than Python writes
        text = "9" * 5000
    return f'"{text.replace(chr(34), chr(34) * 2)}"' if any(sign in text for sign in ',"\n') else text


def _parquet(columns: dict[str, Any]) -> bytes:
    """The columns as a table; what fits no column is put in as text."""
    arrays = {}
    lists = _lists(columns)
    count = max((len(cells) for cells in lists.values()), default=0)
    for name, cells in lists.items():
        padded = [*cells, *[None] * (count - len(cells))]
        try:
            arrays[_whole(name)] = pa.array(padded)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            arrays[_whole(name)] = pa.array([_whole(_cell(each)) for each in padded])
    out = io.BytesIO()
    try:
        parquet.write_table(pa.table(arrays), out)
    except (pa.ArrowException, ValueError):
        return b"PAR1"
    return out.getvalue()


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8", "replace")

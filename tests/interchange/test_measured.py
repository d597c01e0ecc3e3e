"""Rows of public tables become the runs that their sources describe."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pytest

from asap_ray.chip import chip_from_mapping
from asap_ray.interchange.measured import Mapper, MeasuredRow, Unmapped, by_problem
from asap_ray.interchange.measured_tables import read_table
from asap_ray.interchange.measured_words import cell
from asap_ray.settings import data_dir, load_group, read_settings
from asap_ray.stack import stack_from_mapping

TABLES = data_dir("knowledge") / "measured"
NAMES = ("training", "ultrascale", "vtrain_multi", "vtrain_single")
GPT = {"id": "x", "table": "t", "status": "ok", "model": "GPT", "layers": 24, "d_model": 1024, "d_ff": 4096}
GPT |= {"n_heads": 16, "seq_len": 2048, "vocab": 51200, "hardware": "H100", "precision": "bf16"}
GPT |= {"framework": "Megatron-LM", "source_name": "a test", "remat": "full", "tp": 1, "pp": 1, "dp": 1, "chips": 1}


@pytest.fixture(scope="module")
def mapper() -> Mapper:
    return Mapper(
        chips={name: chip_from_mapping(given) for name, given in load_group("hardware").items()},
        stacks={name: stack_from_mapping(given) for name, given in load_group("stack").items()},
        models=load_group("model"),
        defaults=read_settings(TABLES / "defaults.yaml"),
    )


@pytest.fixture(scope="module")
def tables() -> dict[str, dict[str, Any]]:
    return {row["id"]: row for name in NAMES for row in read_table(TABLES / f"{name}.parquet")}


@pytest.fixture(scope="module")
def mapped(mapper: Mapper, tables: dict[str, dict[str, Any]]) -> dict[str, MeasuredRow | Unmapped]:
    return {name: mapper.map(row) for name, row in tables.items()}


@pytest.fixture(scope="module")
def runs(mapped: dict[str, MeasuredRow | Unmapped]) -> list[MeasuredRow]:
    return [row for row in mapped.values() if isinstance(row, MeasuredRow)]


def run(mapper: Mapper, **changed: Any) -> MeasuredRow:
    row = mapper.map({**GPT, **changed})
    assert isinstance(row, MeasuredRow), row
    return row


def test_tables_hold_every_published_row(tables: dict[str, dict[str, Any]]) -> None:
    assert Counter(row["table"] for row in tables.values()) == dict(zip(NAMES, (1206, 1707, 73, 774), strict=True))
    assert all(row["source_url"].startswith("http") for row in tables.values())


def test_nearly_every_row_with_shape_mesh_and_time_is_mapped(mapped: dict[str, MeasuredRow | Unmapped]) -> None:
    timed = [row for row in mapped.values() if isinstance(row, MeasuredRow) and row.step_time_s is not None]
    missed = Counter(row.reason for row in mapped.values() if isinstance(row, Unmapped) and row.complete)
    share = len(timed) / (len(timed) + missed.total())
    print(f"mapped {len(timed)} of {len(timed) + missed.total()} rows; the others: {dict(missed)}")
    assert share >= 0.95
    assert max(missed.values()) < 20


def test_plans_fill_their_slice_and_their_batch(runs: list[MeasuredRow]) -> None:
    for row in runs:
        axes, stack = row.plan.axes, row.problem.stack
        shards = axes["data"] * axes["fsdp"] * (axes["expert"] if stack.expert_multiplies else 1)
        assert shards * axes["tensor"] * axes["context"] * axes["pipeline"] == row.problem.slice.devices, row.id
        assert row.plan.micro_batch * row.plan.accumulation * shards == row.problem.workload.global_batch, row.id
        assert row.plan.remat in stack.remat_names


def test_models_have_the_parameters_that_llm_foundry_counted(runs: list[MeasuredRow]) -> None:
    stated = {row.id: re.search(r"NumParams=([\d,]+)", row.notes) for row in runs}
    counted = {row.id: row.problem.workload.architecture.parameters for row in runs if stated[row.id]}
    assert len(counted) == 141
    assert counted == {name: int(found[1].replace(",", "")) for name, found in stated.items() if found}


@pytest.mark.parametrize(
    ("source", "rows", "within"),
    [("ironwood README", 32, 0.003), ("MaxText README performance tables", 28, 0.03)],
)
def test_flops_agree_with_what_maxtext_logged(runs: list[MeasuredRow], source: str, rows: int, within: float) -> None:
    # MaxText counts attention as causal in these (in the v4 rows not at all). The recipes log both time and TFLOP/s;
    # the older tables give TFLOP/s alone, from which the time follows by 6 N: there the model's size is tested.
    chosen = [row for row in runs if source in row.source and row.step_time_s and row.tflops_per_chip]
    assert len(chosen) == rows
    for row in chosen:
        assert row.step_time_s
        assert row.tflops_per_chip
        done = row.problem.workload.model_flops / (row.step_time_s * row.problem.slice.chips)
        assert done == pytest.approx(row.tflops_per_chip * 1e12, rel=within), row.id


@pytest.mark.parametrize(
    ("name", "slice_name", "line"),
    [
        # Korthikanti et al., table 5: 175B on 64 A100 as tensor 8, pipeline 8, three chunks, with sequence parallelism.
        (
            "korthikanti-004",
            "a100x64",
            "pipeline=1x8 tensor=8 micro_batch=1 accumulation=64 schedule=interleaved virtual=3 "
            "sequence_parallel=true remat=selective precision=fp16 attention=unfused",
        ),
        # gpu-recipes: dcn_dp16 x dcn_fsdp2 x ici_ep8.
        (
            "gpurecipes-005",
            "h200x256",
            "data=1x16 fsdp=1x2 expert=8 micro_batch=5 accumulation=1 remat=minimal",
        ),
        # tpu-recipes: fsdp 64 x tensor 4 in each of two slices, fsdp 2 across them.
        (
            "trillium-006",
            "2xv6e-256",
            "fsdp=64@8.8x2 tensor=4@2.2 micro_batch=4 accumulation=1 sequence_parallel=true "
            "remat=offload_input_qkv_out",
        ),
        ("mlperf-025", "4xv6e-256", "data=1x4 fsdp=256@16.16 micro_batch=2 accumulation=1 remat=full precision=int8"),
        # TPU7x: 128 chips of two devices, the die in between.
        ("ironwood-002", "tpu7x-256", "fsdp=256@4.4.8.2 micro_batch=8 accumulation=1 remat=offload_input"),
    ],
)
def test_known_runs(mapped: dict[str, MeasuredRow | Unmapped], name: str, slice_name: str, line: str) -> None:
    row = mapped[name]
    assert isinstance(row, MeasuredRow), row
    assert row.problem.slice.name == slice_name
    assert row.plan.line == line


@pytest.mark.parametrize(
    ("row", "slice_name", "plan"),
    [
        # Megatron lays tensor ranks next to each other, then data, then pipeline stages.
        ({"chips": 16, "tp": 2, "pp": 2, "dp": 4, "global_batch_seqs": 8}, "h100x16", "data=4 pipeline=1x2 tensor=2"),
        ({"chips": 16, "tp": 16, "global_batch_seqs": 4}, "h100x16", "tensor=8x2"),
        # Twelve GPUs are no whole number of nodes: domains that hold a tensor group.
        ({"chips": 12, "tp": 4, "dp": 3, "global_batch_seqs": 3}, "h100:3x4", "data=1x3 tensor=4"),
        ({"chips": 12, "tp": 2, "dp": 6, "global_batch_seqs": 6}, "h100:2x6", "data=3x2 tensor=2"),
        # Racks of 72 are used by 64 where powers of two are wanted.
        ({"chips": 128, "hardware": "GB200", "tp": 4, "dp": 32, "global_batch_seqs": 32}, "gb200:2x64", "tensor=4"),
    ],
)
def test_ranks_fill_domains_from_the_inside(mapper: Mapper, row: dict[str, Any], slice_name: str, plan: str) -> None:
    found = run(mapper, **row)
    assert found.problem.slice.name == slice_name
    assert plan in found.plan.line


def test_experts_that_tensor_ranks_share_count_once(mapper: Mapper) -> None:
    moe = {
        "model": "Mixtral",
        "moe_experts": 8,
        "moe_topk": 2,
        "n_kv_heads": 16,
        "remat": "none",
        "global_batch_seqs": 4,
    }
    assert run(mapper, **moe, chips=8, tp=2, dp=4, ep=8).plan.axes["expert"] == 4
    assert run(mapper, **moe, chips=8, tp=2, dp=4, ep=2).plan.axes["expert"] == 2


def test_time_comes_from_throughput_where_no_time_is_given(mapper: Mapper) -> None:
    row = run(mapper, global_batch_seqs=4, metric_tokens_per_s_per_chip=2048.0)
    assert (row.step_time_s, row.time_basis) == (4.0, "tokens")


def test_what_a_row_lacks_is_listed_with_its_reason(mapper: Mapper) -> None:
    row = run(mapper, global_batch_seqs=4, vocab=None, remat=None)
    assert [reason.split(":")[0] for reason in row.inferred] == ["vocab", "micro_batch", "remat"]
    assert row.problem.workload.architecture.vocab == 50304
    assert row.plan.remat == "none"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "global_batch_seqs: not stated"),
        ({"hardware": "Trainium2"}, "hardware: Trainium2 is not described"),
        ({"framework": "a new one"}, "framework: a new one has no translation"),
        ({"dp": 2, "global_batch_seqs": 4}, "mesh: its degrees do not multiply to the devices"),
        ({"global_batch_seqs": 4, "micro_batch_per_dp_rank": 3}, "batch: micro-batches on all replicas do not"),
        ({"global_batch_seqs": 4, "grad_accum": 2}, "batch: micro-batch, accumulation and replicas do not"),
        ({"global_batch_seqs": 4, "layers": None}, "layers: not stated"),
        ({"global_batch_seqs": 4, "n_heads": 5}, "head_dim: not stated"),
        ({"global_batch_seqs": 4, "fsdp_zero": "FSDP (+DP)"}, "fsdp: how it and pure replicas share"),
        ({"global_batch_seqs": 4, "hardware": "TPU v5p", "chips": 3}, "mesh: its degrees do not multiply"),
        ({"global_batch_seqs": 4, "hardware": "TPU v5p", "chips": 3, "dp": 3}, "slice: no slice has that many chips"),
        ({"global_batch_seqs": 4, "remat": "some new policy"}, "remat: some new policy has no translation"),
    ],
)
def test_a_row_that_stands_for_no_plan_says_why(mapper: Mapper, row: dict[str, Any], reason: str) -> None:
    found = mapper.map({**GPT, **row})
    assert isinstance(found, Unmapped)
    assert found.reason.startswith(reason)


def test_rows_of_one_workload_share_a_problem(runs: list[MeasuredRow]) -> None:
    groups = by_problem(runs)
    assert sum(len(rows) for _, rows in groups) == len(runs)
    assert len({(p.slice.name, p.stack.name, p.workload) for p, _ in groups}) == len(groups) < len(runs) / 4


@pytest.mark.parametrize("name", NAMES)
def test_csv_reads_as_parquet_does(tmp_path: Any, name: str) -> None:
    path = tmp_path / f"{name}.csv"
    csv.write_csv(pa.parquet.read_table(TABLES / f"{name}.parquet"), path)
    assert read_table(path) == read_table(TABLES / f"{name}.parquet")


def test_vtrains_milliseconds_are_seconds() -> None:
    assert read_table(TABLES / "vtrain_multi.parquet")[0]["metric_step_time_s"] == 3.5665


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("layers", "24", 24),
        ("layers", " 24.0 ", 24),
        ("tp", "two", "two"),
        ("metric_mfu", "41.5", 41.5),
        ("metric_mfu", "inf", None),
        ("metric_mfu", float("nan"), None),
        ("model", "13", "13"),
        ("notes", b"caf\xe9", "caf\ufffd"),
        ("notes", "  ", None),
    ],
)
def test_cells_are_numbers_where_their_column_holds_numbers(name: str, given: Any, expected: Any) -> None:
    assert cell(name, given) == expected


def test_an_evaluation_among_the_steps_is_taken_off(mapper: Mapper) -> None:
    note = "step time = block wall time 23.96 s / 4 steps (eval-corrected estimate 5.564 s, inferred)"
    timed = {"metric_step_time_s": 5.99, "global_batch_seqs": 8}
    alone, plain = run(mapper, **timed, notes=note), run(mapper, **timed)
    assert (alone.step_time_s, alone.time_basis) == (5.564, "corrected")
    assert any(reason.startswith("step time") for reason in alone.inferred)
    assert (plain.step_time_s, plain.time_basis) == (5.99, "metric")


def test_experts_have_the_capacity_that_a_note_states(mapped: dict[str, MeasuredRow | Unmapped]) -> None:
    for name, capacity in {"trillium-009": 1.25, "gpurecipes-005": 1.0, "ironwood-002": 0.0}.items():
        row = mapped[name]
        assert isinstance(row, MeasuredRow), row
        assert row.problem.workload.expert_capacity == capacity

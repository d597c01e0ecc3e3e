"""`task=validate` from the command line: small tables of each schema, every kind of broken table and row."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet
import pytest

from asap_ray.settings import data_dir
from asap_ray.tasks import validate

TABLES = data_dir("knowledge") / "measured"
KEYS = {"overall", "by_source", "by_hardware", "ranking", "memory", "memory_error", "floor", "floor_violations"}
KEYS |= {"coverage", "unmapped"}
ERRORS = ("name", "n", "inferred", "median_ape", "mean_ape", "p90_ape", "bias")
GPT: dict[str, Any] = {"id": "a-1", "source_name": "a lab", "source_url": "https://example.org/a", "model": "GPT"}
GPT |= {"layers": 24, "d_model": 1024, "d_ff": 4096, "n_heads": 16, "vocab": 51200, "seq_len": 2048, "hardware": "H100"}
GPT |= {"chips": 8, "precision": "bf16", "tp": 1, "pp": 1, "dp": 8, "micro_batch_per_dp_rank": 1, "status": "ok"}
GPT |= {"global_batch_seqs": 32, "framework": "Megatron-LM", "remat": "full", "metric_step_time_s": 0.5, "quality": "A"}
GPT |= {"rank_group": "g", "notes": ""}
VTRAIN = {"hardware": "A100-80GB", "gpus": 8, "global_batch_seqs": 16, "micro_batch": 2, "d_model": 1024, "n_heads": 16}
VTRAIN |= {"layers": 24, "seq_len": 1024, "tp": 2, "dp": 4, "pp": 1, "step_time_ms": 400.0, "workload": "w"}
VTRAIN |= {"source_url": "https://example.org/v"}


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "drawn_page" not in request.fixturenames:
        monkeypatch.setattr(validate, "validation_page", lambda answer: "<!doctype html>\n")


def table(name: str, *rows: dict[str, Any]) -> str:
    header = list(dict.fromkeys(key for row in rows for key in row))
    with Path(name).open("w", newline="") as file:
        writer = csv.DictWriter(file, header)
        writer.writeheader()
        writer.writerows(rows)
    return name


@pytest.fixture
def validated(command):
    def run(*tables: str) -> dict[str, Any]:
        words = (f"validate.tables=[{','.join(tables)}]",) if tables else ()
        ended = command("task=validate", *words, "output=json", "run_dir=run")
        assert (ended.status, ended.err, ended.out.count("\n")) == (0, "", 1), ended
        return json.loads(ended.out)

    return run


def test_a_small_table_of_runs(validated) -> None:
    plans = [{"tp": 1, "dp": 8}, {"tp": 2, "dp": 4}, {"tp": 4, "dp": 2}]
    rows = [{**GPT, **plan, "id": f"a-{i}", "metric_step_time_s": 1.0 + i} for i, plan in enumerate(plans)]
    rows.append({**GPT, "id": "a-oom", "status": "oom", "metric_step_time_s": None, "micro_batch_per_dp_rank": 4})
    rows.append({**GPT, "id": "a-mem", "rank_group": "", "notes": "peak mem 20 GB", "remat": None})
    found = validated(table("a.csv", *rows))
    assert set(found) >= KEYS
    assert tuple(found["overall"]) == ERRORS
    assert (found["overall"]["n"], found["overall"]["inferred"]) == (4, 1)
    assert [block["name"] for block in found["by_source"]] == ["a lab"]
    assert [block["name"] for block in found["by_hardware"]] == ["h100"]
    (ranking,) = found["ranking"]
    assert tuple(ranking) == ("name", "n", "kendall_tau", "regret_top1", "regret_top3")
    assert (ranking["name"], ranking["n"], ranking["regret_top3"]) == ("g", 3, 0.0)
    # A 0.4B model on 80 GB: nothing should run out of memory, so what is marked so is not foreseen.
    assert {key: found["memory"][key] for key in ("tp", "fp", "tn", "fn")} == {"tp": 0, "fp": 0, "tn": 4, "fn": 1}
    assert found["memory_error"]["n"] == 1
    assert [(block["tried"], block["groups"]) for block in found["certificate"]] == [(1, 1), (3, 0)]
    assert (found["floor_violations"], found["floor"]["n"]) == (0, 4)
    assert (found["coverage"]["n"], found["unmapped"]) == (4, {})
    assert found["rows"]["mapped_share"] == 1.0


def test_predictions_are_those_of_the_rows_file(validated) -> None:
    found = validated(table("a.csv", GPT, {**GPT, "id": "a-2", "tp": 2, "dp": 4, "metric_step_time_s": 0.25}))
    with Path("run/rows.csv").open() as file:
        lines = list(csv.DictReader(file))
    ratios = [float(line["predicted_s"]) / float(line["measured_s"]) for line in lines]
    assert found["overall"]["mean_ape"] == pytest.approx(sum(abs(ratio - 1) for ratio in ratios) / 2)
    for line in lines:
        parts = [
            float(value) for name, value in line.items() if name.endswith("_s") and name[:-2] in ("matmul", "head")
        ]
        assert 0 < sum(parts) < float(line["predicted_s"]) < float(line["serial_s"]) * 1.0001
        assert float(line["floor_s"]) <= float(line["low_s"]) <= float(line["high_s"])
    columns = parquet.read_table("run/rows.parquet").to_pydict()
    assert columns["predicted_s"] == [float(line["predicted_s"]) for line in lines]
    assert json.loads(Path("run/validation.json").read_text()) == found
    assert [json.loads(line)["kind"] for line in Path("run/events.jsonl").read_text().splitlines()] == [
        "start",
        "validated",
    ]


def test_vtrains_tables_say_how_many_nodes_by_their_gpus(validated) -> None:
    many = {**VTRAIN, "gpus": 64, "dp": 32, "global_batch_seqs": 128, "step_time_ms": 450.0, "workload": "m"}
    plans = [{"tp": 2, "dp": 4}, {"tp": 4, "dp": 2}, {"tp": 8, "dp": 1}]
    found = validated(table("any name.csv", *({**VTRAIN, **plan} for plan in plans), many))
    assert {block["name"]: block["n"] for block in found["by_source"]} == {
        "vTrain, one node": 3,
        "vTrain, many nodes": 1,
    }
    assert [(block["name"], block["n"]) for block in found["ranking"]] == [("w", 3)]
    assert found["overall"]["inferred"] == 4


def test_rows_with_a_rate_alone_get_a_time_of_their_sources_flops(validated) -> None:
    rate = {**GPT, "metric_step_time_s": None, "metric_tflops_per_chip": 400.0}
    known = {**rate, "source_name": "NVIDIA Megatron-Bridge performance summary", "remat": "none"}
    found = validated(table("a.csv", known, {**rate, "id": "a-2"}))
    assert found["rows"]["time_basis"] == {"tflops": 1}
    assert found["unmapped"] == {"step time: not stated, nor a rate whose FLOP convention is known": 1}


BROKEN = {
    "hardware: TPU v99 is not described": {"hardware": "TPU v99"},
    "framework: a new one has no translation": {"framework": "a new one"},
    "remat: some new policy has no translation": {"remat": "some new policy"},
    "layers: not stated": {"layers": "twenty-four"},
    "chips: not stated": {"chips": "nan"},
    "chips: 1e+30 is not a positive whole number": {"chips": 1e30},
    "tp: 0 is not a positive whole number": {"tp": 0},
    "micro_batch_per_dp_rank: 0 is not a positive whole number": {"micro_batch_per_dp_rank": 0},
    "mesh: its degrees do not multiply to the devices": {"dp": 3},
    "status: nothing is none of ok, oom, fail": {"status": None},
    "step time: not stated, nor a rate whose FLOP convention is known": {"metric_step_time_s": -1.0},
    "seq_len: not stated": {"seq_len": None},
    "precision: fp2 has no translation": {"precision": "fp2"},
    "duplicate: the same row again": {"id": "a-1"},
}


def test_every_broken_row_is_counted_with_its_reason(validated) -> None:
    rows = [GPT, *({**GPT, "id": f"b-{i}", **changed} for i, changed in enumerate(BROKEN.values()))]
    found = validated(table("a.csv", *rows))
    assert found["unmapped"] == dict.fromkeys(BROKEN, 1)
    assert found["overall"]["n"] == 1
    assert found["rows"]["read"] == len(rows)


def test_words_in_a_column_of_numbers_spoil_no_other_row(validated) -> None:
    ultra = {**GPT, "source_name": "Aleph Alpha", "framework": "Aleph Alpha Scaling (AA)", "vocab": None}
    ultra |= {"global_batch_seqs": None, "chips": 64, "dp": 64}
    found = validated(table("a.csv", ultra, {**GPT, "id": "a-2", "seq_len": "long", "d_model": "wide"}))
    # The default of 2,048 sequences holds where seq_len is 2048, a number again.
    assert (found["overall"]["n"], found["unmapped"]) == (1, {"d_model: not stated": 1})


@pytest.mark.parametrize("schema", [GPT, VTRAIN], ids=["training", "vtrain"])
def test_any_column_may_be_missing(validated, schema: dict[str, Any]) -> None:
    needed = ("hardware", "framework", "chips", "gpus", "step_time_ms")
    missing = [name for name in schema if name not in needed]
    tables = [
        table(f"without_{name}.csv", {key: value for key, value in schema.items() if key != name}) for name in missing
    ]
    found = validated(*tables)
    left_out = sum(found["unmapped"].values())
    assert (found["overall"]["n"] + left_out, found["rows"]["read"]) == (len(missing), len(missing))
    stated = {"layers", "d_model", "seq_len", "tp", "pp", "global_batch_seqs", "n_heads"}
    assert {reason.split(":")[0] for reason in found["unmapped"]} >= stated


def test_nothing_to_compare_is_an_answer_too(command) -> None:
    name = table("a.csv", {**GPT, "hardware": "TPU v99"})
    ended = command("task=validate", f"validate.tables={name}", "run_dir=run", "output=json")
    found = json.loads(ended.out)
    assert found["overall"] == {**dict.fromkeys(ERRORS), "name": "overall", "n": 0, "inferred": 0}
    assert (found["ranking"], found["floor"]["max"], found["coverage"]["share"]) == ([], None, None)
    plain = command("task=validate", f"validate.tables={name}", "run_dir=run", "output=plain")
    assert (plain.status, plain.err) == (0, "")
    assert "hardware: TPU v99 is not described" in plain.out


@pytest.mark.usefixtures("drawn_page")
def test_plain_output_and_page_say_the_same(command) -> None:
    name = table("a.csv", GPT, {**GPT, "id": "a-2", "tp": 2, "dp": 4, "metric_step_time_s": 7.0})
    ended = command("task=validate", f"validate.tables={name}", "run_dir=run", "output=plain")
    assert (ended.status, ended.err) == (0, "")
    assert "2 read, 2 priced beside a time" in ended.out
    assert "report.html, validation.json, rows.csv, rows.parquet" in ended.out
    page = Path("run/report.html").read_text()
    assert "a-2" in page
    assert "https://example.org/a" in page


def bad(name: str) -> str:
    path = Path(name)
    if name == "folder":
        path.mkdir()
    elif name == "empty.csv":
        path.touch()
    elif name == "header.csv":
        path.write_text(",".join(GPT) + "\n")
    elif name == "binary.csv":
        path.write_bytes(bytes(range(256)) * 40)
    elif name == "cut.parquet":
        parquet.write_table(pa.table({"hardware": ["H100"]}), path)
        path.write_bytes(path.read_bytes()[:-20])
    elif name == "ragged.csv":
        path.write_text("hardware,framework,chips\nH100,x,1,2,3\n")
    elif name == "twice.csv":
        path.write_text("hardware,hardware,framework,chips\nH100,H100,x,8\n")
    elif name == "other.csv":
        path.write_text("device,vendor\nH100,NVIDIA\n")
    elif name == "other.parquet":
        parquet.write_table(pa.table({"hardware": ["H100"]}), path)
    elif name == "page.html":
        path.write_text("<!doctype html><html><body>not found</body></html>\n")
    return name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.csv", "does not exist"),
        ("folder", "is no file"),
        ("empty.csv", "is empty"),
        ("header.csv", "holds no rows"),
        ("binary.csv", ""),
        ("cut.parquet", ""),
        ("ragged.csv", "is no table"),
        ("twice.csv", "is no table"),
        ("other.csv", "holds other columns (device, vendor)"),
        ("other.parquet", "holds other columns (hardware)"),
        ("page.html", ""),
        ("x" * 300, "cannot be read"),
    ],
)
def test_what_is_no_table_ends_in_one_line(command, name: str, words: str) -> None:
    bad(name)
    good = table("good.csv", GPT)
    ended = command("task=validate", f"validate.tables=[{good},{name}]", "run_dir=run")
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1), ended
    assert ended.err.startswith(f"asap-ray: validate.tables={name[:40]}")
    assert words in ended.err
    assert "allowed: Parquet or CSV tables of runs" in ended.err
    assert not Path("run").exists()


def test_a_table_twice_ends_in_one_line(command) -> None:
    name = table("a.csv", GPT)
    ended = command("task=validate", f"validate.tables=[{name},./{name}]")
    assert (ended.status, ended.err.count("\n")) == (1, 1)
    assert "validate.tables=./a.csv: allowed: each table once" in ended.err


def test_the_carried_tables_are_the_default(validated) -> None:
    carried = validated()
    assert [Path(name).stem for name in carried["tables"]] == [
        "training",
        "ultrascale",
        "vtrain_multi",
        "vtrain_single",
    ]
    assert carried["rows"]["read"] == 3760
    assert carried["floor_violations"] == 0
    assert carried["rows"]["mapped_share"] >= 0.85
    assert set(carried["rows"]["time_basis"]) == {"metric", "derived", "tokens", "tflops", "corrected"}
    assert len(carried["ranking"]) >= 90
    sources = [block["name"] for block in carried["by_source"]]
    assert sum(name.startswith("HF Ultra-Scale Playbook benchmark sweep") for name in sources) == 3


def test_one_table_in_two_formats_counts_once(validated) -> None:
    arrow_csv.write_csv(parquet.read_table(TABLES / "vtrain_multi.parquet"), "vtrain_multi.csv")
    both = validated(str(TABLES / "vtrain_multi.parquet"), "vtrain_multi.csv")
    assert both["unmapped"] == {"duplicate: the same row again": 73}
    assert both["overall"]["n"] == 73


def test_the_run_directory_tells_tables_apart(command) -> None:
    table("a.csv", GPT)
    command("task=validate", "validate.tables=a.csv")
    (found,) = Path("runs").iterdir()
    assert found.name.startswith("validate-")

"""A trainer's own config as the baseline: the job in it, how it agrees with what is asked, the plan written back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asap_ray.ledger import Ledger
from asap_ray.plan import Plan
from asap_ray.settings import read_settings

TINY = """\
base_emb_dim: 128
base_num_decoder_layers: 8
base_num_query_heads: 8
base_num_kv_heads: 8
base_mlp_dim: 192
head_dim: 16
vocab_size: 512
logits_via_embedding: true
max_target_length: 128
"""
JOB = "per_device_batch_size: 4\ngradient_accumulation_steps: 2\nici_tensor_parallelism: 2\nremat_policy: minimal\n"
WHERE = ("hardware=v5e-4", "run_dir=run")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "mine.yml"
    file.write_text(TINY + JOB + "sa_block_q: 512\ndataset_type: synthetic\n")
    return file


def answer(ended: Any) -> dict[str, Any]:
    assert ended.status == 0, ended.err
    return json.loads(ended.out)


def test_a_config_gives_plan_and_shape(command, mine: Path) -> None:
    """4 sequences x 4 devices x 2 accumulation steps; fsdp takes the two devices that tensor leaves."""
    found = answer(command("+model=tiny", *WHERE, f"baseline={mine}", "output=json"))
    plan = Plan.parse(found["baseline"]["line"])
    assert (plan.axes["fsdp"], plan.axes["tensor"], plan.micro_batch, plan.accumulation) == (2, 2, 8, 2)
    assert (plan.remat, plan.sequence_parallel) == ("minimal", True)
    start = next(Ledger(Path("run")).events("start"))
    assert (start["workload"]["global_batch"], start["workload"]["seq_len"]) == (32, 128)
    (read,) = Ledger(Path("run")).events("baseline_read")
    assert (read["project"], read["plan"], read["unread"]) == ("MaxText", plan.line, ["sa_block_q"])


def test_a_config_alone_gives_the_model_too(command, mine: Path) -> None:
    alone = answer(command(*WHERE, f"baseline={mine}", "output=json"))
    named = answer(command("+model=tiny", *WHERE, f"baseline={mine}", "output=json"))
    assert alone["model"] == "mine"
    assert alone["best"] == named["best"]
    assert alone["baseline"] == named["baseline"]


def test_how_it_was_read_is_printed(command, mine: Path) -> None:
    ended = command("+model=tiny", *WHERE, f"baseline={mine}", "output=plain")
    assert f"Baseline of {mine}, a config of MaxText:" in ended.out
    assert "left to MaxText: attention=autoselected, ici_fsdp_parallelism=-1, dcn_data_parallelism=-1" in ended.out
    assert "unread   sa_block_q" in ended.out
    assert "the best is" in ended.out
    told = command("task=explain", "+model=tiny", *WHERE, f"baseline={mine}", "output=plain")
    assert "a config of MaxText:" in told.out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["+model=llama7b"], "trains another model than llama7b: base_emb_dim is 128 here and 4096 there; "),
        (["+model=tiny", "workload.global_batch=64"], "has global_batch=32, and workload.global_batch=64"),
        (["+model=tiny", "workload.seq_len=256"], "has seq_len=128, and workload.seq_len=256"),
        (["+model=tiny", "stack=megatron"], "is MaxText's, and stack=megatron; allowed: stack=maxtext"),
    ],
    ids=["model", "batch", "length", "stack"],
)
def test_what_does_not_agree_is_told(command, mine: Path, more: list[str], words: str) -> None:
    ended = command(*more, *WHERE, f"baseline={mine}")
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert f"asap-ray: baseline={mine}: " in ended.err
    assert words in ended.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ici_tensor_parallelism: 3\n", "its mesh is tensor 3; there are 4 devices inside v5e-4"),
        ("ici_tensor_parallelism: 4\nper_device_batch_size: 8\nici_tensor_parallelism: 2\n", "is given twice"),
    ],
)
def test_a_config_that_does_not_fit_the_slice_is_told(command, mine: Path, line: str, words: str) -> None:
    mine.write_text(TINY + line)
    ended = command("+model=tiny", *WHERE, f"baseline={mine}")
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert words in ended.err


def test_a_config_whose_plan_is_not_legal_says_why(command, mine: Path) -> None:
    mine.write_text(TINY.replace("base_num_kv_heads: 8", "base_num_kv_heads: 2") + "ici_tensor_parallelism: 4\n")
    ended = command(*WHERE, f"baseline={mine}")
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert "its plan is not legal here (tensor=4 micro_batch=48 accumulation=1" in ended.err
    assert "tensor 4 does not divide 2 key-value heads" in ended.err


def test_a_model_that_nobody_names_is_asked_for(command, mine: Path) -> None:
    mine.write_text("model_name: kimi-k2-1t\n" + JOB)
    ended = command(*WHERE, f"baseline={mine}")
    assert "does not say enough of the model it trains; allowed: with +model=NAME" in ended.err
    ended = command(*WHERE, "baseline=fsdp=4 remat=full")
    assert "+model=: a model is needed" in ended.err


def test_the_best_plan_is_written_as_a_config_that_reads_as_that_plan(command, mine: Path) -> None:
    first = answer(command("+model=tiny", *WHERE, f"baseline={mine}", "output=json"))
    config = Path("run/plans/best.maxtext.yml")
    assert first["best"]["line"] in config.read_text()
    assert "by roofline" in config.read_text()
    assert (
        read_settings(config)["per_device_batch_size"] * 4 * read_settings(config)["gradient_accumulation_steps"] == 32
    )
    for written in (config, config.with_suffix(".txt")):
        again = answer(command("+model=tiny", "hardware=v5e-4", "run_dir=again", f"baseline={written}", "output=json"))
        assert again["baseline"] == again["best"] == first["best"]


def test_the_plans_of_an_earlier_run_go(command, mine: Path) -> None:
    answer(command("+model=tiny", *WHERE, "output=json"))
    assert {path.name for path in Path("run/plans").iterdir()} >= {"best.maxtext.yml", "best.maxtext.txt"}
    answer(command("+model=tiny", *WHERE, "stack=nanotron", "hardware=h100x4", "output=json"))
    assert not list(Path("run/plans").glob("best.maxtext*"))


MEGATRON = """\
torchrun pretrain_gpt.py --num-layers 8 --hidden-size 128 --num-attention-heads 8 --kv-channels 16 \\
    --ffn-hidden-size 192 --swiglu --vocab-size 512 --normalization RMSNorm --position-embedding-type rope \\
    --disable-bias-linear --attention-dropout 0 --hidden-dropout 0 --seq-length 128 --bf16 \\
    --micro-batch-size 2 --global-batch-size 32 --tensor-model-parallel-size 2 --sequence-parallel \\
    --use-distributed-optimizer --lr 1e-4
"""
TORCHTITAN = """\
[training]
local_batch_size = 8
seq_len = 128
[parallelism]
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
[compile]
enable = true
"""
BRIDGE = "train: {global_batch_size: 32, micro_batch_size: 4}\nmodel: {context_parallel_size: 2}\n"


SHARDED = "tensor=2 micro_batch={} accumulation={} {}sequence_parallel=true remat={}"


@pytest.mark.parametrize(
    ("name", "text", "stack", "line"),
    [
        ("run.sh", MEGATRON, "megatron", "data=2 " + SHARDED.format(2, 8, "zero=1 ", "none")),
        ("a.toml", TORCHTITAN, "torchtitan", "fsdp=2 " + SHARDED.format(8, 1, "", "full")),
        ("a.yaml", BRIDGE, "bridge", "data=2 context=2 micro_batch=4 accumulation=4 remat=none"),
    ],
)
def test_each_trainer_s_config_is_a_baseline_and_its_plan_is_written(
    command, tmp_path: Path, name: str, text: str, stack: str, line: str
) -> None:
    (tmp_path / name).write_text(text)
    batch = 16 if stack == "torchtitan" else 32
    asked = ("+model=tiny", "hardware=h100x4", f"stack={stack}", "output=json")
    shape = (f"workload.global_batch={batch}", "workload.seq_len=128")
    found = answer(command(*asked, *shape, f"baseline={tmp_path / name}", "run_dir=run"))
    assert found["baseline"]["line"] == line
    (written,) = (path for path in Path("run/plans").iterdir() if path.suffix != ".py")
    again = answer(command(*asked, *shape, f"baseline={written}", "run_dir=again"))
    assert again["baseline"] == found["best"]

"""Megatron-LM's options and Megatron Bridge's overrides as jobs and back; example values are of their own examples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from asap_ray.architecture import architecture_from_mapping
from asap_ray.errors import ConfigError
from asap_ray.interchange import bridge, megatron, megatron_core
from asap_ray.interchange.exchange import Foreign, laid, plan_of
from asap_ray.interchange.foreign import ForeignConfig
from asap_ray.interchange.projects import read_job
from asap_ray.plan import AXES, Plan
from asap_ray.settings import load_group
from asap_ray.space import Space
from tests.problems import DENSE, MIXED, MOE, make_problem


def job_of(folder: Path, name: str, text: str) -> Foreign:
    (folder / name).write_text(text)
    found = read_job("baseline", folder / name)
    assert found is not None
    return found


# NVIDIA/Megatron-LM, examples/gpt3/train_gpt3_175b_distributed.sh, without what has no part in it.
GPT3 = """\
#!/bin/bash
GPUS_PER_NODE=8
NUM_NODES=1
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # Can use (flash/fused/unfused/local)
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1536
    --rampup-batch-size 16 16 5859375
    --fp16
    --lr 6.0e-5
)
MODEL_PARALLEL_ARGS=(
\t--tensor-model-parallel-size 8
\t--pipeline-model-parallel-size 16
)
torchrun ${DISTRIBUTED_ARGS[@]} examples/classes/pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} \\
    ${TRAINING_ARGS[@]}
"""
# examples/llama/train_llama3_8b_h100_fp8.sh: sizes by variables, FP8 in a quoted word, two branches with one value.
LLAMA = """\
TP_SIZE=1     
CP_SIZE=1     
MICRO_BATCH_SIZE=1
GLOBAL_BATCH_SIZE=128
NUM_LAYERS=32  
SEQ_LENGTH=8192
MAX_POSITION_EMBEDDINGS=8192
CHECKPOINT_PATH=${1:-"checkpoints/llama3_8b_fp8"}
MODEL_ARGS=(
    --use-mcore-models
    --num-layers $NUM_LAYERS
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length $SEQ_LENGTH
    --max-position-embeddings $MAX_POSITION_EMBEDDINGS
    --position-embedding-type rope
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --swiglu
    --attention-backend fused
    --untie-embeddings-and-output-weights
    --disable-bias-linear
    --normalization RMSNorm
)
TRAINING_ARGS=(
    --micro-batch-size $MICRO_BATCH_SIZE
    --global-batch-size $GLOBAL_BATCH_SIZE
    --bf16
    --grad-reduce-in-bf16
)
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-param-gather"
    )
fi
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP_SIZE
    --context-parallel-size $CP_SIZE
    # --pipeline-model-parallel-size $PP_SIZE # Not explicitly set
    --sequence-parallel  # Always enable sequence parallelism with TP_SIZE=2
)
DDP_ARGS=(
    --use-distributed-optimizer
    --overlap-grad-reduce
)
if [[ "$TOKENIZER_ARG" == "MOCK" ]]; then
    DATA_ARGS_LIST+=("--vocab-size 128256" "--split '99,1,0'")
else
    DATA_ARGS_LIST+=("--vocab-size 128256")
fi
"""


def test_gpt3_175b_is_the_job_that_its_example_says(tmp_path: Path) -> None:
    found = job_of(tmp_path, "train.sh", GPT3)
    assert (found.project, found.seq_len, found.global_batch, found.precision) == ("Megatron-LM", 2048, 1536, "fp16")
    gpt3 = architecture_from_mapping(load_group("model")["gpt3_175b"])
    assert found.differences(gpt3) == []
    plan = plan_of(found, make_problem("h100x1024", "megatron", gpt3, 1536, 2048))
    # 1024 GPUs are 8 data ranks; in domains of 8 the tensor group fills one, all else goes across.
    assert plan.axes == {"data": 8, "fsdp": 1, "pipeline": 16, "context": 1, "expert": 1, "tensor": 8}
    assert (plan.ici[AXES.index("tensor")], plan.dcn[AXES.index("pipeline")]) == (8, 16)
    assert (plan.micro_batch, plan.accumulation, plan.schedule, plan.zero, plan.remat) == (1, 192, "1f1b", 0, "none")
    assert found.notes == ("rampup_batch_size: the batch at the end of the ramp is taken",)
    assert "recompute_granularity=none" in found.defaults


def test_llama3_8b_gives_its_model_by_variables_and_defaults(tmp_path: Path) -> None:
    found = job_of(tmp_path, "train.sh", LLAMA)
    llama = architecture_from_mapping(load_group("model")["llama3_8b"])
    assert found.differences(llama) == []
    read = architecture_from_mapping({"name": "llama3_8b", "source": llama.source, **(found.model or {})})
    assert read == llama
    assert (found.precision, found.global_batch, found.seq_len) == ("fp8", 128, 8192)
    plan = plan_of(found, make_problem("h100x8", "megatron", llama, 128, 8192))
    assert plan == Plan.parse("data=8 micro_batch=1 accumulation=16 zero=1 remat=none precision=bf16")
    assert any("stack=nemo" in note for note in found.notes)


def test_mixtral_has_its_experts_within_data(tmp_path: Path) -> None:
    """examples/mixtral/train_mixtral_8x7b_distributed.sh in its full size; expert groups lie on the nearest ranks."""
    words = (
        "torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
        "--group-query-attention --num-query-groups 8 --num-experts 8 --moe-router-topk 2 --swiglu --bf16 "
        "--untie-embeddings-and-output-weights --disable-bias-linear --normalization RMSNorm --seq-length 4096 "
        "--position-embedding-type rope --micro-batch-size 1 --global-batch-size 256 --tensor-model-parallel-size 1 "
        "--pipeline-model-parallel-size 4 --expert-model-parallel-size 8 --use-distributed-optimizer "
        "--moe-token-dispatcher-type alltoall --overlap-param-gather --mock-data --vocab-size 32000 "
        "--attention-dropout 0 --hidden-dropout 0 --num-layers-per-virtual-pipeline-stage 4"
    )
    found = job_of(tmp_path, "line.txt", words)
    mixtral = architecture_from_mapping(load_group("model")["mixtral8x7b"])
    read = architecture_from_mapping({"name": "mixtral8x7b", "source": mixtral.source, **(found.model or {})})
    assert read == mixtral
    plan = plan_of(found, make_problem("h100x64", "megatron", mixtral, 256, 4096))
    assert plan.axes["expert"] == 8
    assert (plan.schedule, plan.virtual, plan.accumulation) == ("interleaved", 2, 16)
    assert found.unread == ("moe_token_dispatcher_type", "overlap_param_gather")


def test_a_yaml_config_of_megatron_is_read(tmp_path: Path) -> None:
    """examples/gpt3/gpt_config.yaml: sections of model and parallelism beside plain options."""
    text = (
        "language_model:\n  num_layers: 24\n  hidden_size: 1024\n  num_attention_heads: 16\n  num_query_groups: null\n"
        "  hidden_dropout: 0.0\n  attention_dropout: 0.0\n  add_bias_linear: False\n  gated_linear_unit: False\n"
        "  activation_func: swiglu\n  recompute_granularity: null\n  normalization: LayerNorm\n"
        "model_parallel:\n  tensor_model_parallel_size: 1\n  context_parallel_size: 1\n"
        "  pipeline_model_parallel_size: 1\n  sequence_parallel: True\n  bf16: True\n  fp16: False\n"
        "micro_batch_size: 2\nglobal_batch_size: 128\nrampup_batch_size: [32, 32, 65324160]\nseq_length: 4096\n"
        "untie_embeddings_and_output_weights: True\nswiglu: True\nposition_embedding_type: rope\nvocab_size: 50304\n"
    )
    found = job_of(tmp_path, "gpt_config.yaml", text)
    model = architecture_from_mapping({"name": "gpt", **(found.model or {})})
    assert (model.layers, model.tied, model.norm, model.learned_positions) == (24, False, "layer", 0)
    assert model.ffn is not None
    assert (model.ffn.gated, model.ffn.d_ff) == (True, 2688)  # 4 x 1024 x 2/3, down to a multiple of 64
    plan = plan_of(found, make_problem("h100x8", "megatron", model, 128, 4096))
    assert plan == Plan.parse("data=8 micro_batch=2 accumulation=8 remat=none")


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        # Megatron-LM docs, custom pipeline layouts: DeepSeek-V3 on 16 stages of 2 chunks.
        ("Et*3|(tt|)*29,m|L", [3, *([2] * 29), 0, 0]),
        ("Ett|(tt|)*6L", [2, *([2] * 6), 0]),
        ("Et|t|(tt|)*29tL", [1, 1, *([2] * 29), 1]),
        ("E,t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4,L", [4] * 8),
    ],
)
def test_a_layout_is_read_stage_by_stage(text: str, stages: list[int]) -> None:
    config = ForeignConfig("baseline", "x", {"pipeline_model_parallel_layout": text})
    found = megatron_core.layout_stages(config)
    assert found == stages
    assert sum(found) in (61, 14, 61, 32)


@pytest.mark.parametrize("text", ["(t|)*99999", "x", "(((t|)*99|)*9999)*9999", "t*9999" * 30, 3])
def test_a_layout_that_cannot_be_read_is_told(text: object) -> None:
    with pytest.raises(ConfigError, match="pipeline_model_parallel_layout"):
        megatron_core.layout_stages(ForeignConfig("baseline", "x", {"pipeline_model_parallel_layout": text}))


MODEL = "--num-layers 4 --hidden-size 8 --num-attention-heads 2 --vocab-size 8 --position-embedding-type rope"
BASE = "--micro-batch-size 1 --global-batch-size 8 --tensor-model-parallel-size 2 "


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--tensor-model-parallel-size 4", "tensor_model_parallel_size is given twice: 2 and 4"),
        ("--context-parallel-size two", "context_parallel_size='two'; allowed: a whole number"),
        ("--pipeline-model-paralel-size 4", "did you mean pipeline_model_parallel_size?"),
        ("--use-megatron-fsdp", "use_megatron_fsdp=true shards weights over the data ranks"),
        ("--recompute-granularity some", "recompute_granularity='some'; allowed: selective, full"),
        ("--recompute-granularity selective --recompute-modules mlp moe", "recompute_modules=mlp, moe; allowed: core"),
        ("--attention-backend mine", "attention_backend='mine'; allowed: auto, flash"),
        (
            "--num-layers-per-virtual-pipeline-stage 2 --num-virtual-stages-per-pipeline-rank 2",
            "num_virtual_stages_per_pipeline_rank and num_layers_per_virtual_pipeline_stage say the same",
        ),
        ("--seq-length $LENGTH", "seq_length='$LENGTH'; allowed: a whole number"),
        (f"{MODEL} --num-experts 4 --moe-layer-freq __import__", "moe_layer_freq='__import__'; allowed: 1, or dense"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, more: str, words: str) -> None:
    (tmp_path / "a.txt").write_text(BASE + more)
    with pytest.raises(ConfigError) as caught:
        read_job("baseline", tmp_path / "a.txt")
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("more", "remat", "notes"),
    [
        ("--recompute-activations", "selective", 0),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "full", 0),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 3", "full", 1),
        ("--recompute-granularity full --recompute-num-layers 2", "full", 1),
        ("--recompute-granularity selective --recompute-modules layernorm moe_act", "layernorm_moe_act", 0),
        ("--recompute-granularity selective --recompute-modules mla_up_proj", "mla_up_proj", 0),
    ],
)
def test_recomputation_is_a_policy_of_the_stack(tmp_path: Path, more: str, remat: str, notes: int) -> None:
    found = job_of(tmp_path, "a.txt", BASE + more)
    assert (found.knobs["remat"], len(found.notes)) == (remat, notes)


# NVIDIA-NeMo/Megatron-Bridge, examples/llm/llama3_8b/conf/llama3_8b_pretrain_override_example.yaml.
OVERRIDES = """\
model_config:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  context_parallel_size: 1
train_config:
  train_iters: 500000
  global_batch_size: 256
  micro_batch_size: 4
optimizer_config:
  lr: 0.00025
ddp_config:
  grad_reduce_in_fp32: true
profiling_config:
  profile_ranks: [0, 1]
"""


def test_overrides_of_a_recipe_are_read(tmp_path: Path) -> None:
    found = job_of(tmp_path, "llama3_8b.yaml", OVERRIDES)
    assert (found.project, found.precision, found.model, found.global_batch) == ("Megatron Bridge", "bf16", None, 256)
    plan = plan_of(found, make_problem("h100x8", "bridge", "llama3_8b", 256, 8192))
    assert plan == Plan.parse("data=2 pipeline=2 tensor=2 micro_batch=4 accumulation=32 schedule=1f1b remat=none")
    assert found.defaults[-1] == "(where the recipe sets nothing else)"
    words = (
        "python run.py --recipe llama3_8b model.tensor_model_parallel_size=2 model.pipeline_model_parallel_size=2 \\\n"
    )
    same = job_of(
        tmp_path, "run.sh", words + " +train.global_batch_size=256 train.micro_batch_size=4 optimizer.lr=1e-4"
    )
    assert replace(same, path=found.path, defaults=found.defaults) == found


def test_a_value_that_a_launcher_fills_in_is_told(tmp_path: Path) -> None:
    """scripts/moe_model_zoo/model_configs/Qwen3-235B-A22B.yaml has ${TP} and the like."""
    (tmp_path / "zoo.yaml").write_text("model:\n  tensor_model_parallel_size: ${TP}\ntrain:\n  micro_batch_size: 1\n")
    with pytest.raises(ConfigError, match=r"tensor_model_parallel_size='\${TP}'; allowed: a whole number"):
        read_job("baseline", tmp_path / "zoo.yaml")


def test_sections_that_disagree_are_told(tmp_path: Path) -> None:
    text = OVERRIDES + "optimizer:\n  use_distributed_optimizer: true\nddp:\n  use_distributed_optimizer: false\n"
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match="use_distributed_optimizer is given twice: "):
        read_job("baseline", tmp_path / "a.yaml")


def test_ranks_fill_a_domain_from_the_inside_out() -> None:
    """24 GPUs in domains of 8: tensor takes 4 of a domain, pipeline the 2 that are left, and data goes across."""
    problem = make_problem("h100x24", "megatron", DENSE, 24, 24)
    totals = dict(zip(AXES, (3, 1, 2, 1, 1, 4), strict=True))
    inside, across = laid(problem, totals)
    assert (inside["tensor"], inside["pipeline"], inside["data"]) == (4, 2, 1)
    assert (across["tensor"], across["pipeline"], across["data"]) == (1, 1, 3)


SPACES = [
    ("h100x16", "megatron", DENSE, 24, 24),
    ("h100:4x3", "megatron", MOE, 24, 24),
    ("h100x16", "bridge", MIXED, 16, 16),
    ("h100x8", "nemo", "tiny", 32, 128),
]


@pytest.mark.parametrize(("where", "stack", "model", "batch", "seq_len"), SPACES)
def test_reading_back_what_is_written_gives_the_plan(
    tmp_path: Path, where: str, stack: str, model, batch: int, seq_len: int
) -> None:
    problem = make_problem(where, stack, model, batch, seq_len)
    plans = Space(problem=problem).sample(150, seed=0)
    writer = megatron.write if stack in megatron.STACKS else bridge.write
    placed = 0
    for plan in plans:
        written = writer(problem, plan)
        ((name, text),) = written.files.items()
        found = job_of(tmp_path, name, text)
        read = plan_of(found, problem)
        assert set(written.cannot) <= {"mesh"}
        if "mesh" in written.cannot:
            assert read.sizes == plan.sizes
            assert read != plan
        else:
            placed += 1
            assert read == plan
        assert replace(read, ici=plan.ici, dcn=plan.dcn) == plan
        assert (found.batch_on(problem.slice.devices), found.precision) == (batch, "bf16")
        assert found.seq_len == seq_len
        assert found.differences(problem.workload.architecture) == []
        assert (found.notes, found.unread) in (((), ()), (_LAYOUT, ()))
    assert placed > 20


_LAYOUT = ("the layers of a pipeline_model_parallel_layout are taken to be dealt out evenly",)


def test_a_model_is_written_and_read_whole() -> None:
    for name in ("llama3_8b", "gpt3_175b", "mixtral8x7b", "deepseek_v3", "qwen3_30b_a3b"):
        model = architecture_from_mapping(load_group("model")[name])
        problem = make_problem("h100x64", "megatron", model, 256, 2048)
        plan = Plan.parse("data=8x8 micro_batch=1 accumulation=4 remat=full")
        words = megatron.write(problem, plan).files["megatron.args"].split()
        found = megatron.read_words("baseline", "x", [word.strip("'") for word in words])
        assert found is not None
        assert found.differences(model) == []
        read = architecture_from_mapping({"name": name, "source": model.source, **(found.model or {})})
        assert read == model

"""MaxText's configs as jobs and back; example values are those of its public scripts and model files."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from asap_ray.architecture import architecture_from_mapping
from asap_ray.errors import ConfigError
from asap_ray.interchange import maxtext
from asap_ray.interchange.config_text import shell_words, yaml_values
from asap_ray.interchange.exchange import Foreign, plan_of
from asap_ray.interchange.foreign import ForeignConfig
from asap_ray.interchange.projects import read_job
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.settings import load_group
from asap_ray.space import Space
from tests.problems import DENSE, MIXED, MOE, make_problem


def from_yaml(text: str) -> Foreign:
    return maxtext.read(ForeignConfig("baseline", "mine.yml", yaml_values("baseline", "mine.yml", text)))


def from_words(text: str) -> Foreign:
    found = maxtext.read_words("baseline", "run.sh", shell_words("baseline", "run.sh", text))
    assert found is not None
    return found


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        from_words(text)
    assert str(caught.value).startswith("baseline=run.sh: ")
    return str(caught.value)


def preset(problem: Problem) -> str:
    return problem.workload.architecture.name


# AI-Hypercomputer/maxtext, MaxText/configs/v5p/llama2_70b.sh: 4M tokens a step on v5p-512.
LLAMA = r"""
# Stop execution if any command exits with error
set -e
export EXECUTABLE="train.py" # or train_compile.py
for ARGUMENT in "$@"; do
    IFS='=' read -r KEY VALUE <<< "$ARGUMENT"
    export "$KEY"="$VALUE"
done
export LIBTPU_INIT_ARGS="--xla_tpu_enable_async_collective_fusion=true --xla_enable_async_all_gather=true"
python MaxText/$EXECUTABLE MaxText/configs/base.yml model_name=llama2-70b\
  base_output_directory=$OUTPUT_PATH remat_policy=save_dot_except_mlpwi per_device_batch_size=4\
  steps=30 enable_checkpointing=false use_iota_embed=true max_target_length=4096\
  profiler=xplane dataset_type=synthetic
"""


def test_the_public_llama2_70b_script_is_the_job_that_it_says() -> None:
    found = from_words(LLAMA)
    assert (found.preset, found.seq_len, found.batch_on(256)) == ("llama2_70b", 4096, 1024)
    assert 1024 * 4096 == 4 * 2**20  # the 4M tokens of its first lines
    plan = plan_of(found, make_problem("v5p-512", "maxtext", "llama2_70b", 1024, 4096))
    assert plan == Plan.parse("fsdp=256 micro_batch=4 remat=save_dot_except_mlpwi")
    assert found.defaults == ("attention=autoselected", "ici_fsdp_parallelism=-1", "dcn_data_parallelism=-1")


def test_the_public_128b_script_scales_the_base_model() -> None:
    """MaxText/configs/v5p/128b.sh: 2^7 in thirds is 4, 4, 4 with one left over, which heads and feed-forward take."""
    found = from_words(
        "python3 MaxText/train.py MaxText/configs/base.yml steps=15 per_device_batch_size=1 remat_policy=minimal "
        "global_parameter_scale=128 ici_fsdp_parallelism=-1 ici_tensor_parallelism=8 max_target_length=2048 "
        "attention='flash' quantization=\"\""
    )
    model = architecture_from_mapping({"name": "128b", **(found.model or {})})
    assert model.ffn is not None
    assert (model.d_model, model.layers, model.attention.heads, model.ffn.d_ff) == (8192, 64, 128, 57344)
    assert 120e9 < model.parameters < 130e9  # its name
    problem = Problem(
        workload=replace(make_problem("v5p-256", "maxtext", DENSE).workload, architecture=model, global_batch=128),
        slice=make_problem("v5p-256", "maxtext").slice,
        stack=make_problem("v5p-256", "maxtext").stack,
    )
    assert plan_of(found, problem) == Plan.parse("fsdp=16 tensor=8 micro_batch=8 remat=minimal sequence_parallel=true")


def test_accumulation_slices_and_eight_bits_are_read() -> None:
    """MaxText/configs/v5p/512b_ga.sh with accumulation, as 2xv4-128.sh over two slices."""
    found = from_words(
        "python3 MaxText/train.py base.yml per_device_batch_size=2 remat_policy=save_qkv_proj "
        "global_parameter_scale=512 ici_fsdp_parallelism=-1 ici_tensor_parallelism=8 max_target_length=2048 "
        "dcn_data_parallelism=2 gradient_accumulation_steps=4 attention='flash' quantization=\"int8\""
    )
    assert (found.precision, found.batch_on(1024)) == ("int8", 8192)
    assert (found.accumulation, dict(found.inside)["fsdp"], dict(found.across or {})["data"]) == (4, -1, 2)


def test_every_public_model_is_the_one_of_ours() -> None:
    """src/maxtext/configs/models/: sizes as in these files; vocabularies may be padded."""
    models = {
        "llama2-70b": "base_emb_dim: 8192\nbase_num_query_heads: 64\nbase_num_kv_heads: 8\nbase_mlp_dim: 28672\n"
        "base_num_decoder_layers: 80\nhead_dim: 128\nvocab_size: 32000\ndecoder_block: llama2",
        "mixtral-8x7b": "base_emb_dim: 4096\nbase_num_query_heads: 32\nbase_num_kv_heads: 8\nbase_mlp_dim: 14336\n"
        "base_moe_mlp_dim: 14336\nbase_num_decoder_layers: 32\nhead_dim: 128\nvocab_size: 32000\nnum_experts: 8\n"
        "num_experts_per_tok: 2\ndecoder_block: mixtral",
        "gemma2-9b": "base_emb_dim: 3584\nbase_num_query_heads: 16\nbase_num_kv_heads: 8\nbase_mlp_dim: 14336\n"
        "base_num_decoder_layers: 21\nhead_dim: 256\nmlp_activations: [gelu,linear]\nvocab_size: 256128\n"
        "decoder_block: gemma2\nlogits_via_embedding: true\nsliding_window_size: 4096",
        "gemma3-12b": "base_num_decoder_layers: 48\nbase_emb_dim: 3840\nbase_num_query_heads: 16\n"
        "base_num_kv_heads: 8\nbase_mlp_dim: 15360\nhead_dim: 256\nmlp_activations: [gelu,linear]\n"
        "vocab_size: 262_144\ndecoder_block: gemma3\nlogits_via_embedding: true\nsliding_window_size: 1024",
        "qwen3-30b-a3b": "decoder_block: qwen3_moe\nbase_emb_dim: 2048\nbase_mlp_dim: 768\nbase_num_query_heads: 32\n"
        "base_num_kv_heads: 4\nbase_num_decoder_layers: 48\nhead_dim: 128\nvocab_size: 151936\nuse_qk_norm: true\n"
        "num_experts: 128\nnum_experts_per_tok: 8\nbase_moe_mlp_dim: 768",
        "deepseek3-671b": "base_emb_dim: 7168\nbase_num_query_heads: 128\nbase_num_kv_heads: 128\n"
        "base_mlp_dim: 18432\nbase_moe_mlp_dim: 2048\nbase_num_decoder_layers: 61\nfirst_num_dense_layers: 3\n"
        "vocab_size: 129280\nnum_experts: 256\nnum_experts_per_tok: 8\nshared_experts: 1\nrouted_bias: true\n"
        "decoder_block: deepseek\nattention_type: mla\nq_lora_rank: 1536\nkv_lora_rank: 512\n"
        "qk_nope_head_dim: 128\nqk_rope_head_dim: 64\nv_head_dim: 128",
    }
    ours = load_group("model")
    for name, text in models.items():
        model = architecture_from_mapping(ours[maxtext.maxtext_model.MODELS[name]])
        found = from_yaml(text)
        assert found.differences(model) == [], name
        read = architecture_from_mapping({"name": model.name, **(found.model or {})})
        same = asdict(replace(read, vocab=model.vocab, source=model.source))
        assert same == asdict(model), name


def test_another_model_is_told_field_by_field() -> None:
    llama = architecture_from_mapping(load_group("model")["llama2_70b"])
    found = from_yaml("base_emb_dim: 4096\nbase_num_decoder_layers: 80\nbase_mlp_dim: 11008\nvocab_size: 33000")
    assert found.differences(llama) == [
        "base_emb_dim is 4096 here and 8192 there",
        "vocab_size is 33000 here and 32000 there",
        "base_mlp_dim is 11008 here and 28672 there",
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ici_tensor_parallelism=x", "ici_tensor_parallelism='x'; allowed: a whole number"),
        ("ici_tensor_parallelism=0", "ici_tensor_parallelism=0; allowed: a whole number from 1"),
        (
            "remat_policy=full ici_tensor_paralelism=4",
            "ici_tensor_paralelism is not known; did you mean ici_tensor_parallelism?",
        ),
        ("ici_tensor_parallelism=4 ici_tensor_parallelism=8", "ici_tensor_parallelism is given twice: 4 and 8"),
        ("ici_tensor_sequence_parallelism=2", "ici_tensor_sequence_parallelism=2 is no axis of a plan"),
        # MaxText of 2024, 1m_compile.sh: an axis that it has no more.
        ("per_device_batch_size=0.0078125 ici_sequence_parallelism=16", "ici_sequence_parallelism=16 is no axis"),
        ("remat_policy=proj", "remat_policy='proj'; allowed: full, save_out_proj"),
        ("per_device_batch_size=0", "per_device_batch_size=0; allowed: a number above 0"),
        ("remat_policy=full quantization=int4", "quantization='int4'; allowed: int8"),
        ("remat_policy=custom mlpwi_0=device", "mlpwi_0=device keeps a part"),
        ("remat_policy=custom query_proj=device", "remat_policy=custom with device query is none of"),
        ("max_target_length=$LENGTH remat_policy=full", "max_target_length='$LENGTH'; allowed: a whole number"),
        ("model_name=[1] remat_policy=full", "model_name is a list; allowed: a name"),
        ("ici_pipeline_parallelism=-1", "a pipeline of -1 stages cannot be read"),
        ('remat_policy="full', "cannot be read as words of a shell: No closing quotation"),
    ],
)
def test_a_mistake_is_one_line(line: str, words: str) -> None:
    assert words in refusal(line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ici_fsdp_parallelism=32 remat_policy=full", "its mesh is fsdp 32; there are 64 devices inside v5p-128"),
        ("ici_data_parallelism=-1 remat_policy=full", "data and fsdp are both -1"),
        ("gradient_accumulation_steps=3 per_device_batch_size=4", "do not divide into 3 micro-batches"),
    ],
)
def test_a_mesh_that_does_not_fill_the_slice_is_told(line: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_of(from_words(line), make_problem("v5p-128", "maxtext", "llama2_70b", 1024, 4096))


def test_a_batch_that_is_not_whole_is_told() -> None:
    with pytest.raises(ConfigError, match=r"are 0\.5 on 64 devices; allowed: a whole number of sequences"):
        from_words("per_device_batch_size=0.0078125").batch_on(64)


def test_a_pipeline_goes_round_as_often_as_its_layers_need() -> None:
    """base.yml: the layers are stages x layers of a stage x repeats; micro-batches are as many as stages by default."""
    problem = make_problem("v5p-16", "maxtext", "tiny", 32, 128)
    found = from_words("ici_pipeline_parallelism=2 per_device_batch_size=4 num_layers_per_pipeline_stage=2")
    plan = plan_of(found, problem)
    assert (plan.schedule, plan.virtual, plan.accumulation, plan.micro_batch) == ("interleaved", 2, 2, 4)
    whole = plan_of(replace(found, chunk_layers=4), problem)
    assert (whole.schedule, whole.virtual) == ("gpipe", 1)
    with pytest.raises(ConfigError, match="8 layers do not go into 2 stages in chunks of 3"):
        plan_of(replace(found, chunk_layers=3), problem)


@pytest.mark.parametrize(
    ("places", "policy"),
    [
        # tpu-recipes, trillium: Llama 3.1 70B, Mixtral; AI-Hypercomputer/maxtext base.yml names the tensors.
        ("decoder_layer_input=offload query_proj=offload key_proj=offload value_proj=offload", "offload_input_qkv"),
        ("decoder_layer_input=offload out_proj=offload", "offload_input_out"),
        ("decoder_layer_input=offload mlpwo=offload", "offload_input_mlpwo"),
        ("decoder_layer_input=offload moe_mlpwo=offload", "offload_input_mlpwo"),
        ("query_proj=device key_proj=device value_proj=device context=device", "save_qkv_context"),
        ("qkv_proj=device", "save_qkv_proj"),
        ("query_proj=device kv_proj=device out_proj=device mlpwi_0=device mlpwi_1=device", "minimal"),
        ("mlpwi=remat", "full"),
    ],
)
def test_a_custom_policy_is_found_by_what_it_keeps(places: str, policy: str) -> None:
    assert from_words(f"remat_policy=custom {places}").knobs["remat"] == policy


def test_what_has_no_word_in_a_plan_is_said() -> None:
    found = from_words(
        "ici_pipeline_parallelism=2 gradient_accumulation_steps=2 optimizer_memory_host_offload=true "
        "model_name=kimi-k2-1t num_vocab_tiling=4 sa_block_q=1024 steps=3 num_pipeline_repeats=1"
    )
    assert [note.split()[0] for note in found.notes] == [
        "gradient_accumulation_steps=2",
        "model_name='kimi-k2-1t'",
        "optimizer_memory_host_offload=true",
    ]
    assert found.unread == ("num_vocab_tiling", "sa_block_q")


SPACES = [
    ("v5p-16", DENSE, 24, 24),
    ("2xv5e-8", MOE, 48, 24),
    ("v5p-8", MIXED, 16, 16),
    ("h100x16", "tiny", 32, 128),
    ("v6e-8", "tiny", 96, 128),
]


@pytest.mark.parametrize(("where", "model", "batch", "seq_len"), SPACES)
def test_reading_back_what_is_written_gives_the_plan(where: str, model, batch: int, seq_len: int) -> None:
    problem = make_problem(where, "maxtext", model, batch, seq_len)
    plans = Space(problem=problem).sample(150, seed=0)
    assert len(plans) > 100
    for plan in plans:
        written = maxtext.write(problem, plan, "")
        assert set(written.cannot) <= {"layout", "zero"}
        assert ("zero" in written.cannot) == (plan.zero == 1 and plan.axes["fsdp"] > 1)
        for found in (from_yaml(written.files["maxtext.yml"]), from_words(written.files["maxtext.txt"])):
            zero = 0 if "zero" in written.cannot else plan.zero
            assert plan_of(found, problem) == replace(plan, layout=(), zero=zero)
            assert found.batch_on(problem.slice.devices) == batch
            assert (found.seq_len, found.precision) == (seq_len, "bf16")
            assert found.differences(problem.workload.architecture) == []
            assert (found.notes, found.unread) == ((), ())


def test_a_share_of_a_sequence_is_never_rounded_away() -> None:
    """MaxText takes int(devices * share): a float just below 1/3 would lose a sequence."""
    problem = make_problem("h100x6", "maxtext", DENSE, 2, 24)
    plan = Plan.parse("data=2 context=3 micro_batch=1 accumulation=1 remat=full")
    text = maxtext.write(problem, plan, "").files["maxtext.yml"]
    share = yaml_values("baseline", "x", text)["per_device_batch_size"]
    assert int(6 * share) == 2


def test_a_model_of_maxtext_is_named_and_another_spelt_out() -> None:
    problem = make_problem("v5p-128", "maxtext", "mixtral8x7b", 1024, 4096)
    plan = Plan.parse("fsdp=64 micro_batch=1 accumulation=16 remat=offload_input_mlpwo")
    text = maxtext.write(problem, plan, "mixtral8x7b").files["maxtext.yml"]
    assert 'model_name: "mixtral-8x7b"' in text
    assert "mlpwo: offload\nmoe_mlpwo: offload" in text
    spelt = maxtext.write(problem, plan, "").files["maxtext.yml"]
    assert "num_experts: 8\n" in spelt
    assert "decoder_block: mixtral\n" in spelt


@pytest.mark.parametrize("text", ["", "[]", "a: &x [1]\nb: *x", "remat_policy: [", "- a", "1: 2", "steps: 3"])
def test_what_is_no_config_of_maxtext_is_none_or_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text(text)
    if ": [" in text or "&x" in text:
        with pytest.raises(ConfigError, match="cannot be read as YAML: "):
            read_job("baseline", file)
    else:
        assert read_job("baseline", file) is None

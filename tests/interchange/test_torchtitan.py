"""torchtitan's TOML as jobs and back; example values are those of pytorch/torchtitan's train_configs for Llama 3."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from asap_ray.errors import ConfigError
from asap_ray.interchange import torchtitan
from asap_ray.interchange.exchange import Foreign, plan_of
from asap_ray.interchange.projects import read_job
from asap_ray.plan import Plan
from asap_ray.space import Space
from tests.problems import DENSE, MOE, make_problem


def job_of(folder: Path, text: str) -> Foreign:
    (folder / "mine.toml").write_text(text)
    found = read_job("baseline", folder / "mine.toml")
    assert found is not None
    return found


# torchtitan/models/llama3/train_configs/llama3_405b.toml, mid-2025: a preset for 128 H100.
LLAMA_405B = """\
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "405B"
converters = "float8"
[optimizer]
name = "AdamW"
lr = 8e-5
[training]
batch_size = 2
seq_len = 8192
steps = 3000
compile = true
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8  # 8-way TP
enable_async_tensor_parallel = true
pipeline_parallel_degree = 1
context_parallel_degree = 1
[activation_checkpoint]
mode = 'full' # ['none', 'selective', 'full']
[float8]
enable_fsdp_float8_all_gather = true
"""
# llama3_70b.toml, later in 2025: the names of today.
LLAMA_70B = """\
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 8
seq_len = 8192
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
pipeline_parallel_degree = 1
context_parallel_degree = 1
[activation_checkpoint]
mode = "full"
[compile]
enable=false
components = ["model", "loss"]
"""


def test_llama3_405b_is_the_job_that_its_preset_says(tmp_path: Path) -> None:
    found = job_of(tmp_path, LLAMA_405B)
    assert (found.preset, found.stacks, found.precision, found.seq_len) == (
        "llama3_1_405b",
        ("torchtitan",),
        "fp8",
        8192,
    )
    # 128 GPUs of which 8 share a sequence: 16 data ranks of 2 sequences.
    assert found.batch_on(128) == 32
    plan = plan_of(found, make_problem("h100x128", "torchtitan", "llama3_1_405b", 32, 8192))
    assert plan == Plan.parse("fsdp=1x16 tensor=8 micro_batch=2 sequence_parallel=true remat=full")
    assert found.unread == ("float8.enable_fsdp_float8_all_gather",)


def test_llama3_70b_leaves_compile_off(tmp_path: Path) -> None:
    found = job_of(tmp_path, LLAMA_70B)
    assert (found.preset, found.stacks) == ("llama3_70b", ("torchtitan_eager",))
    plan = plan_of(found, make_problem("h100x64", "torchtitan_eager", "llama3_70b", found.batch_on(64) or 0, 8192))
    assert plan == Plan.parse("fsdp=1x8 tensor=8 micro_batch=8 sequence_parallel=true remat=full")
    assert found.defaults == ("training.global_batch_size=-1",)


def test_accumulation_follows_from_the_global_batch(tmp_path: Path) -> None:
    text = LLAMA_70B.replace("local_batch_size = 8", "local_batch_size = 2\nglobal_batch_size = 64")
    found = job_of(tmp_path, text)
    plan = plan_of(found, make_problem("h100x64", "torchtitan_eager", "llama3_70b", 64, 8192))
    assert (plan.micro_batch, plan.accumulation) == (2, 4)


PIPED = """\
[training]
local_batch_size = 8
seq_len = 128
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_layers_per_stage = {each}
pipeline_parallel_microbatch_size = 2
[activation_checkpoint]
mode = "none"
"""


@pytest.mark.parametrize(("each", "virtual"), [(5, 1), (3, 2), (2, None), (1, 5)])
def test_stages_are_what_the_layers_of_each_make(tmp_path: Path, each: int, virtual: int | None) -> None:
    """Eight layers count as ten, by the embedding and the head: 10/5, 10/3 rounded up, 10/2 is odd, 10/1."""
    found = job_of(tmp_path, PIPED.format(each=each))
    problem = make_problem("h100x4", "torchtitan_eager", "tiny", 16, 128)
    if virtual is None:
        with pytest.raises(ConfigError, match="8 layers do not go into 2 stages in chunks of 2"):
            plan_of(found, problem)
    else:
        plan = plan_of(found, problem)
        assert (plan.virtual, plan.micro_batch, plan.accumulation) == (virtual, 2, 4)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[parallelism]\n[training]\nseq_len = 'x'", "training.seq_len='x'; allowed: a whole number"),
        ("[parallelism]\ntensor_parallel_degre = 2", "did you mean parallelism.tensor_parallel_degree?"),
        ("[parallelism]\ntensor_parallel_degree = -1", "parallelism.tensor_parallel_degree=-1; allowed: a whole"),
        ("[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'mine'", "='mine'; allowed: 1F1B"),
        ("[parallelism]\n[activation_checkpoint]\nmode = 'memory_budget'", "mode='memory_budget'; allowed: none, sel"),
        ("[parallelism]\n[model]\nconverters = 3", "model.converters=3; allowed: a list of names"),
        ("[parallelism]\n[training]\nbatch_size = 1\nlocal_batch_size = 1", "say the same; allowed: one of them"),
        ("[parallelism]\n[parallelism]", "cannot be read as TOML"),
        ("[parallelism]\nx = " + "[" * 5000, "cannot be read as TOML"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job_of(tmp_path, line)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


def test_what_has_no_word_in_a_plan_is_said(tmp_path: Path) -> None:
    text = """\
[model]
name = "llama3"
flavor = "debugmodel"
[training]
enable_cpu_offload = true
local_batch_size = 8
global_batch_size = 64
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "InterleavedZeroBubble"
fsdp_reshard_after_forward = "never"
"""
    notes = "\n".join(job_of(tmp_path, text).notes)
    for word in ("selective_ac_option='2'", "debugmodel", "cpu_offload", "fills and drains", "Interleaved", "never"):
        assert word in notes


SPACES = [
    ("h100x16", "torchtitan", MOE, 48, 24),
    ("h100:4x3", "torchtitan", DENSE, 24, 24),
    ("h100x16", "torchtitan_eager", "tiny", 32, 128),
]


@pytest.mark.parametrize(("where", "stack", "model", "batch", "seq_len"), SPACES)
def test_reading_back_what_is_written_gives_the_plan(
    tmp_path: Path, where: str, stack: str, model, batch: int, seq_len: int
) -> None:
    problem = make_problem(where, stack, model, batch, seq_len)
    plans = Space(problem=problem).sample(150, seed=0)
    for plan in plans:
        written = torchtitan.write(problem, plan)
        found = job_of(tmp_path, written.files["torchtitan.toml"])
        read = plan_of(found, problem)
        assert set(written.cannot) <= {"mesh", "virtual", "model"}
        assert ("mesh" in written.cannot) == ((read.ici, read.dcn) != (plan.ici, plan.dcn))
        assert ("virtual" in written.cannot) == (read.virtual != plan.virtual)
        assert replace(read, ici=plan.ici, dcn=plan.dcn, virtual=plan.virtual) == plan
        assert read.sizes == plan.sizes
        assert (found.batch_on(problem.slice.devices), found.seq_len) == (batch, seq_len)
        assert (found.stacks, found.notes, found.unread) == ((stack,), (), ())


def test_a_model_of_torchtitan_is_named() -> None:
    problem = make_problem("h100x64", "torchtitan", "llama3_70b", 64, 8192)
    plan = Plan.parse("fsdp=1x8 tensor=8 micro_batch=8 sequence_parallel=true remat=selective")
    text = torchtitan.write(problem, plan, "llama3_1_70b").files["torchtitan.toml"]
    assert 'name = "llama3"\nflavor = "70B"\n' in text
    assert 'selective_ac_option = "op"' in text

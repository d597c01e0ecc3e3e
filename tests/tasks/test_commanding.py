"""The command tier as tasks use it: what is refused before anything starts, and the words of the templates we carry."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asap_ray.config import CommandConfig, Config
from asap_ray.errors import ConfigError
from asap_ray.overrides import configure
from asap_ray.plan import Plan
from asap_ray.settings import load_group
from asap_ray.tasks import setting
from asap_ray.tasks.commanding import command_tier, load_template, with_args
from asap_ray.tasks.compiling import compilers
from asap_ray.tiers.command import Command
from asap_ray.tiers.following import Follower, Reading
from asap_ray.tiers.placeholders import RUN
from asap_ray.tiers.template import Template, fill
from asap_ray.tiers.templates import template_from_mapping
from tests.problems import make_problem

GENERIC = {"template": "generic", "script": __file__}
TRIAL = {name: name.upper() for name in RUN}
TEMPLATES = {name: template_from_mapping(name, given) for name, given in load_group("command").items()}


def asked(*argv: str, **command: Any) -> Config:
    """A configuration for the user's own trainer."""
    return replace(configure(argv), command=CommandConfig(**command))


def tier(*argv: str, **command: Any) -> Command:
    config = asked(*argv, **command)
    (found,) = command_tier(config, setting.load(config)).values()
    return found


def words(name: str, slice_: str, line: str, model: str = "llama3_8b", batch: int = 16) -> list[str]:
    """The command line of a carried template, for a plan that it can say."""
    of, problem = TEMPLATES[name], make_problem(slice_, name, model, batch=batch, seq_len=4096)
    plan = Plan.parse(line)
    assert of.refusal(problem, plan) is None
    return list(fill(of, of.values(problem, plan), TRIAL).argv)


def refusal(name: str, slice_: str, line: str, model: str = "llama3_8b", batch: int = 16) -> str | None:
    return TEMPLATES[name].refusal(make_problem(slice_, name, model, batch=batch, seq_len=4096), Plan.parse(line))


class TestRefusals:
    TINY = ("+model=tiny", "hardware=v5e-4", "workload.global_batch=8")

    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            (
                {"template": "maxtex"},
                "command=maxtex: did you mean maxtext? a trainer with a template: generic, maxtext",
            ),
            ({"template": "megatron"}, "command=megatron: for stack=megatron, nemo, bridge, bridge_fused, not maxtext"),
            ({"python": "/nowhere/python"}, "command.python=/nowhere/python: the path of a Python interpreter"),
            ({"python": "true"}, "the path of a Python interpreter that can be run"),
            (
                {"template": "generic"},
                "command.script=null: the path of your trainer's script: command=generic runs it",
            ),
            ({**GENERIC, "script": "/nowhere"}, "command.script=/nowhere: the path of your trainer's script"),
            ({**GENERIC, "cwd": "/nowhere"}, "command.cwd=/nowhere: an existing folder"),
            ({**GENERIC, "env": ["NO_SUCH"]}, "command.env=NO_SUCH: names of variables that are set here"),
        ],
    )
    def test_one_line_before_anything_starts(self, given: dict[str, Any], sentence: str) -> None:
        with pytest.raises(ConfigError) as caught:
            tier(*self.TINY, **given)
        assert sentence in str(caught.value)

    def test_a_stack_may_have_no_template_of_its_name(self) -> None:
        with pytest.raises(ConfigError) as caught:
            tier(*self.TINY, "stack=ours")
        names = "generic, maxtext, megatron, torchtitan"
        assert str(caught.value) == f"stack=ours: a trainer with a template: {names}; command=NAME names a template"

    def test_a_trainer_of_one_machine_is_not_for_a_slice_of_many(self) -> None:
        with pytest.raises(ConfigError) as caught:
            tier("+model=tiny", "hardware=v5p-128")
        said = "hardware=v5p-128: command=maxtext starts the trainer on one machine, and this slice has 16"
        assert str(caught.value).startswith(said)

    def test_an_interpreter_without_the_trainer_is_refused_with_the_cure(self) -> None:
        with pytest.raises(ConfigError) as caught:
            tier(*self.TINY, python=sys.executable)
        said = "3.12 or newer" if sys.version_info < (3, 12) else f"{sys.executable} -m pip install maxtext"
        assert said in str(caught.value)

    def test_what_is_installed_is_evidence(self) -> None:
        found = tier(*self.TINY, **GENERIC)
        assert found.evidence.endswith(f", python {'.'.join(map(str, sys.version_info[:3]))}")
        assert found.options.steps == 5

    @pytest.mark.parametrize(
        ("word", "sentence"),
        [
            ("command.python=/a/b", "command.python=/a/b: only where your own trainer runs or compiles: "),
            ("command=maxtext", "command=maxtext: only where your own trainer runs or compiles: "),
            ("compile.with=megatron", "compile.with=megatron: allowed: ours, maxtext"),
        ],
    )
    def test_a_key_that_would_do_nothing_is_refused(self, word: str, sentence: str) -> None:
        with pytest.raises(ConfigError) as caught:
            configure(["+model=tiny", word])
        assert str(caught.value).startswith(sentence)

    @pytest.mark.parametrize(
        ("word", "args"),
        [
            ("command.args=[a=b,--lr,gs://x/y{1}]", ["a=b", "--lr", "gs://x/y{1}"]),
            ("command.args=['a=1,2', \"b c\"]", ["a=1,2", "b c"]),
            ("command.args=hardware=cpu", ["hardware=cpu"]),
            ("command.args=[]", []),
        ],
    )
    def test_words_of_another_program_need_no_quotes(self, word: str, args: list[str]) -> None:
        assert configure(["+model=tiny", "tiers=[roofline,command]", word]).command.args == args

    def test_maxtext_compiles_for_its_own_stack(self) -> None:
        argv = ["+model=tiny", "tiers=[roofline,compile]", "compile.with=maxtext", "stack=ours"]
        config = configure([*argv, f"command.python={sys.executable}"])
        assert (config.compile.trainer, config.command.python) == ("maxtext", sys.executable)
        with pytest.raises(ConfigError) as caught:
            compilers(config, setting.load(config))
        assert str(caught.value) == "compile.with=maxtext: for stack=maxtext, not ours"


class TestArguments:
    of = template_from_mapping(
        "mine",
        {
            "argv": ["seed=3", {"when": {"vendor": "nvidia"}, "words": "on=gpu"}, "tp={tensor}", ["--lr", "1"]],
            "log": {"step": "(?P<seconds>.)"},
        },
    )

    def said(self, of: Template) -> list[str]:
        return [word for each in of.argv for word in each.words]

    def test_a_key_takes_the_place_of_its_word_wherever_no_plan_decides_it(self) -> None:
        found = with_args(self.of, ["seed=9", "on=cpu", "more={x}"])
        assert self.said(found) == ["tp={tensor}", "--lr", "1", "seed=9", "on=cpu", "more={{x}}"]

    @pytest.mark.parametrize(
        ("word", "sentence"),
        [
            ("tp=4", "command.args=tp=4: a word that the plan does not say: tp={tensor}"),
            ("--lr", "command.args=--lr: written as in the template"),
        ],
    )
    def test_the_plan_has_the_word(self, word: str, sentence: str) -> None:
        with pytest.raises(ConfigError) as caught:
            with_args(self.of, [word])
        assert str(caught.value).startswith(sentence)


class TestCarried:
    def test_maxtext(self) -> None:
        said = words(
            "maxtext", "v5e-4", "fsdp=2 tensor=2 micro_batch=4 accumulation=2 remat=minimal sequence_parallel=true"
        )
        assert said[:3] == ["PYTHON", "-m", "maxtext.trainers.pre_train.train"]
        assert {"model_name=llama3-8b", "max_target_length=4096", "remat_policy=minimal", "attention=flash"} < {*said}
        assert {"ici_fsdp_parallelism=2", "ici_tensor_parallelism=2", "ici_data_parallelism=1"} < {*said}
        # 16 sequences in two micro-batches over four devices.
        assert {"per_device_batch_size=2", "gradient_accumulation_steps=2"} < {*said}

    def test_maxtext_takes_the_micro_batches_of_a_pipeline_at_once(self) -> None:
        line = "fsdp=2 pipeline=2 micro_batch=2 accumulation=4 schedule=interleaved virtual=2 remat=full"
        said = words("maxtext", "v5e-4", line)
        assert {"per_device_batch_size=4", "gradient_accumulation_steps=1", "num_pipeline_microbatches=4"} < {*said}
        assert "num_layers_per_pipeline_stage=8" in said  # 32 layers in 2 stages of 2 chunks

    def test_maxtext_says_a_model_that_it_does_not_know_by_its_sizes(self) -> None:
        said = words("maxtext", "v5e-4", "fsdp=4 micro_batch=4 remat=offload_input_qkv", "tiny")
        assert {"model_name=default", "base_emb_dim=128", "logits_via_embedding=true"} < {*said}
        assert {"remat_policy=custom", "decoder_layer_input=offload", "query_proj=offload"} < {*said}
        refused = refusal("maxtext", "v5e-4", "fsdp=4 micro_batch=4 remat=full", "gemma3_1b")
        assert refused is not None
        assert refused.startswith("model gemma3_1b: command=maxtext has words for deepseek_v2_lite, ")

    def test_megatron(self) -> None:
        line = "data=2 pipeline=2 tensor=2 micro_batch=1 accumulation=8 zero=1 schedule=interleaved virtual=2"
        said = " ".join(words("megatron", "h100x8", f"{line} remat=selective sequence_parallel=true"))
        assert said.startswith(
            "PYTHON -m torch.distributed.run --standalone --nproc-per-node=8 SCRIPT --num-layers 32 "
        )
        for part in (
            "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2",
            "--micro-batch-size 1 --global-batch-size 16",
            "--use-distributed-optimizer --sequence-parallel --num-layers-per-virtual-pipeline-stage 8",
            "--recompute-granularity selective --attention-backend flash --bf16",
        ):
            assert part in said

    def test_torchtitan(self) -> None:
        said = words("torchtitan", "h100x8", "data=2 fsdp=4 micro_batch=1 accumulation=2 remat=selective")
        assert {"--training.local_batch_size=1", "--training.global_batch_size=16"} < {*said}
        assert {"--parallelism.data_parallel_shard_degree=4", "--activation_checkpoint.selective_ac_option=op"} < {
            *said
        }
        line = "fsdp=4 pipeline=2 micro_batch=1 accumulation=4 schedule=1f1b remat=none"
        assert "--training.local_batch_size=4" in words("torchtitan", "h100x8", line)
        zero = "fsdp=4 pipeline=2 micro_batch=1 accumulation=4 schedule=zero_bubble remat=none"
        assert refusal("torchtitan", "h100x8", zero) is not None

    @pytest.mark.parametrize("name", sorted(TEMPLATES))
    def test_every_one_is_read_and_says_where_it_is_from(self, name: str) -> None:
        stack = (TEMPLATES[name].stacks or ("ours",))[0]
        assert load_template(asked("+model=tiny", f"stack={stack}", template=name)) == TEMPLATES[name]
        assert TEMPLATES[name].sources or name == "generic"

    # Lines as the trainers write them.
    @pytest.mark.parametrize(
        ("name", "line", "seconds", "loss"),
        [
            (
                "maxtext",
                "I1130 metric_logger.py:265] completed step: 4, seconds: 0.289, TFLOP/s/device: 0.008, "
                "Tokens/s/device: 1770.597, total_weights: 2048, loss: 7.432, lm_loss: 7.432, perplexity: 1689.726",
                0.289,
                7.432,
            ),
            (
                "megatron",
                " [2025-01-01 00:00:00.000000] iteration        4/      13 | consumed samples:           64 | "
                "elapsed time per iteration (ms): 1234.5 | learning rate: 1.000000E-05 | global batch size:    16 | "
                "lm loss: 1.034E+01 | loss scale: 1.0 | grad norm: 1.0 | number of skipped iterations:   0 | "
                "number of nan iterations:   0 |",
                1.2345,
                10.34,
            ),
            (
                "torchtitan",
                "[rank0]:[titan] 2025-11-25 19:45:01,441 - root - INFO - step:  4  loss:  8.0277  grad_norm:  1.4604  "
                "memory:  1.21GiB(0.86%)  tps: 8,192  tflops: 0.41  mfu: 0.04%",
                16 * 4096 / 8 / 8192,
                8.0277,
            ),
        ],
    )
    def test_their_logs_are_read(self, name: str, line: str, seconds: float, loss: float) -> None:
        log = TEMPLATES[name].log
        found = Follower(reading=Reading(log=log, wanted={}, plan_used=(), tokens_per_step=16 * 4096, devices=8))
        found.take(f"{line}\n".encode())
        assert found.steps[4].seconds == pytest.approx(seconds)
        assert found.steps[4].loss == pytest.approx(loss)
        assert found.diverged == ""

    @pytest.mark.parametrize("name", ["megatron", "torchtitan"])
    def test_torch_says_what_memory_it_lacks(self, name: str) -> None:
        found = Follower(
            reading=Reading(log=TEMPLATES[name].log, wanted={}, plan_used=(), tokens_per_step=1, devices=1)
        )
        found.take(
            b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            b"79.00 GiB of which 1.00 GiB is free. Process 1 has 78.00 GiB memory in use.\n"
        )
        assert found.oom == {"tried": 2 * 2**30, "limit": 79 * 2**30, "free": 2**30}


def test_config_dir_has_templates_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "command").mkdir()
    (tmp_path / "command" / "mine.yaml").write_text("argv: ['{python}']\nlog: {step: '(?P<seconds>.)'}\n")
    assert load_template(asked("+model=tiny", f"config_dir={tmp_path}", template="mine")).name == "mine"

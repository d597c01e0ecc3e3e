"""Command templates: words for plans, plans without words, and mistakes in a template."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import yaml

from asap_ray.errors import ConfigError
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.tiers.following import Follower, Reading, alike
from asap_ray.tiers.launch import file_text
from asap_ray.tiers.placeholders import RUN, filled, names_in
from asap_ray.tiers.template import Filled, Template, fill
from asap_ray.tiers.templates import template_from_mapping
from asap_ray.tiers.trainer_process import trainer_environment
from tests.problems import make_problem

LOG = {"step": "step (?P<step>[0-9]+) (?P<seconds>[0-9.]+) s"}
TRIAL = {name: name.upper() for name in RUN}


def template(*argv: object, **given: Any) -> Template:
    return template_from_mapping("mine", {"argv": list(argv), "log": LOG, **given})


def words(of: Template, problem: Problem, line: str) -> Filled:
    return fill(of, of.values(problem, Plan.parse(line)), TRIAL)


MEGATRON = make_problem("h100x8", "megatron", batch=16)
MAXTEXT = make_problem("v5e-4", "maxtext", batch=16)
DCN = make_problem("h100:2x4", "megatron", batch=16)


class TestWords:
    def test_placeholders_have_their_values_and_nothing_is_a_shell_line(self) -> None:
        of = template("{python}", "--tp={tensor}", "--mb", "{micro_batch}", "a b; {{c}}")
        assert words(of, MEGATRON, "data=4 tensor=2 micro_batch=2 accumulation=2 remat=full").argv == (
            "PYTHON",
            "--tp=2",
            "--mb",
            "2",
            "a b; {c}",
        )

    def test_words_come_and_go_with_what_the_plan_says(self) -> None:
        of = template(
            {"when": {"sequence_parallel": True}, "words": "--sequence-parallel"},
            {"unless": {"pipeline": 1}, "words": ["--pp", "{pipeline}"]},
        )
        assert words(of, MEGATRON, "data=8 micro_batch=2 remat=full").argv == ()
        line = "data=2 tensor=2 pipeline=2 micro_batch=2 accumulation=4 sequence_parallel=true remat=full"
        assert words(of, MEGATRON, line).argv == ("--sequence-parallel", "--pp", "2")

    def test_values_have_the_words_of_the_trainer(self) -> None:
        of = template("--recompute={remat}", words={"remat": {"full": "everything", "none": "off"}})
        assert words(of, MEGATRON, "data=8 micro_batch=2 remat=none").argv == ("--recompute=off",)

    def test_batches_by_hand(self) -> None:
        # 16 sequences in 2 accumulations over 4 devices, of which 2 hold each shard: 2 a device, 4 a step, 8 a shard.
        of = template("{per_device_batch}", "{per_device_step_batch}", "{shard_batch}", "{batch_shards}")
        line = "fsdp=2 tensor=2 micro_batch=4 accumulation=2 remat=full sequence_parallel=true"
        assert words(of, MAXTEXT, line).argv == ("2", "4", "8", "2")

    def test_a_file_keeps_types_and_is_the_same_in_each_format(self) -> None:
        content = {
            "mesh": {"tensor": "{tensor}", "name": "tp{tensor}"},
            "remat": "{remat}",
            "on": True,
            "list": [1, "{zero}"],
        }
        of = template("{file}", file={"name": "plan.json", "content": content})
        made = words(of, MEGATRON, "data=4 tensor=2 micro_batch=2 accumulation=2 zero=1 remat=full").content
        assert made == {"mesh": {"tensor": 2, "name": "tp2"}, "remat": "full", "on": True, "list": [1, 1]}
        assert json.loads(file_text("a.json", made)) == made
        assert tomllib.loads(file_text("a.toml", made)) == made
        assert yaml.safe_load(file_text("a.yaml", made)) == made

    def test_a_model_brings_its_own_names(self) -> None:
        of = template("{size}", models={"dense": {"size": "7B"}})
        assert words(of, MEGATRON, "data=8 micro_batch=2 remat=full").argv == ("7B",)


class TestExpressible:
    said = ("--tp={tensor}", "--dp={data}", "{micro_batch}", "{global_batch}", "{remat}")

    @pytest.mark.parametrize(
        ("line", "sentence"),
        [
            ("data=8 micro_batch=2 remat=full", None),
            ("data=4 tensor=2 micro_batch=2 accumulation=2 remat=full", None),
            (
                "data=4 pipeline=2 schedule=1f1b micro_batch=2 accumulation=2 remat=full",
                "pipeline=2: command=mine has no word for this axis",
            ),
            (
                "data=8 micro_batch=2 zero=1 remat=full",
                "zero=1: command=mine has no word for it, and the trainer runs 0",
            ),
            (
                "data=8 micro_batch=2 precision=fp8 remat=full",
                "precision=fp8: command=mine has no word for it, and the trainer runs bf16",
            ),
            (
                "data=8 micro_batch=2 attention=unfused remat=full",
                "attention=unfused: command=mine has no word for it, and the trainer runs flash",
            ),
        ],
    )
    def test_a_knob_without_a_word_is_refused_by_name(self, line: str, sentence: str | None) -> None:
        assert template(*self.said).refusal(MEGATRON, Plan.parse(line)) == sentence

    def test_what_the_trainer_does_of_itself_needs_no_word(self) -> None:
        of = template(*self.said, fixed={"zero": 1})
        assert of.refusal(MEGATRON, Plan.parse("data=8 micro_batch=2 zero=1 remat=full")) is None
        assert of.refusal(MEGATRON, Plan.parse("data=8 micro_batch=2 remat=full")) is not None

    def test_a_word_chosen_by_a_value_says_that_value_and_no_other(self) -> None:
        of = template(*self.said, {"when": {"zero": 1}, "words": "--use-distributed-optimizer"})
        assert of.refusal(MEGATRON, Plan.parse("data=8 micro_batch=2 zero=1 remat=full")) is None
        assert of.refusal(MEGATRON, Plan.parse("data=8 micro_batch=2 zero=2 remat=full")) is not None

    def test_a_value_without_a_translation_is_refused(self) -> None:
        of = template(*self.said, words={"remat": {"full": "full"}})
        assert of.refusal(MEGATRON, Plan.parse("data=8 micro_batch=2 remat=selective")) == (
            "remat=selective: command=mine has a word for full only"
        )

    def test_accumulation_follows_from_two_of_three(self) -> None:
        plan = Plan.parse("data=4 tensor=2 micro_batch=2 accumulation=2 remat=full")
        base = ("{tensor}", "{data}", "{remat}")
        assert template(*base, "{global_batch}", "{micro_batch}").refusal(MEGATRON, plan) is None
        assert template(*base, "{accumulation}", "{per_device_batch}").refusal(MEGATRON, plan) is None
        assert template(*base, "{global_batch}").refusal(MEGATRON, plan) is not None
        assert template(*base, "{accumulation}").refusal(MEGATRON, plan) is not None

    def test_across_nodes_a_plan_must_lie_as_the_trainer_lays_it(self) -> None:
        of = template(*self.said, order=["tensor", "data"])
        # Two nodes of four: tensor fills nodes first. 4 x 2 is what comes of it, and 2 inside and 2 across is not.
        assert of.refusal(DCN, Plan.parse("data=1x2 tensor=4 micro_batch=2 accumulation=4 remat=full")) is None
        refused = of.refusal(DCN, Plan.parse("data=2 tensor=2x2 micro_batch=2 accumulation=4 remat=full"))
        assert refused is not None
        assert refused.startswith("tensor=2x2: command=mine lays tensor, data from the nearest ranks outwards")
        assert "does not say how axes lie" in (
            replace(of, order=()).refusal(DCN, Plan.parse("data=1x2 tensor=4 micro_batch=2 accumulation=4 remat=full"))
            or ""
        )

    def test_a_model_without_its_words_is_refused(self) -> None:
        of = template(*self.said, "{size}", models={"llama": {"size": "7B"}})
        refused = of.refusal(MEGATRON, Plan.parse("data=8 micro_batch=2 remat=full"))
        assert refused == "model dense: command=mine has words for llama; a template of your own may have more"


class TestMistakes:
    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            (
                {"argv": ["{tensr}"]},
                "command.mine.argv[0]={tensr}: did you mean tensor? no placeholder {tensr}; allowed: data,",
            ),
            ({"argv": ["{tensor!r}"]}, "a placeholder is a name in braces"),
            ({"argv": ["{0.__class__}"]}, "a placeholder is a name in braces"),
            ({"argv": ["{tensor"]}, "a placeholder is a name in braces"),
            ({"argv": []}, "command.mine.argv=[]: a list of words"),
            ({"log": {"step": "step [0-9]+"}}, "a pattern with one of the groups seconds, ms"),
            ({"log": {"step": "(?P<seconds>"}}, "a regular expression: "),
            ({"log": {"step": "(?P<seconds>.)(?P<sec>.)"}}, "did you mean seconds? allowed: seconds"),
            ({"log": {**LOG, "plan_used": ["mesh"]}}, "a pattern with a named group for what it shows"),
            ({"log": {**LOG, "plan_used": ["(?P<tp>.)"]}}, "command.mine.log.plan_used=tp: "),
            ({"env": {"HF_TOKEN": "hf_abc"}}, "secrets go by name, command.env=[NAME]"),
            ({"env": {"LD_PRELOAD": "x.so"}}, "no such variable here"),
            ({"file": {"name": "../plan.yaml", "content": {}}}, "a file name ending in .yaml"),
            ({"file": {"name": "a.yaml", "content": {"a": ["{x}"]}}}, "no placeholder {x}"),
            ({"fixed": {"tensor": 1}}, "command.mine.fixed=tensor: "),
            ({"hosts": "some"}, "command.mine.hosts=some: "),
            ({"skip": -1}, "a whole number from 0"),
            ({"shell": "a"}, "command.mine.shell=a: no such field"),
        ],
    )
    def test_one_line_says_what_is_wrong(self, given: Mapping[str, Any], sentence: str) -> None:
        with pytest.raises(ConfigError) as caught:
            template_from_mapping("mine", {"argv": ["a"], "log": LOG, **given})
        assert sentence in str(caught.value)
        assert str(caught.value).count("\n") == 0


class TestLog:
    def follower(self, step: str = LOG["step"], **log: Any) -> Follower:
        of = template("a", log={"step": step, **log})
        patterns = tuple(each.pattern for each in of.log.plan_used)
        reading = Reading(log=of.log, wanted={"tensor": "2"}, plan_used=patterns, tokens_per_step=8192, devices=4)
        return Follower(reading=reading)

    def test_pieces_may_end_anywhere(self) -> None:
        found = self.follower()
        for piece in (b"step 0 1.", b"5 s\nste", b"p 1 2.5 s\r\n", b"step 2 3.5 s"):
            found.take(piece)
        found.finish()
        assert [step.seconds for step in found.steps.values()] == [1.5, 2.5, 3.5]

    def test_a_rate_for_each_device_is_a_time(self) -> None:
        # 8,192 tokens on 4 devices at 1,024 tokens/s each: two seconds, known to half a token in 1,024.
        found = self.follower("tps: (?P<tokens_per_s_per_device>[0-9,]+)")
        found.take(b"tps: 1,024\n")
        assert found.steps[0].seconds == 2.0
        assert found.steps[0].rounding_s == pytest.approx(2.0 * 0.5 / 1024)

    def test_milliseconds_and_colours(self) -> None:
        found = self.follower(r"iteration +(?P<step>\d+)/.*time per iteration \(ms\): (?P<ms>[\d.]+)")
        found.take(b"\x1b[31miteration        7/     100 | elapsed time per iteration (ms): 1234.5 |\x1b[0m\n")
        assert found.steps[7].seconds == pytest.approx(1.2345)
        assert found.steps[7].rounding_s == pytest.approx(0.00005)

    def test_each_step_counts_once_however_many_ranks_write_it(self) -> None:
        found = self.follower()
        found.take(b"step 0 1.5 s\nstep 0 1.6 s\nstep 1 1.5 s\n")
        assert len(found.steps) == 2

    def test_sizes_have_units(self) -> None:
        found = self.follower(oom=[r"tried (?P<tried>[\d.]+) (?P<tried_unit>\w+), free (?P<free>\d+)"])
        found.take(b"tried 1.5 GiB, free 1024\n")
        assert found.oom == {"tried": 1.5 * 2**30, "free": 1024.0}

    def test_what_is_shown_must_be_what_was_wanted(self) -> None:
        found = self.follower(plan_used=["tp (?P<tensor>.+)"])
        assert found.unseen == ["tp (?P<tensor>.+)"]
        found.take(b"tp 2\n")
        assert (found.unseen, found.other) == ([], {})
        found.take(b"tp 1\n")
        assert found.other == {"tensor": "1"}

    @pytest.mark.parametrize(
        ("shown", "wanted", "same"),
        [
            ("2", "2.0", True),
            ("True", "true", True),
            ("'full'", "full", True),
            ("1", "2", False),
            ("None", "full", False),
        ],
    )
    def test_values_are_compared_by_what_they_mean(self, shown: str, wanted: str, same: bool) -> None:
        assert alike(shown, wanted) is same


def test_only_what_is_allowed_or_named_of_an_environment_goes_on() -> None:
    given = {"PATH": "a", "NCCL_DEBUG": "b", "OPENAI_API_KEY": "c", "JAX_TOKEN": "d", "HF_TOKEN": "e", "OTHER": "f"}
    assert trainer_environment(given, ["HF_TOKEN"]) == {"PATH": "a", "NCCL_DEBUG": "b", "HF_TOKEN": "e"}


def test_braces() -> None:
    assert list(names_in("a{{b}}{tensor}")) == ["tensor"]
    assert filled("a{{b}}{tensor}", {"tensor": "2"}) == "a{b}2"

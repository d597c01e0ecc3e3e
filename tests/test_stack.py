"""Stacks: every file loads as written, and a file of the user's own that is wrong says where."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from asap_ray.errors import ConfigError
from asap_ray.plan import AXES
from asap_ray.settings import load_group
from asap_ray.stack import TENSORS, stack_from_mapping

YAML = load_group("stack")
Mapping = dict[str, Any]


@pytest.mark.parametrize("name", YAML)
def test_every_file_loads_as_it_is_written(name: str) -> None:
    given = YAML[name]
    stack = stack_from_mapping(given)
    assert stack.name == name
    assert stack.source
    assert list(stack.axes) == [axis for axis in AXES if axis in given["axes"]]
    assert list(stack.remat_names) == list(given["remat"])
    for policy in stack.remat:
        rule = given["remat"][policy.name] or {}
        saved = TENSORS if rule.get("saved") == "all" else rule.get("saved", ())
        assert policy.saved == set(saved)
        assert policy.offloaded == set(rule.get("offloaded", ()))
        assert policy.kept == policy.saved | policy.offloaded
    assert stack.state.optimizer == given["state"]["optimizer"]
    assert stack.expert_multiplies == (given["expert"] == "multiplies")
    assert "bf16" in stack.precisions


def test_bytes_of_state_are_the_published_ones() -> None:
    """Megatron's mixed precision: 18 bytes a parameter with float32 gradients (arXiv 2201.11990, section 3.1 counts
    them: 2 + 4 + 4 + 4 + 4), and 2 more where 16-bit gradients have buffers of their own; float32 weights, gradients
    and two moments are 16."""
    for name, whole in {"megatron": 18, "nanotron": 20, "maxtext": 16, "torchtitan": 16, "foundry": 16}.items():
        state = stack_from_mapping(YAML[name]).state
        assert state.weights + state.gradients + state.optimizer == whole


def put(*path: str, value: Any) -> Callable[[Mapping], None]:
    def change(given: Mapping) -> None:
        for name in path[:-1]:
            given = given[name]
        given[path[-1]] = value

    return change


def drop(*path: str) -> Callable[[Mapping], None]:
    def change(given: Mapping) -> None:
        for name in path[:-1]:
            given = given[name]
        del given[path[-1]]

    return change


NAN = float("nan")
BROKEN = {
    "unknown field": (put("stat", value={}), "stack=stat", "did you mean state"),
    "missing field": (drop("zero"), "stack=megatron", "missing: zero"),
    "name no text": (put("name", value=3), "stack.name=3", "one line of text"),
    "name empty": (put("name", value=" "), "stack.name=", "one line of text"),
    "expert": (put("expert", value="multiply"), "stack.expert=multiply", "did you mean multiplies"),
    "expert null": (put("expert", value=None), "stack.expert=null", "multiplies, subdivides"),
    "unknown axis": (put("axes", value=["data", "tensr"]), "stack.axes=tensr", "did you mean tensor"),
    "axes no list": (put("axes", value="data"), "stack.axes=data", "a list of"),
    "axes empty": (put("axes", value=[]), "stack.axes=[]", "at least one"),
    "axes twice": (put("axes", value=["data", "data"]), "stack.axes=", "each one once"),
    "axes null": (put("axes", value=None), "stack.axes=null", "a list of"),
    "shards tensor": (put("shards_weights", value=["tensor"]), "stack.shards_weights=tensor", "context, expert"),
    "zero true": (put("zero", value=[True]), "stack.zero=true", "0, 1, 2"),
    "zero 3": (put("zero", value=[0, 3]), "stack.zero=3", "0, 1, 2"),
    "zero float": (put("zero", value=[1.0]), "stack.zero=1.0", "0, 1, 2"),
    "no schedule none": (put("schedules", value=["1f1b"]), "stack.schedules", "none must be among them"),
    "schedule": (put("schedules", value=["none", "1f2b"]), "stack.schedules=1f2b", "did you mean 1f1b"),
    "sequence_parallel 0": (put("sequence_parallel", value=[0]), "stack.sequence_parallel=0", "false, true"),
    "sequence_parallel bare": (put("sequence_parallel", value=True), "stack.sequence_parallel=true", "a list"),
    "max_virtual 0": (put("max_virtual", value=0), "stack.max_virtual=0", "whole number from 1"),
    "max_virtual nan": (put("max_virtual", value=NAN), "stack.max_virtual=nan", "whole number from 1"),
    "max_virtual true": (put("max_virtual", value=True), "stack.max_virtual=true", "whole number from 1"),
    "chunks half": (put("context_chunks", value=1.5), "stack.context_chunks=1.5", "whole number from 1"),
    "flag text": (put("uneven_layers", value="no"), "stack.uneven_layers=no", "true, false"),
    "flag number": (put("replicates_kv", value=1), "stack.replicates_kv=1", "true, false"),
    "kernel": (put("attention", value=["flash", "flush"]), "stack.attention=flush", "did you mean flash"),
    "list in list": (put("attention", value=[["flash"]]), "stack.attention=[flash]", "flash, unfused"),
    "precision": (put("precisions", value=["fp9"]), "stack.precisions=fp9", "did you mean fp"),
    "state text": (put("state", value="adam"), "stack.state=adam", "a mapping of"),
    "state missing": (drop("state", "optimizer"), "stack.state=", "missing: optimizer"),
    "state unknown": (put("state", "optimiser", value=8), "stack.state=optimiser", "did you mean optimizer"),
    "state nan": (put("state", "weights", value=NAN), "stack.state.weights=nan", "a number from 0"),
    "state negative": (put("state", "gradients", value=-4), "stack.state.gradients=-4", "a number from 0"),
    "state word": (put("state", "gradients", value="4"), "stack.state.gradients=4", "a number from 0"),
    "logit_bytes inf": (put("logit_bytes", value=float("inf")), "stack.logit_bytes=inf", "a number from 0"),
    "logit_bytes huge": (put("logit_bytes", value=10**400), "stack.logit_bytes=", "a number from 0"),
    "remat list": (put("remat", value=["full"]), "stack.remat=", "a mapping of"),
    "remat empty": (put("remat", value={}), "stack.remat={}", "a mapping of"),
    "remat number": (put("remat", value={1: None}), "stack.remat.1=1", "one word"),
    "remat two words": (put("remat", value={"a b": None}), "stack.remat.a b", "one word"),
    "policy list": (put("remat", "full", value=["out"]), "stack.remat.full=", "a mapping of"),
    "policy field": (put("remat", "full", value={"save": "all"}), "stack.remat.full=save", "did you mean saved"),
    "policy tensor": (put("remat", "full", value={"saved": ["qury"]}), "stack.remat.full.saved=qury", "query"),
    "policy word": (put("remat", "full", value={"saved": "out"}), "stack.remat.full.saved=out", "a list of"),
    "saved and offloaded": (
        put("remat", "full", value={"saved": "all", "offloaded": ["out"]}),
        "stack.remat.full.offloaded=out",
        "not among saved",
    ),
    "offload_input": (
        put("remat", "full", value={"offload_input": 1}),
        "stack.remat.full.offload_input=1",
        "true, false",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_is_wrong_says_where_in_one_line(case: str) -> None:
    change, key, said = BROKEN[case]
    given = copy.deepcopy(YAML["megatron"])
    change(given)
    with pytest.raises(ConfigError) as caught:
        stack_from_mapping(given)
    assert str(caught.value).startswith(key)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", [name for name in YAML["megatron"] if name != "source"])
@pytest.mark.parametrize("value", [None, "", "text", -1, NAN, [None], [{}], {"x": {"y": 1}}, b"bytes"], ids=repr)
def test_no_value_of_any_field_ends_in_another_error(field: str, value: Any) -> None:
    if (field, value) == ("name", "text"):
        return
    with pytest.raises(ConfigError):
        stack_from_mapping({**YAML["megatron"], field: value})


LISTS = ("axes", "zero", "schedules", "sequence_parallel", "attention")


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(LISTS, 2)))
def test_of_two_mistakes_the_same_one_is_always_told(first: str, second: str) -> None:
    with pytest.raises(ConfigError, match=rf"^stack\.{first}=\[\]: allowed: a list of at least one$"):
        stack_from_mapping({**YAML["megatron"], second: [], first: []})


@pytest.mark.parametrize("given", [None, "megatron", ["megatron"], 3])
def test_a_stack_is_a_mapping(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^stack="):
        stack_from_mapping(given)


@pytest.mark.parametrize("name", YAML)
def test_every_figure_has_a_source_or_is_assumed(name: str) -> None:
    given = YAML[name]
    numbers = ("logit_bytes", "gathering_bytes", "score_bytes", "norm_bytes", "gate_bytes", "gathered_layers")
    numbers = (*numbers, "sums_bytes", "logit_chunk")
    figures = {"state", "remat", *numbers}
    assert set(given["sources"]) == figures
    for key, text in given["sources"].items():
        assert len(text.split()) >= 3, key


def test_every_branch_of_the_policies_and_stages_is_reached() -> None:
    stacks = [stack_from_mapping(given) for given in YAML.values()]
    policies = [policy for stack in stacks for policy in stack.remat]
    assert any(policy.offload_input for policy in policies)
    assert any(policy.offloaded for policy in policies)
    assert {stage for stack in stacks for stage in stack.zero} == {0, 1, 2}


def test_policies_of_maxtext_keep_what_its_source_names() -> None:
    """MaxText, nnx_decoders.py, get_remat_policy; its mlpwo is the output of the experts, or needed by no gradient."""
    names = {"q": "query", "kv": "key_value", "context": "context", "out_proj": "out"}
    given = {
        "save_out_proj": "out_proj",
        "save_qkv_proj": "q kv",
        "save_dot_except_mlp": "q kv out_proj",
        "save_dot_with_context_except_mlp": "q kv context out_proj",
    }
    policies = {policy.name: policy for policy in stack_from_mapping(YAML["maxtext"]).remat}
    for name, kept in given.items():
        assert policies[name].saved == {names[word] for word in kept.split()}
    assert policies["save_dot_except_mlpwi"].saved == policies["save_dot_except_mlp"].saved | {"expert_out"}
    assert policies["qkv_proj_offloaded"].offloaded == {"query", "key_value"}
    assert policies["minimal"].saved == policies["minimal_offloaded"].offloaded
    assert policies["minimal_with_context"].saved == policies["minimal"].saved | {"context"}
    assert policies["save_qkv_context"].saved == {"query", "key_value", "context"}
    for name, kept in {"out": "out", "mlpwo": "expert_out", "qkv": "query key_value"}.items():
        policy = policies[f"offload_input_{name}"]
        assert policy.offload_input
        assert policy.offloaded == set(kept.split())

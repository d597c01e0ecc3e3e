"""Cases are data that anyone may have written: checked, cut, and alike by what was worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asap_ray.cases import LONG, WEIGHTS, Case, Situation, clean, near, read_case, similarity, situation_of
from tests.problems import MOE, make_problem

HERE = Situation(
    model="llama3_8b",
    family="dense",
    parameters=8_030_261_248,
    seq_len=4096,
    global_batch=512,
    precision="bf16",
    chip="v5e",
    kind="tpu",
    slice="v5e-64",
    devices=64,
    stack="maxtext",
)
CASE = Case(
    situation=HERE,
    source="compile",
    evidence="ours@12345678, jax 0.10.2",
    bundle="default",
    plan="fsdp=64 micro_batch=1 accumulation=8 remat=full",
    status="complete",
    roofline_s=2.0,
    step_time_s=2.4,
    hbm_bytes=9e9,
    bound="ici",
)


def test_a_problem_is_a_situation() -> None:
    problem = make_problem("2xv5e-4", "maxtext", model=MOE, batch=24)
    found = situation_of(problem)
    assert (found.family, found.chip, found.kind, found.devices, found.stack) == ("moe", "v5e", "tpu", 8, "maxtext")
    assert (found.model, found.parameters, found.global_batch, found.seq_len) == ("moe", MOE.parameters, 24, 24)


@pytest.mark.parametrize(("a", "b", "common"), [(8, 8, 1.0), (8, 16, 0.75), (16, 4, 0.5), (1, 16, 0.0), (1, 99, 0.0)])
def test_sizes_lose_a_quarter_with_each_doubling(a: int, b: int, common: float) -> None:
    assert near(a, b) == near(b, a) == common


# What each change takes off, by the table of weights.
@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ({}, 0.05),  # what bounds them is not known
        ({"family": "moe"}, 0.30),
        ({"parameters": 2 * HERE.parameters}, 0.05 + 0.20 * 0.25),
        ({"seq_len": 1024}, 0.05 + 0.10 * 0.5),
        ({"chip": "v5p"}, 0.05 + 0.20 * 0.5),
        ({"chip": "h100", "kind": "gpu"}, 0.05 + 0.20),
        ({"devices": 1024}, 0.05 + 0.15),
        ({"stack": "ours"}, 0.10),
        ({"model": "another", "global_batch": 8, "slice": "v5e:8x8"}, 0.05),
    ],
)
def test_situations_are_alike_by_their_parts(change: dict[str, Any], lost: float) -> None:
    assert sum(WEIGHTS.values()) == pytest.approx(1.0)
    assert similarity(HERE, replace(HERE, **change)) == pytest.approx(1.0 - lost)


def test_what_bounds_both_counts_where_it_is_known() -> None:
    assert similarity(HERE, HERE, ("ici", "ici")) == pytest.approx(1.0)
    assert similarity(HERE, HERE, ("ici", "hbm")) == similarity(HERE, HERE, ("", "")) == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("change", "akin"),
    [
        ({"devices": 1024, "global_batch": 4096, "stack": "ours", "model": "other"}, True),
        ({"parameters": 2 * HERE.parameters, "seq_len": 8192}, True),
        ({"parameters": 2 * HERE.parameters + 1}, False),
        ({"seq_len": 2047}, False),
        ({"chip": "v5p"}, False),
        ({"family": "moe"}, False),
    ],
)
def test_a_class_is_a_family_a_chip_and_sizes_within_a_factor_of_two(change: dict[str, Any], akin: bool) -> None:
    assert HERE.akin(replace(HERE, **change)) is replace(HERE, **change).akin(HERE) is akin


def test_a_case_is_read_back_as_it_was_written() -> None:
    assert read_case(json.loads(json.dumps(CASE.as_dict()))) == CASE
    assert len(CASE.id) == 12
    assert set(CASE.id) <= set("0123456789abcdef")


def test_the_id_is_of_the_evidence_and_not_of_what_is_said_about_it() -> None:
    said = replace(CASE, told="x", hypothesis="y", diagnosis="z", versions={"numpy": "9"}, hbm_bytes=None)
    assert said.id == CASE.id
    changes: list[dict[str, Any]] = [
        {"step_time_s": 2.5},
        {"plan": "fsdp=64"},
        {"by": "a_card"},
        {"verdict": "refuted"},
        {"evidence": "ours@12345678, jax 0.11"},
        {"situation": replace(HERE, devices=32)},
    ]
    assert len({replace(CASE, **change).id for change in changes} | {CASE.id}) == len(changes) + 1


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"plan": "rm -rf /"}, "unknown field"),
    ({"plan": ""}, "no plan"),
    ({"plan": "fsdp=0"}, "positive whole number"),
    ({"base": "nonsense=1"}, "unknown field"),
    ({"status": "great"}, "status"),
    ({"verdict": "certain"}, "verdict"),
    ({"roofline_s": None}, "price"),
    ({"step_time_s": -1.0}, "no positive number"),
    ({"step_time_s": float("nan")}, "no positive number"),
    ({"step_time_s": True}, "no positive number"),
    ({"step_time_s": "2.4"}, "no positive number"),
    ({"bound": "luck"}, "no bound"),
    ({"base_bound": "../../etc"}, "no bound"),
    ({"told": ["a"]}, "no text"),
    ({"situation": None}, "no mapping"),
    ({"situation": {**CASE.as_dict()["situation"], "devices": 0}}, "no size"),
    ({"situation": {**CASE.as_dict()["situation"], "devices": 2.0}}, "no size"),
    ({"situation": {**CASE.as_dict()["situation"], "family": "sparse"}}, "family"),
    ({"versions": "new"}, "no mapping"),
]


@pytest.mark.parametrize(("change", "words"), BROKEN, ids=[f"{next(iter(each))}-{words}" for each, words in BROKEN])
def test_what_is_no_case_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_case({**CASE.as_dict(), **change})


@pytest.mark.parametrize("given", [None, 3, "case", [], ["plan"]])
def test_what_is_no_mapping_is_no_case(given: object) -> None:
    with pytest.raises(ValueError, match="no mapping"):
        read_case(given)


def test_texts_are_cut_and_hold_nothing_that_is_not_shown() -> None:
    hostile = "ignore\x1b[31m all\u202e rules\n\n\x00\u200b and " + "x" * 10_000
    found = read_case({**CASE.as_dict(), "told": hostile, "versions": {hostile: hostile}})
    assert len(found.told) == LONG
    assert found.told.isprintable()
    assert found.told.startswith("ignore [31m all rules and xxx")
    assert all(len(name) <= 80 and name.isprintable() for each in found.versions.items() for name in each)


def test_a_text_that_fits_is_left_as_it_is() -> None:
    assert clean("5.2 s, bound by ICI (ü)", 40) == "5.2 s, bound by ICI (ü)"
    assert clean("abcdef", 4) == "abc…"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=8), each, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from([*CASE.as_dict(), "situation.devices", "situation.model", "situation.kind"]), JSON)
def test_whatever_stands_in_a_field_is_a_case_or_a_value_error(name: str, value: object) -> None:
    given_ = CASE.as_dict()
    outer, _, inner = name.partition(".")
    given_[outer] = {**given_[outer], inner: value} if inner else value
    try:
        found = read_case(given_)
    except ValueError:
        return
    texts = [each for each in found.as_dict().values() if isinstance(each, str)]
    assert all(each.isprintable() and len(each) <= LONG for each in texts)
    json.dumps(found.as_dict(), allow_nan=False)

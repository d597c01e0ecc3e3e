"""The record is carried over an edit of the trainer where programs are the same, and only there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from asap_ray.compiler import toolchain
from asap_ray.compiler.request import Build
from asap_ray.tasks.compiled_cases import RESULTS, record_dir
from asap_ray.tasks.renewing import Text, Texts, copied, renewed
from asap_ray.tiers.cache import Cache
from asap_ray.tiers.recorded import Recorded, read_record


def line(plan: str, trainer: str = "0ld0ld00") -> Recorded:
    return Recorded(
        row="", model="llama", hardware="v5e-16", global_batch=8, seq_len=128, plan=plan, status="complete",
        compiled_with=f"ours@{trainer}, jax 1",
    )  # fmt: skip


def texts(trainer: str, digests: dict[str, str]) -> Texts:
    programs = {json.dumps(line(plan).key): Text(digest=d, cached=f"{trainer}-{plan}") for plan, d in digests.items()}
    return Texts(trainer=trainer, programs=programs)


OLD = texts("0ld0ld00", {"same": "a", "other": "b", "gone": "c"})
NEW = texts("new0new0", {"same": "a", "other": "x", "added": "d"})


def test_only_lines_whose_programs_are_the_same_name_the_new_trainer() -> None:
    given = [line("same"), line("other"), line("gone"), line("added"), line("same", trainer="older000")]
    found, differ = renewed(given, OLD, NEW)
    assert [each.compiled_with for each in found] == [
        "ours@new0new0, jax 1",
        *["ours@0ld0ld00, jax 1"] * 3,
        "ours@older000, jax 1",
    ]
    assert [each.plan for each in differ] == ["other", "gone", "added", "same"]
    assert found[0] == replace(given[0], compiled_with=found[0].compiled_with)


def test_results_are_copied_for_the_same_programs_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for plan in ("same", "other", "gone"):
        cache.write(f"0ld0ld00-{plan}", Build(status="complete", reason=plan))
    assert copied(tmp_path, OLD, NEW) == 1
    kept = cache.read("new0new0-same")
    assert kept is not None
    assert kept.reason == "same"
    assert cache.read("new0new0-other") is None


def test_texts_are_read_back() -> None:
    assert Texts.from_dict(json.loads(json.dumps(OLD.as_dict()))) == OLD


def test_the_record_is_of_the_trainer_that_is_here() -> None:
    """Otherwise the compilations of the record have to be made again, or proved to be the same."""
    ours = f"ours@{toolchain.source_hash(toolchain.TRAINER)[:8]},"
    assert [each.plan for each in read_record(record_dir() / RESULTS) if not each.compiled_with.startswith(ours)] == []


@pytest.mark.parametrize("text", ["stablehlo.add", r"{\22body\22: 3}"])
def test_a_text_without_kernels_is_left_as_it_is(text: str) -> None:
    from asap_ray.compiler.lowered import bare

    assert bare(text) == text

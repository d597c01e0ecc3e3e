"""What is said of compiled plans, on answers whose figures are worked out by hand."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from asap_ray.plan import Plan
from asap_ray.report import leaderboard
from asap_ray.report.answer import Searched, Tried
from asap_ray.report.compiled import difference, flag_words, memory_words, time_words, took, took_words, why
from asap_ray.report.summary import summary
from asap_ray.report.terminal import print_blocks, show
from asap_ray.report.units import gigabytes, seconds
from asap_ray.tiers.finding import Finding

WITH = "ours@12345678, jax 0.10.2, libtpu 0.0.42"
Maker = Callable[..., Tried]


@pytest.fixture
def tried(factory: Any) -> Maker:
    """A plan of the factory's, by its place; `step` and `memory` are the compiler's over the roofline's."""

    def make(place: int, step: float | None = 1.1, memory: float = 1.0, bundle: str = "default", **told: Any) -> Tried:
        roofline = factory.slice_answer().ranked[place]
        found = None
        if step is not None:
            found = replace(
                roofline,
                step_time_s=step * roofline.step_time_s,
                interval_s=(0.9 * step * roofline.step_time_s, 1.1 * step * roofline.step_time_s),
                time_parts={name: step * value for name, value in roofline.time_parts.items()},
                hbm_bytes=memory * roofline.hbm_bytes,
                source="compile",
            )
        fields: dict[str, Any] = {
            "status": "complete" if found else "failed",
            "hbm_bytes": memory * roofline.hbm_bytes,
            "seconds": {"lower": 4.0, "compile": 36.0, "cores": 71.0},
            "evidence": WITH,
            "digest": f"{place}",
        }
        compiled = Finding(plan=roofline.plan, estimate=found, **{**fields, **told})
        return Tried(where="v5p-128", bundle=bundle, roofline=roofline, finding=compiled)

    return make


def compiled(factory: Any, *trials: Tried, **changes: Any) -> Any:
    told = Searched(base="default", trials=trials, stopped="2 plans compiled, as many as wanted")
    answer = factory.slice_answer(searched=told, **changes)
    return factory.answer(answer, trials={"complete": len(trials)})


def test_parts_that_differ_are_named_largest_first_and_the_rest_summed() -> None:
    before = {"matmul": 60.0, "fsdp": 20.0, "tensor": 10.0, "host": 1.0, "head": 9.0}
    now = {"matmul": 66.0, "fsdp": 12.0, "tensor": 10.5, "host": 2.0, "head": 9.0}
    assert difference(now, before, seconds) == "fsdp -8.00 s, matmul +6.00 s, all else +1.50 s"
    assert difference(before, before, seconds) == ""
    assert difference({"weights": 3e9}, {"gathered": 1e9}, gigabytes) == "weights +3.00 GB, gathered -1.00 GB"


def test_step_and_memory_are_explained_against_the_roofline(factory: Any) -> None:
    before = factory.estimate(factory.lines[0], 100.0, hbm_bytes=80e9)
    parts = {**before.time_parts, "matmul": before.time_parts["matmul"] + 9.0, "fsdp": before.time_parts["fsdp"] - 4.0}
    # The factory's memory: weights 20%, optimizer 40%, so 32 GB of the 80 come and go; the compiler needs 40 for that.
    memory = {"weights": 16e9, "optimizer": 32e9, "temporaries": 38e9, "code": 2e9}
    now = replace(before, step_time_s=105.0, time_parts=parts, hbm_bytes=88e9, memory_parts=memory)
    assert time_words(now, before) == "+5.00 s (+5.0%): matmul +9.00 s, fsdp -4.00 s"
    words = memory_words(now, before)
    assert words.startswith("+8.00 GB (+10.0%): working memory +8.00 GB; the roofline's working memory is mostly ")
    assert "activations 20.0 GB, gradients 8.00 GB, logits 4.00 GB" in words


def test_ranks_are_the_compilers(tried: Maker) -> None:
    first, second, third = tried(0, 1.4), tried(1, 1.1), tried(2, None, status="infeasible", over_bytes=3e9)
    told = Searched(base="default", trials=(first, second, third))
    assert told.ranked == (second, first)
    assert told.best is second
    assert told.unfinished == (third,)
    assert why(third) == "3.00 GB over, needs 71.2 GB (roofline 71.2 GB)"


def test_seconds_of_a_compilation_are_those_of_its_steps(tried: Maker) -> None:
    assert took(tried(0)) == "40.0 s"
    assert took(tried(0, cached=True)) == "cached, 40.0 s"
    assert (
        took_words([tried(0), tried(1, cached=True)])
        == "median 40.0 s a compilation, 2 in all, 1 of them from the cache"
    )


def test_bundles_are_told_from_no_ops(tried: Maker) -> None:
    base = tried(0, 1.1)
    same, faster = tried(0, 1.1, bundle="async"), tried(0, 1.0, bundle="vmem", digest="other")
    refused = tried(0, None, bundle="odd", reason="No such compile option: 'xla_x'", digest="")
    told = Searched(base="default", trials=(base, same, faster, refused))
    assert flag_words(told, same) == "no-op: the program is the same, instruction by instruction"
    assert flag_words(told, faster).startswith("matmul -6.00 s")  # 60% of the 10 s
    assert flag_words(told, refused) == "failed: No such compile option: 'xla_x'"
    assert told.best is faster
    assert Searched(base="default", trials=(base, same)).best is base, "a no-op does not take the place of the default"


def test_the_answer_and_its_files_rest_on_the_compiler(factory: Any, tried: Maker) -> None:
    trials = (tried(0, None, status="infeasible", over_bytes=3e9), tried(1, 1.3), tried(2, 1.1))
    answer = compiled(factory, *trials)
    found = summary(answer)
    assert found["best"]["line"] == Plan.parse(factory.lines[2]).line
    assert found["best"]["source"] == "compile"
    assert found["best"]["step_time_s"] == pytest.approx(1.1 * 104)
    assert json.dumps(found, allow_nan=False)
    rows = leaderboard.records(answer)
    assert [(row["rank"], row["source"], row.get("trial")) for row in rows[:4]] == [
        (1, "compile", "complete"), (2, "compile", "complete"), (3, "roofline", None), (4, "roofline", None),
    ]  # fmt: skip
    assert [row["trial_over_bytes"] for row in rows if row.get("trial") == "infeasible"] == [3e9]
    assert leaderboard.csv_text(rows).count("\n") == len(rows) + 1
    assert "compile: infeasible" in leaderboard.markdown_text(rows)


def test_what_became_of_the_rooflines_best_is_told(factory: Any, tried: Maker) -> None:
    stream = io.StringIO()
    show(compiled(factory, tried(0, 1.5), tried(1, 1.1)), "plain", stream)
    assert "the roofline's best is #2 here, +33.0%: fsdp=16" in stream.getvalue()  # 150 s over 112.75 s
    stream = io.StringIO()
    show(compiled(factory, tried(0, None, status="infeasible", over_bytes=3e9), tried(1, 1.1)), "plain", stream)
    assert "the roofline's best does not fit: 3.00 GB over" in stream.getvalue()
    assert "No trial stands behind these figures" not in stream.getvalue()


def test_reasons_keep_to_their_line(factory: Any, tried: Maker) -> None:
    stream = io.StringIO()
    answer = compiled(factory, tried(0, None, reason="INTERNAL:\n  \x1b[31mred\n  more"), tried(1, 1.1))
    show(answer, "plain", stream)
    assert "INTERNAL: \\x1b[31mred more" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
    print_blocks([], "plain", stream)


def test_what_ran_out_of_time_before_is_not_said_to_be_cached(tried: Maker) -> None:
    assert took(tried(0, cached=True)).startswith("cached, ")
    assert took(tried(0, step=None, status="timeout", seconds={}, cached=True)) == "before"

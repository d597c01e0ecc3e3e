"""`tiers=[roofline,compile]` from the command line to its files, with a compiler that only pretends."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from asap_ray.ledger import Ledger
from asap_ray.plan import Plan
from asap_ray.report.summary import summary
from asap_ray.tasks import record
from tests.tasks.pretend import WITH, Pretend

TINY = ("+model=tiny", "hardware=v5e-4", "run_dir=run", "tiers=[roofline,compile]", "compile.workers=2")


pytestmark = pytest.mark.usefixtures("pretend")

NEAR = 0.01
"""What is compiled is our trainer: physics tells it from MaxText by less."""


def judged(pretend: type[Pretend], monkeypatch: pytest.MonkeyPatch, *verdicts: Mapping[str, Any]) -> None:
    """Give the first plans that are compiled these verdicts, in order, and the others the last one."""
    seen: list[Plan] = []

    def verdict(plan: Plan, flags: Mapping[str, str]) -> Mapping[str, Any]:
        seen.append(plan)
        return verdicts[min(len(seen), len(verdicts)) - 1]

    monkeypatch.setattr(pretend, "verdict", staticmethod(verdict))


def answer(ended: Any) -> dict[str, Any]:
    assert ended.status == 0, ended.err
    return json.loads(ended.out)


def test_the_answer_is_the_compilers_best(command, pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(
        pretend, monkeypatch, {"step": 3.0}, {"status": "infeasible", "over_bytes": 2e9}, {"step": 1.2, "memory": 1.5}
    )
    found = answer(command(*TINY, "budget.compile=3", "output=json"))
    told = found["searched"]
    steps = {each["plan"]: each["step_time_s"] for each in told["plans"] if each["status"] == "complete"}
    assert found["best"]["source"] == "compile"
    assert found["best"]["step_time_s"] == min(steps.values()) == steps[found["best"]["line"]]
    assert found["trials"] == {"complete": 3, "pruned": 0, "infeasible": 1, "failed": 0, "timeout": 0}
    assert len(pretend.compiled) == 4
    assert (told["evidence"], told["refused"]) == (WITH, {})
    assert found["best"]["hbm_bytes"] == pytest.approx(
        1.5 * next(e["roofline"]["hbm_bytes"] for e in told["plans"] if e["plan"] == found["best"]["line"]),
        rel=NEAR,
    )
    assert found["stop_reason"].endswith("v5e-4: 3 plans compiled, 1 did not fit: as many as wanted")
    assert {"jax", "libtpu"} & set(found["versions"])
    assert found["certificate"]["untried"] == found["space"]["fitting"] - 4
    assert json.loads(Path("run/summary.json").read_text()) == found


def test_six_plans_are_compiled_where_no_number_is_given(command, pretend) -> None:
    assert answer(command(*TINY, "output=json"))["trials"]["complete"] == 6


def test_each_outcome_is_an_event_and_the_answer_can_be_rebuilt(
    command, pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(pretend, monkeypatch, {"status": "failed", "reason": "crashed", "output": "why"}, {"step": 1.1})
    found = answer(command(*TINY, "budget.compile=2", "output=json"))
    events = list(Ledger(Path("run")).events())
    kinds = [event["kind"] for event in events]
    assert (kinds[:3], kinds[-4:]) == (["start", "swept", "certificate"], ["stop", "searched", "certificate", "answer"])
    counts = Counter(kinds)
    assert counts["tried"] == counts["trial"] == counts["proposal"] == counts["verdict"] == 3
    assert counts["round"] == 1
    assert [event["finding"]["status"] for event in events if event["kind"] == "tried"].count("failed") == 1
    assert [event["output"] for event in events if event["kind"] == "tried" and event["output"]] == ["why"]
    assert summary(record.answer_of(events, Path("run").absolute())) == found


def test_the_same_command_again_compiles_nothing(command, pretend) -> None:
    first = answer(command(*TINY, "budget.compile=2", "output=json"))
    made = len(pretend.compiled)
    second = answer(command(*TINY, "budget.compile=2", "output=json"))
    assert len(pretend.compiled) == made == 2
    assert (first["resumed"], second["resumed"]) == (False, True)
    assert second["best"] == first["best"]
    assert all(each["cached"] for each in second["searched"]["plans"])


@pytest.mark.usefixtures("drawn_page")
def test_plain_output_tells_both_and_what_differs(command, pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    crash = {"status": "failed", "reason": "its process was ended\nby SIGSEGV"}
    judged(pretend, monkeypatch, {"status": "infeasible", "over_bytes": 2e9}, crash, {"step": 1.25, "memory": 1.1})
    ended = command(*TINY, "budget.compile=2", "output=plain")
    assert ended.status == 0
    lines = ended.out.splitlines()
    order = ["Best plan on v5e-4 by the roofline:", "Compiled for v5e-4:", "Did not compile for v5e-4:"]
    places = [lines.index(each) for each in (*order, "Best plan on v5e-4, by the compiler:")]
    assert places == sorted(places)
    live = [line for line in lines[: places[1]] if line.startswith("  v5e-4 35.0 s: ")]
    assert len(live) == 4
    for words in (
        "does not fit, 2.00 GB over",
        "failed, its process was ended by SIGSEGV",
        "(+25.0%)",
        "working memory",
        WITH,
        "No evidence for maxtext's own kernels",
        "No chip has run these plans",
        "2 plans compiled, 1 did not fit and 1 failed or ran out of time: as many as wanted",
        "median 35.0 s a compilation, 4 in all, 0 of them from the cache",
    ):
        assert words in ended.out, words
    page = Path("run/report.html").read_text()
    assert "Compiled for v5e-4" in page
    assert "Step time, compile" in page
    board = json.loads(Path("run/leaderboard.json").read_text())
    compiled = [row["trial"] for row in board if row.get("trial")]
    assert (compiled[:2], sorted(compiled[2:])) == (["complete"] * 2, ["failed", "infeasible"])
    assert [row["rank"] for row in board[:2]] == [1, 2]
    assert board[0]["roofline_step_time_s"] == pytest.approx(board[0]["step_time_s"] / 1.25, rel=NEAR)
    assert next(row for row in board if row.get("trial") == "infeasible")["fits"] is False


def test_nothing_that_compiles_leaves_the_roofline_with_the_reason(
    command, pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(pretend, monkeypatch, {"status": "failed", "reason": "no such instruction"})
    found = answer(command(*TINY[:-1], "compile.workers=1", "output=json"))
    assert found["best"]["source"] == "roofline"
    assert found["trials"]["failed"] == 3
    assert "0 plans compiled, 3 failed or ran out of time: given up" in found["stop_reason"]


def test_a_plan_that_the_compiler_refuses_is_not_the_answer(command, pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(pretend, monkeypatch, {"status": "infeasible", "over_bytes": 1e9}, {"status": "failed", "reason": "crash"})
    found = answer(command(*TINY, "output=json"))
    refused = {each["plan"] for each in found["searched"]["plans"] if each["status"] == "infeasible"}
    assert found["best"]["source"] == "roofline"
    assert found["best"]["line"] not in refused


def test_further_bundles_are_tried_on_the_best_two_and_a_no_op_is_no_tie(
    command, pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verdict(plan: Plan, flags: Mapping[str, str]) -> Mapping[str, Any]:
        if "xla_tpu_scoped_vmem_limit_kib" in flags:
            return {"step": 0.9}
        if "xla_tpu_enable_ici_ag_pipelining" in flags:
            return {"step": 1.1, "program": []}
        if "xla_tpu_enable_data_parallel_all_reduce_opt" in flags:
            return {"status": "failed", "reason": "No such compile option: 'xla_x'"}
        return {"step": 1.1}

    monkeypatch.setattr(pretend, "verdict", staticmethod(verdict))
    bundles = "compile.xla=[default,pipelined,vmem,data_parallel]"
    found = answer(command(*TINY, "budget.compile=3", bundles, "output=json"))
    flagged = [each for each in found["searched"]["plans"] if each["bundle"] != "default"]
    assert len(flagged) == 6
    assert {(each["bundle"], each["no_op"]) for each in flagged} == {
        ("pipelined", True), ("vmem", False), ("data_parallel", False),
    }  # fmt: skip
    vmem = [each["step_time_s"] for each in flagged if each["bundle"] == "vmem"]
    assert found["best"]["step_time_s"] == min(vmem)
    plain = command(*TINY, "budget.compile=3", bundles, "output=plain").out
    assert "no-op: the program is the same, instruction by instruction" in plain
    assert "failed: No such compile option: 'xla_x'" in plain
    assert "bundle vmem" in plain


def test_slices_share_the_budget_and_each_is_told(command, pretend) -> None:
    words = ("+model=tiny", "hardware=[v5e-4,v5p-8]", "run_dir=run", "tiers=[roofline,compile]", "budget.compile=3")
    ended = command(*words, "output=plain")
    found = json.loads(Path("run/summary.json").read_text())
    counts = [len(each["searched"]["plans"]) for each in found["hardware_ranking"]]
    assert sorted(counts) == [1, 2]
    assert {each["best"]["source"] for each in found["hardware_ranking"]} == {"compile"}
    assert ended.out.count("by the compiler:") == 2


def test_our_trainer_has_no_program_for_some_plans_of_other_stacks(command, pretend) -> None:
    words = ("+model=tiny", "hardware=h100x8", "stack=megatron", "run_dir=run", "tiers=[roofline,compile]")
    found = answer(command(*words, "space.fix={tensor: 2, sequence_parallel: false}", "output=json"))
    assert found["best"]["source"] == "roofline"
    assert pretend.compiled == []
    assert "sequence_parallel" in found["searched"]["refused"]
    assert "0 plans compiled: asap_ray's own trainer has no program" in found["stop_reason"]


MISTAKES = {
    ("hardware=mi300x8",): ("tiers=compile: hardware=mi300x has no compiler", "v5p", "NVIDIA GPUs from A100 on"),
    ("hardware=v3-8",): ("tiers=compile: hardware=v3 has no compiler", "v4"),
    ("compile.xla=asynk",): ("compile.xla=asynk: did you mean async?",),
    ("compile.xla=combine",): ("compile.xla=combine: not for v5e; allowed: async",),
    ("workload.precision=fp16", "stack=megatron", "hardware=h100x8"): ("workload.precision=fp16", "bf16, fp8, fp32"),
}


@pytest.mark.parametrize("words", MISTAKES, ids=lambda words: words[0])
def test_what_cannot_be_compiled_ends_in_one_line_before_anything_starts(command, words: tuple[str, ...]) -> None:
    ended = command(*TINY, *words)
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert [word for word in MISTAKES[words] if word not in ended.err] == []
    assert not Path("run").exists()


def test_a_compiler_that_is_not_installed_names_its_extra(command, pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretend, "lacking", "v5e needs libtpu: pip install 'asap-ray[tpu]'")
    ended = command(*TINY)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err == "asap-ray: tiers=compile: v5e needs libtpu: pip install 'asap-ray[tpu]'\n"
    assert not Path("run").exists()


def test_explain_compiles_the_plan(command, pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(pretend, monkeypatch, {"step": 1.5})
    words = (*TINY[:3], "task=explain", "tiers=[compile]", "plan=fsdp=4 micro_batch=4 remat=full")
    found = answer(command(*words, "output=json"))
    assert found["compiled"]["status"] == "complete"
    assert found["compiled"]["plan"] == found["best"]["line"]
    assert found["compiled"]["step_time_s"] == pytest.approx(1.5 * found["best"]["step_time_s"], rel=NEAR)
    plain = command(*words, "output=plain").out
    assert "Compiled for v5e-4:" in plain
    assert "cached, 35.0 s" in plain


def test_explain_says_why_a_plan_does_not_compile(command, pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(pretend, monkeypatch, {"status": "infeasible", "over_bytes": 3e9})
    ended = command(*TINY[:3], "task=explain", "tiers=[compile]", "output=plain")
    assert ended.status == 0
    assert "does not fit  3.00 GB over" in ended.out

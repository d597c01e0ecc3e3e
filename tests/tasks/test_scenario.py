"""ASAP's three cases: counts by hand, steps by brute force, what was proposed, and the answer in every place."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from asap_ray.errors import ConfigError
from asap_ray.ledger import Ledger
from asap_ray.overrides import configure
from asap_ray.plan import Plan
from asap_ray.report.scenario import Reading, gain_words
from asap_ray.rules import broken
from asap_ray.tasks.scenario import ours, read_as, scenario_from_mapping
from asap_ray.tasks.setting import Setting, load

NAMES = ("asap_compute", "asap_hbm", "asap_communication")
CHIPS = {"asap_compute": 512, "asap_hbm": 16, "asap_communication": 256}
KV_HEADS = {"asap_compute": 8, "asap_hbm": 8, "asap_communication": 32}
"""Llama 3.1 70B, Qwen3 1.7B, Llama 2 7B: what the tensor axis must divide."""


@cache
def loaded(name: str) -> tuple[Setting, Mapping[str, Reading]]:
    config = configure([f"+scenario={name}", "run_dir=run"])
    setting, scenario = load(config), scenario_from_mapping(config.scenario)
    tier, space = setting.tiers[0], setting.spaces[0]
    return setting, {each: read_as(config, scenario, tier, space, each) for each in scenario.data_as}


def factorisations(chips: int) -> list[tuple[int, ...]]:
    """Every (replica, data, sequence, model) of powers of two that multiply to the chips."""
    powers = [2**i for i in range(chips.bit_length())]
    return [sizes for sizes in itertools.product(powers, repeat=4) if math.prod(sizes) == chips]


@pytest.mark.parametrize(("name", "count"), [("asap_compute", 220), ("asap_hbm", 35), ("asap_communication", 165)])
def test_the_space_is_the_papers(name: str, count: int) -> None:
    # PROMPTS (MLSys 2026) counts 165 plans for the third case; every other size that shards divides evenly here.
    found = factorisations(CHIPS[name])
    assert len(found) == count
    legal = [sizes for sizes in found if KV_HEADS[name] % sizes[3] == 0]
    _, readings = loaded(name)
    assert (readings["fsdp"].factorisations, readings["fsdp"].distinct) == (count, count)
    assert readings["fsdp"].legal == len(legal)
    # With data read as data, replica and data are one axis.
    assert readings["data"].distinct == len({(r * d, s, m) for r, d, s, m in found})
    assert readings["data"].legal == len({(r * d, s, m) for r, d, s, m in legal})


@pytest.mark.parametrize("name", NAMES)
def test_the_baseline_has_the_diagnosis_of_the_case(name: str) -> None:
    _, readings = loaded(name)
    wanted = {"asap_compute": "compute", "asap_hbm": "hbm", "asap_communication": "ici"}[name]
    bounds = {data_as: each.diagnosis.bound for data_as, each in readings.items()}
    # Sharded over 16 chips the state is no burden to any of them: the paper's second case must have replicated it.
    assert bounds == {"fsdp": "compute" if name == "asap_hbm" else wanted, "data": wanted}
    assert {data_as: each.as_diagnosed for data_as, each in readings.items()} == {
        data_as: bound == wanted for data_as, bound in bounds.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_three_proposals_that_may_be_tried(name: str) -> None:
    setting, readings = loaded(name)
    for each in readings.values():
        plans = [one.estimate.plan for one in each.proposals]
        assert len({plan.sizes for plan in plans} - {each.baseline.plan.sizes}) == 3
        assert all(broken(setting.tiers[0].problem, plan) is None for plan in plans)
        assert all(one.estimate.fits for one in each.proposals)
        assert all(one.hypothesis and one.mechanism and one.predicted and one.falsification for one in each.proposals)
        assert all(one.source or one.by == "ranking" for one in each.proposals)


@pytest.mark.parametrize(
    ("name", "data_as", "card"),
    [
        ("asap_compute", "data", "compute_context_to_data"),
        ("asap_hbm", "data", "ranking"),
        ("asap_communication", "data", "ici_tensor_to_data"),
        ("asap_hbm", "fsdp", "ranking"),
        # Since cards double the axis that a plan has, which came after these two had been seen to fail.
        ("asap_compute", "fsdp", "compute_context_to_data"),
        ("asap_communication", "fsdp", "ici_tensor_to_data"),
    ],
)
def test_which_adopted_plans_are_among_the_three(name: str, data_as: str, card: str) -> None:
    # What docs/scenarios.md reports, whatever it is.
    found = loaded(name)[1][data_as]
    by = [each.by for each in found.proposals if each.is_adopted]
    assert by == [card]
    assert found.adopted_in_first_three


@pytest.mark.parametrize("name", ["asap_compute", "asap_hbm"])
def test_what_is_known_is_a_baseline_and_no_trial(name: str) -> None:
    for each in loaded(name)[1].values():
        for one in each.proposals:
            words = one.hypothesis
            assert words.startswith("the roofline expects" if one.by == "ranking" else "the baseline has ")
            assert "trial" not in words


def test_best_and_rank_are_those_of_all_plans_priced_one_by_one() -> None:
    setting, readings = loaded("asap_hbm")
    tier, steps = setting.tiers[0], {}
    for replica, data, sequence, model in factorisations(16):
        mesh = {"data": replica * data, "context": sequence, "tensor": model}
        line = " ".join(f"{axis}={size}" for axis, size in mesh.items() if size > 1)
        split = " sequence_parallel=true" if model > 1 else ""
        plan = Plan.parse(f"{line} micro_batch={16 // mesh['data']} accumulation=1 remat=full{split}")
        if broken(tier.problem, plan) is None:
            on_each = tier.estimates(tier.on_each_layout(plan))
            steps[tuple(mesh.values())] = min(each.step_time_s for each in on_each)
    found = readings["data"]
    assert found.fitting == len(steps) == 14
    assert found.best.step_time_s == pytest.approx(min(steps.values()))
    assert found.baseline.step_time_s == pytest.approx(steps[16, 1, 1])
    assert found.adopted.estimate is not None
    assert found.adopted.estimate.step_time_s == pytest.approx(steps[4, 1, 4])
    assert found.adopted.rank == 1 + sum(step < steps[4, 1, 4] for step in steps.values())


def test_the_papers_axes_on_ours() -> None:
    sizes = {"replica": 3, "data": 2, "sequence": 5, "model": 4}
    rest = {"pipeline": 1, "expert": 1, "context": 5, "tensor": 4}
    assert ours(sizes, "fsdp") == {"data": 3, "fsdp": 2, **rest}
    assert ours(sizes, "data") == {"data": 6, "fsdp": 1, **rest}


def test_a_gain_in_both_words() -> None:
    assert gain_words(1.25) == "1.25x, -20.0% step time"


def test_summary_ledger_and_output_say_the_same(command) -> None:
    ended = command("+scenario=asap_hbm", "run_dir=run", "output=json")
    assert ended.status == 0, ended.err
    found = json.loads(ended.out)
    assert json.loads(Path("run/summary.json").read_text()) == found
    told = found["scenario"]
    first, second = told["readings"]
    assert (told["name"], first["data_as"], second["data_as"]) == ("asap_hbm", "data", "fsdp")
    for key in ("diagnosis", "proposals", "adopted", "adopted_in_first_three"):
        assert told[key] == first[key]
    assert told["diagnosis"]["bound"] == "hbm"
    assert told["paper"]["reported_speedup"] == 1.43
    assert len(told["proposals"]) == 3
    for each in (*told["proposals"], told["adopted"], first["best"]):
        assert each["speedup"] == pytest.approx(first["baseline"]["step_time_s"] / each["step_time_s"])
    assert found["baseline"] == first["baseline"]
    assert found["best"]["step_time_s"] == pytest.approx(first["best"]["step_time_s"])
    assert found["agents"] == {"brain": "playbook", "rounds": 2, "proposals": 6, "refused": 0}
    ledger = Ledger(Path("run"))
    assert [event["proposal"] for event in ledger.events("proposal")] == first["proposals"] + second["proposals"]
    (event,) = ledger.events("scenario")
    assert {key: event[key] for key in told} == told
    tables = {f"leaderboard.{kind}" for kind in ("csv", "json", "md")}
    assert {path.name for path in Path("run").iterdir()} == {"events.jsonl", "summary.json", "report.html", *tables}
    first_plan = json.loads(Path("run/leaderboard.json").read_text())[0]
    assert first_plan["step_time_s"] == pytest.approx(first["best"]["step_time_s"])


def test_its_run_directory_is_shown(command) -> None:
    ran = json.loads(command("+scenario=asap_hbm", "run_dir=run", "output=json").out)
    shown = json.loads(command("task=show", "run_dir=run", "output=json").out)
    assert (shown["task"], shown["state"], shown["scenario"]) == ("scenario", "finished", ran["scenario"])
    assert shown["hardware"][0]["best"]["line"] == ran["scenario"]["readings"][0]["best"]["line"]
    ended = command("task=show", "run_dir=run", "output=plain")
    assert (ended.status, ended.err) == (0, "")
    for reading in ran["scenario"]["readings"]:
        assert f"the paper's data axis read as {reading['data_as']}" in ended.out
        assert all(each["line"] in ended.out for each in reading["proposals"])
    assert "data 4, model 4; reported: 1.43x throughput" in ended.out


def test_a_reader_finds_every_part(command) -> None:
    out = command("+scenario=asap_communication", "run_dir=run", "output=plain").out
    for words in ("model 4, data 4, sequence 16", "model 2, data 8, sequence 16", "2.58x", "3 proposals", "predicts"):
        assert words in out
    for words in (
        "read as fsdp",
        "read as data",
        "diagnosed as in the paper",
        "floor",
        "exact best",
        "reported",
        "rank",
    ):
        assert words in out


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("tiers=compile",), ("tiers=", "task=tune")),
        (("agents=none",), ("agents=none", "playbook")),
        (("hardware=[v6e-16,v5e-16]",), ("hardware=", "one slice")),
        (("hardware=v6e-4",), ("scenario.baseline.data=16", "allowed with all else as it is: 4")),
        (("hardware=v5p:4x4x12",), ("hardware=", "a power of two of devices, not 192")),
        (("space.fix={tensor: 4}",), ("no plan of qwen3_1_7b on v6e-16 is legal",)),
    ],
)
def test_mistakes_are_one_line(command, words: tuple[str, ...], parts: tuple[str, ...]) -> None:
    ended = command("+scenario=asap_hbm", "run_dir=run", *words)
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1), ended.err
    assert all(part in ended.err for part in parts), ended.err


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"more": 1}, "scenario.more"),
        ({"source": None}, "missing: source"),
        ({"baseline": {"tensor": 4}}, "scenario.baseline"),
        ({"adopted": {"model": "4"}}, "scenario.adopted"),
        ({"data_as": ["pipeline"]}, "scenario.data_as"),
        ({"reported": "1.43x"}, "scenario.reported"),
    ],
)
def test_a_file_of_the_users_own_is_checked(change: Mapping[str, object], key: str) -> None:
    given = configure(["+scenario=asap_hbm", "run_dir=run"]).scenario
    with pytest.raises(ConfigError, match=key):
        scenario_from_mapping({**given, **change})

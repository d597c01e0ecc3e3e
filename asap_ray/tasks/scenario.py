"""`+scenario=NAME`: a published case from its baseline on, with three proposals beside the plan that it came to.

The roofline prices the case's space and its baseline; the playbook brain, told of the baseline alone, makes three
proposals, which the Verifier checks. ASAP's mesh has the axes replica, data, sequence and model: ours are `data`, what
`data_as` says (`fsdp` or `data`, the paper does not tell), `context` and `tensor`.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from asap_ray.agents.analyzer import analyse
from asap_ray.agents.brief import Brief
from asap_ray.agents.playbook import Playbook
from asap_ray.agents.proposal import Proposal
from asap_ray.agents.verifier import verified
from asap_ray.config import Config
from asap_ray.diagnosis import compare, diagnose
from asap_ray.drafts import write_whole
from asap_ray.errors import ConfigError
from asap_ray.knowledge import load_cards
from asap_ray.ledger import Ledger
from asap_ray.narrowing import Narrowing, fixed
from asap_ray.physics.estimate import RESOURCES, Estimate
from asap_ray.physics.roofline import Pricer
from asap_ray.plan import AXES
from asap_ray.report.answer import Answer, SliceAnswer
from asap_ray.report.files import write_report
from asap_ray.report.outline import Block, files_facts, heading
from asap_ray.report.scenario import (
    NOTE,
    Adopted,
    Case,
    Proposed,
    Reading,
    blocks,
    case_block,
    plan_words,
    scenario_fields,
)
from asap_ray.report.summary import summary
from asap_ray.report.terminal import print_blocks
from asap_ray.search.pool import Pool, pool_of_space
from asap_ray.search.protocol import BASELINE, Candidate, Result
from asap_ray.space import Space
from asap_ray.tasks import record
from asap_ray.tasks.nothing import explain_nothing
from asap_ray.tasks.running import open_run, output_of, swept, write_files
from asap_ray.tasks.setting import Setting, load
from asap_ray.tasks.tune import exact_answer, slice_answer
from asap_ray.tiers.roofline import Roofline

PAPER_AXES = ("replica", "data", "sequence", "model")
READINGS = ("fsdp", "data")
PROPOSALS = 3
STOP_REASON = "exact: the roofline priced every plan of the scenario's space"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """What a file of conf/scenario/ says of its case; meshes are in the paper's axes, `bound` are resources."""

    name: str
    about: str
    bound: list[str]
    reason: str
    data_as: list[str]
    baseline: Mapping[str, int]
    adopted: Mapping[str, int]
    reported: Mapping[str, Any]
    source: str

    @property
    def case(self) -> Case:
        """What the report shows of it."""
        return Case(
            name=self.name,
            about=self.about,
            reason=self.reason,
            source=self.source,
            baseline=dict(self.baseline),
            adopted=dict(self.adopted),
            reported=str(self.reported["text"]),
            reported_speedup=float(self.reported["speedup"]),
        )


def run(config: Config) -> int:
    """Run the task; returns the exit status.

    Raises:
        AsapError: something for the user to change.
    """
    started = time.monotonic()
    if config.compiles:
        raise ConfigError("tiers", config.tiers, "roofline for task=scenario; task=tune takes a scenario's job further")
    if config.agents.brain == "none":
        raise ConfigError("agents", config.agents.brain, "playbook for task=scenario: a brain makes its proposals")
    if len(config.hardware.slices) > 1:
        raise ConfigError("hardware", config.hardware.slices, "one slice: a scenario's baseline is of one")
    scenario = scenario_from_mapping(config.scenario)
    setting = load(config)
    if (chips := setting.slices[0].devices).bit_count() != 1:
        raise ConfigError("hardware", setting.slices[0].name, f"a power of two of devices, not {chips}")
    tier, space = setting.tiers[0], setting.spaces[0]
    readings = tuple(read_as(config, scenario, tier, space, data_as) for data_as in scenario.data_as)
    main = space.narrowed(*_narrowings(tier, scenario.data_as[0]))
    found = slice_answer(tier, swept(tier, main, config.top), config.top)
    answer = _answer(config, setting, found, readings, started)
    told = summary(answer) | {"scenario": scenario_fields(scenario.case, readings)}
    ledger = open_run(config)
    _record(ledger, config, answer, main, told["scenario"])
    write_files(config, lambda: _write(answer, told, config.run_path))
    if config.output == "json":
        sys.stdout.write(json.dumps(told, allow_nan=False) + "\n")
    else:
        shown = [heading(config.model_name, setting.workload, setting.slices), case_block(scenario.case)]
        shown += [block for each in readings for block in blocks(scenario.case, each)]
        print_blocks([*shown, Block(facts=(*files_facts(config.run_path), ("note", NOTE)))], *output_of(config))
    return 0


def _answer(
    config: Config, setting: Setting, found: SliceAnswer, readings: Sequence[Reading], started: float
) -> Answer:
    """The exact answer for the first reading's space, from its baseline."""
    agents = {
        "brain": Playbook(cards=()).name,
        "rounds": len(readings),
        "proposals": sum(len(each.proposals) for each in readings),
        "refused": sum(each.refused for each in readings),
    }
    exact = exact_answer(config, setting, (found,), readings[0].baseline, started)
    return replace(exact, agents=agents, stop_reason=STOP_REASON)


def _write(answer: Answer, told: Mapping[str, Any], run_dir: Path) -> None:
    """The files of a tuned job, with the case in its summary."""
    write_report(answer, run_dir)
    write_whole(run_dir / "summary.json", json.dumps(told, indent=2, allow_nan=False) + "\n")


def scenario_from_mapping(given: Mapping[str, Any]) -> Scenario:
    """A scenario from plain data.

    Raises:
        ConfigError: a field is missing or unknown, or what it holds is not of its kind.
    """
    names = [field.name for field in fields(Scenario)]
    if wrong := next((name for name in given if name not in names), None):
        raise ConfigError(f"scenario.{wrong}", given[wrong], f"unknown field; allowed: {', '.join(names)}", names)
    if missing := [name for name in names if not given.get(name)]:
        raise ConfigError("scenario", given.get("name", ""), f"missing: {', '.join(missing)}")
    for name in ("baseline", "adopted"):
        mesh = given[name]
        sizes = isinstance(mesh, Mapping) and all(type(size) is int and size > 0 for size in mesh.values())
        if not sizes or not set(mesh) <= set(PAPER_AXES):
            raise ConfigError(f"scenario.{name}", mesh, f"sizes of the axes {', '.join(PAPER_AXES)}: {{model: 8}}")
    if not isinstance(given["data_as"], list) or not all(each in READINGS for each in given["data_as"]):
        raise ConfigError("scenario.data_as", given["data_as"], f"a list of {', '.join(READINGS)}", READINGS)
    for name in ("name", "about", "reason", "source"):
        if not isinstance(given[name], str) or not given[name].isprintable():
            raise ConfigError(f"scenario.{name}", given[name], "one line of text")
    reported = given["reported"]
    if not isinstance(reported, Mapping) or set(reported) != {"text", "speedup"}:
        raise ConfigError("scenario.reported", reported, "a text and a speedup: {text: 1.43x, speedup: 1.43}")
    if not isinstance(reported["text"], str) or type(reported["speedup"]) not in (int, float):
        raise ConfigError("scenario.reported", reported, "a text and a speedup: {text: 1.43x, speedup: 1.43}")
    if not isinstance(given["bound"], list) or not all(each in RESOURCES for each in given["bound"]):
        raise ConfigError("scenario.bound", given["bound"], f"a list of {', '.join(RESOURCES)}", RESOURCES)
    return Scenario(**given)


def ours(mesh: Mapping[str, int], data_as: str) -> dict[str, int]:
    """A mesh of the paper's on our axes, every axis given.

    Worked instance: {model: 4, data: 2, replica: 3} with data read as data is {tensor: 4, data: 6, ...: 1}.
    """
    names = {"replica": "data", "data": data_as, "sequence": "context", "model": "tensor"}
    sizes: dict[str, int] = dict.fromkeys(AXES, 1)
    for axis, size in mesh.items():
        sizes[names[axis]] *= size
    return sizes


def read_as(config: Config, scenario: Scenario, tier: Roofline, space: Space, data_as: str) -> Reading:
    """The case with its data axis read as one of ours.

    Raises:
        AsapError: the baseline is not legal, or does not fit.
    """
    narrowed = space.narrowed(*_narrowings(tier, data_as))
    pool = pool_of_space(narrowed, Pricer(tier.problem, tier.calibration), tier.fitting(narrowed))
    row = _row(pool, ours(scenario.baseline, data_as))
    if row is None:
        pinned = _pinned(tier, narrowed, ours(scenario.baseline, data_as), "scenario.baseline")
        raise explain_nothing(config, tier, pinned, swept(tier, pinned, 1))
    baseline, chips = pool.estimate(row), tier.problem.slice.devices
    brain = Playbook(cards=load_cards())
    brief = brief_of(pool, row)
    proposals, refused = verified(brain, brief, PROPOSALS)
    mesh, diagnosis = ours(scenario.adopted, data_as), diagnose(baseline)
    free = len(PAPER_AXES) - (data_as == "data")
    return Reading(
        data_as=data_as,
        baseline=baseline,
        diagnosis=diagnosis,
        as_diagnosed=diagnosis.bound in scenario.bound,
        proposals=tuple(_told(brain, pool, each, mesh) for each in proposals),
        refused=len(refused),
        adopted=_adopted(tier, narrowed, pool, brain, brief, mesh),
        best=pool.estimate(int(np.argmin(pool.step_s))),
        factorisations=ordered_factorisations(chips, len(PAPER_AXES)),
        distinct=ordered_factorisations(chips, free),
        legal=_legal(narrowed),
        fitting=len(pool),
    )


def ordered_factorisations(chips: int, axes: int) -> int:
    """In how many ways a power of two is an ordered product of powers of two: its twos among the axes."""
    twos = chips.bit_length() - 1
    return math.comb(twos + axes - 1, axes - 1)


def brief_of(pool: Pool, row: int) -> Brief:
    """What a brain is told where the baseline is all that is known; no trial corrects what the roofline says."""
    estimate = pool.estimate(row)
    result = Result(
        candidate=Candidate(number=0, plan=estimate.plan, author=BASELINE),
        status="complete",
        step_time_s=estimate.step_time_s,
        interval_s=estimate.interval_s,
        hbm_bytes=estimate.hbm_bytes,
        source=estimate.source,
        evidence=estimate.source,
        estimate=estimate,
        roofline=estimate,
        diagnosis=diagnose(estimate),
    )
    analysis = analyse(pool, [])
    open_ = pool.floor_s < estimate.step_time_s
    open_[row] = False
    return Brief(
        pool=pool,
        results=(result,),
        best=result,
        analysis=analysis,
        expected_s=analysis.expected_s,
        open=open_,
        tried={row: 0},
        narrowings=(),
        closed={},
    )


def _narrowings(tier: Roofline, data_as: str) -> tuple[Narrowing, ...]:
    """With data read as data there is no fsdp in the paper's space."""
    return fixed(tier.problem, {"fsdp": 1}, "scenario", "scenario.data_as") if data_as == "data" else ()


def _pinned(tier: Roofline, space: Space, mesh: Mapping[str, int], key: str) -> Space:
    return space.narrowed(*fixed(tier.problem, mesh, "scenario", key))


def _row(pool: Pool, mesh: Mapping[str, int]) -> int | None:
    """The fastest plan of the pool on a mesh; the scenario's space leaves one."""
    alike = np.logical_and.reduce([pool.columns[axis] == size for axis, size in mesh.items()])
    rows = np.flatnonzero(alike)
    return int(rows[np.argmin(pool.step_s[rows])]) if len(rows) else None


def _legal(space: Space) -> int:
    """Legal plans of a space, those that differ only in how they lie on the torus counted once."""
    table = [np.stack([rows[axis] for axis in AXES], axis=1) for rows in space.chunks()]
    return len(np.unique(np.concatenate(table), axis=0)) if table else 0


def _told(brain: Playbook, pool: Pool, each: Proposal, mesh: Mapping[str, int]) -> Proposed:
    row = pool.row(each.plan)
    assert row is not None, "the Verifier lets only plans of the pool pass"
    return Proposed(
        estimate=pool.estimate(row),
        by=each.card or each.mechanism,
        hypothesis=each.hypothesis,
        mechanism=each.mechanism,
        predicted=each.prediction.text,
        falsification=each.prediction.falsification,
        source=next((card.source for card in brain.cards if card.name == each.card), ""),
        is_adopted=each.plan.axes == mesh,
    )


def _adopted(
    tier: Roofline, space: Space, pool: Pool, brain: Playbook, brief: Brief, mesh: Mapping[str, int]
) -> Adopted:
    """The case's own plan, priced, with what the cards make of it."""
    assert brief.best is not None
    assert brief.best.estimate is not None
    by_cards, row = brain.by_cards(brief, brief.best), _row(pool, mesh)
    cards = {each.card: plan_words(each.plan) for each in by_cards}
    if row is None:
        sweep = swept(tier, _pinned(tier, space, mesh, "scenario.adopted"), 1)
        missing: Sequence[Estimate] = sweep.too_big
        why = (
            f"needs {missing[0].hbm_bytes / 1e9:.1f} GB of the {missing[0].hbm_limit_bytes / 1e9:.1f} GB allowed"
            if missing
            else f"not legal: {', '.join(sweep.removed)}"
        )
        return Adopted(estimate=None, rank=None, cards=cards, led_by=(), why=why)
    estimate = pool.estimate(row)
    return Adopted(
        estimate=estimate,
        rank=1 + int((pool.step_s < pool.step_s[row]).sum()),
        cards=cards,
        led_by=tuple(each.card for each in by_cards if each.plan.axes == mesh),
        why=f"against the baseline {compare(estimate, brief.best.estimate)}",
    )


def _record(ledger: Ledger, config: Config, answer: Answer, space: Space, told: Mapping[str, Any]) -> None:
    record.started(ledger, config, answer.workload, answer.command, answer.versions)
    record.narrowed(ledger, space.narrowings)
    assert answer.baseline is not None
    record.compared(ledger, answer.baseline)
    record.swept(ledger, answer.winner)
    for reading in told["readings"]:
        for each in reading["proposals"]:
            event = {"slice": answer.winner.slice.name, "author": "playbook", "data_as": reading["data_as"]}
            ledger.append("proposal", event | {"round": 1, "plan": each["line"], "proposal": each})
    ledger.append("scenario", told)
    record.answered(ledger, answer)

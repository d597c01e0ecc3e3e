"""A run and the memory: what it recalls when it starts, and the cases that its events come to when it has ended.

What was recalled is an event of the run. The same command in the same directory takes it from there, whatever the
memory holds by then, so that it decides as it did.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asap_ray.architecture import architecture_from_mapping
from asap_ray.cases import CASE, Case, Situation, read_case, situation_of
from asap_ray.config import Config
from asap_ray.ledger import Ledger
from asap_ray.memory import Memory, default_memory_dir
from asap_ray.problem import Problem
from asap_ray.recall import RANKING, Recall, read_recall, recalled
from asap_ray.report.answer import SliceAnswer, Tried
from asap_ray.report.search import diagnosis_of
from asap_ray.stack import stack_from_mapping
from asap_ray.tasks import record
from asap_ray.tasks.rounds import RECALLED
from asap_ray.tasks.setting import Setting
from asap_ray.workload import Workload

Events = Sequence[Mapping[str, Any]]


def memory_of(config: Config) -> Memory | None:
    """The memory that a command uses; None where it is switched off."""
    if not config.agents.memory:
        return None
    given = config.agents.memory_dir
    return Memory(Path(os.path.expanduser(given)).absolute() if given else default_memory_dir())


def recall_each(
    config: Config, setting: Setting, answers: Sequence[SliceAnswer], ledger: Ledger
) -> tuple[dict[str, Recall], str]:
    """What is recalled for each slice: as an earlier run of this job has recalled it, else by the memory as it is.

    Returns the recalls by slice, none where the memory is switched off, and a line on what could not be read, or "".

    Raises:
        ConfigError: an event of the ledger is not one of this version.
    """
    memory = memory_of(config)
    if memory is None or config.agents.brain == "none":
        return {}, ""
    with ledger.understood():
        found = recalled_before(list(ledger.events()), setting.workload, config.stack)
    wanted = [each for each in answers if each.ranked and each.slice.name not in found]
    if not wanted:
        return found, ""
    read = memory.read()
    problems = {tier.problem.slice.name: tier.problem for tier in setting.tiers}
    for each in wanted:
        seen = each.diagnosis
        query = " ".join((config.model_name, config.stack_name, *(seen.evidence if seen else ())))
        here = situation_of(problems[each.slice.name])
        found[each.slice.name] = recalled(read.cases, here, seen.bound if seen else "", query)
    return found, read.complaint


def recalled_before(events: Events, workload: Workload, stack: Mapping[str, Any]) -> dict[str, Recall]:
    """What the first run of one workload and stack that tried a plan on a slice had recalled for it."""
    found: dict[str, Recall] = {}
    recalls: dict[str, Mapping[str, Any]] = {}
    for event in record.of_job(events, workload, stack):
        where = event.get("slice", "")
        if event["kind"] == RECALLED:
            recalls[where] = event
        elif event["kind"] == "trial" and where in recalls and where not in found:
            found[where] = read_recall(recalls[where])
    return found


def remember(config: Config, ledger: Ledger) -> str:
    """Add what the last run of a ledger has tried to the memory; returns a line on what went wrong, or ""."""
    memory = memory_of(config)
    if memory is None:
        return ""
    try:
        return memory.add(cases_of(list(ledger.events()))).complaint
    except ValueError as error:  # a run that has its answer is not lost for what it cannot pass on
        return f"run_dir={config.run_path}: its trials are not kept as cases: {error}"


def cases_of(events: Events) -> list[Case]:
    """The cases that the last run of a ledger comes to; none where it has tried nothing.

    Raises:
        LookupError, TypeError, ValueError: an event is not one of this version.
    """
    run = record.last_job(events)
    tried = [record.read_tried(event) for event in run if event["kind"] == "tried" and "trial" in event]
    if not tried:
        return []
    start, places = run[0], _situations(run)
    told = {
        kind: {(event["slice"], event["trial"]): event for event in run if event["kind"] == kind}
        for kind in ("proposal", "verdict")
    }
    by_number = {(each.where, each.number): each for each in tried}
    found = []
    for each in tried:
        key = each.where, each.number
        proposal, verdict = told["proposal"].get(key, {}), told["verdict"].get(key, {})
        number = proposal.get("base")
        base = by_number.get((each.where, number)) if number is not None else None
        fields = {**_of_trial(each), **_of_proposal(proposal, verdict), **_of_base(base)}
        found.append(read_case({**fields, "situation": asdict(places[each.where]), "versions": start["versions"]}))
    return found


def _of_trial(tried: Tried) -> dict[str, Any]:
    found, seen = tried.finding, diagnosis_of(tried)
    return {
        "source": found.estimate.source if found.estimate else found.source,  # a proxy's run is not a run
        "evidence": found.evidence,
        "bundle": tried.bundle,
        "plan": found.plan.line,
        "status": "failed" if found.status == "complete" and found.estimate is None else found.status,
        "step_time_s": found.estimate.step_time_s if found.estimate else None,
        "roofline_s": tried.roofline.step_time_s,
        "hbm_bytes": found.hbm_bytes or None,
        "bound": _bound(tried),
        "diagnosis": "; ".join(seen.evidence) if seen else "",
    }


def _of_proposal(proposal: Mapping[str, Any], verdict: Mapping[str, Any]) -> dict[str, Any]:
    mechanism = proposal.get("mechanism", "")
    by = proposal.get("card", "") or (mechanism if mechanism == RANKING or mechanism.startswith(CASE) else "")
    told = {"verdict": verdict.get("status", ""), "told": verdict.get("text", "")}
    return {"by": by, "hypothesis": proposal.get("hypothesis", ""), **told}


def _of_base(base: Tried | None) -> dict[str, Any]:
    return {"base": base.finding.plan.line, "base_bound": _bound(base)} if base else {}


def _bound(tried: Tried) -> str:
    """What binds a trial, in the words of cards."""
    if tried.finding.status == "infeasible":
        return "memory"
    seen = diagnosis_of(tried)
    return seen.bound if seen else ""


def _situations(run: Events) -> dict[str, Situation]:
    start = run[0]
    job = {**start["workload"], "architecture": architecture_from_mapping(start["workload"]["architecture"])}
    stack = stack_from_mapping(start["config"]["stack"])
    slices = [record.slice_of(event) for event in run if event["kind"] == "swept"]
    return {each.name: situation_of(Problem(workload=Workload(**job), slice=each, stack=stack)) for each in slices}

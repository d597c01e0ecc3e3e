"""What a run puts into its ledger, and the answer that can be rebuilt from it.

The events hold everything that the summary, the leaderboard and the page show, but for the sample behind the map of the
space: the chips and the model with all their figures, what was narrowed and why, every ranked plan with its parts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from asap_ray.architecture import ATTENTION_KINDS, architecture_from_mapping
from asap_ray.certificate import Bound, Certificate, Trial
from asap_ray.chip import chip_from_mapping
from asap_ray.config import Config
from asap_ray.diagnosis import Diagnosis
from asap_ray.errors import AsapError
from asap_ray.hardware import Slice, make_slice
from asap_ray.ledger import Ledger
from asap_ray.narrowing import Narrowing
from asap_ray.observation import read_observation
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan, six
from asap_ray.redaction import hidden
from asap_ray.report.answer import Answer, Confirmed, Searched, SliceAnswer, Tried
from asap_ray.tasks.rounds import recall_of, rounds_of, searches_of
from asap_ray.tiers.finding import Finding
from asap_ray.workload import Workload

FINDING_FIELDS = frozenset(each.name for each in fields(Finding))


def started(ledger: Ledger, config: Config, workload: Workload, command: str, versions: Mapping[str, str]) -> None:
    """A run begins: the command, the whole configuration, and the workload that came of it."""
    job = job_of(workload)
    names = {"task": config.task, "model": config.model_name, "stack": config.stack_name, "seed": config.seed}
    fields = {
        **names,
        "command": command,
        "versions": versions,
        "config": hidden(asdict(config), os.environ),
        "workload": job,
    }
    ledger.append("start", fields)


def narrowed(ledger: Ledger, narrowings: Iterable[Narrowing]) -> None:
    """The space is narrowed: by whom and why."""
    for each in narrowings:
        ledger.append("narrowing", asdict(each))


def compared(ledger: Ledger, baseline: Estimate) -> None:
    """The user's own plan is priced."""
    ledger.append("baseline", {"estimate": _estimate(baseline)})


def failed(ledger: Ledger, error: AsapError) -> None:
    """The run ends in an error of the user's."""
    ledger.append("error", {"text": hidden(str(error), os.environ)})


def swept(ledger: Ledger, found: SliceAnswer) -> None:
    """A slice's space is priced: what was counted, and every plan that is shown."""
    where = found.slice
    fields = {
        "slice": where.name,
        "chip": asdict(where.chip),
        "topology": where.topology,
        "slices": where.slices,
        "total": found.total,
        "legal": found.legal,
        "fitting": found.fitting,
        "removed": dict(found.removed),
        "ranked": [_estimate(each) for each in found.ranked],
        "reasons": found.reasons,
        "diagnosis": asdict(found.diagnosis) if found.diagnosis else None,
        "too_big": [_estimate(each) for each in found.too_big],
    }
    ledger.append("swept", fields)


def certified(ledger: Ledger, where: str, certificate: Certificate) -> None:
    """How much faster than the best another plan on a slice can be."""
    ledger.append("certificate", {"slice": where, "certificate": asdict(certificate)})


def told(ledger: Ledger, where: str, kind: str, given: Mapping[str, Any]) -> None:
    """A search has decided or found something on a slice."""
    ledger.append(kind, {"slice": where, **given})


def began(ledger: Ledger, where: str, bundle: str, number: int, plan: Plan) -> None:
    """A trial begins."""
    ledger.append("trial", {"slice": where, "bundle": bundle, "trial": number, "plan": plan.line})


def tried(ledger: Ledger, found: Tried) -> None:
    """A trial has ended: how, beside what the roofline had said of its plan, and what its program shows."""
    estimate = found.finding.estimate
    fields = {
        "slice": found.where,
        "bundle": found.bundle,
        "trial": found.number,
        "author": found.author,
        "elapsed_s": found.elapsed_s,
        "cut": found.cut,
        "observed": asdict(found.observed) if found.observed else None,
        "finding": found.finding.as_dict(),
        "output": found.finding.output,
        "estimate": _estimate(estimate) if estimate else None,
        "roofline": _estimate(found.roofline),
    }
    ledger.append("tried", fields)


def searched(ledger: Ledger, found: SliceAnswer) -> None:
    """All compilations of a slice are done: why there are no more, and what the best plan's program shows."""
    if told := found.searched:
        observed = asdict(told.observed) if told.observed else None
        fields = {"base": told.base, "source": told.source, "refused": dict(told.refused), "stopped": told.stopped}
        confirmed = [{**asdict(each), "plan": each.plan.line} for each in told.confirmed]
        fields |= {"observed": observed, "confirmed": confirmed}
        ledger.append("searched", {"slice": found.slice.name, **fields})


def answered(ledger: Ledger, answer: Answer) -> None:
    """The run has its answer."""
    best = answer.winner.best
    ended = {"wall_s": answer.wall_s, "stop_reason": answer.stop_reason, "trials": dict(answer.trials)}
    ended |= {
        "versions": dict(answer.versions),
        "resumed": answer.resumed,
        "agents": dict(answer.agents),
        "llm": dict(answer.llm),
    }
    ledger.append("answer", {"slice": answer.winner.slice.name, "best": best.plan.line if best else None, **ended})


def answer_of(events: Sequence[Mapping[str, Any]], run_dir: Path) -> Answer:
    """The answer of the last run that a ledger holds, without the samples for the map.

    Raises:
        ValueError: the last run has no answer.
    """
    last = last_run(events)
    if not last or last[-1]["kind"] != "answer":
        raise ValueError("the last run of this ledger has no answer")
    return answer_so_far(last, run_dir)


def last_run(events: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The events of the last run that a ledger holds: a command that was started again writes on in the same file."""
    first = max((i for i, event in enumerate(events) if event["kind"] == "start"), default=len(events))
    return events[first:]


def last_job(events: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The last run that explained no plan: what was found is of the run before. No events where there is none."""
    starts = [i for i, event in enumerate(events) if event["kind"] == "start"]
    runs = [events[a:b] for a, b in pairwise([*starts, len(events)])]
    return next((run for run in reversed(runs) if run[0].get("task") != "explain"), ())


def answer_so_far(run: Sequence[Mapping[str, Any]], run_dir: Path) -> Answer:
    """What the events of one run come to, whether or not it has ended; a slice has to be priced by then."""
    start, last = run[0], run[-1]
    baseline = next((event["estimate"] for event in run if event["kind"] == "baseline"), None)
    certificates = {event["slice"]: event["certificate"] for event in run if event["kind"] == "certificate"}
    job = {**start["workload"], "architecture": architecture_from_mapping(start["workload"]["architecture"])}
    kept = ("versions", "wall_s", "stop_reason", "trials", "resumed", "agents", "llm")
    ended = last if last["kind"] == "answer" else {"versions": start["versions"], "wall_s": 0.0, "stop_reason": ""}
    searches = _searches(run)
    return Answer(
        **{name: start[name] for name in ("task", "model", "stack", "seed", "command")},
        **{name: ended[name] for name in kept if name in ended},
        workload=Workload(**job),
        slices=tuple(_slice_answer(event, certificates, searches) for event in run if event["kind"] == "swept"),
        baseline=_read_estimate(baseline) if baseline else None,
        run_dir=run_dir,
    )


def _searches(run: Sequence[Mapping[str, Any]]) -> dict[str, list[Searched]]:
    """What trials said of each slice by then, search by search."""
    slices = [event["slice"] for event in run if event["kind"] == "swept"]
    return {where: [_read_searched(where, each) for each in searches_of(run, where)] for where in slices}


def finished(events: Iterable[Mapping[str, Any]], workload: Workload, stack: Mapping[str, Any]) -> list[Tried]:
    """The trials that a ledger holds of one workload and stack, in the order in which they ended."""
    return [read_tried(each) for each in of_job(events, workload, stack) if each["kind"] == "tried" and "trial" in each]


def of_job(
    events: Iterable[Mapping[str, Any]], workload: Workload, stack: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    """The events of those runs in a ledger that are of one workload and stack, without those with which they start."""
    job, alike = job_of(workload), False
    for event in events:
        if event["kind"] == "start":
            alike = event.get("workload") == job and event["config"]["stack"] == stack
        elif alike:
            yield event


def job_of(workload: Workload) -> dict[str, Any]:
    """A workload as it stands in an event that is read back."""
    kind = next(name for name, kind in ATTENTION_KINDS.items() if isinstance(workload.architecture.attention, kind))
    job = asdict(workload)
    job["architecture"]["attention"]["kind"] = kind
    return job


def read_tried(event: Mapping[str, Any]) -> Tried:
    """A trial as its event tells it."""
    estimate, told = event["estimate"], event["finding"]
    roofline = _read_estimate(event["roofline"])
    given = {name: value for name, value in told.items() if name in FINDING_FIELDS and name != "plan"}
    found = Finding(
        **given,
        plan=roofline.plan,
        estimate=_read_estimate(estimate) if estimate else None,
        output=event["output"],
    )
    return Tried(
        where=event["slice"],
        bundle=event["bundle"],
        roofline=roofline,
        finding=found,
        number=event["trial"],
        author=event["author"],
        observed=read_observation(event["observed"]) if event["observed"] else None,
        elapsed_s=event["elapsed_s"],
        cut=event["cut"],
    )


def _read_searched(where: str, events: Sequence[Mapping[str, Any]]) -> Searched:
    """One search; as long as no event says that it is over, its first trial says which bundle of flags all have."""
    trials = [read_tried(event) for event in events if event["kind"] == "tried" and "trial" in event]
    here = tuple(sorted(trials, key=lambda each: each.number))
    bundles = ({"base": event["bundle"]} for event in events if event["kind"] in ("tried", "trial"))
    event = events[-1] if events[-1]["kind"] == "searched" else next(bundles, {})
    observed = read_observation(event["observed"]) if event.get("observed") else None
    given = {name: event[name] for name in ("base", "source", "refused", "stopped") if name in event}
    source = next((each.finding.source for each in here), "compile")
    return Searched(
        **{"base": "", "source": source, **given},
        trials=here,
        observed=observed,
        rounds=rounds_of(events, where),
        recall=recall_of(events, where),
        confirmed=tuple(
            Confirmed(**{**each, "plan": Plan.parse(each["plan"]), "steps_s": tuple(each["steps_s"])})
            for each in event.get("confirmed", ())
        ),
    )


def _slice_answer(
    event: Mapping[str, Any], certificates: Mapping[str, Any], searches: Mapping[str, list[Searched]]
) -> SliceAnswer:
    found, bounds = event["diagnosis"], certificates.get(event["slice"])
    compiled, searched = ([None, None] + searches[event["slice"]])[-2:]
    return SliceAnswer(
        slice=slice_of(event),
        total=event["total"],
        legal=event["legal"],
        fitting=event["fitting"],
        removed=event["removed"],
        ranked=tuple(map(_read_estimate, event["ranked"])),
        reasons=tuple(event["reasons"]),
        diagnosis=Diagnosis(**{**found, "evidence": tuple(found["evidence"])}) if found else None,
        too_big=tuple(map(_read_estimate, event["too_big"])),
        certificate=_read_certificate(bounds) if bounds else None,
        searched=searched,
        compiled=compiled,
    )


def slice_of(event: Mapping[str, Any]) -> Slice:
    """The slice of which an event tells how it was priced."""
    made = make_slice(chip_from_mapping(event["chip"]), tuple(event["topology"]), event["slices"])
    return replace(made, name=event["slice"])


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {"line": estimate.plan.line, **asdict(estimate)}


def _read_estimate(fields: Mapping[str, Any]) -> Estimate:
    given = {name: value for name, value in fields.items() if name != "line"}
    return Estimate(**{**given, "plan": _read_plan(given["plan"]), "interval_s": tuple(given["interval_s"])})


def _read_certificate(fields: Mapping[str, Any]) -> Certificate:
    return Certificate(**{**fields, "hard": _read_bound(fields["hard"]), "credible": _read_bound(fields["credible"])})


def _read_bound(fields: Mapping[str, Any]) -> Bound:
    trials = (Trial(**{**each, "plan": _read_plan(each["plan"])}) for each in fields["tighten"])
    return Bound(**{**fields, "tighten": tuple(trials)})


def _read_plan(fields: Mapping[str, Any]) -> Plan:
    layout = tuple(map(tuple, fields["layout"]))
    return Plan(**{**fields, "ici": six(fields["ici"]), "dcn": six(fields["dcn"]), "layout": layout})

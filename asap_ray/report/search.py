"""A search as blocks: rounds with diagnosis, proposals and verdicts, who removed what, how good predictions were."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asap_ray.diagnosis import Diagnosis, diagnose, diagnose_observed
from asap_ray.recall import Recall
from asap_ray.report import sentences, units
from asap_ray.report.answer import COMPILER, FLAGS, Searched, SliceAnswer, Tried
from asap_ray.report.compiled import NOT_COMPILED, before_of
from asap_ray.report.outline import Block, Grid, shortened
from asap_ray.report.rounds import Proposed, Round

MOST_ROUNDS = 60
"""Rounds that are told one by one."""
MASKS = {
    "tried": "tried by then",
    "memory": "would not fit, by what trials needed",
    "floor": "floor above the best trial's step",
    "narrowed": "shares the mechanism of a fault",
}


def search_blocks(one: SliceAnswer) -> Iterator[Block]:
    """Everything that was decided on a slice; none where no agents searched."""
    yield from recall_blocks(one)
    for found in one.searches:
        for each in told_rounds(found):
            yield round_block(each, found, one.slice.name)
    yield from table_blocks(one)


def recall_blocks(one: SliceAnswer) -> Iterator[Block]:
    """What was recalled of earlier runs, where anything was."""
    if one.recall is not None and (facts := recall_facts(one.recall)):
        yield Block(title=f"Recalled for {one.slice.name}", facts=facts)


def table_blocks(one: SliceAnswer) -> Iterator[Block]:
    """What is told of all rounds together."""
    for found in one.searches:
        yield from _tables(one, found)


def told_rounds(found: Searched) -> tuple[Round, ...]:
    """The rounds that a reader is shown: all of them, or the first, the last, and the last that found a faster plan."""
    if len(found.rounds) <= MOST_ROUNDS:
        return found.rounds
    ends = MOST_ROUNDS // 3
    best, faster = float("inf"), list[int]()
    steps = {each.number: each.finding.estimate.step_time_s for each in found.trials if each.finding.estimate}
    for place, each in enumerate(found.rounds):
        step = min((steps.get(one.trial, best) for one in each.proposed), default=best)
        if step < best:
            best = step
            faster.append(place)
    count = len(found.rounds)
    middle = [place for place in faster if ends <= place < count - ends][-ends:]
    return tuple(found.rounds[place] for place in (*range(ends), *middle, *range(count - ends, count)))


def _tables(one: SliceAnswer, found: Searched) -> Iterator[Block]:
    """Who removed what in a search, its profiles, and how good predictions were."""
    if rows := closed_rows(found):
        grid = Grid(header=("by", "what", "plans", "why"), rows=tuple(rows), words=("by", "what", "why"))
        yield Block(title=f"What the trainer and agents removed on {one.slice.name}", grid=shortened(grid))
    if grid := profile_grid(found):
        yield Block(title=f"Profiles of the trials on {one.slice.name}", grid=shortened(grid))
    if rows := accuracy_rows(found, before_of(one, found)):
        header = (
            "figure",
            "predicted by",
            "trials",
            "observed over predicted",
            "median error",
            "largest",
            "in interval",
        )
        yield Block(
            title=f"Predicted against observed on {one.slice.name}",
            grid=Grid(header=header, rows=tuple(rows), words=("figure", "predicted by")),
        )


def recall_facts(recall: Recall) -> tuple[tuple[str, str], ...]:
    """What was recalled of earlier runs: cases, the most alike first, and records of cards that have one."""
    told = [(each.name, f"{each.similarity:.0%} alike, {each.sort}: {each.text}: {each.plan}") for each in recall.cases]
    return (*told, *((name, each.text("")) for name, each in recall.records.items() if each.judged))


def round_block(each: Round, found: Searched, where: str) -> Block:
    """One round: what was known before it, what was tried and why, and what came of it."""
    before = best_before(each, found)
    facts = [("best so far", best_words(before))] if before else []
    facts.append(("open", open_words(each)))
    for one in each.proposed:
        if one.hypothesis:
            verdict = f"{one.status}: {one.verdict}" if one.status else predicted(one)
            facts.append((f"trial {one.trial}", f"{one.hypothesis}; {verdict}{_sure(one)}"))
    for refusal in each.refusals:
        card = f" by {refusal['card']}" if refusal["card"] else ""
        facts.append(("refused", f"{refusal['plan']} of {refusal['author']}{card}: {refusal['reason']}"))
    facts += [("fault", fault["text"]) for fault in each.faults]
    facts += [("narrowed", f"{one['name']}, by {one['author']}: {one['reason']}") for one in each.narrowings]
    facts += [(f"read in trial {one['trial']}", f"bound by {one['bound']}: {one['cause']}") for one in each.readings]
    facts += [("decided", f"{one['action']}, by {one['author']}: {one['reason']}") for one in each.decisions]
    facts += [("turn", f"the {one['brain']}'s, not the {one['instead_of']}'s: {one['reason']}") for one in each.turns]
    facts += [("to be tried last", f"{one['name']}, by {one['author']}: {one['reason']}") for one in each.last]
    facts += [("opened again", f"{one['name']}, by {one['author']}: {one['reason']}") for one in each.lifted]
    return Block(title=f"Round {each.number} on {where}", grid=round_grid(each, found), facts=tuple(facts))


def _sure(one: Proposed) -> str:
    """What it rests on, what is given up, and how likely the trial is the best so far."""
    figures = ", ".join(f"{each['figure']}={each['value']:g} of {each['source']}" for each in one.evidence)
    traded = f"; it rests on {figures}" if figures else ""
    traded += f"; it gives up: {one.trade_off}" if one.trade_off else ""
    return traded + (f"; {one.confidence:.0%} likely to be the best so far" if one.confidence is not None else "")


def round_words(each: Round, found: Searched) -> str:
    """A round in one line: what it began with, and how its proposals fared."""
    before = best_before(each, found)
    diagnosis = diagnosis_of(before) if before else None
    words = [f"best so far {_came_to(before)}"] if before else ["nothing tried yet"]
    words += [f"bound by {sentences.RESOURCES.get(diagnosis.bound, diagnosis.bound)}"] if diagnosis else []
    ends = Counter(one.status for one in each.proposed if one.status)
    words += [f"{len(each.proposed)} trials"] + [f"{n} {status}" for status, n in ends.items()]
    words += [f"{len(each.refusals)} refused"] if each.refusals else []
    words += [f"{len(each.faults)} faults"] if each.faults else []
    return ", ".join(words)


def round_grid(each: Round, found: Searched) -> Grid:
    """What was tried in a round: who asked, what was expected, and what came of it."""
    header = ("trial", "by", "card", "expected", "came to", "verdict", "plan")
    wanted = {one.trial for one in each.proposed}
    trials = {tried.number: tried for tried in found.trials if tried.number in wanted and tried.author != FLAGS}
    rows = tuple(
        (
            *(str(one.trial), one.author, one.card),
            units.seconds(one.expected_s),
            _came_to(trials.get(one.trial)),
            one.status,
            f"{one.plan} {one.recipe}".strip(),
        )
        for one in each.proposed
    )
    return Grid(header=header, rows=rows, words=("by", "card", "came to", "verdict", "plan"))


def _came_to(tried: Tried | None) -> str:
    if tried is None:
        return "no trial yet"
    now = tried.finding.estimate
    return units.seconds(now.step_time_s) if now else NOT_COMPILED[tried.finding.status]


def predicted(one: Proposed) -> str:
    """What a proposal says that its profile will show."""
    return f"{one.field} is predicted between {units.seconds(one.low_s)} and {units.seconds(one.high_s)}"


def best_before(each: Round, found: Searched) -> Tried | None:
    """The fastest trial of the rounds before one."""
    first = min((one.trial for one in each.proposed), default=len(found.trials))
    return next((tried for tried in found.ranked if tried.number < first), None)


def best_words(tried: Tried) -> str:
    """A trial's step and what bounds it."""
    now, diagnosis = tried.finding.estimate, diagnosis_of(tried)
    assert now is not None
    bound = f", {sentences.bound_line(diagnosis)}" if diagnosis else ""
    return f"{units.seconds(now.step_time_s)} in trial {tried.number}{bound}"


def diagnosis_of(tried: Tried) -> Diagnosis | None:
    """What bounds a trial's step, by its profile where there is one."""
    if tried.observed is not None:
        return diagnose_observed(tried.observed)
    estimate = tried.finding.estimate
    return diagnose(estimate) if estimate and estimate.time_parts else None  # a clock alone tells no parts


def open_words(each: Round) -> str:
    """How many plans a round could choose from, and what had closed the others."""
    closed = ", ".join(f"{name} {units.count(n)}" for name, n in each.closed.items() if n)
    return f"{units.count(each.open)} plans{f'; closed: {closed}' if closed else ''}"


def closed_rows(found: Searched) -> list[tuple[str, str, str, str]]:
    """Who took how many legal plans out that fit, and why: our trainer, the agents."""
    program = "asap_ray's trainer has no program"
    held = "fits on its stack, not in asap_ray's trainer, by the roofline"
    by_rule = {"memory": held, COMPILER: "does not fit, by the compiler's count"}
    rows = [("trainer", rule, units.count(n), by_rule.get(rule, program)) for rule, n in found.refused.items()]
    refusals = Counter((each["author"], _kind(each["reason"])) for one in found.rounds for each in one.refusals)
    rows += [("verifier", f"proposals of {name}", units.count(n), reason) for (name, reason), n in refusals.items()]
    if found.rounds:
        last = found.rounds[-1]
        rows += [
            ("coordinator", name, units.count(n), f"{MASKS.get(name, name)}, in round {last.number}")
            for name, n in last.closed.items()
            if n
        ]
    for each in found.rounds:
        rows += [(n["author"], n["name"], _plans(n), f"round {each.number}: {n['reason']}") for n in each.narrowings]
        rows += [
            (n["author"], f"{n['name']} opened again", _plans(n), f"round {each.number}: {n['reason']}")
            for n in each.lifted
        ]
    return rows


def _plans(event: Mapping[str, Any]) -> str:
    """How many open plans a narrowing closed or gave back; not known of runs before that was written down."""
    return units.count(event["plans"]) if "plans" in event else units.DASH


def _kind(reason: str) -> str:
    """A reason without the figures and plans that tell one refusal from the next."""
    return reason.split(",")[0].split(":")[0]


def profile_grid(found: Searched) -> Grid | None:
    """What each trial's step went to by its profile; None where no trial has one."""
    told = [(each, each.observed) for each in found.trials if each.observed is not None]
    names = list(dict.fromkeys(name for _, seen in told for name in seen.seconds))
    names = [name for name in names if any(seen.seconds.get(name, 0) >= 0.01 * seen.step_time_s for _, seen in told)]
    rows = []
    for each, seen in told:
        shares = [f"{100 * seen.seconds.get(name, 0.0) / seen.step_time_s:.0f}%" for name in names]
        top = seen.top[0] if seen.top else None
        costliest = f"{top.name}{f' at {top.source}' if top.source else ''}" if top else units.DASH
        rows.append((str(each.number), units.seconds(_step(each)), *shares, costliest, each.finding.plan.line))
    header = ("trial", "step", *names, "costliest op", "plan")
    return Grid(header=header, rows=tuple(rows), words=("costliest op", "plan")) if rows else None


def accuracy_rows(found: Searched, before: Searched | None = None) -> list[tuple[str, ...]]:
    """How well the roofline, the compiler where it came `before`, and the agents foretold what trials came to."""
    done = [each for each in found.trials if each.finding.estimate is not None and each.bundle == found.base]
    if not done:
        return []
    steps = [(each.roofline.step_time_s, _step(each)) for each in done]
    inside = [each.roofline.interval_s[0] <= _step(each) <= each.roofline.interval_s[1] for each in done]
    memory = [(each.roofline.hbm_bytes, each.finding.hbm_bytes) for each in done if each.finding.hbm_bytes]
    rows = [
        ("step", "roofline", *_errors(steps), units.percent(sum(inside) / len(inside))),
        *([("memory", "roofline", *_errors(memory), units.DASH)] if memory else []),
    ]
    rows += _compilers_rows(done, before) if before else []
    trials = {each.number: each for each in done}
    made = [each for one in found.rounds for each in one.proposed if each.expected_s and each.trial in trials]
    if made:
        expected = [(each.expected_s or 0.0, _step(trials[each.trial])) for each in made]
        judged = [each.status == "confirmed" for each in made if each.status in ("confirmed", "refuted")]
        held = units.percent(sum(judged) / len(judged)) if judged else units.DASH
        rows.append(("step", "agents, as trials correct it", *_errors(expected), held))
    return rows


def _compilers_rows(done: Sequence[Tried], before: Searched) -> list[tuple[str, ...]]:
    """How well the compiler foretold the steps, and the memory, of what ran after it."""
    pairs = [(said, each) for each in done if (said := before.of(each.finding.plan, before.base))]
    timed = [(said.finding.estimate, _step(each)) for said, each in pairs if said.finding.estimate]
    held = [(a, b) for said, each in pairs if (a := said.finding.hbm_bytes) and (b := each.finding.hbm_bytes)]
    rows = []
    if timed:
        inside = [low <= step <= high for (low, high), step in ((said.interval_s, step) for said, step in timed)]
        steps = [(said.step_time_s, step) for said, step in timed]
        rows.append(("step", "the compiler", *_errors(steps), units.percent(sum(inside) / len(inside))))
    return rows + ([("memory", "the compiler", *_errors(held), units.DASH)] if held else [])


def _step(tried: Tried) -> float:
    assert tried.finding.estimate is not None
    return tried.finding.estimate.step_time_s


def _errors(pairs: Sequence[tuple[float, float]]) -> tuple[str, str, str, str]:
    """How many pairs of predicted and observed, the median ratio, the median and largest error relative to observed."""
    ratios = [observed / predicted for predicted, observed in pairs]
    off = [abs(predicted / observed - 1.0) for predicted, observed in pairs]
    return (
        str(len(pairs)),
        units.times(statistics.median(ratios)),
        units.percent(statistics.median(off)),
        units.percent(max(off)),
    )

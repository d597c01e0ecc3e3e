"""What trials said of the best plans, beside what the roofline had said, in words and tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from asap_ray.report import sentences, units
from asap_ray.report.answer import COMPILER, Answer, Searched, SliceAnswer, Tried
from asap_ray.report.observed import observed_facts
from asap_ray.report.outline import Block, Grid, ranking, shortened
from asap_ray.report.told import words_of
from asap_ray.step_times import gain

if TYPE_CHECKING:
    from collections.abc import Callable

    from asap_ray.hardware import Slice
    from asap_ray.physics.estimate import Estimate

TOLD = 0.02
"""A part is named where it differs by at least this share of the whole."""
STATE = ("weights", "optimizer")
WORKING = "working memory"
NOT_COMPILED: Mapping[str, str] = {
    "complete": "no step time",
    "pruned": "clearly slower",
    "infeasible": "does not fit",
    "failed": "failed",
    "timeout": "out of time",
}


def compiled_blocks(answer: Answer) -> Iterator[Block]:
    """Everything that trials said, slice by slice, fastest first; none where there were none."""
    if len(answer.slices) > 1 and any(one.proven for one in answer.slices):
        yield ranking(answer)
    for one in answer.by_step_time:
        for found in one.searches:
            yield from slice_blocks(answer, one, found)


def slice_blocks(answer: Answer, one: SliceAnswer, found: Searched) -> Iterator[Block]:
    """What trials said of the plans of one slice."""
    words, where = words_of(found.source), one.slice.name
    on = "for" if found.source == "compile" else "on"
    if found.ranked:
        yield Block(
            title=f"{words.done.capitalize()} {on} {where}", grid=shortened(compiled_grid(found, before_of(one, found)))
        )
    if found.unfinished:
        yield Block(title=f"{words.undone.capitalize()} {on} {where}", grid=shortened(unfinished_grid(found)))
    if found.flagged:
        yield Block(title=f"Compiler flags on {one.slice.name}", grid=shortened(flags_grid(found)))
    if found.confirmed:
        yield Block(title=f"Once more on {where}, alone and in turns", grid=confirmed_grid(found))
    seen = [*observed_facts(found.observed)] if found.observed else []
    facts = [*best_facts(answer, one, found), *seen, *closing_facts(answer, found)]
    title = f"Best plan on {where}, by {words.by}" if found.best else f"No plan {words.done} {on} {where}"
    yield Block(title=title, facts=tuple(facts), strong=found.best is not None)


def before_of(one: SliceAnswer, found: Searched) -> Searched | None:
    """What the compiler had said before a search through another tier; None where it had not."""
    return one.compiled if found is one.searched else None


def compiled_grid(found: Searched, before: Searched | None = None) -> Grid:
    """The plans that worked, fastest first, beside the roofline, and beside the compiler where it came before."""
    compiler = ("compiler",) if before else ()
    header = ("#", "step", "likely", "roofline", *compiler, "memory", "roofline", *compiler, "took", "plan")
    rows = []
    for place, each in enumerate(found.ranked, start=1):
        times, memories = _times(each), _memories(each)
        if before:
            times, memories = (*times, _compilers_step(each, before)), (*memories, _compilers_memory(each, before))
        rows.append((str(place), *times, *memories, took(each), each.roofline.plan.line))
    return Grid(header=header, rows=tuple(rows), words=("plan",))


def _compilers_step(each: Tried, before: Searched) -> str:
    said = before.of(each.finding.plan, before.base)
    if said is None or said.finding.estimate is None or each.finding.estimate is None:
        return units.DASH
    step = said.finding.estimate.step_time_s
    return f"{units.seconds(step)} ({100 * (each.finding.estimate.step_time_s / step - 1):+.1f}%)"


def _compilers_memory(each: Tried, before: Searched) -> str:
    said = before.of(each.finding.plan, before.base)
    if said is None or not said.finding.hbm_bytes:
        return units.DASH
    change = f" ({100 * (now / said.finding.hbm_bytes - 1):+.1f}%)" if (now := each.finding.hbm_bytes) else ""
    return f"{units.gigabytes(said.finding.hbm_bytes)}{change}"


def confirmed_grid(found: Searched) -> Grid:
    """What was run again at the end, fastest first: only these steps are held against each other as a gain."""
    header = ("#", "step", "likely", "gain", "likely", "runs", "plan")
    base = next(each for each in found.confirmed if each.baseline)
    rows = []
    for place, each in enumerate(sorted(found.confirmed, key=lambda each: each.pooled), start=1):
        step, (low, high) = each.pooled
        gains = ("baseline", units.DASH)
        if each is not base:
            share, ends = gain(base.steps_s, each.steps_s, each.spread)
            gains = (f"{100 * share:+.1f}%", f"{100 * ends[0]:+.1f}% to {100 * ends[1]:+.1f}%")
        likely = f"{units.seconds(low)} to {units.seconds(high)}"
        rows.append((str(place), units.seconds(step), likely, *gains, str(len(each.steps_s)), each.plan.line))
    return Grid(header=header, rows=tuple(rows), words=("plan",))


def unfinished_grid(found: Searched) -> Grid:
    """The plans that did not compile: how each ended, and why in one line."""
    header = ("ended", "took", "why", "plan")
    rows = tuple(
        (NOT_COMPILED[each.finding.status], took(each), why(each), each.roofline.plan.line) for each in found.unfinished
    )
    return Grid(header=header, rows=rows, words=("ended", "why", "plan"))


def flags_grid(found: Searched) -> Grid:
    """What other bundles of flags made of the best plans."""
    header = ("bundle", "on", "step", "change", "memory", "took", "what")
    places = {each.finding.plan: f"#{place}" for place, each in enumerate(found.ranked, start=1)}
    rows = []
    for each in found.flagged:
        place = places.get(each.finding.plan, "-")
        rows.append((each.bundle, place, *_flagged(found, each), took(each), flag_words(found, each)))
    return Grid(header=header, rows=tuple(rows), words=("bundle", "on", "what"))


def _flagged(found: Searched, each: Tried) -> tuple[str, str, str]:
    base = found.of(each.finding.plan, found.base)
    now, before = each.finding.estimate, base.finding.estimate if base else None
    if now is None:
        return units.DASH, units.DASH, units.gigabytes(each.finding.hbm_bytes)
    change = f"{100 * (now.step_time_s / before.step_time_s - 1):+.1f}%" if before else units.DASH
    return units.seconds(now.step_time_s), change, units.gigabytes(each.finding.hbm_bytes)


def flag_words(found: Searched, each: Tried) -> str:
    """What a bundle did: nothing, which part of the step it moved most, or why there is no program."""
    base = found.of(each.finding.plan, found.base)
    now, before = each.finding.estimate, base.finding.estimate if base else None
    if now is None:
        return f"{NOT_COMPILED[each.finding.status]}: {why(each)}"
    if found.no_op(each):
        return "no-op: the program is the same, instruction by instruction"
    if before is None:
        return "another program"
    return difference(now.time_parts, before.time_parts, units.seconds) or "another program of the same step time"


def best_facts(answer: Answer, one: SliceAnswer, found: Searched) -> Iterator[tuple[str, str]]:
    """The compiler's best plan, with what makes its figures differ from the roofline's."""
    best = found.best
    if best is None or best.finding.estimate is None:
        return
    now = best.finding.estimate
    yield "plan", now.plan.line
    if best.bundle != "default":
        yield "flags", f"bundle {best.bundle}"
    yield from beside_facts(one.slice, now, best.roofline)
    if one.priced is not None and one.priced.plan != now.plan:
        yield "before", before_words(one.priced, now, found)
    if answer.baseline is not None and one is answer.winner:
        yield (
            "baseline",
            f"not {words_of(found.source).done}; the roofline said {units.seconds(answer.baseline.step_time_s)}",
        )
    yield "cost", sentences.cost_line(one.slice, now)


def beside_facts(where: Slice, now: Estimate, before: Estimate) -> Iterator[tuple[str, str]]:
    """The compiler's figures of a plan beside the roofline's, with what makes them differ."""
    yield "step", f"{sentences.step_line(now)}; the roofline said {units.seconds(before.step_time_s)}"
    yield "differs", time_words(now, before)
    yield "speed", sentences.speed_line(where, now)
    yield "floor", sentences.floor_line(now)
    if now.time_parts:
        yield "time", sentences.parts_line(now.time_parts, now.step_time_s)
    yield "memory", f"{sentences.memory_line(where, now)}; the roofline said {units.gigabytes(before.hbm_bytes)}"
    yield "differs", memory_words(now, before)


def tried_blocks(stack: str, where: Slice, tried: Tried) -> Iterator[Block]:
    """What a compiler said of one plan."""
    now, facts = tried.finding.estimate, []
    if now is not None:
        facts += beside_facts(where, now, tried.roofline)
    else:
        facts.append((NOT_COMPILED[tried.finding.status], why(tried)))
    facts += [("took", took(tried)), ("with", tried.finding.evidence), ("evidence", evidence_words(stack))]
    yield Block(title=f"Compiled for {where.name}", facts=tuple(facts), strong=True)


def before_words(priced: Estimate, now: Estimate, found: Searched) -> str:
    """What became of the roofline's best plan."""
    tried = found.of(priced.plan, found.base)
    if tried is None:
        return f"the roofline's best was not {words_of(found.source).done}: {priced.plan.line}"
    if tried.finding.estimate is None:
        return f"the roofline's best {NOT_COMPILED[tried.finding.status]}: {why(tried)}"
    slower = tried.finding.estimate.step_time_s / now.step_time_s - 1
    place = 1 + [each.finding.plan for each in found.ranked].index(priced.plan)
    return f"the roofline's best is #{place} here, {100 * slower:+.1f}%: {priced.plan.line}"


def closing_facts(answer: Answer, found: Searched) -> Iterator[tuple[str, str]]:
    """What was compiled with what, why no more, and what that is evidence for."""
    told = found.trials[0].finding.evidence if found.trials else ""
    if told:
        yield "with", told
    if found.refused:
        yield "passed by", refused_words(found)
    if found.trials:
        yield "took", took_words(found.trials)
    yield "stopped", found.stopped
    if found.trials:
        yield "evidence", evidence_words(answer.stack, found.source)


def refused_words(found: Searched) -> str:
    """Why plans that fit were not tried, with how many."""
    ours = ((name, n) for name, n in found.refused.items() if name not in ("memory", COMPILER))
    rules = sorted(ours, key=lambda pair: -pair[1])
    words = (
        [f"{units.count(n)} plans, for which our trainer would not fit"] if (n := found.refused.get("memory")) else []
    )
    words += [f"{units.count(n)} plans that do not fit by the compiler"] if (n := found.refused.get(COMPILER)) else []
    if rules:
        told = ", ".join(f"{name} {units.count(n)}" for name, n in rules)
        words.insert(0, f"plans that our trainer has no program for, by rule: {told}")
    return "; ".join(words)


def took_words(trials: Sequence[Tried]) -> str:
    """What compilations took, and how many were made before."""
    spent = [each.took_s for each in trials if each.took_s is not None]
    cached = sum(each.finding.cached for each in trials)
    source = trials[0].finding.source if trials else "compile"
    median = f"median {units.seconds(statistics.median(spent))} a {words_of(source).trial}, " if spent else ""
    before = "from the cache" if source == "compile" else "made before"
    return f"{median}{len(trials)} in all, {cached} of them {before}"


def evidence_words(stack: str, source: str = "compile") -> str:
    """What trials say of a stack, and what they do not."""
    if source == "command":
        return f"the clock's, of {stack} itself"
    if source == "run":
        timed = "the clock's, for asap_ray's own trainer: intervals count how far processes lie apart"
        return timed if stack == "ours" else f"{timed}. No evidence for {stack}'s own kernels and sharding"
    ours = "memory and operations are the compiler's own for asap_ray's trainer; times are its estimate, no chip ran"
    if stack == "ours":
        return ours
    return f"{ours}. No evidence for {stack}'s own kernels and sharding"


def time_words(now: Estimate, before: Estimate) -> str:
    """How the compiler's step differs from the roofline's, and in which parts."""
    return _difference_words(now.step_time_s, before.step_time_s, now.time_parts, before.time_parts, units.seconds)


def memory_words(now: Estimate, before: Estimate) -> str:
    """How the compiler's memory differs from the roofline's: in the state, or in what comes and goes."""
    told = _difference_words(
        now.hbm_bytes, before.hbm_bytes, _held(now.memory_parts), _held(before.memory_parts), units.gigabytes
    )
    coming = {name: value for name, value in before.memory_parts.items() if name not in STATE}
    largest = sorted(coming, key=lambda name: -coming[name])[:3]
    named = ", ".join(f"{name} {units.gigabytes(coming[name])}" for name in largest if coming[name] > 0)
    return f"{told}; the roofline's working memory is mostly {named}" if WORKING in told and named else told


def _held(parts: Mapping[str, float]) -> dict[str, float]:
    """Memory as both know it. A compiler does not tell activations from gradients: all that is not state is one."""
    state = {name: value for name, value in parts.items() if name in STATE}
    return {**state, WORKING: sum(parts.values()) - sum(state.values())}


def _difference_words(
    now: float,
    before: float,
    now_parts: Mapping[str, float],
    before_parts: Mapping[str, float],
    show: Callable[[float], str],
) -> str:
    head = f"{_signed(now - before, show)} ({100 * (now / before - 1):+.1f}%)"
    if not any(now_parts.values()):  # a clock knows no parts
        return head
    parts = difference(now_parts, before_parts, show)
    return f"{head}: {parts}" if parts else f"{head}, no part by more than {TOLD:.0%} of it"


def difference(now: Mapping[str, float], before: Mapping[str, float], show: Callable[[float], str]) -> str:
    """The parts that differ most, largest first, and all others together; empty where none does."""
    names = list(dict.fromkeys((*now, *before)))
    change = {name: now.get(name, 0.0) - before.get(name, 0.0) for name in names}
    least = TOLD * max(sum(now.values()), sum(before.values()))
    told = sorted((name for name in names if abs(change[name]) >= least), key=lambda name: -abs(change[name]))
    rest = sum(change[name] for name in names if name not in told)
    words = [f"{name} {_signed(change[name], show)}" for name in told]
    if words and abs(rest) >= least / 4:
        words.append(f"all else {_signed(rest, show)}")
    return ", ".join(words)


def _signed(value: float, show: Callable[[float], str]) -> str:
    return f"{'-' if value < 0 else '+'}{show(abs(value))}"


def _times(each: Tried) -> tuple[str, str, str]:
    found = each.finding.estimate
    assert found is not None
    low, high = found.interval_s
    change = 100 * (found.step_time_s / each.roofline.step_time_s - 1)
    return (
        units.seconds(found.step_time_s),
        f"{units.seconds(low)} to {units.seconds(high)}",
        f"{units.seconds(each.roofline.step_time_s)} ({change:+.1f}%)",
    )


def _memories(each: Tried) -> tuple[str, str]:
    now, before = each.finding.hbm_bytes, each.roofline.hbm_bytes
    change = f" ({100 * (now / before - 1):+.1f}%)" if now else ""
    return units.gigabytes(now), f"{units.gigabytes(before)}{change}"


def took(each: Tried) -> str:
    """What a compilation took; one that was made before cost nothing now, and one that ran out of time left nothing."""
    spent = units.seconds(each.took_s)
    if not each.finding.cached:
        return spent
    return f"cached, {spent}" if each.took_s else "before"


def why(each: Tried) -> str:
    """The reason for an end, on one line; of a plan that does not fit, how much is missing."""
    found, reason = each.finding, " ".join(each.finding.reason.split())
    if found.status == "infeasible" and found.over_bytes:
        roofline = units.gigabytes(each.roofline.hbm_bytes)
        return (
            f"{units.gigabytes(found.over_bytes)} over, needs {units.gigabytes(found.hbm_bytes)} (roofline {roofline})"
        )
    if found.status == "complete":
        return f"it needs {units.gigabytes(found.hbm_bytes)}; {reason or 'no step time is known'}"
    return reason

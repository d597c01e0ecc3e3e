"""Whether a cell is better or worse than on earlier nights, beyond what is noise, and why.

A cell is held against the fastest of its last nights whose steps came from the same tier, so that a slow drift is seen
too. Compiled programs are deterministic and differ by the tolerance; steps that a clock has timed must lie apart with
their whole intervals. The reason is looked for in what the same plan came to tonight: the memory has it tried first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from asap_ray.errors import ConfigError
from asap_ray.plan import AXES, KNOBS, Plan
from asap_ray.report import units
from asap_ray.report.answer import Tried
from asap_ray.report.night import MEASURED, Judged, Row

NIGHTS = 7
"""Earlier nights that a cell is held against: the fastest of them."""
FLAGS = "flags"
MOST_KEYS = 4
"""Keys of a file that has changed that are named."""
PART = 0.2
"""Share of a change from which a part of the step is named as a cause of it."""


def judged(row: Row, before: Sequence[Row], tried: Sequence[Tried], tolerance: float) -> Judged:
    """The verdict on a cell.

    Args:
        row: tonight's.
        before: the cell's earlier rows, the oldest first.
        tried: tonight's trials of the cell.
        tolerance: the share by which steps may differ where nothing is said of their noise.
    """
    if not row.ok or row.step_time_s is None:
        return Judged(row=row, verdict="failed", cause="failed", why=(row.reason or "no plan came to a step",))
    good = [each for each in before if each.ok and each.step_time_s][-NIGHTS:]
    alike = [each for each in good if each.source == row.source]
    if not alike:
        why = ("no night before has a step of it",)
        if good:
            why = (f"its step is by {row.source} tonight and was by {good[-1].source}: they are not compared",)
        return Judged(row=row, verdict="new", cause="evidence" if good else "", why=why)
    then = min(reversed(alike), key=lambda each: each.step_time_s or 0.0)
    if _slower(row, then, tolerance):
        cause, *why = _regression(row, then, tried, tolerance)
        return Judged(
            row=row, verdict="regressed", cause=cause, why=tuple(why), against=then.night, before_s=then.step_time_s
        )
    if _slower(then, row, tolerance):
        cause, *why = _improvement(row, then)
        return Judged(
            row=row, verdict="improved", cause=cause, why=tuple(why), against=then.night, before_s=then.step_time_s
        )
    return Judged(row=row, verdict="unchanged", against=then.night, before_s=then.step_time_s)


def _slower(slow: Row, fast: Row, tolerance: float) -> bool:
    return slower(_figures(slow), _figures(fast), tolerance, measured=slow.source in MEASURED)


def _figures(row: Row) -> tuple[float, float, float]:
    step = row.step_time_s or 0.0
    return step, row.low_s or step, row.high_s or step


def slower(
    slow: tuple[float, float, float], fast: tuple[float, float, float], tolerance: float, *, measured: bool
) -> bool:
    """Whether one step (with the ends of its interval) is longer than another beyond what is noise."""
    apart = slow[1] > fast[2] if measured else True
    return apart and slow[0] > fast[0] * (1 + tolerance)


def _regression(row: Row, then: Row, tried: Sequence[Tried], tolerance: float) -> Iterator[str]:
    """The cause of a regression, in a word, then what speaks for it."""
    again = _again(then, tried)
    changes = list(_changes(row, then))
    if again is None:
        yield "search"
        yield f"the plan of {then.night} was not tried: {row.trials} trials tonight, {then.trials} then; {row.stopped}"
        yield from (text for _, text in changes)
        return
    now = again.finding.estimate
    if now is None:
        yield "memory" if again.finding.status == "infeasible" else "fault"
        yield f"the plan of {then.night} does not run tonight: {again.finding.status}, {again.finding.reason}"
        yield from (text for _, text in changes)
        return
    figures = now.step_time_s, *now.interval_s
    if not slower(figures, _figures(then), tolerance, measured=row.source in MEASURED):
        yield "search"
        yield f"the plan of {then.night} still takes {units.seconds(now.step_time_s)}, but another was taken"
        return
    yield changes[0][0] if changes else "machine" if row.source in MEASURED else "program"
    ratio = now.step_time_s / (then.step_time_s or now.step_time_s)
    took = (
        f"{units.seconds(then.step_time_s)} then and {units.seconds(now.step_time_s)} now ({100 * (ratio - 1):+.1f}%)"
    )
    yield f"the same plan took {took}"
    yield from (text for _, text in changes)
    if not changes:
        yield "no version, flag or word of its command that is on record has changed"
    yield from _parts(now.time_parts, then.parts)


def _again(then: Row, tried: Sequence[Tried]) -> Tried | None:
    """What the plan of an earlier night came to tonight, with the same flags."""
    return next(
        (
            each
            for each in tried
            if (each.finding.plan.line, each.bundle, each.finding.source) == (then.plan, then.bundle, then.source)
        ),
        None,
    )


def _improvement(row: Row, then: Row) -> Iterator[str]:
    changes = list(_changes(row, then))
    if row.plan != then.plan:
        yield "plan"
        yield f"another plan: {_plan_difference(then.plan, row.plan)}"
    elif row.bundle != then.bundle:
        yield "flags"
        yield f"the same plan with {row.bundle} in place of {then.bundle}"
    else:
        yield changes[0][0] if changes else "machine"
        yield f"the same plan as on {then.night}"
    yield from (text for _, text in changes)
    if row.plan == then.plan:
        yield from _parts(row.parts, then.parts)


def _changes(row: Row, then: Row) -> Iterator[tuple[str, str]]:
    """What on record differs between two nights: a word for each, and how."""
    names = [*then.versions, *(name for name in row.versions if name not in then.versions)]
    different = [name for name in names if then.versions.get(name) != row.versions.get(name)]
    if different:
        told = (f"{name} {then.versions.get(name, 'none')} -> {row.versions.get(name, 'none')}" for name in different)
        yield "versions", f"versions: {', '.join(told)}"
    if row.evidence != then.evidence and not different:
        yield "versions", f"evidence: {then.evidence} -> {row.evidence}"
    gone, added = [w for w in then.words if w not in row.words], [w for w in row.words if w not in then.words]
    if gone or added:
        kind = FLAGS if any(word.startswith("compile.xla=") for word in (*gone, *added)) else "configuration"
        yield kind, f"command: {' '.join(gone) or 'nothing'} -> {' '.join(added) or 'nothing'}"
    yield from sorted(_settings(row, then), key=lambda each: each[0] != FLAGS)


def _settings(row: Row, then: Row) -> Iterator[tuple[str, str]]:
    """Files whose name is the same and that say something else now: flags, the stack, the model, the chip."""
    for name in row.settings.keys() & then.settings.keys():
        old, new = then.settings[name], row.settings[name]
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        if keys:
            told = ", ".join(f"{key} {old.get(key, 'none')} -> {new.get(key, 'none')}" for key in keys[:MOST_KEYS])
            more = f" and {len(keys) - MOST_KEYS} more" if len(keys) > MOST_KEYS else ""
            yield FLAGS if name.startswith("xla/") else "configuration", f"{name} has changed: {told}{more}"


def _parts(now: Mapping[str, float], then: Mapping[str, float]) -> Iterator[str]:
    """The parts of the step that a change comes from, the largest first."""
    change = sum(now.values()) - sum(then.values())
    if not now or not then or not change:
        return
    moved = {name: now.get(name, 0.0) - then.get(name, 0.0) for name in {**then, **now}}
    named = [name for name, value in moved.items() if value / change >= PART]
    for name in sorted(named, key=lambda each: -moved[each] / change):
        yield (
            f"{name}: {units.seconds(then.get(name, 0.0))} -> {units.seconds(now.get(name, 0.0))}, "
            f"{100 * moved[name] / change:.0f}% of the change"
        )


def _plan_difference(then: str, now: str) -> str:
    """What one plan has otherwise than another."""
    try:
        old, new = Plan.parse(then), Plan.parse(now)
    except ConfigError:
        return f"{then} -> {now}"
    pairs = [(name, old.axes[name], new.axes[name]) for name in AXES]
    pairs += [(name, getattr(old, name), getattr(new, name)) for name in KNOBS]
    told = [f"{name} {before} -> {after}" for name, before, after in pairs if before != after]
    return ", ".join(told) or "the order of its axes on the links"

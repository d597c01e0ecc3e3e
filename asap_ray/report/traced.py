"""A trace told: its step, what that is made of, what bounds it, for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from asap_ray.observation import axes_words
from asap_ray.profile.summary import StepSummary
from asap_ray.profile.table import Op, Profile
from asap_ray.profile.verdict import STRAGGLES, THRESHOLDS, WAITED, WORDS, Verdict
from asap_ray.report import units
from asap_ray.report.outline import Block, Grid
from asap_ray.report.summary import finite

TOP = 12
DEVICES = 8
"""Devices that are listed one by one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traced:
    """A trace and what is made of it; `xprof` is what XProf's own tools say, where it is installed."""

    path: str
    files: tuple[str, ...]
    chip: str
    summary: StepSummary
    profile: Profile
    verdict: Verdict
    xprof: Mapping[str, Any] | None = None


def traced_blocks(told: Traced) -> Iterator[Block]:
    """What the trace shows, in the order in which it is read."""
    yield Block(title="The trace", facts=tuple(_facts(told)), strong=True)
    yield Block(title="What the step is made of", grid=_parts(told.summary))
    yield Block(title="Ops that cost most, by trace", grid=_ops(told.profile))
    if told.profile.collectives:
        yield Block(title="Collectives, by trace", grid=_wires(told.profile))
    if len(told.summary.devices) > 1:
        yield Block(title="Devices, the one with most work of its own first", grid=_devices(told.summary))
    found = told.verdict
    facts = [("bound", f"{found.bound}: {WORDS[found.bound]}")]
    facts += [("evidence" if i == 0 else "", line) for i, line in enumerate(found.evidence)]
    facts += [("next wall", WORDS[found.next_wall]), ("look at", found.look_at)]
    if found.abstains:
        facts.append(("abstains", found.abstains))
    facts += [("not certain", doubt) for doubt in told.profile.flags]
    yield Block(title="What bounds the step, by trace", facts=tuple(facts))
    if told.xprof:
        yield Block(title="What XProf says", facts=tuple((key, str(value)) for key, value in told.xprof.items()))


def _facts(told: Traced) -> Iterator[tuple[str, str]]:
    summary = told.summary
    spread = f", from {units.seconds(summary.fastest_s)} to {units.seconds(summary.slowest_s)}"
    yield "step", f"{units.seconds(summary.step_s)} (median){spread if summary.steps > 1 else ''}"
    yield "steps", f"{summary.steps}, by {summary.found_by}"
    yield "devices", f"{len(summary.devices)} ({told.chip}), of {summary.hosts} host{'s' if summary.hosts > 1 else ''}"
    yield "path", told.path
    if (overlap := told.profile.overlap()) is not None:
        yield "overlap", f"{units.percent(overlap)} of all time in collectives hides"


def _parts(summary: StepSummary) -> Grid:
    rows = []
    for part, share in sorted(summary.shares.items(), key=lambda item: -item[1]):
        least = THRESHOLDS.get("idle" if part == "host" else part)
        over = least is not None and share > least
        limit = "-" if least is None else f"{least:.0%}{' EXCEEDED' if over else ''}"
        rows.append((WORDS[part], units.seconds(share * summary.step_s), units.percent(share), limit))
    return Grid(header=("part", "time", "share", "XProf's threshold"), rows=tuple(rows), words=("part",))


def _ops(profile: Profile) -> Grid:
    header = ("step", "exposed", "busy", "runs", "what", "where")
    whole = profile.step_time_s
    rows = tuple(
        (
            units.percent(op.exposed_s / whole),
            units.seconds(op.exposed_s),
            units.seconds(op.seconds),
            units.three_digits(op.count),
            f"{op.category}, {op.phase}",
            op.source or op.name,
        )
        for op in profile.top(TOP)
    )
    return Grid(header=header, rows=rows, words=("what", "where"))


def collectives(profile: Profile) -> list[dict[str, Any]]:
    """Collectives by kind, axes and phase, the most exposed first."""
    groups: dict[tuple[str, tuple[str, ...], str], list[Op]] = {}
    for op in profile.collectives:
        groups.setdefault((op.category, op.axes, op.phase), []).append(op)
    found = [
        {
            "category": category,
            "axes": list(axes),
            "phase": phase,
            "runs": sum(op.count for op in ops),
            "wire_bytes": sum(op.wire_bytes for op in ops),
            "seconds": sum(op.seconds for op in ops),
            "exposed_s": sum(op.exposed_s for op in ops),
        }
        for (category, axes, phase), ops in groups.items()
    ]
    return sorted(found, key=lambda each: -each["exposed_s"])


def _wires(profile: Profile) -> Grid:
    rows = tuple(
        (
            each["category"],
            axes_words(each["axes"]),
            each["phase"],
            units.three_digits(each["runs"]),
            units.scaled(each["wire_bytes"], "B") if each["wire_bytes"] else units.DASH,
            units.seconds(each["seconds"]),
            units.seconds(each["exposed_s"]),
        )
        for each in collectives(profile)
    )
    header = ("what", "over", "phase", "runs", "sent", "busy", "exposed")
    return Grid(header=header, rows=rows, words=("what", "over", "phase"))


def _devices(summary: StepSummary) -> Grid:
    ranked = sorted(summary.devices, key=lambda each: -each.own_s)
    shown = ranked if len(ranked) <= DEVICES else [*ranked[: DEVICES - 1], ranked[-1]]
    rows = tuple(
        (
            f"{each.name} of {each.host}",
            units.seconds(each.step_s),
            units.seconds(each.own_s),
            units.seconds(each.parts["collectives"]),
            units.seconds(each.parts["input"] + each.parts["host"] + each.parts["idle"]),
        )
        for each in shown
    )
    return Grid(header=("device", "step", "own work", "collectives", "waiting"), rows=rows, words=("device",))


def traced_fields(told: Traced) -> dict[str, Any]:
    """The trace as plain values for JSON."""
    summary = told.summary
    return finite(
        {
            "path": told.path,
            "files": list(told.files),
            "chip": told.chip,
            "step": asdict(summary),
            "verdict": asdict(told.verdict),
            "thresholds": {**THRESHOLDS, "async_done": WAITED, "straggler": STRAGGLES},
            "overlap": told.profile.overlap(),
            "by_category_s": told.profile.by("category"),
            "by_phase_s": told.profile.by("phase"),
            "collectives": collectives(told.profile),
            "top": [asdict(op) | {"axes": list(op.axes)} for op in told.profile.top(TOP)],
            "not_certain": list(told.profile.flags),
            "xprof": dict(told.xprof) if told.xprof else None,
        }
    )

"""A published case taken up again, as text and JSON: its baseline, what was proposed, and what it came to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from asap_ray.report import sentences, units
from asap_ray.report.outline import Block, Grid
from asap_ray.report.summary import estimate_fields, finite

if TYPE_CHECKING:
    from asap_ray.diagnosis import Diagnosis
    from asap_ray.physics.estimate import Estimate
    from asap_ray.plan import Plan

PROPOSED = ("#", "step", "gain", "by", "", "plan")
NOTE = (
    "No trial stands behind these steps: they are the roofline's. The paper names no model, so that its gain and ours "
    "are of different jobs."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposed:
    """One proposal: `by` is the card or the ranking behind it, `source` the card's."""

    estimate: Estimate
    by: str
    hypothesis: str
    mechanism: str
    predicted: str
    falsification: str
    source: str
    is_adopted: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Adopted:
    """The plan that the case came to: its `rank` among the `fitting` plans of the space.

    `cards` has the mesh, in our axes, that each card which fires leads to from the baseline, and `led_by` the names of
    those that lead to this plan; `why` says what tells it from the baseline, or why it has no estimate.
    """

    estimate: Estimate | None
    rank: int | None
    cards: Mapping[str, str]
    led_by: tuple[str, ...]
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The case with its `data` axis read as one of ours.

    `as_diagnosed` says whether the baseline is bound by what the case says. `factorisations` counts the ordered
    factorisations of the chips over the paper's axes, `distinct` those that are different meshes here, `legal` and
    `fitting` those of them that are.
    """

    data_as: str
    baseline: Estimate
    diagnosis: Diagnosis
    as_diagnosed: bool
    proposals: tuple[Proposed, ...]
    refused: int
    adopted: Adopted
    best: Estimate
    factorisations: int
    distinct: int
    legal: int
    fitting: int

    def gain(self, estimate: Estimate) -> float:
        """How many times as fast as the baseline a plan is."""
        return self.baseline.step_time_s / estimate.step_time_s

    @property
    def adopted_in_first_three(self) -> bool:
        """Whether the adopted plan was proposed."""
        return any(each.is_adopted for each in self.proposals)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What a case says of itself, in the words of its paper."""

    name: str
    about: str
    reason: str
    source: str
    baseline: Mapping[str, int]
    adopted: Mapping[str, int]
    reported: str
    reported_speedup: float


def mesh_words(mesh: Mapping[str, int]) -> str:
    """A mesh as the paper writes it."""
    return ", ".join(f"{axis} {size}" for axis, size in mesh.items())


def plan_words(plan: Plan) -> str:
    """The mesh of a plan in the same form, on our axes."""
    return mesh_words({axis: size for axis, size in plan.axes.items() if size > 1})


def gain_words(gain: float) -> str:
    """A speed-up, and the same as a change of the step time."""
    return f"{units.times(gain)}, {100 * (1 / gain - 1):+.1f}% step time"


def case_block(case: Case) -> Block:
    """What is taken up."""
    return Block(
        title=f"{case.name}: {case.about}",
        facts=(
            ("baseline", mesh_words(case.baseline)),
            ("adopted", f"{mesh_words(case.adopted)}; reported: {case.reported} ({gain_words(case.reported_speedup)})"),
            ("source", case.source),
            ("model", case.reason),
        ),
    )


def blocks(case: Case, found: Reading) -> Iterator[Block]:
    """One reading, in the order in which it is read."""
    yield _baseline(found)
    yield _proposals(found)
    yield _beside(case, found)


def _baseline(found: Reading) -> Block:
    facts = [
        ("plan", found.baseline.plan.line),
        ("step", sentences.step_line(found.baseline)),
        ("floor", sentences.floor_line(found.baseline)),
        ("bound", sentences.bound_line(found.diagnosis)),
    ]
    facts += [("evidence" if i == 0 else "", text) for i, text in enumerate(found.diagnosis.evidence)]
    if found.diagnosis.abstains:
        facts.append(("abstains", found.diagnosis.abstains))
    agrees = "as in the paper" if found.as_diagnosed else "not as in the paper"
    return Block(
        title=f"The paper's data axis read as {found.data_as}: the baseline, diagnosed {agrees}", facts=tuple(facts)
    )


def _proposals(found: Reading) -> Block:
    rows, facts = [], []
    for place, each in enumerate(found.proposals, start=1):
        gain = found.gain(each.estimate)
        known = "the paper's" if each.is_adopted else ""
        rows.append(
            (
                str(place),
                units.seconds(each.estimate.step_time_s),
                gain_words(gain),
                each.by,
                known,
                plan_words(each.estimate.plan),
            )
        )
        facts.append((f"#{place}", each.mechanism))
        facts.append(("why", each.hypothesis))
        facts.append(("predicts", f"{each.predicted}; refuted by {each.falsification}"))
        if each.source:
            facts.append(("source", each.source))
    grid = Grid(header=PROPOSED, rows=tuple(rows), words=PROPOSED[2:])
    return Block(title=f"{len(rows)} proposals", grid=grid, facts=tuple(facts))


def _beside(case: Case, found: Reading) -> Block:
    told, best = found.adopted, found.best
    if told.estimate is None:
        adopted = told.why
    else:
        adopted = (
            f"{units.seconds(told.estimate.step_time_s)} ({gain_words(found.gain(told.estimate))}), rank {told.rank} "
            f"of {found.fitting}; {told.why}"
        )
    three = "yes" if found.adopted_in_first_three else "no"
    return Block(
        title="Beside the paper",
        facts=(
            ("adopted", adopted),
            ("in three", three),
            ("cards", "; ".join(f"{card} leads to {mesh}" for card, mesh in told.cards.items()) or "none helps"),
            ("reported", f"{case.reported} ({gain_words(case.reported_speedup)})"),
            ("exact best", f"{units.seconds(best.step_time_s)} ({gain_words(found.gain(best))}): {best.plan.line}"),
            (
                "space",
                f"{found.factorisations} ordered factorisations, {found.distinct} different meshes, {found.legal} "
                f"legal, {found.fitting} fit",
            ),
        ),
    )


def told_blocks(fields: Mapping[str, Any]) -> Iterator[Block]:
    """A case in short, from what `scenario_fields` gave: what was proposed from each baseline, beside the paper's."""
    paper = fields["paper"]
    for each in fields["readings"]:
        rows = [
            (
                *(str(place), units.seconds(one["step_time_s"]), gain_words(one["speedup"]), one["by"]),
                *("the paper's" if one["is_adopted"] else "", one["line"]),
            )
            for place, one in enumerate(each["proposals"], start=1)
        ]
        yield Block(
            title=f"{fields['name']}, the paper's data axis read as {each['data_as']}",
            facts=(
                ("baseline", f"{units.seconds(each['baseline']['step_time_s'])}: {each['baseline']['line']}"),
                ("adopted", f"{mesh_words(paper['adopted'])}; reported: {paper['reported']}"),
                ("here", _adopted_words(each["adopted"])),
            ),
            grid=Grid(header=PROPOSED, rows=tuple(rows), words=PROPOSED[2:]),
        )


def _adopted_words(told: Mapping[str, Any]) -> str:
    if told["speedup"] is None:
        return told["why"]
    return f"{units.seconds(told['step_time_s'])} ({gain_words(told['speedup'])}), rank {told['rank']}"


def scenario_fields(case: Case, readings: tuple[Reading, ...]) -> dict[str, Any]:
    """`scenario` of `summary.json`: the first reading's diagnosis, proposals and adopted plan, and every reading."""
    told = [_fields(each) for each in readings]
    shown = {key: told[0][key] for key in ("diagnosis", "proposals", "adopted", "adopted_in_first_three")}
    return finite({"name": case.name, **shown, "paper": asdict(case), "readings": told})


def _fields(found: Reading) -> dict[str, Any]:
    told = found.adopted
    return {
        "data_as": found.data_as,
        "diagnosis": asdict(found.diagnosis) | {"as_in_the_paper": found.as_diagnosed},
        "baseline": estimate_fields(found.baseline),
        "proposals": [_proposed(found, each) for each in found.proposals],
        "refused": found.refused,
        "adopted": {
            **_gained(found, told.estimate),
            "rank": told.rank,
            "cards": dict(told.cards),
            "led_by": list(told.led_by),
            "why": told.why,
        },
        "adopted_in_first_three": found.adopted_in_first_three,
        "best": _gained(found, found.best),
        "space": {name: getattr(found, name) for name in ("factorisations", "distinct", "legal", "fitting")},
    }


def _proposed(found: Reading, each: Proposed) -> dict[str, Any]:
    words = ("by", "hypothesis", "mechanism", "predicted", "falsification", "source", "is_adopted")
    return {**_gained(found, each.estimate), **{name: getattr(each, name) for name in words}}


def _gained(found: Reading, estimate: Estimate | None) -> dict[str, Any]:
    fields = estimate_fields(estimate) or {"line": None, "step_time_s": None}
    return {**fields, "speedup": found.gain(estimate) if estimate else None}

"""What a search recalls of the memory when it starts: the cases most like it, and how the cards behind them fared.

Cases come by structure first (`cases.similarity`: workload, chip, scale, what bounds the step) and by their words
second (`words.scores`). Of the trials of one situation by one trainer the fastest plan is recalled, and what was
refuted: predictions that failed, moves that changed nothing, plans that did not fit.

How a card ranks, worked out: on TPUs bound by ICI 1 of its 4 predictions was confirmed, 2 were refuted and 1 trial was
the same program; bound by HBM there 2 of 2 were confirmed, which count half. Its rank is (1 + 1 + 0.5 * 2) over
(2 + 4 + 0.5 * 2), 3/7: a little below the 1/2 of a card that was never tried.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from asap_ray.cases import CASE, LONG, Case, Situation, clean, similarity
from asap_ray.words import scores

MOST = 6
"""Cases that are recalled at most of what was best, and of what was refuted."""
MOST_RECORDS = 100
"""Cards and cases whose record is recalled at most."""
LEAST = 0.5
"""Similarity below which a case says nothing here."""
STEPS = 0.05
"""Differences in similarity below this are none: words decide."""
BEST, RANKING = "best", "ranking"
KINDS = (BEST, "refuted", "no-op", "infeasible")
"""What a case may be recalled for; predictions of the ranking are figures, not ideas, and are not."""
MEASURED = ("run", "command")
"""Tiers whose steps a clock has measured."""
HALF, QUARTER = 0.5, 0.25
"""What a verdict counts where the bound is another one, and where the kind of chip is."""
CONTRADICTED = 0.34
"""Rank up to which a case is not proposed: once refuted and never confirmed it has 1/3."""
DOUBT = 0.1
"""How much slower the plan of a card that is always wrong counts, and faster of one that is always right."""


Told = tuple[Case, str, str]
"""A case, which of `KINDS` it is, and what it says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """Verdicts on what a card or case had proposed; `fired` counts trials that came to none too."""

    fired: int = 0
    confirmed: int = 0
    refuted: int = 0
    no_op: int = 0

    @property
    def judged(self) -> int:
        """Trials that came to a verdict on the prediction."""
        return self.confirmed + self.refuted + self.no_op

    @property
    def text(self) -> str:
        """The verdicts in words."""
        return f"{self.fired} fired, {self.confirmed} confirmed, {self.refuted} refuted, {self.no_op} no-op"


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """How a card or case has fared: by what bound the base on this kind of chip, and on the other kind altogether.

    `contradicted` is the last case that speaks against it, with what it came to; "" where none does.
    """

    kind: str
    here: Mapping[str, Tally] = field(default_factory=dict)
    elsewhere: Tally = field(default_factory=Tally)
    contradicted: str = ""

    @property
    def judged(self) -> int:
        """Trials that came to a verdict on a prediction."""
        return self.elsewhere.judged + sum(each.judged for each in self.here.values())

    def rank(self, bound: str) -> float:
        """The mean of a Beta distribution with prior (1, 1): 1/2 for what was never judged, see the module."""
        weighted = [(1.0 if name == bound else HALF, each) for name, each in self.here.items()]
        weighted.append((QUARTER, self.elsewhere))
        won = sum(weight * each.confirmed for weight, each in weighted)
        return (1.0 + won) / (2.0 + sum(weight * each.judged for weight, each in weighted))

    def doubt(self, bound: str) -> float:
        """What the expected step of its plans is multiplied by: 1 without a record."""
        return 1.0 + DOUBT * (1.0 - 2.0 * self.rank(bound))

    def text(self, bound: str) -> str:
        """The record in words; nothing without one."""
        told = [
            f"on {self.kind} bound by {name or 'nothing known'}: {each.text}"
            for name, each in sorted(self.here.items(), key=lambda each: (each[0] != bound, each[0]))
        ]
        told += [f"on other chips: {self.elsewhere.text}"] if self.elsewhere.fired else []
        if not told:
            return ""
        against = f"; against it {self.contradicted}" if self.contradicted else ""
        return f"rank {self.rank(bound):.2f} ({'; '.join(told)}{against})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Recalled:
    """A case as a search sees it: `sort` is one of `KINDS`, `akin` says that the workload's class and chip are ours.

    `ratio` is its step over what the roofline said of its plan then, None where it came to no step; `devices` what its
    plan is for.
    """

    id: str
    sort: str
    similarity: float
    akin: bool
    plan: str
    devices: int
    ratio: float | None
    by: str
    text: str

    @property
    def name(self) -> str:
        """What a proposal cites it by."""
        return f"{CASE}{self.id}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Recall:
    """What a search recalls: cases, the most alike first, and records by card or by `case:ID`."""

    cases: tuple[Recalled, ...] = ()
    records: Mapping[str, Record] = field(default_factory=dict)

    def doubt(self, name: str, bound: str) -> float:
        """What the expected steps of a card's plans are multiplied by; 1 without a record."""
        record = self.records.get(name)
        return record.doubt(bound) if record else 1.0

    def record_text(self, name: str, bound: str) -> str:
        """A card's record in words; nothing without one."""
        record = self.records.get(name)
        return record.text(bound) if record else ""

    def contradicted(self, case: Recalled) -> bool:
        """Whether what was made of a case speaks against it."""
        record = self.records.get(case.name)
        return record is not None and record.rank("") <= CONTRADICTED

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, a few ten kilobytes at most; `read_recall` reads them back."""
        return {
            "cases": [asdict(each) for each in self.cases],
            "records": {name: asdict(each) for name, each in self.records.items()},
        }


def read_recall(told: Mapping[str, Any]) -> Recall:
    """What an event says was recalled.

    Raises:
        LookupError, TypeError: it is no such event.
    """
    return Recall(
        cases=tuple(Recalled(**each) for each in told["cases"]),
        records={name: _read_record(each) for name, each in told["records"].items()},
    )


def _read_record(told: Mapping[str, Any]) -> Record:
    here = {bound: Tally(**each) for bound, each in told["here"].items()}
    return Record(**{**told, "here": here, "elsewhere": Tally(**told["elsewhere"])})


def recalled(cases: Sequence[Case], here: Situation, bound: str = "", query: str = "") -> Recall:
    """What cases have to say to a situation.

    Args:
        cases: all that are known, the oldest first.
        here: the situation.
        bound: what bounds its step as far as is known, such as by the roofline's best plan.
        query: words of what is looked for.
    """
    found = [each for sort in (_best(cases), _refuted(cases)) for each in _most_alike(sort, here, bound, query)]
    return Recall(cases=tuple(found), records=records(cases, here.kind))


def _most_alike(told: Sequence[Told], here: Situation, bound: str, query: str) -> list[Recalled]:
    """The cases most alike; of those that hardly differ in that, what was measured, then what answers best in words."""
    alike = [similarity(case.situation, here, (case.bound, bound)) for case, _, _ in told]
    by_words = scores(query, [f"{text} {case.hypothesis} {case.diagnosis}" for case, _, text in told])
    places = [place for place in range(len(told)) if alike[place] >= LEAST]
    order = [(-round(alike[i] / STEPS), told[i][0].source not in MEASURED, -by_words[i]) for i in range(len(told))]
    places.sort(key=lambda place: (order[place], told[place][0].id))
    return [_recalled(told[place], alike[place], here) for place in places[:MOST]]


def _recalled(told: Told, alike: float, here: Situation) -> Recalled:
    case, sort, text = told
    return Recalled(
        id=case.id,
        sort=sort,
        similarity=round(alike, 3),
        akin=case.situation.akin(here),
        plan=case.plan,
        devices=case.situation.devices,
        ratio=case.step_time_s / case.roofline_s if case.step_time_s else None,
        by=case.by,
        text=clean(text, LONG),
    )


def _best(cases: Sequence[Case]) -> list[Told]:
    """Of each situation, trainer and compiler the fastest plan among trials with the bundle of flags that most have."""
    groups = defaultdict[object, list[Case]](list)
    for case in cases:
        groups[case.situation, case.evidence].append(case)
    found: dict[object, Told] = {}
    for group in groups.values():
        bundle = Counter(case.bundle for case in group).most_common(1)[0][0]
        alike = [case for case in group if case.bundle == bundle]
        done = [case for case in alike if case.status == "complete" and case.step_time_s]
        if done:
            best = min(done, key=lambda case: case.step_time_s or 0.0)
            plans = len({case.plan for case in alike})
            bound = f", bound by {best.bound}" if best.bound else ""
            text = f"{best.step_time_s:.3g} s, the fastest of {plans} plans by {best.source}{bound}"
            told = found.get((best.situation, best.plan))
            if told is None or told[0].source not in MEASURED or best.source in MEASURED:  # else the newest evidence
                found[best.situation, best.plan] = (best, BEST, f"{best.situation.words}: {text}")
    return list(found.values())


def _refuted(cases: Sequence[Case]) -> list[Told]:
    """What was proposed for a reason and came to nothing, and what did not fit; of one plan and reason the last."""
    found: dict[object, Told] = {}
    for case in cases:
        sort = case.status if case.status == "infeasible" else case.verdict
        if sort in KINDS[1:] and (case.by != RANKING or sort == "infeasible"):
            why = f"{case.by}: " if case.by else ""
            text = f"{case.situation.words}: {why}{sort}, {case.told or 'did not fit'}"
            found[case.situation, case.plan, case.by, sort] = (case, sort, text)
    return list(found.values())


def records(cases: Iterable[Case], kind: str) -> dict[str, Record]:
    """How each card or case has fared that proposed any of these trials, as a kind of chip sees it; those that fired
    most first."""
    named = defaultdict[str, list[Case]](list)
    for case in cases:
        if case.by:
            named[case.by].append(case)
    most = sorted(named, key=lambda name: (-len(named[name]), name))[:MOST_RECORDS]
    return {name: _record(named[name], kind) for name in most}


def _record(cases: Sequence[Case], kind: str) -> Record:
    here = defaultdict[str, list[Case]](list)
    elsewhere = list[Case]()
    for case in cases:
        (here[case.base_bound] if case.situation.kind == kind else elsewhere).append(case)
    against = [case for case in cases if case.verdict in ("refuted", "no-op")]
    last = f"{CASE}{against[-1].id}, {against[-1].verdict}: {against[-1].told}" if against else ""
    return Record(
        kind=kind,
        here={bound: _tally(each) for bound, each in here.items()},
        elsewhere=_tally(elsewhere),
        contradicted=clean(last, LONG),
    )


def _tally(cases: Sequence[Case]) -> Tally:
    ends = Counter(case.verdict for case in cases)
    return Tally(fired=len(cases), confirmed=ends["confirmed"], refuted=ends["refuted"], no_op=ends["no-op"])

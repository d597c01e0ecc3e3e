"""The legal moves that a brain is shown: around the best trial, what cards say, what the ranking has, and one step off.

An option is a plan of the pool that may be tried, with an id, so that a model which cannot count devices still
proposes what is legal. `resolve` finds the plan that free changes mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from asap_ray.agents.answers import Change
from asap_ray.agents.brief import Brain, Brief
from asap_ray.agents.moves import reached
from asap_ray.agents.playbook import changes
from asap_ray.agents.proposal import Proposal
from asap_ray.agents.verifier import row_of
from asap_ray.errors import ConfigError
from asap_ray.plan import AXES, KNOBS, Plan, six

RANKED, STEPS = 7, 6
"""Options of the playbook and one step off the base, at most."""
_FREED = ("remat", "micro_batch", "zero", "schedule", "virtual", "sequence_parallel", "attention", "precision")


@dataclass(frozen=True, kw_only=True)
class Option:
    """A plan that may be tried: `name` is its id, `words` what tells it from the base, `card` the card behind it."""

    name: str
    row: int
    words: str
    card: str = ""


def base_row(brief: Brief) -> int:
    """What options start from: the best trial, or the plan that is expected to be fastest."""
    best = row_of(brief.pool, brief.best.candidate.plan) if brief.best else None
    return best if best is not None else int(np.argmin(np.where(brief.open, brief.expected_s, np.inf)))


def options(brief: Brief, rules: Brain, base: int) -> list[Option]:
    """Open plans to choose from: those of the rules, then those one step off the base, fastest first; none twice."""
    rows: dict[int, str] = {}
    for each in rules.propose(brief, RANKED):
        row = row_of(brief.pool, each.plan)
        if row is not None and brief.open[row] and not each.recipe:
            rows.setdefault(row, each.card)
    steps = sorted(set(_steps(brief, base)) - set(rows), key=lambda row: float(brief.expected_s[row]))
    for row in steps[:STEPS]:
        rows[row] = ""
    return [
        Option(name=f"m{i}", row=row, words=changes(brief.pool, base, row), card=card)
        for i, (row, card) in enumerate(rows.items(), 1)
    ]


def _steps(brief: Brief, base: int) -> Iterator[int]:
    """Of each kind of step off the base, the plan that is expected to be fastest."""
    moves: list[Mapping[str, str]] = [
        {here: "half", there: "double"} for here in AXES for there in AXES if here != there
    ]
    moves += [{"remat": "lighter"}, {"remat": "heavier"}, {"micro_batch": "double"}, {"micro_batch": "half"}]
    moves = [{**move, "accumulation": "free"} for move in moves]
    may = brief.open & brief.likely
    for move in moves:
        if (mask := reached(brief.pool, base, move, brief.pool.recomputed) & may).any():
            rows = np.flatnonzero(mask)
            yield int(rows[np.argmin(brief.expected_s[rows])])


def resolve(brief: Brief, base: int, wanted: Sequence[Change]) -> Plan:
    """The plan that changes to the base mean: of those in the pool that are exactly so and else as the base is, the one
    expected to be fastest; where there is none, the plan as it stands, for the Verifier to say why not.

    Raises:
        ConfigError: a knob or a value that no plan has.
    """
    pool = brief.pool
    move = {each.knob.strip(): each.value.strip().lower() for each in wanted}
    literal = _literal(pool.plan(base), move)
    codes = {name: str(value) for name, value in move.items()}
    try:
        mask = reached(pool, base, codes, pool.recomputed)
    except (ValueError, KeyError):
        return literal
    if "micro_batch" in move and "accumulation" not in move:  # the batch stays what it is
        mask |= reached(pool, base, {**codes, "accumulation": "free"}, pool.recomputed)
    for rows in (np.flatnonzero(mask & brief.open), np.flatnonzero(mask)):
        if len(rows):
            return pool.plan(int(rows[np.argmin(brief.expected_s[rows])]))
    return literal


def _literal(base: Plan, move: Mapping[str, str]) -> Plan:
    """The base with axes and knobs set; an axis keeps its size across slices where it can."""
    ici, dcn = list(base.ici), list(base.dcn)
    given = Plan.parse(" ".join(f"{name}={value}" for name, value in move.items()), "changes")
    for i, axis in enumerate(AXES):
        if axis in move:
            size = given.sizes[i]
            dcn[i] = dcn[i] if size % dcn[i] == 0 else 1
            ici[i] = size // dcn[i]
    knobs = {name: getattr(given, name) for name in KNOBS if name in move}
    return replace(base, ici=six(ici), dcn=six(dcn), layout=(), **knobs)


def known_knob(name: str) -> None:
    """A column that a model may name.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in (*AXES, *KNOBS):
        raise ConfigError("knob", name, f"allowed: {', '.join((*AXES, *KNOBS))}", (*AXES, *KNOBS))


def distinct(proposals: Sequence[Proposal]) -> bool:
    """Whether no two propose the same plan."""
    return len({each.plan for each in proposals}) == len(proposals)

"""The pool: every plan that may be tried, as columns, with what the roofline says of each.

In it is what passes the gate: legal plans that fit in memory with the margin kept free, for which the trainer that is
tried has a program, which by the roofline too fits. Plans that differ only in how their mesh lies on the torus are one
program; the fastest of them stands for all. Searchers see the pool through masks [plans], so that whatever closes a
plan can be lifted again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache

import numpy as np

from asap_ray.physics.estimate import TIME_PARTS, Estimate, summed
from asap_ray.physics.roofline import Pricer
from asap_ray.plan import AXES, KNOBS, Plan
from asap_ray.problem import MESH_COLUMNS, Problem, coding, columns_of
from asap_ray.rules import RULES
from asap_ray.space import PlanColumns, Space

COLUMNS = (*MESH_COLUMNS, *KNOBS)
MOST = 200_000
"""Plans that a pool holds at most: the fastest by the roofline."""
HELD = "memory"
"""What plans are counted under that fit on their stack and not in the trainer that is tried."""
ESTIMATES = 4096
"""Estimates that a pool keeps: agents look at the same few plans again and again."""
ROOM = 4
"""Times that many rows are kept while a space passes by: layouts of one mesh are several of them."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Plans as columns [plans], in the order of enumeration.

    `step_s`, `low_s` (lower end of the interval), `floor_s`, `hbm_bytes` and `parts` (seconds by part of the step,
    [plans, parts]) are the roofline's; `plan` and `estimate` give one row whole. `refused` counts legal plans that fit
    and are not tried: by the rule that leaves them no program, under `HELD` where the program would not fit. `left_out`
    counts those that were dropped since a pool holds no more than `MOST`.
    """

    problem: Problem
    columns: Mapping[str, np.ndarray]
    step_s: np.ndarray
    low_s: np.ndarray
    floor_s: np.ndarray
    hbm_bytes: np.ndarray
    parts: np.ndarray
    plan: Callable[[int], Plan]
    estimate: Callable[[int], Estimate]
    refused: Mapping[str, int]
    left_out: int = 0

    def __len__(self) -> int:
        """Number of plans."""
        return len(self.step_s)

    def row(self, plan: Plan) -> int | None:
        """Where a plan stands, on whichever layout; None where it is not in the pool."""
        columns = columns_of(self.problem, [plan])
        return self._rows.get(tuple(int(columns[name][0]) for name in COLUMNS))

    @cached_property
    def _rows(self) -> dict[Hashable, int]:
        table = np.stack([self.columns[name] for name in COLUMNS], axis=1) if len(self) else np.zeros((0, 1))
        return {tuple(values): row for row, values in enumerate(table.tolist())}

    @cached_property
    def kinds(self) -> np.ndarray:
        """A number for each mesh and recomputation policy [plans]: plans of one kind are alike."""
        table = np.stack([self.columns[name] for name in (*AXES, "remat")], axis=1)
        return np.unique(table, axis=0, return_inverse=True)[1].reshape(-1) if len(self) else np.zeros(0, np.int64)

    @cached_property
    def recomputed(self) -> np.ndarray:
        """FLOPs that each recomputation policy computes again over the model's own [policies]; 0 where no plan has
        it."""
        codes, first = np.unique(self.columns["remat"], return_index=True)
        found = np.zeros(len(self.problem.stack.remat))
        found[codes] = [self.estimate(int(row)).redundant for row in first]
        return found

    def value(self, row: int, name: str) -> int | str:
        """One column of a plan, as a user writes it: the name of a policy, else a number."""
        code = int(self.columns[name][row])
        names = coding(self.problem).get(name)
        return names[code] if names else code

    def only(self, rows: np.ndarray, **refused: int) -> Pool:
        """The pool of some of its rows [plans], ascending, with what else is to be counted as refused."""
        return replace(
            self,
            columns={name: column[rows] for name, column in self.columns.items()},
            **{name: getattr(self, name)[rows] for name in ("step_s", "low_s", "floor_s", "hbm_bytes", "parts")},
            plan=lambda row: self.plan(int(rows[row])),
            estimate=lambda row: self.estimate(int(rows[row])),
            refused={**self.refused, **{name: count for name, count in refused.items() if count}},
        )

    def values(self, name: str) -> list[int | str]:
        """What one column takes among all plans, ascending by its codes."""
        _, first = np.unique(self.columns[name], return_index=True)
        return [self.value(int(row), name) for row in first]


def pool_of_space(
    space: Space, pricer: Pricer, chunks: Iterable[PlanColumns], program: Pricer | None = None, most: int = MOST
) -> Pool:
    """The pool of a space.

    Args:
        space: of the problem that is tuned.
        pricer: of that problem.
        chunks: its open legal plans that fit (`Roofline.fitting`).
        program: of the problem as the trainer sees it that must have a program for a plan; None where all have one.
        most: plans that are kept at most.
    """
    refused: dict[str, int] = {}
    kept, dropped = list[_Chunk](), 0
    for found in chunks:
        rows = found if program is None else _with_program(program, found, refused)
        if len(rows):
            kept.append(_priced(pricer, rows))
        if sum(len(each.steps) for each in kept) > ROOM * most:
            kept, lost = _fastest(kept, ROOM * most // 2)
            dropped += lost
    columns = {name: _joined([each.rows[name] for each in kept], np.int64) for name in COLUMNS}
    steps = _joined([each.steps for each in kept], float)
    first = _fastest_of_each(columns, steps)
    chosen = np.sort(first[np.argsort(steps[first], kind="stable")[:most]])
    starts = np.cumsum([0, *(len(each.steps) for each in kept)])

    def place(row: int) -> tuple[PlanColumns, int]:
        chunk = int(np.searchsorted(starts, chosen[row], side="right")) - 1
        return kept[chunk].rows, int(chosen[row] - starts[chunk])

    @lru_cache(maxsize=ESTIMATES)
    def estimate(row: int) -> Estimate:
        rows, i = place(row)
        return pricer.estimates(rows.take(np.array([i])), [space.plan(rows, i)])[0]

    return Pool(
        problem=space.problem,
        columns={name: column[chosen] for name, column in columns.items()},
        step_s=steps[chosen],
        low_s=_joined([each.lows for each in kept], float)[chosen],
        floor_s=_joined([each.floors for each in kept], float)[chosen],
        hbm_bytes=_joined([each.hbm for each in kept], float)[chosen],
        parts=np.concatenate([np.zeros((0, len(TIME_PARTS))), *(each.parts for each in kept)])[chosen],
        plan=lambda row: space.plan(*place(row)),
        estimate=estimate,
        refused=refused,
        left_out=len(first) - len(chosen) + dropped,
    )


def pool_of_estimates(problem: Problem, estimates: Sequence[Estimate]) -> Pool:
    """The pool of given plans of a problem with their estimates, such as those of a table of measurements."""
    plans = [each.plan for each in estimates]
    columns = columns_of(problem, plans)
    return Pool(
        problem=problem,
        columns={name: columns[name] for name in COLUMNS},
        step_s=np.array([each.step_time_s for each in estimates]),
        low_s=np.array([each.interval_s[0] for each in estimates]),
        floor_s=np.array([each.floor_s for each in estimates]),
        hbm_bytes=np.array([each.hbm_bytes for each in estimates]),
        parts=np.array([[each.time_parts[name] for name in TIME_PARTS] for each in estimates]),
        plan=lambda row: plans[row],
        estimate=lambda row: estimates[row],
        refused={},
    )


def _with_program(program: Pricer, rows: PlanColumns, refused: dict[str, int]) -> PlanColumns:
    """The rows for which a trainer has a program that fits, with a count of the others by what stands against them.

    No margin is kept free here: what the trainer needs is about to be found out, so only what misses all of the memory
    by the estimate is spared a trial.
    """
    for rule in RULES:
        rows = _kept(rows, np.broadcast_to(rule.holds(program.problem, rows), len(rows)), rule.name, refused)
    usable = program.problem.slice.chip.usable_hbm_bytes
    return _kept(rows, summed(program.memory(rows).values()) <= usable, HELD, refused) if len(rows) else rows


def _kept(rows: PlanColumns, holds: np.ndarray, name: str, refused: dict[str, int]) -> PlanColumns:
    lost = int(len(rows) - holds.sum())
    if not lost:
        return rows
    refused[name] = refused.get(name, 0) + lost
    return rows.take(np.asarray(holds))


def _fastest_of_each(columns: Mapping[str, np.ndarray], steps: np.ndarray) -> np.ndarray:
    """The fastest row of each program, ascending; of equals the first."""
    if not len(steps):
        return np.zeros(0, np.int64)
    program = np.zeros(len(steps), np.int64)
    for name in COLUMNS:  # number the programs column by column: a product of all domains may not fit into 64 bits
        _, code = np.unique(columns[name], return_inverse=True)
        _, program = np.unique(program * (int(code.max()) + 1) + code, return_inverse=True)
    order = np.lexsort((np.arange(len(steps)), steps, program))
    fresh = np.concatenate([[True], program[order][1:] != program[order][:-1]])
    return np.sort(order[fresh])


def _joined(columns: list[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate([np.zeros(0, kind), *columns])


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows with what is kept of their prices [plans]; `parts` is [plans, parts]."""

    rows: PlanColumns
    steps: np.ndarray
    lows: np.ndarray
    floors: np.ndarray
    hbm: np.ndarray
    parts: np.ndarray

    def take(self, mask: np.ndarray) -> _Chunk:
        return _Chunk(self.rows.take(mask), *(getattr(self, each.name)[mask] for each in fields(self)[1:]))


def _priced(pricer: Pricer, rows: PlanColumns) -> _Chunk:
    prices, floors = pricer.price(rows), pricer.floor(rows)
    parts = np.stack([prices.time_parts[name] for name in TIME_PARTS], axis=1)
    return _Chunk(rows, prices.step_time_s, pricer.interval(prices, floors)[0], floors, prices.hbm_bytes, parts)


def _fastest(kept: list[_Chunk], count: int) -> tuple[list[_Chunk], int]:
    """The fastest `count` rows of some chunks, and how many are dropped: a space may have more than fit in memory."""
    steps = np.concatenate([each.steps for each in kept])
    limit = np.partition(steps, count)[count]
    left = [each.take(each.steps <= limit) for each in kept]
    return [each for each in left if len(each.steps)], int((steps > limit).sum())

"""Proposals from cases: the plan that was fastest before, or the plan of this pool that comes nearest to it.

A case of another size of slice is scaled: axes that split a model keep their size, and the axis that splits the batch,
fsdp or data, whichever is larger, takes the rest. How far a plan lies from that is counted in doublings of its axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from asap_ray.agents.brief import Brief
from asap_ray.agents.proposal import Proposal, predict_step
from asap_ray.agents.verifier import row_of
from asap_ray.errors import ConfigError
from asap_ray.plan import AXES, Plan
from asap_ray.problem import coding
from asap_ray.recall import BEST, Recalled
from asap_ray.search.pool import Pool

NEAR = 3.0
"""Distance beyond which a plan has too little of the case's."""
HOPE = 1.5
"""How much slower than the fastest plan that is open the case's plan may be expected: a trial has said otherwise."""
SIZES: Mapping[str, float] = {"micro_batch": 0.25, "virtual": 0.25}
WORDS: Mapping[str, float] = {
    "remat": 1.0,
    "schedule": 0.5,
    "precision": 0.5,
    "attention": 0.5,
    "sequence_parallel": 0.25,
    "zero": 0.25,
}
"""What a knob that differs counts in doublings of an axis, those of sizes each time over."""


def from_cases(brief: Brief, taken: set[Plan], most: int) -> list[Proposal]:
    """Up to `most` proposals of the first round, from the cases of our class that were best, the most alike first."""
    if brief.results:
        return []
    open_, found = brief.open.copy(), list[Proposal]()
    open_[[row for plan in taken if (row := row_of(brief.pool, plan)) is not None]] = False
    for case in brief.recall.cases:
        if len(found) >= most:
            break
        if case.sort != BEST or not case.akin or case.ratio is None or brief.recall.contradicted(case):
            continue
        plan = _plan_of(case)
        row = nearest(brief.pool, plan, case.devices, open_, brief.expected_s) if plan else None
        if plan and row is not None:
            open_[row] = False
            found.append(_proposal(brief, case, plan, row, case.ratio))
    return found


def nearest(pool: Pool, plan: Plan, devices: int, among: np.ndarray, expected_s: np.ndarray) -> int | None:
    """The row among some [plans] that is nearest to a plan for so many devices, of equals the one that is expected
    [plans] to be fastest; None where none is near and expected about as fast as the fastest."""
    among = among & (expected_s <= HOPE * expected_s[among].min(initial=np.inf))
    far = np.where(among, distance(pool, plan, devices), np.inf)
    order = np.lexsort((expected_s, far))
    return int(order[0]) if len(order) and far[order[0]] <= NEAR else None


def distance(pool: Pool, plan: Plan, devices: int) -> np.ndarray:
    """How far each plan lies from a plan for so many devices, in doublings of axes [plans]."""
    wanted = scaled(plan, pool.problem.slice.devices / devices)
    total = np.zeros(len(pool))
    for axis in AXES:
        total += np.abs(np.log2(pool.columns[axis] / wanted[axis]))
    for knob, weight in SIZES.items():
        total += weight * np.abs(np.log2(pool.columns[knob] / getattr(plan, knob)))
    codes = coding(pool.problem)
    for knob, weight in WORDS.items():
        value, names = getattr(plan, knob), codes.get(knob)
        if names and value not in names:  # another stack's word: as far from every plan
            continue
        total += weight * (pool.columns[knob] != (names.index(value) if names else int(value)))
    return total


def scaled(plan: Plan, ratio: float) -> dict[str, float]:
    """The axes of a plan on `ratio` times as many devices."""
    axes = {axis: float(size) for axis, size in plan.axes.items()}
    batch = "fsdp" if axes["fsdp"] >= axes["data"] else "data"
    axes[batch] = max(1.0, axes[batch] * ratio)
    return axes


def _plan_of(case: Recalled) -> Plan | None:
    try:
        return Plan.parse(case.plan)
    except ConfigError:
        return None


def _proposal(brief: Brief, case: Recalled, plan: Plan, row: int, ratio: float) -> Proposal:
    pool = brief.pool
    estimate, found = pool.estimate(row), pool.plan(row)
    low, high = (ratio * end for end in estimate.interval_s)
    expected = ratio * estimate.step_time_s
    how = "its plan" if pool.row(found) == row_of(pool, plan) else f"the plan nearest to its {plan.line}"
    if not math.isclose(ratio, 1.0, rel_tol=1e-3):
        how += f", at {ratio:.3g} times what the roofline says, as then"
    record = brief.recall.record_text(case.name, "")
    return Proposal(
        plan=found,
        hypothesis=f"{case.name} was {case.text}: {how}" + (f"; {record}" if record else ""),
        mechanism=case.name,
        prediction=predict_step(expected, low, high),
        expected_s=expected,
        cites=(case.name,),
    )

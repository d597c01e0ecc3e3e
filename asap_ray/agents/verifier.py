"""The Verifier: what a proposal must be before it costs a trial, in code, whoever made it."""

from __future__ import annotations

import numpy as np

from asap_ray.agents.brief import Brain, Brief
from asap_ray.agents.proposal import Proposal
from asap_ray.duplicates import duplicate
from asap_ray.genes import broken_gene
from asap_ray.plan import Plan
from asap_ray.problem import Problem, coding, columns_of
from asap_ray.recipe import Recipe
from asap_ray.rules import broken
from asap_ray.search.pool import Pool


def row_of(pool: Pool, plan: Plan) -> int | None:
    """Where a plan stands in the pool, also for words that this problem does not know: those are nowhere."""
    known = all(getattr(plan, knob) in names for knob, names in coding(pool.problem).items())
    return pool.row(plan) if known else None


def refusal(brief: Brief, proposal: Proposal) -> str | None:
    """Why a proposal is refused, in one line; None where it may be tried.

    It may be where it is legal, fits with the margin, was not tried, can beat the best trial by its floor, changes
    something, and is not closed by a narrowing.
    """
    pool = brief.pool
    row = row_of(pool, proposal.plan)
    if row is None:
        return _outside(pool.problem, proposal.plan, brief.program)
    if proposal.recipe and (fault := _recipe_fault(brief, row, proposal.recipe)):
        return fault
    if row in brief.tried and not proposal.recipe:
        return f"tried before, as trial {brief.tried[row]}"
    best = brief.winner
    if best is not None and best.step_time_s is not None and pool.floor_s[row] >= best.step_time_s:
        return f"its floor of {pool.floor_s[row]:.3g} s is not below the {best.step_time_s:.3g} s of the best trial"
    if not fitting(pool, brief.analysis.memory)[row]:
        needed = pool.hbm_bytes[row] * brief.analysis.memory / 1e9
        return f"trials need {brief.analysis.memory:.2f} times the memory priced, and {needed:.1f} GB do not fit"
    for each in brief.narrowings:
        if not each.open({name: column[[row]] for name, column in pool.columns.items()})[0]:
            return f"closed by {each.author}: {each.reason}"
    return None


def _recipe_fault(brief: Brief, row: int, recipe: Recipe) -> str | None:
    """Why a recipe may not be tried with a plan of the pool; None where it may."""
    if recipe in (tried := brief.tried_with(brief.pool.plan(row))):
        return f"tried before, as trial {tried[recipe]}"
    if fault := broken_gene(brief.trained, brief.pool.plan(row), recipe, brief.genes):
        return f"not legal, rule {fault[0]}: {fault[1]}"
    if not recipe.program:
        return None
    priced = brief.priced(row, recipe)
    needed = priced.hbm_bytes * max(brief.analysis.memory, 1.0)
    if needed > priced.hbm_limit_bytes:
        return f"with {recipe.line} it needs {needed / 1e9:.1f} GB, and {priced.hbm_limit_bytes / 1e9:.1f} GB are free"
    return None


def verified(brain: Brain, brief: Brief, count: int) -> tuple[list[Proposal], list[tuple[Proposal, str]]]:
    """Up to `count` proposals that may be tried, and those that are refused with the reasons.

    One that is refused goes back once, with the reason; what comes back counts as a proposal of its own.
    """
    accepted, refused = list[Proposal](), list[tuple[Proposal, str]]()

    def key(proposal: Proposal) -> tuple[int | None, Recipe]:
        return row_of(brief.pool, proposal.plan), proposal.recipe

    def passes(proposal: Proposal) -> bool:
        reason = refusal(brief, proposal)
        if reason is None and key(proposal) in map(key, accepted):
            reason = "proposed in this round already"
        if reason is not None:
            refused.append((proposal, reason))
            return False
        accepted.append(proposal)
        return True

    for proposal in brain.propose(brief, count)[:count] if count else []:
        if not passes(proposal) and (again := brain.revise(brief, proposal, refused[-1][1], accepted)):
            passes(again)
    return accepted, refused


def fitting(pool: Pool, memory: float) -> np.ndarray:
    """Which plans fit once what trials needed over their price is counted [plans]."""
    usable = pool.problem.slice.chip.usable_hbm_bytes
    return pool.hbm_bytes * memory <= usable if memory > 1.0 else np.ones(len(pool), bool)


def _outside(problem: Problem, plan: Plan, program: Problem | None) -> str:
    """Why a plan is not in the pool."""
    try:
        fault = broken(problem, plan)
        if fault is None and program is not None and (lacking := broken(program, plan)):
            return f"the trainer has no program for it, rule {lacking[0]}: {lacking[1]}"
        if fault is None and duplicate(problem, columns_of(problem, [plan]))[0]:
            return "no real change: another plan says the same in fewer words"
    except ValueError as error:  # a word that no plan of this problem has
        return f"not legal: {error}"
    if fault:
        return f"not legal, rule {fault[0]}: {fault[1]}"
    own = ", or the trainer's own program would not fit" if program is not None else ""
    limit = f"{problem.hbm_limit_bytes / 1e9:.1f} GB with the margin kept free"
    return f"does not fit in {limit}{own}, or was narrowed away"

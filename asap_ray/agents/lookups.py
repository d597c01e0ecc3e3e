"""What a model may look up, where its endpoint calls tools: figures and prices, as text; nothing is changed by it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from asap_ray.agents import digest
from asap_ray.agents.answers import Change
from asap_ray.agents.brief import Brief
from asap_ray.agents.chat import Tool
from asap_ray.agents.figures import figures_of_option
from asap_ray.agents.options import known_knob, resolve
from asap_ray.agents.playbook import changes
from asap_ray.agents.proposal import Proposal, predict_step
from asap_ray.agents.verifier import refusal, row_of
from asap_ray.search.protocol import Result

MOST = 1_500
"""Characters of one look-up at most."""


class _Nothing(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Other(BaseModel):
    model_config = ConfigDict(extra="forbid")
    trial: int = Field(description="the number of an earlier trial")


class _Changes(BaseModel):
    model_config = ConfigDict(extra="forbid")
    changes: list[Change] = Field(description="axes and knobs that change from the base, and what they become")


def analyzer_tools(result: Result, earlier: Sequence[Result]) -> tuple[Tool, ...]:
    """Look-ups in one trial, and beside another one."""
    by_number = {each.candidate.number: each for each in earlier}

    def compare(given: _Other) -> str:
        other = by_number.get(given.trial)
        known = ", ".join(map(str, by_number)) or "none"
        return digest.difference(other, result) if other else f"no such trial; there are: {known}"

    def plain(name: str, about: str, text: str) -> Tool:
        return Tool(name=name, about=about, arguments=_Nothing, call=lambda given: text, most=MOST)

    return (
        plain("top_ops", "the ops that cost most, with their use of the matrix units and HBM", digest.top_ops(result)),
        plain("traffic", "collectives by mesh axis: exposed seconds, unpredicted bytes", digest.traffic(result)),
        plain("memory", "bytes of a device by part", digest.memory(result)),
        Tool(name="compare", about="what tells an earlier trial apart", arguments=_Other, call=compare, most=MOST),
    )


def proposal_tools(brief: Brief, base: int) -> tuple[Tool, ...]:
    """What a plan of one's own would cost, and why it may not be tried."""

    def price(given: _Changes) -> str:
        for change in given.changes:
            known_knob(change.knob.strip())
        plan = resolve(brief, base, given.changes)
        row = row_of(brief.pool, plan)
        expected = float(brief.expected_s[row]) if row is not None else float(np.inf)
        prediction = predict_step(expected, expected, expected)
        told = Proposal(plan=plan, hypothesis="", mechanism="", prediction=prediction, expected_s=expected)
        why = refusal(brief, told)
        if row is None:
            return f"{plan.line}: may not be tried: {why}"
        figures = digest.figure_line("price", figures_of_option(brief.pool.estimate(row), expected))
        return f"{figures} ({changes(brief.pool, base, row)}); {f'may not be tried: {why}' if why else 'may be tried'}"

    about = "what a plan with these changes to the base is expected to take, and whether it may be tried"
    return (Tool(name="price", about=about, arguments=_Changes, call=price, most=MOST),)

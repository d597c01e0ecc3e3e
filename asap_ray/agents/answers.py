"""What a language model may answer, as schemas: plain words and numbers, nothing that is ever executed or opened.

All fields are required, as the strict form of structured output wants it; a model leaves one empty to say nothing.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Cited(_Strict):
    """A figure that was shown: where, which one, and its value there."""

    source: str = Field(description="a trial or an option as it was shown, such as 'trial 3' or 'm2'")
    figure: str = Field(description="the name of a figure that this source shows")
    value: float = Field(description="its value there")


class Reading(_Strict):
    """The Analyzer's: what bounds a trial's step and why."""

    bound: Literal["compute", "hbm", "ici", "dcn", "pcie", "bubble", "host", "input", "memory"]
    cause: str = Field(description="what makes it so, in one sentence")
    next: str = Field(description="what kind of change would help, and what it would cost, in one sentence")
    evidence: list[Cited] = Field(description="one to four figures of this trial that show it")


class Decision(_Strict):
    """The Coordinator's: what to do next."""

    action: Literal["go_on", "explore", "stop"]
    expert: bool = Field(description="whether the dearer model should make the next proposals")
    reason: str = Field(description="why, in one sentence")


class Change(_Strict):
    """One axis or knob, and what it becomes."""

    knob: str
    value: str


class Idea(_Strict):
    """One proposal: an option that was shown, or changes to the plan that the options start from."""

    option: str = Field(description="the id of an option, such as 'm2'; empty where changes are given")
    changes: list[Change] = Field(description="axes and knobs that change, where no option is named")
    hypothesis: str = Field(description="what is believed, in one sentence")
    mechanism: str = Field(description="how the change makes the step shorter")
    figure: str = Field(description="the figure that is to change: step_time_s, or a part of the step such as fsdp_s")
    low: float = Field(description="the least that the figure is predicted to be, in seconds")
    high: float = Field(description="the most that it is predicted to be, in seconds")
    falsification: str = Field(description="what would show that the hypothesis is wrong")
    trade_off: str = Field(description="what gets worse")
    cites: list[str] = Field(description="ids of cards and cases that speak for it; may be empty")
    evidence: list[Cited] = Field(description="one to four figures of trials or options that it rests on")


class Narrow(_Strict):
    """Plans to be tried after all others."""

    knob: str
    comparison: Literal["is", "above", "below"]
    value: str
    reason: str


class Ideas(_Strict):
    """The Proposal agent's: exactly three proposals, the best first, and what to try last."""

    ideas: list[Idea] = Field(description="exactly three, all different, the best first")
    last: list[Narrow] = Field(description="at most two kinds of plans that look hopeless; may be empty")

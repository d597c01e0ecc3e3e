"""Rounds of a search as a reader is told of them: what was proposed and why, and what became of each proposal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposed:
    """A plan that an agent or the sampler had tried, as trial `trial`.

    What the sampler asks for has a plan and an author alone. Of a proposal, `field` (the step or a part of it) was to
    go from `base_s` to between `low_s` and `high_s` seconds; `status` and `verdict` say what became of that, and are
    empty while its trial has not ended. `recipe` is what it changes besides the plan, in one line.
    """

    trial: int
    author: str
    plan: str
    hypothesis: str = ""
    mechanism: str = ""
    card: str = ""
    base: int | None = None
    trade_off: str = ""
    evidence: tuple[Mapping[str, Any], ...] = ()
    confidence: float | None = None
    expected_s: float | None = None
    field: str = ""
    base_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    status: str = ""
    observed_s: float | None = None
    verdict: str = ""
    recipe: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One round: how many plans were `open`, how many each mask had `closed`, and all that was decided in it.

    All that follows holds fields as they stand in the ledger: `turns` are those that one brain left to another, `last`
    the plans that are to be tried after all others.
    """

    number: int
    open: int
    closed: Mapping[str, int]
    proposed: tuple[Proposed, ...] = ()
    refusals: tuple[Mapping[str, Any], ...] = ()
    faults: tuple[Mapping[str, Any], ...] = ()
    narrowings: tuple[Mapping[str, Any], ...] = ()
    lifted: tuple[Mapping[str, Any], ...] = ()
    readings: tuple[Mapping[str, Any], ...] = ()
    decisions: tuple[Mapping[str, Any], ...] = ()
    turns: tuple[Mapping[str, Any], ...] = ()
    last: tuple[Mapping[str, Any], ...] = ()

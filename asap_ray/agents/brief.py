"""What a brain is told before it proposes, and the protocol that brains share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from asap_ray.agents.analyzer import Analysis
from asap_ray.agents.proposal import Proposal
from asap_ray.narrowing import Narrowing
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Result


@dataclass(frozen=True, kw_only=True)
class Brief:
    """The pool and what is known of it.

    `expected_s` are steps as the trials let expect them, `open` the plans that may be proposed [plans]; `tried` says
    for a row which trial it was. `closed` counts the plans that are not open by what closes them.
    """

    pool: Pool
    results: tuple[Result, ...]
    best: Result | None
    analysis: Analysis
    expected_s: np.ndarray
    open: np.ndarray
    tried: Mapping[int, int]
    narrowings: tuple[Narrowing, ...]
    closed: Mapping[str, int]
    diagnosing: bool = True


class Brain(Protocol):
    """Makes proposals. A brain sees the whole record and decides nothing: what it proposes is verified first."""

    @property
    def name(self) -> str:
        """What its proposals name as their author."""
        ...

    def propose(self, brief: Brief, count: int) -> list[Proposal]:
        """Up to `count` proposals, the one to try first in front."""
        ...

    def revise(self, brief: Brief, refused: Proposal, reason: str, others: Sequence[Proposal]) -> Proposal | None:
        """Another proposal in the place of one that was refused, given what else is proposed; None for none."""
        ...

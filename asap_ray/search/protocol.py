"""Ask and tell: what every searcher is, be it a brain of agents or a black-box sampler.

A round is a barrier: its candidates are asked for at once, and their results are told together, in the order of their
numbers, however they ended and in whatever order they ran. So a searcher that is deterministic makes the same decisions
in every run with the same seed, and in one that was killed and started again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from asap_ray.diagnosis import Diagnosis
from asap_ray.observation import Observation
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.recipe import PLAIN, Recipe

Status = Literal["complete", "pruned", "infeasible", "failed", "timeout"]

BASELINE = "baseline"
"""The author of what a search starts from without a trial."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A plan to be tried: its number among all trials of the search, who asked for it, with which recipe, and, where an
    agent did, the proposal behind it (`agents.proposal.Proposal`)."""

    number: int
    plan: Plan
    author: str
    proposal: Any = None
    recipe: Recipe = PLAIN

    @property
    def words(self) -> str:
        """What a reader calls it: a baseline is the user's and was not tried here."""
        return "the baseline" if self.author == BASELINE else f"trial {self.number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a trial ended.

    `step_time_s`, `interval_s`, `estimate` and `roofline` (what the roofline says of the plan) are there where a tier
    came to a step time. `hbm_bytes` is what a device needs, `over_bytes` how much of that is missing. `source` is the
    tier, `evidence` what its figures are evidence for (a trainer and a compiler). `observation` is what a profile
    shows, where there is one, with its `diagnosis`. `digest` tells programs apart.
    """

    candidate: Candidate
    status: Status
    step_time_s: float | None = None
    interval_s: tuple[float, float] | None = None
    hbm_bytes: float | None = None
    over_bytes: float = 0.0
    reason: str = ""
    source: str = ""
    evidence: str = ""
    chip_hours: float = 0.0
    estimate: Estimate | None = None
    roofline: Estimate | None = None
    observation: Observation | None = None
    diagnosis: Diagnosis | None = None
    digest: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """Something that a searcher did or found, for the record: a kind and plain fields."""

    kind: str
    fields: dict[str, Any]


class Searcher(Protocol):
    """Decides what is tried."""

    @property
    def name(self) -> str:
        """What its trials name as their author."""
        ...

    def ask(self, count: int) -> list[Candidate]:
        """The next round: at most `count` candidates, none twice and none tried before; none where nothing is left."""
        ...

    def tell(self, results: Sequence[Result]) -> None:
        """What became of a round, in the order of its candidates."""
        ...

    def finished(self) -> str | None:
        """Why nothing more is worth a trial, or None."""
        ...

    def drain(self) -> list[Told]:
        """What happened since this was last asked, for the record."""
        ...


def trial_seed(seed: int, number: int) -> int:
    """The seed of one trial's sampler, the same in every run: a hash of the run's seed and the trial's number."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")


def best_of(results: Sequence[Result]) -> Result | None:
    """The fastest result that is complete; of equals the first."""
    complete = [each for each in results if each.status == "complete" and each.step_time_s is not None]
    return min(complete, key=lambda each: each.step_time_s or 0.0, default=None)

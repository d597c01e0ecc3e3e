"""Ground: a workload whose plans all have a known outcome, so that searches on it can be held against the best plan.

`Replay` is a table of what people measured; `planted.Planted` a large space in which the roofline is wrong in known
ways. A ground is small and travels between processes; its `Field`, made where it is played, has the plans as a pool.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property
from typing import Protocol

import numpy as np

from asap_ray.physics.estimate import Estimate
from asap_ray.problem import Problem
from asap_ray.recall import Recall
from asap_ray.rules import broken
from asap_ray.search.pool import Pool, pool_of_estimates

Outcome = tuple[str, float | None]
"""How the trial of a plan ends (a `protocol.Status`), and the seconds of a step where it has any."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """Plans with what becomes of each.

    `pool` has every plan of which the outcome is known, `gate` says which of them are legal and fit by the roofline
    with the margin kept free [plans]. `step_s` is how long a step really takes, NaN where the plan does not run
    [plans], `status` how its trial ends [plans]. A trial sees the step times its own `noise`, a factor that depends on
    row and seed. `seen` are the parts of a step as a profile of the trial shows them, None where nothing shows them.
    `recall` is what the memory has to say, of other sources alone.
    """

    pool: Pool
    gate: np.ndarray
    step_s: np.ndarray
    status: np.ndarray
    noise: Callable[[int, int], float] = lambda row, seed: 1.0
    seen: Callable[[int], Estimate] | None = None
    recall: Recall = dataclass_field(default_factory=Recall)

    @cached_property
    def gated(self) -> Pool:
        """What passes the gate: what agents see."""
        return self.pool.only(np.flatnonzero(self.gate))

    @cached_property
    def best_s(self) -> float:
        """The step of the best plan of all that run, gated or not."""
        return float(np.nanmin(self.step_s))

    @cached_property
    def error(self) -> float:
        """How far the roofline is off here: the median of |predicted / true - 1| over what runs."""
        runs = np.isfinite(self.step_s)
        return float(np.median(np.abs(self.pool.step_s[runs] / self.step_s[runs] - 1.0)))


class Named(Protocol):
    """What is told of a ground, also of one whose outcomes nobody knows beforehand."""

    @property
    def name(self) -> str:
        """Tells it from all others."""
        ...

    @property
    def kind(self) -> str:
        """`replay`, `planted` or `own`."""
        ...

    @property
    def source(self) -> str:
        """Who measured it, or what it is made of."""
        ...

    @property
    def constants(self) -> str:
        """What the constants of the roofline were fitted without."""
        ...

    @property
    def digest(self) -> str:
        """A hash of its plans, their estimates and outcomes: what was played on another of its name does not count."""
        ...


class Ground(Named, Protocol):
    """What searches are played on."""

    def field(self) -> Field:
        """Its plans and their outcomes."""
        ...


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A table of measurements: the plans that somebody tried for one workload, with what came of each.

    `estimates` are the roofline's, with `constants` that were fitted without the source; `outcomes` are theirs.
    `recall` is what grounds of other sources have to say.
    """

    name: str
    source: str
    constants: str
    problem: Problem
    estimates: tuple[Estimate, ...]
    outcomes: tuple[Outcome, ...]
    recall: Recall = dataclass_field(default_factory=Recall)
    kind: str = "replay"

    @property
    def digest(self) -> str:
        """A hash of its plans, their estimates and outcomes."""
        told = [(each.plan.line, f"{each.step_time_s:.9g}", each.fits) for each in self.estimates]
        return hashlib.blake2s(repr((self.name, told, self.outcomes, self.recall)).encode(), digest_size=8).hexdigest()

    def field(self) -> Field:
        """Its plans and their outcomes."""
        pool = pool_of_estimates(self.problem, self.estimates)
        legal = np.array([broken(self.problem, each.plan) is None for each in self.estimates], bool)
        return Field(
            pool=pool,
            gate=legal & (pool.hbm_bytes <= self.problem.hbm_limit_bytes),
            step_s=np.array([step or np.nan for _, step in self.outcomes]),
            status=np.array([status for status, _ in self.outcomes]),
            recall=self.recall,
        )

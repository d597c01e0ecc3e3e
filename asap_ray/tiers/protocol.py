"""What a tier is: it describes the work that evaluates plans, and reads what came back. An executor does the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A piece of work for an executor: `work(*arguments)` in some process; all of it can be pickled."""

    name: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    timeout_s: float | None = None


class Tier(Protocol):
    """A way to evaluate plans: an executor does its job, and the tier reads what came back."""

    @property
    def name(self) -> str:
        """What its figures name as their source."""
        ...

    def job(self, plans: Sequence[Plan]) -> Job:
        """The work that evaluates these plans."""
        ...

    def read(self, result: Any) -> list[Estimate]:
        """The estimates in what that work returned, in the order of the plans."""
        ...

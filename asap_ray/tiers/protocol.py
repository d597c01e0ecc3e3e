"""What a tier is: it describes the work that evaluates plans, and reads what came back. An executor does the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from asap_ray.errors import AsapError
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """Hosts that run one job together, all or none.

    `per_host` is what a cluster sets aside on each of them, such as {"CPU": 1}, {"GPU": 8} or {"TPU": 4}. TPU hosts are
    those of slices: `topology` is that of a slice in chips, such as 4x4, `accelerator` Ray's name of the chip, such as
    TPU-V6E, and so many hosts are one such slice or several.
    """

    hosts: int
    per_host: Mapping[str, float]
    topology: str = ""
    accelerator: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where in a gang a process is: its rank of so many hosts, and HOST:PORT, free a moment ago, on the host of rank 0.

    They are what `jax.distributed.initialize(coordinator, hosts, rank)` takes.
    """

    rank: int
    hosts: int
    coordinator: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A piece of work for an executor: `work(*arguments)` in some process; all of it can be pickled.

    `memory_bytes` is what it is expected to need: jobs run side by side only while their sum is there. `isolated` work
    has a process of its own also where it is alone, and what it writes (compilers talk a lot) is kept, not shown.
    `cores` and `resources` (such as {"TPU": 4}) are what a cluster sets aside for it, on one node; an executor on this
    machine counts jobs instead.

    The work of a `gang` is `work(*arguments, place)`, in a fresh process on each host at once. Its value is that of
    rank 0; if one host fails the others are ended, and the reason says which. `memory_bytes` and the deadline are each
    host's, and `Gang.per_host` stands in for `cores` and `resources`.
    """

    name: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    timeout_s: float | None = None
    memory_bytes: float = 0.0
    isolated: bool = False
    cores: float = 1.0
    resources: Mapping[str, float] = field(default_factory=dict)
    gang: Gang | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a job ended: its value where it is complete, else the reason; `error` is a user's error, to be raised
    again. `output` is the end of what an isolated job wrote. `lost` says that the job is not to blame: what ran it was
    lost each time (a preempted host, a killed worker), or what it needs was not free in time."""

    job: Job
    status: Literal["complete", "failed", "timeout"]
    value: Any = None
    reason: str = ""
    error: AsapError | None = None
    output: str = ""
    lost: bool = False


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

"""Plays recorded outcomes back on a virtual clock: hours of trials in milliseconds, the same way each time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from asap_ray.errors import AsapError
from asap_ray.tiers.protocol import Job, Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """How a job of some name ended once, and how many seconds it took."""

    seconds: float
    status: Literal["complete", "failed", "timeout"] = "complete"
    value: Any = None
    reason: str = ""
    error: AsapError | None = None
    output: str = ""


@dataclass(kw_only=True, slots=True)
class Simulated:
    """An executor that runs nothing: a job ends as `records` says of its name, when the virtual clock has come there.

    `workers` jobs run side by side, and only while the `memory_bytes` that they ask for are there together (one always
    runs). Of jobs that end at one time the one that started first comes first. A job with a deadline before its
    recorded end is a timeout at its deadline; one with no record fails at once.

    `now` is the virtual time in seconds since the executor was made. It goes on from stream to stream, and a source may
    read it to keep to a budget.
    """

    records: Mapping[str, Recorded]
    workers: int = 1
    memory_bytes: float = float("inf")
    now: float = 0.0

    def stream(self, source: Callable[[], Job | None]) -> Iterator[Outcome]:
        """As `protocol.Executor.stream`."""
        held, started = None, 0
        running: list[tuple[float, int, Job]] = []  # a heap: the first to end on top
        taken = 0.0
        while True:
            while len(running) < max(self.workers, 1):
                held = held or source()
                if held is None or not self._has_room(held, taken if running else None):
                    break
                heapq.heappush(running, (self._end_of(held), started, held))
                taken += held.memory_bytes
                held, started = None, started + 1
            if not running:
                return
            self.now, _, job = heapq.heappop(running)
            taken -= job.memory_bytes
            yield self._outcome(job)

    def _has_room(self, job: Job, taken: float | None) -> bool:
        """Whether a job may start beside those that have taken so much; None where none runs."""
        return taken is None or not job.memory_bytes or taken + job.memory_bytes <= self.memory_bytes

    def _end_of(self, job: Job) -> float:
        record = self.records.get(job.name)
        seconds = record.seconds if record else 0.0
        return self.now + min(seconds, float("inf") if job.timeout_s is None else job.timeout_s)

    def _outcome(self, job: Job) -> Outcome:
        record = self.records.get(job.name)
        if record is None:
            return Outcome(job=job, status="failed", reason=f"nothing is recorded of {job.name}")
        if job.timeout_s is not None and record.seconds > job.timeout_s:
            return Outcome(job=job, status="timeout", reason=f"not done after {job.timeout_s:g} s")
        return Outcome(
            job=job,
            status=record.status,
            value=record.value,
            reason=record.reason,
            error=record.error,
            output=record.output,
        )

"""An executor that runs jobs in this process, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

from asap_ray.tiers.protocol import Job, Outcome


class AtOnce:
    """Runs each job as it comes; a fault in one is raised here."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stream(self, source: Callable[[], Job | None]) -> Iterator[Outcome]:
        """As `protocol.Executor.stream`."""
        while (job := source()) is not None:
            yield Outcome(job=job, status="complete", value=job.work(*job.arguments))

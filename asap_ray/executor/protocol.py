"""What an executor is: it takes jobs from a source as it has room, and says how each one ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from asap_ray.tiers.protocol import Job, Outcome


class Executor(Protocol):
    """Runs jobs side by side, each to exactly one outcome; no fault of a job is ever raised here."""

    def stream(self, source: Callable[[], Job | None]) -> Iterator[Outcome]:
        """Run what `source` gives, and yield each outcome as it comes.

        `source` is asked whenever there may be room, so that a job is decided no sooner than it can start. It may have
        none (None) and is asked again when a job has ended; all is over where it has none and nothing runs. Nothing
        that was started runs any more once the iterator is over or closed.

        Raises:
            AsapError: the executor itself is lost (no job is to blame); outcomes that were not yielded are not known.
        """
        ...

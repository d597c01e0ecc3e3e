"""What a Ray worker does with a job: it has it run, and comes back with a pickled outcome, whatever happens."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as with_changes
from functools import cache
from multiprocessing.connection import wait
from typing import Any

from asap_ray.executor import fresh, local
from asap_ray.executor.fresh import told
from asap_ray.executor.gang import members
from asap_ray.tiers.protocol import Job, Outcome

NOBODY = Job(name="", work=print)
"""Stands in an outcome for its job on the way back: who sent it knows it."""


def perform(pickled: bytes, path: list[str] | None, *, fresh: bool) -> bytes:
    """Run a job to its outcome, and pickle that; the job itself does not travel back. Raises nothing of the job's.

    Args:
        pickled: the `Job`.
        path: where the command imports from, if that is on this machine; None leaves this process as it is.
        fresh: give it a process of its own in any case; else only where it is isolated or has a deadline.
    """
    _prepare(path)
    try:
        job = pickle.loads(pickled)
    except Exception as error:  # the border of the process: what it names may not be installed here
        return _pickled(_failed(f"its work cannot be read here: {told(error)}"))
    try:
        waiting = iter([job])
        outcomes = local.stream(lambda: next(waiting, None), 1) if fresh else local.run([job], 1)
        (outcome,) = outcomes
    except Exception as error:  # a fault of a job that ran in this process
        outcome = _failed(told(error))
    return _pickled(outcome)


def perform_member(
    pickled: bytes, path: list[str] | None, rank: int, coordinator: str, environ: Mapping[str, str]
) -> tuple[str, bytes]:
    """Run the job of a gang at one of its ranks: its status, and the pickled outcome. As `perform`.

    A rank that is done may need the others to end well, as the coordinator does: its process has until the deadline.
    """
    _prepare(path)
    try:
        job = members(pickle.loads(pickled), coordinator)[rank]
    except Exception as error:  # the border of the process: what it names may not be installed here
        return "failed", _pickled(_failed(f"its work cannot be read here: {told(error)}"))
    outcome = fresh.perform(with_changes(job, work=_in_environment, arguments=(dict(environ), job.work, job.arguments)))
    if rank and outcome.status == "complete":
        outcome = with_changes(outcome, value=None)  # nobody asks for it
    return outcome.status, _pickled(outcome)


def late(timeout_s: float | None) -> bytes:
    """The pickled outcome of a job that was not done at its deadline, nor asked for more."""
    return _pickled(fresh.late(with_changes(NOBODY, timeout_s=timeout_s), ""))


def _in_environment(environ: Mapping[str, str], work: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    os.environ.update(environ)
    return work(*arguments)


def _failed(reason: str) -> Outcome:
    return Outcome(job=NOBODY, status="failed", reason=reason)


def _pickled(outcome: Outcome) -> bytes:
    bare = with_changes(outcome, job=NOBODY)
    try:
        return pickle.dumps(bare)
    except Exception as error:  # pickle raises whatever the value's own methods raise
        if outcome.status == "complete":
            return pickle.dumps(_failed(f"its result cannot be sent back: {told(error)}"))
        return pickle.dumps(with_changes(bare, error=None))  # its reason has the text


@cache
def _end_with_parent() -> None:
    """Let this worker, and so its jobs, end with its raylet: Ray lets it live on, and who waits for it waits on."""
    parent = os.getppid()
    threading.Thread(target=lambda: (wait([os.pidfd_open(parent)]), os._exit(1)), daemon=True).start()


def _prepare(path: list[str] | None) -> None:
    """Take back what Ray has changed in this process that a job would notice."""
    _end_with_parent()
    if path is not None:
        sys.path[:] = path
    os.environ.pop("OMP_NUM_THREADS", None)
    # A process that is spawned runs the main file of its parent again: that of a Ray worker would import Ray.
    vars(sys.modules["__main__"]).pop("__file__", None)

"""What a gang's job is on each host, and what its outcomes are together: the same for every executor."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace as with_changes

from asap_ray.tiers.protocol import Job, Outcome, Place


def free_port() -> int:
    """A port of this machine that is free now; that another program takes it before it is used cannot be ruled out."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def members(job: Job, coordinator: str) -> list[Job]:
    """The job of each process, by rank; the job itself where it has no gang."""
    gang = job.gang
    if gang is None:
        return [job]
    places = [Place(rank=rank, hosts=gang.hosts, coordinator=coordinator) for rank in range(gang.hosts)]
    return [with_changes(job, gang=None, arguments=(*job.arguments, place)) for place in places]


def joined(job: Job, ended: Mapping[int, Outcome]) -> Outcome:
    """The outcome of a job whose processes have ended, given theirs by rank.

    Those that were ended because another one failed have none. Where several failed, one by being killed and another
    because its peer was gone, the reason tells both: which came first is not known.
    """
    if job.gang is None:
        return with_changes(ended[0], job=job)
    failed = {rank: ended[rank] for rank in sorted(ended) if ended[rank].status != "complete"}
    if not failed:
        return with_changes(ended[0], job=job)
    ranks, wrote = dict[str, list[int]](), list[str]()
    for rank, outcome in failed.items():
        ranks.setdefault(outcome.reason, []).append(rank)
        wrote += [f"rank {rank}:\n{outcome.output.rstrip()}\n"] if outcome.output else []
    return Outcome(
        job=job,
        status="failed" if any(outcome.status == "failed" for outcome in failed.values()) else "timeout",
        reason="; ".join(f"{_who(who, job.gang.hosts)}: {reason}" for reason, who in ranks.items()),
        error=next((outcome.error for outcome in failed.values() if outcome.error), None),
        output="".join(wrote),
    )


def _who(ranks: list[int], hosts: int) -> str:
    if len(ranks) == hosts:
        return f"all {hosts} ranks" if hosts > 1 else "rank 0"
    return f"rank {', '.join(map(str, ranks[:4]))}{' and others' if len(ranks) > 4 else ''} of {hosts}"

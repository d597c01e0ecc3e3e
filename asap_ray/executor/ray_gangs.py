"""Gangs in Ray: one plain task on each host, each of which gives the job a fresh process there.

Those that still run are ended by giving their hosts back: Ray kills what runs in a placement group that is removed.
(`ray.cancel` with force ends the driver where a task is done in the same moment: a check of its task manager fails.)

A gang is no trial of Tune, whose trials hold what one node has: it would reserve its hosts within one all the same, and
pay 0.4 to 0.8 s more. A task needs no worker to start where one is idle.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from asap_ray.executor import ray_work
from asap_ray.executor.fresh import GRACE_S, told
from asap_ray.executor.gang import free_port
from asap_ray.executor.local import SETTLE_S
from asap_ray.executor.ray_line import Line, Sent, options
from asap_ray.executor.ray_slices import Seat, nodes, reserved

LOOK_S = 2.0
"""How often it is looked whether the hosts live."""
START_S = 120.0
"""How long a host may take to start a worker, where all of its cores are busy."""


class _LostError(Exception):
    """Ray lost a worker of a gang: the job is not to blame."""


def run(line: Line, sent: Sent) -> None:
    """Run the job of a gang, and answer it once."""
    try:
        line.answer(sent.number, _tried(line, sent))
    except _LostError as error:
        line.answer(sent.number, str(error), lost=True)
    except TimeoutError as error:
        why = " ".join(str(error).split()).partition(". ")[0]
        words = f"its hosts were not free within {sent.reserve_s:g} s{why and f': {why}'}"
        line.answer(sent.number, words, lost=True)
    except Exception as error:  # of Ray, or ours: nobody else could tell it
        line.answer(sent.number, told(error))


def _tried(line: Line, sent: Sent) -> bytes:
    left = line.retries
    while True:
        try:
            with reserved(sent) as seats:
                return pickle.dumps(_together(sent, line, seats))
        except _LostError:
            if not left:
                raise
            left -= 1


@ray.remote(max_retries=0)
def _free_port() -> int:
    return free_port()


@ray.remote(max_retries=0)
def _member(job: bytes, path: list[str] | None, rank: int, coordinator: str, environ: dict[str, str]) -> Any:
    return ray_work.perform_member(job, path, rank, coordinator, environ)


def _together(sent: Sent, line: Line, seats: Sequence[Seat]) -> dict[int, bytes]:
    """The pickled outcomes of a job, by rank: of all, or of those that failed first."""
    try:
        port = ray.get(_at(seats[0], sent, _free_port).remote(), timeout=START_S)
    except RayError as error:
        raise _lost(line, 0, len(seats), error) from None
    coordinator = f"{seats[0].address}:{port}"
    ranks = {
        _at(seat, sent, _member).remote(sent.job, line.path, rank, coordinator, dict(seat.environ)): rank
        for rank, seat in enumerate(seats)
    }
    return _gathered(line, ranks, sent.timeout_s, [seat.node for seat in seats])


def _gathered(line: Line, ranks: Mapping[Any, int], timeout_s: float | None, hosts: Sequence[str]) -> dict[int, bytes]:
    limit = time.monotonic() + START_S + timeout_s + 2 * GRACE_S if timeout_s else math.inf
    left, outcomes, status = list(ranks), dict[int, bytes](), "complete"
    while left and status == "complete":
        ended, left = ray.wait(left, timeout=LOOK_S)
        if ended:
            status = _taken(line, ended[0], ranks, outcomes)
            continue
        alive = {node.name for node in nodes()}
        for rank in sorted(ranks[task] for task in left):  # Ray itself waits for minutes for one that is cut off
            if hosts[rank] not in alive or time.monotonic() >= limit:
                raise _LostError(f"rank {rank} of {len(ranks)}: its node was {line.lost}, or does not answer")
    if left:
        ended, left = ray.wait(left, num_returns=len(left), timeout=SETTLE_S)
        for task in ended:
            _taken(line, task, ranks, outcomes)
    if status == "timeout":  # the first to be at its deadline is so for all
        outcomes |= {ranks[task]: ray_work.late(timeout_s) for task in left}
    return outcomes


def _taken(line: Line, task: Any, ranks: Mapping[Any, int], outcomes: dict[int, bytes]) -> str:
    """Keep how a rank ended, and say its status."""
    try:
        status, outcomes[ranks[task]] = ray.get(task)
    except RayError as error:
        raise _lost(line, ranks[task], len(ranks), error) from None
    return status


def _lost(line: Line, rank: int, hosts: int, error: RayError) -> _LostError:
    why = " ".join(str(error).split())
    return _LostError(f"rank {rank} of {hosts}: its Ray worker was {line.lost}: {why[:200]}")


def _at(seat: Seat, sent: Sent, task: Any) -> Any:
    where = PlacementGroupSchedulingStrategy(placement_group=seat.group, placement_group_bundle_index=seat.bundle)
    return task.options(**options(sent.needs), scheduling_strategy=where)

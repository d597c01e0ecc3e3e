"""Phases of collectives over several link axes, played on arrays of ranks."""

from __future__ import annotations

import numpy as np
import pytest

from asap_ray.physics.phases import Phase, gather_phases, phases, scatter_phases
from asap_ray.plan import AXES, Plan

LINES = [
    "fsdp=64@4.4.4 micro_batch=1 remat=full",
    "fsdp=16@4.4.1 context=4@1.1.4 micro_batch=1 remat=full",
    "fsdp=8@2.4.1 context=8@2.1.4 micro_batch=1 remat=full",
    "fsdp=8@4.2.1 expert=8@1.2.4 micro_batch=1 remat=full",
    "fsdp=256@16.16 micro_batch=1 remat=full",
]
GROUP = ("fsdp", "context", "expert")


def ranks_of(phase: Phase, plan: Plan) -> list[list[int]]:
    """The groups of a phase as numbers of the ranks of the whole group, by the mesh."""
    sizes = [plan.sizes[AXES.index(axis)] for axis in GROUP]
    ids = np.arange(int(np.prod(sizes))).reshape(sizes)
    inside = [GROUP.index(axis) for axis in phase.axes]
    rows = ids.transpose([i for i in range(3) if i not in inside] + inside).reshape(
        -1, np.prod([sizes[i] for i in inside])
    )
    parts = phase.groups or (tuple(range(rows.shape[1])),)
    return [[int(row[i]) for i in part] for row in rows for part in parts]


@pytest.mark.parametrize("line", LINES)
def test_phases_gather_all_shards_in_order(line: str) -> None:
    plan = Plan.parse(line)
    count = int(np.prod([plan.axes[axis] for axis in GROUP]))
    held = {rank: [rank] for rank in range(count)}
    for phase in gather_phases(GROUP, plan):
        held = {r: [x for member in group for x in held[member]] for group in ranks_of(phase, plan) for r in group}
    assert all(shards == list(range(count)) for shards in held.values())


@pytest.mark.parametrize("line", LINES)
def test_phases_scatter_to_each_rank_its_own_sum(line: str) -> None:
    plan = Plan.parse(line)
    count = int(np.prod([plan.axes[axis] for axis in GROUP]))
    rng = np.random.default_rng(0)
    given = rng.integers(0, 9, (count, count))
    held = dict(enumerate(given))
    for phase in scatter_phases(GROUP, plan):
        new = {}
        for group in ranks_of(phase, plan):
            total = np.sum([held[member] for member in group], axis=0)
            new |= dict(zip(group, np.split(total, len(group)), strict=True))
        held = new
    assert all(held[rank].tolist() == [given[:, rank].sum()] for rank in range(count))


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("links", [1, 2])
def test_no_phase_lies_on_more_links_than_allowed(line: str, links: int) -> None:
    plan = Plan.parse(line)
    for phase in phases(GROUP, plan, links):
        used = set()
        for axis in phase.axes:
            steps = plan.layout[AXES.index(axis)]
            for group in phase.groups or (tuple(range(plan.axes[axis])),):
                places = np.array(np.unravel_index(group, steps))  # [links, ranks]
                used |= set(np.flatnonzero((places != places[:, :1]).any(axis=1)).tolist())
        assert len(used) <= links


def test_a_group_that_needs_no_phases_is_one() -> None:
    plan = Plan.parse("fsdp=16@4.4.1 tensor=4@1.1.4 micro_batch=1 sequence_parallel=true remat=full")
    assert gather_phases(("fsdp",), plan) == (Phase(("fsdp",)),)
    across = Plan.parse("fsdp=64x2 micro_batch=1 remat=full")
    assert scatter_phases(("fsdp",), across) == (Phase(("fsdp",)),)

"""What a cluster has room for, from what its nodes are: no job is sent where it can never run, and it is said why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from asap_ray.tiers.protocol import Gang

SLICE_NAME, TOPOLOGY, ACCELERATOR = "ray.io/tpu-slice-name", "ray.io/tpu-topology", "ray.io/accelerator-type"
"""Labels that Ray gives its TPU nodes."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster: what it has, and its labels."""

    name: str
    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)

    def holds(self, needs: Mapping[str, float]) -> int:
        """How many times it has what is needed, were nothing else on it."""
        return int(min((self.resources.get(name, 0.0) / amount for name, amount in needs.items()), default=1 << 30))


def missing(needs: Mapping[str, float], nodes: Sequence[Node]) -> str:
    """What no node has enough of for a job, in words; empty where one can hold it."""
    if any(node.holds(needs) for node in nodes):
        return ""
    most = {name: max((node.resources.get(name, 0.0) for node in nodes), default=0.0) for name in needs}
    short = [name for name in needs if needs[name] > most[name]] or list(needs)
    asked = ", ".join(f"{name}={needs[name]:g} (a node has {most[name]:g} at most)" for name in short)
    return f"no node of the Ray cluster can ever hold it: it needs {asked}"


def missing_for(gang: Gang, needs: Mapping[str, float], nodes: Sequence[Node]) -> str:
    """What there is too little of for a gang, in words; empty where the cluster can hold it.

    Args:
        gang: whose hosts they are.
        needs: what each host needs, with all that is set aside there.
        nodes: those of the cluster.
    """
    if gang.topology:
        return _missing_slices(gang, needs, nodes)
    if apart(gang):
        there, what = sum(1 for node in nodes if node.holds(needs)), "node"
    else:
        there, what = sum(node.holds(needs) for node in nodes), "place"
    if there >= gang.hosts:
        return ""
    return f"the cluster has {_count(there, what)} with {_told(needs)}, the plan needs {gang.hosts}"


def apart(gang: Gang) -> bool:
    """Whether each host of a gang must be another node: those that only take CPU may share one."""
    return any(name != "CPU" for name in gang.per_host)


def slices_of(gang: Gang) -> int:
    """How many slices the hosts of a gang are; 0 where they are no whole number of them."""
    chips = gang.hosts * gang.per_host.get("TPU", 0)
    size = math.prod(_shape(gang.topology))
    return int(chips // size) if chips % size == 0 else 0


def whole_slices(gang: Gang, needs: Mapping[str, float], nodes: Sequence[Node]) -> int:
    """How many slices of the gang's topology the cluster has, with all of their hosts there."""
    hosts = gang.hosts // max(1, slices_of(gang))
    alike = [node for node in _alike(gang, nodes) if node.labels.get(TOPOLOGY) == gang.topology and node.holds(needs)]
    if hosts == 1:
        return len(alike)
    return sum(1 for count in Counter(node.labels.get(SLICE_NAME) for node in alike).values() if count == hosts)


def sub_slices(gang: Gang, needs: Mapping[str, float], nodes: Sequence[Node]) -> int:
    """How many parts of this topology larger slices of the cluster have."""
    shape = _shape(gang.topology)
    parents = dict[str, str]()
    for node in _alike(gang, nodes):
        if node.holds(needs) and SLICE_NAME in node.labels:
            parents[node.labels[SLICE_NAME]] = node.labels.get(TOPOLOGY, "")
    return sum(
        math.prod(have // want for have, want in zip(parent, shape, strict=True))
        for parent in map(_shape, parents.values())
        if len(parent) == len(shape) and parent != shape
    )


def has_room(asked: Sequence[tuple[Mapping[str, float], Gang | None]], nodes: Sequence[Node]) -> bool:
    """Whether the first of these jobs, needs and gang, may run beside the others: a guess from sums."""
    (first, gang), *_ = asked
    for name in first:
        total = sum(needs.get(name, 0.0) * (other.hosts if other else 1) for needs, other in asked)
        if total > sum(node.resources.get(name, 0.0) for node in nodes):
            return False
    if gang is None or not gang.topology:
        return True
    alike = [other for _, other in asked if other and (other.topology, other.accelerator) == _kind(gang)]
    there = whole_slices(gang, first, nodes) or sub_slices(gang, first, nodes)
    return sum(map(slices_of, alike)) <= there


def _missing_slices(gang: Gang, needs: Mapping[str, float], nodes: Sequence[Node]) -> str:
    count, kind = slices_of(gang), f"{gang.accelerator.removeprefix('TPU-').lower()} {gang.topology}"
    if not count:
        return f"{_count(gang.hosts, 'host')} with {_told(needs)} are no whole number of slices of {kind}"
    whole = whole_slices(gang, needs, nodes)
    if whole >= count or (count == 1 and sub_slices(gang, needs, nodes)):
        return ""
    hosts = gang.hosts // count
    told = f"the cluster has {_count(whole, 'slice')} of {kind} with {_count(hosts, 'host')} of {_told(needs)}"
    others = ", ".join(sorted({node.labels.get(TOPOLOGY, "?") for node in _alike(gang, nodes)} - {gang.topology}))
    return f"{told}, the plan needs {count}" + (f"; it has {others}" if others and not whole else "")


def _alike(gang: Gang, nodes: Sequence[Node]) -> Iterator[Node]:
    return (node for node in nodes if node.labels.get(ACCELERATOR) == gang.accelerator)


def _kind(gang: Gang) -> tuple[str, str]:
    return gang.topology, gang.accelerator


def _shape(topology: str) -> tuple[int, ...]:
    return tuple(int(size) for size in topology.split("x") if size)


def _told(needs: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={amount:g}" for name, amount in needs.items())


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

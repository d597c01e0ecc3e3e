"""What a Ray cluster has: its nodes, its slices by their labels, and whether those of the command are among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from asap_ray.config import Config
from asap_ray.errors import ConfigError
from asap_ray.executor.ray_seen import nodes_of
from asap_ray.executor.ray_start import cluster_of
from asap_ray.executor.room import ACCELERATOR, SLICE_NAME, TOPOLOGY, Node, missing_for
from asap_ray.hardware import Slice
from asap_ray.report import units
from asap_ray.report.health import Check
from asap_ray.tasks.machine import LOCAL
from asap_ray.tasks.measuring import gang_of
from asap_ray.tiers.protocol import Job, Outcome

AREA = "Ray"
JOIN = "ray"
"""The name of the job that looks at the cluster."""
JOIN_S = 60.0


def address_of(config: Config) -> tuple[str | None, ConfigError | None]:
    """HOST:PORT of the cluster that a run would join, or why it cannot."""
    try:
        return cluster_of(config.ray.address), None
    except ConfigError as error:
        return None, error


def cluster_jobs(address: str | None) -> list[Job]:
    """The work that joins a cluster, where there is one."""
    if address is None:
        return []
    return [Job(name=JOIN, work=nodes_of, arguments=(address,), timeout_s=JOIN_S, isolated=True)]


def cluster(
    config: Config, address: str | None, refused: ConfigError | None, slices: Sequence[Slice], outcome: Outcome | None
) -> Iterator[Check]:
    """All checks of the cluster, given how the job ended."""
    if refused is not None:
        fix = "ray start --head on that machine, or ray.address=local"
        yield Check(area=AREA, name="address", status="lacking", found=str(refused), fix=fix)
        return
    if outcome is None:
        found = "no cluster is named: trials run on this machine, in a Ray that starts with the first and ends with it"
        yield Check(area=AREA, name="address", status="ok", found=found)
        return
    if outcome.status != "complete":
        why = " ".join((outcome.reason or outcome.output).split())[:300]
        found, fix = f"{address} answers, but cannot be joined: {why}", _joining_fix(why)
        yield Check(area=AREA, name="address", status="lacking", found=found, fix=fix)
        return
    nodes: list[Node] = outcome.value
    yield Check(area=AREA, name="address", status="ok", found=f"{address}: {_nodes_text(nodes)}")
    yield _slices(nodes)
    yield from (_room(config, each, nodes) for each in slices if each.name != LOCAL)


def _joining_fix(why: str) -> str:
    lowered = why.lower()
    if "version" in lowered and "mismatch" in lowered:
        return "install the cluster's own versions of Ray and Python here, or run the command on one of its nodes"
    if "token" in lowered or "unauthenticated" in lowered:
        return "export RAY_AUTH_TOKEN=… of the cluster, or put it into ~/.ray/auth_token"
    return "run the command on a node of the cluster: task=launch launch.target=ray_job writes how"


def _nodes_text(nodes: Sequence[Node]) -> str:
    totals = Counter[str]()
    for node in nodes:
        totals.update({name: node.resources.get(name, 0.0) for name in ("CPU", "GPU", "TPU")})
    text = ", ".join(f"{units.count(int(amount))} {name}" for name, amount in totals.items() if amount)
    return f"{len(nodes)} node{'s' if len(nodes) != 1 else ''} with {text or 'no resources'}"


def _slices(nodes: Sequence[Node]) -> Check:
    """TPU slices by the labels that Ray gives their hosts; hosts with chips and no labels cannot be reserved."""
    hosts = [node for node in nodes if node.resources.get("TPU")]
    bare = [node for node in hosts if SLICE_NAME not in node.labels or TOPOLOGY not in node.labels]
    kinds = Counter(
        f"{node.labels.get(ACCELERATOR, '?')} {node.labels[TOPOLOGY]} {node.labels[SLICE_NAME]}"
        for node in hosts
        if node not in bare
    )
    told = ", ".join(f"{kind} ({count} host{'s' if count != 1 else ''})" for kind, count in sorted(kinds.items()))
    if bare:
        found = f"{len(bare)} hosts have TPU chips and no {SLICE_NAME} label, so that no slice can be reserved"
        fix = "on GKE the TPU webhook sets TPU_NAME and TPU_TOPOLOGY (add-on RayOperator); else export both, ray start"
        return Check(area=AREA, name="slices", status="lacking", found=f"{found}; {told}" if told else found, fix=fix)
    return Check(area=AREA, name="slices", status="ok", found=told or "no TPU slices")


def _room(config: Config, slice_: Slice, nodes: Sequence[Node]) -> Check:
    """Whether trials could run on a slice of the command, which is needed only where they are to."""
    gang = gang_of(slice_)
    lacking, name = missing_for(gang, gang.per_host, nodes), f"room for {slice_.name}"
    if not lacking:
        return Check(area=AREA, name=name, status="ok", found=f"{gang.hosts} hosts of it can be reserved")
    fix = "hardware=SLICE of those above, or task=launch launch.target=kuberay for a cluster that has it"
    return Check(area=AREA, name=name, status="lacking" if config.measures else "without", found=lacking, fix=fix)

"""Hosts of a gang on a Ray cluster: reserved all together or not at all, and free again whatever happens.

TPU hosts are whole slices, or a part of a larger one, as `ray.util.tpu` reserves them; others are bundles of a
placement group, each on another node unless it takes CPU only. What is reserved belongs to this process's job in Ray,
which gives it back where this process is killed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import tpu
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from asap_ray.executor.ray_line import Sent
from asap_ray.executor.room import SLICE_NAME, TOPOLOGY, Node, apart, slices_of, whole_slices
from asap_ray.tiers.protocol import Gang

LOOK_S = 0.2
"""How often it is looked whether a part of a slice is free."""
LATE_S = 2.0
"""How long Ray may take to say that the time is over."""
TAKEN = "others hold what it needs"
TPU_PORT = 8476
"""Where the TPU runtimes of one host's neighbours meet it."""
WORKER_ID = "ray.io/tpu-worker-id"
HOST_BOUNDS: Mapping[int, tuple[int, int]] = {1: (1, 1), 4: (2, 2), 8: (2, 4)}
"""How the chips of one host lie, in a plane."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a rank runs: a bundle of a placement group, its node, its address, and what its environment must have."""

    group: PlacementGroup
    bundle: int
    node: str
    address: str
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Lease:
    group: PlacementGroup
    shutdown: Callable[[], object]
    """Gives all of it back."""
    part: bool = False
    """Of a larger slice, whose other chips are not to be looked for."""


def nodes() -> list[Node]:
    """The nodes of the cluster that live."""
    return [Node(each["NodeID"], each["Resources"], each.get("Labels") or {}) for each in ray.nodes() if each["Alive"]]


@contextmanager
def reserved(sent: Sent) -> Iterator[list[Seat]]:
    """The hosts of a job's gang, by rank: slice by slice, and in the order of their TPU workers.

    Raises:
        TimeoutError: they are not free in time.
    """
    gang, limit = sent.gang, time.monotonic() + sent.reserve_s
    assert gang is not None
    lease = _within(sent.reserve_s + LATE_S, lambda: _lease(gang, sent.needs, limit))
    try:
        if not lease.group.wait(max(0.1, limit - time.monotonic())):
            raise TimeoutError(TAKEN)
        yield _seats(gang, lease)
    finally:
        lease.shutdown()


def _within(wait_s: float, reserve: Callable[[], _Lease]) -> _Lease:
    """What is reserved in time; what comes later is given back. Ray has waits of its own in there, some without end."""
    future = Future[_Lease]()

    def work() -> None:
        try:
            future.set_result(reserve())
        except Exception as error:  # whatever Ray raises: it is the caller's
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        return future.result(wait_s)
    except TimeoutError as error:
        future.add_done_callback(lambda late: None if late.exception() else late.result().shutdown())
        why = str(error) or "Ray does not answer"
        raise TimeoutError(TAKEN if "TPU head" in why else why) from None  # Ray's own words are a paragraph


def _lease(gang: Gang, needs: Mapping[str, float], limit: float) -> _Lease:
    if not gang.topology:
        bundles = [dict(needs) for _ in range(gang.hosts)]
        group = placement_group(bundles, strategy="STRICT_SPREAD" if apart(gang) else "SPREAD")
        return _Lease(group, lambda: remove_placement_group(group))
    if whole_slices(gang, needs, nodes()) < slices_of(gang):
        return _part(gang, needs, limit)
    broken = list[tpu.SlicePlacementGroup]()
    try:
        while True:
            handle = _slices(gang, needs, limit)
            if _is_whole(handle, gang):
                return _Lease(_group(handle), handle.shutdown)
            broken.append(handle)  # kept for now, or Ray would give it again
    finally:
        for each in broken:
            each.shutdown()


def _slices(gang: Gang, needs: Mapping[str, float], limit: float) -> tpu.SlicePlacementGroup:
    return tpu.slice_placement_group(
        gang.topology,
        gang.accelerator,
        resources_per_bundle=dict(needs),
        num_slices=slices_of(gang),
        chips_per_vm=int(gang.per_host["TPU"]),
        head_reservation_timeout_s=max(0.1, limit - time.monotonic()),
        bundle_label_selector=[{TOPOLOGY: gang.topology} for _ in range(gang.hosts)],
    )


def _is_whole(handle: tpu.SlicePlacementGroup, gang: Gang) -> bool:
    """Whether all hosts live of the slices that Ray has chosen by their first host alone."""
    names = {each.get(SLICE_NAME) for each in handle.bundle_label_selector} - {None}  # slices of one host have none
    return not names or sum(node.labels.get(SLICE_NAME) in names for node in nodes()) >= gang.hosts


def _part(gang: Gang, needs: Mapping[str, float], limit: float) -> _Lease:
    """A part of a larger slice. Ray looks once whether one is free; here it is looked until the time is over."""
    while True:
        left = limit - time.monotonic()
        try:
            handle = tpu.subslice_placement_group(
                gang.topology,
                gang.accelerator,
                chips_per_vm=int(gang.per_host["TPU"]),
                resources_per_bundle=dict(needs),
                head_reservation_timeout_s=max(0.1, left),
            )
            return _Lease(_group(handle), handle.shutdown, part=True)
        except RuntimeError as error:
            if isinstance(error, RayError) or left < LOOK_S:
                raise TimeoutError(str(error)) from None
        time.sleep(LOOK_S)


def _group(handle: tpu.SlicePlacementGroup | tpu.SubslicePlacementGroup) -> PlacementGroup:
    assert handle.placement_group is not None
    return handle.placement_group


def _seats(gang: Gang, lease: _Lease) -> list[Seat]:
    placed = placement_group_table(lease.group)["bundles_to_node_id"]
    by_name = {each["NodeID"]: each for each in ray.nodes()}
    found = [(bundle, by_name[placed[bundle]]) for bundle in range(gang.hosts)]
    count = slices_of(gang) if gang.topology else 1
    each = gang.hosts // count
    found.sort(key=lambda seat: (seat[0] // each, int((seat[1].get("Labels") or {}).get(WORKER_ID, 0))))
    addresses = [node["NodeManagerAddress"] for _, node in found]
    return [
        Seat(lease.group, bundle, node["NodeID"], addresses[rank], _environ(gang, lease, addresses, rank, each))
        for rank, (bundle, node) in enumerate(found)
    ]


def _environ(gang: Gang, lease: _Lease, addresses: Sequence[str], rank: int, each: int) -> dict[str, str]:
    """What libtpu must be told besides what its host says: of the other slices, or of being a part of one."""
    if lease.part:
        return _part_environ(gang, addresses, rank)
    slices = gang.hosts // each
    return tpu.get_tpu_coordinator_env_vars(addresses[0], slices, rank // each) if slices > 1 else {}


def _part_environ(gang: Gang, addresses: Sequence[str], rank: int) -> dict[str, Any]:
    """The variables with which JAX's own tests cut processes out of a slice. The hosts of a plane lie in rows, as Ray
    takes them; never tried on chips."""
    first, second, *rest = (int(size) for size in gang.topology.split("x"))
    a, b = HOST_BOUNDS[int(gang.per_host["TPU"])]
    grid = (first // a, second // b, *rest) if rest else (second // b, first // a, 1)
    return {
        "CLOUD_TPU_TASK_ID": str(rank),
        "TPU_WORKER_ID": str(rank),
        "TPU_WORKER_HOSTNAMES": ",".join(addresses),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": f"{a},{b},1",
        "TPU_PROCESS_BOUNDS": ",".join(map(str, grid)),
        "TPU_PROCESS_ADDRESSES": ",".join(f"{address}:{TPU_PORT}" for address in addresses),
        "TPU_PROCESS_PORT": str(TPU_PORT),
    }

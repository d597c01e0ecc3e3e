"""A Ray cluster of several nodes on this machine, with a line to ask it what it holds: `python ray_cluster.py NODES`.

It is a process of its own, so that the tests' never loads Ray. NODES is JSON: a list with what `Cluster.add_node` takes
for each node. It writes HOST:PORT, then answers each line with a line of JSON, and ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.cluster_utils import Cluster
from ray.experimental.internal_kv import _internal_kv_put
from ray.util import placement_group_table, tpu

from asap_ray.executor.ray_end import end

STORE_BYTES = 80_000_000
TRIES = 3
"""How often nodes are started: Ray gives one half a minute, which a machine that is busy on all cores may not do in."""


def main(nodes: list[dict[str, Any]]) -> None:
    """Run until there is no more input."""
    folder = Path(os.environ["TMPDIR"])
    answers, sys.stdout = sys.stdout, sys.stderr  # Ray writes to it when it likes
    (folder / "ray").mkdir()  # where Ray writes down its address
    cluster = started(nodes, folder)
    ray.init(address=cluster.address, log_to_driver=False)
    while sum(node["Alive"] for node in ray.nodes()) < len(nodes):
        time.sleep(0.1)
    print(cluster.address, file=answers, flush=True)
    for line in sys.stdin:
        asked, *more = line.split()
        print(json.dumps(ASKED[asked](*more)), file=answers, flush=True)


def started(nodes: list[dict[str, Any]], folder: Path) -> Cluster:
    """A cluster of these nodes."""
    for left in reversed(range(TRIES)):
        cluster, given = Cluster(), {"include_dashboard": False, "object_store_memory": STORE_BYTES}
        try:
            for node in nodes:
                cluster.add_node(wait=not cluster.head_node, **node, **given, temp_dir=str(folder))
            return cluster
        except Exception:  # Ray raises no other
            end(folder)
            if not left:
                raise
    raise AssertionError


def groups() -> int:
    """How many placement groups there are, those that wait included."""
    return sum(1 for each in placement_group_table().values() if each["state"] != "REMOVED")


def taken() -> dict[str, float]:
    """What is not free, of all nodes together."""
    free = available_resources_per_node()
    found: dict[str, float] = {}
    for node in ray.nodes():
        for name, amount in node["Resources"].items():
            if node["Alive"] and not name.startswith(("node:", "object_store")):
                held = amount - free.get(node["NodeID"], {}).get(name, 0.0)
                found[name] = found.get(name, 0.0) + held
    return {name: amount for name, amount in found.items() if amount}


HELD: list[tpu.SlicePlacementGroup] = []


def hold(topology: str, version: str, count: str) -> int:
    """Take slices as another user of the cluster; says how many."""
    held = tpu.slice_placement_group(topology, version, num_slices=int(count))
    HELD.append(held)
    assert held.placement_group
    assert held.placement_group.wait(60)
    return held.num_slices


def release() -> None:
    """Give back what is held."""
    while HELD:
        HELD.pop().shutdown()


def lay_out(name: str, topology: str) -> None:
    """Say where in a slice its hosts are, as real ones say of themselves through libtpu."""
    from ray._private.accelerators.tpu import _build_subslice_labels

    hosts = len(tpu.get_tpu_nodes_for_slice(name))
    labels = {str(worker): _build_subslice_labels(worker, topology) for worker in range(hosts)}
    key, value = f"tpu_subslice/{name}".encode(), json.dumps(labels).encode()
    _internal_kv_put(key, value, namespace="tpu_subslice")


ASKED = {"groups": groups, "taken": taken, "lay_out": lay_out, "hold": hold, "release": release}

if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

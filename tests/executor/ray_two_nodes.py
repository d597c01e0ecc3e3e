"""A Ray cluster of two nodes on loopback, for a test to join: `first` and `second`, each with one core.

Says its address. Told `lose` it kills the second node as a power cut would, told `alive` it says whether all of the
first node runs still; it ends all when its input is closed. It is a process of its own: Ray changes the one it is in.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ray.cluster_utils import Cluster

STORE_BYTES = 80_000_000
PATIENT_S = 600.0


def main(folder: str) -> None:
    """Run until there is no more input."""
    (Path(folder) / "ray").mkdir()  # where Ray writes down its address, for whoever looks there
    given = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False, "temp_dir": folder}
    cluster = Cluster()
    try:
        first, second = (cluster.add_node(wait=False, **given, resources={name: 1}) for name in ("first", "second"))
        cluster.wait_for_nodes(timeout=PATIENT_S)
        print(cluster.address, flush=True)
        for line in sys.stdin:
            if line.strip() == "lose":
                cluster.remove_node(second, allow_graceful=False)
                print("lost", flush=True)
            else:
                print(first.remaining_processes_alive(), flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])

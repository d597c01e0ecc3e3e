"""What a Ray cluster that runs is made of, told in a fresh process: who joins it may wait, and leaves it behind."""

from __future__ import annotations

import logging
import os

from asap_ray.executor.ray_start import joining
from asap_ray.executor.room import Node


def nodes_of(address: str) -> list[Node]:
    """The nodes of a cluster that live: the work of a job.

    Args:
        address: HOST:PORT, at which something answers.
    """
    os.environ.update(joining(address))  # read when Ray is first imported
    import ray

    from asap_ray.executor.ray_slices import nodes

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    return nodes()

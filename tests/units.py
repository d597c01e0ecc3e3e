"""One unit of layers for tests of physics: a device alone, on links that cost nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from asap_ray.physics.network import Link
from asap_ray.physics.units import Units


def lone_unit(**changes: Any) -> Units:
    """4,096 tokens on one rank of every axis, in bf16 with a fused kernel, but for the `changes` [1 unit]."""
    one = np.ones(1)
    free = Link(
        n_ici=np.ones(1, int),
        n_dcn=np.ones(1, int),
        gather_bytes_per_s=np.array([np.inf]),
        all_to_all_bytes_per_s=np.array([np.inf]),
        permute_bytes_per_s=np.array([np.inf]),
        hops=np.zeros(1, int),
        dcn_bytes_per_s=1.0,
    )
    given = {
        "tokens": 4096 * one,
        "tensor": one,
        "kv_shards": one,
        "context": one,
        "expert": one,
        "sequence_shards": one,
        "precision": np.zeros(1, int),
        "unfused": np.zeros(1, bool),
        "links": dict.fromkeys(("tensor", "context", "expert", "pipeline"), free),
    }
    return Units(**given | {name: np.array([value]) for name, value in changes.items()})

"""Whatever the mesh, a step trains the same model: loss, gradient norm and weights equal those of one device.

In float32, where sums in another order differ by a few roundings: losses and norms agree to 2e-6 of themselves. A
weight moves by at most a learning rate a step, and AdamW divides each gradient by its own size, so that a weight whose
gradient is next to nothing may move anywhere: 99.9% of them agree to a hundredth of a step.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.trainer.jobs import check_alike, trained, workload

ALONE = "micro_batch=8 accumulation=1 remat=none attention=unfused"
PLANS = {
    "dense": (
        "fsdp=8 micro_batch=1 accumulation=1 remat=full",
        "data=8 zero=1 micro_batch=1 accumulation=1 remat=none",
        "data=2 fsdp=2 tensor=2 sequence_parallel=true micro_batch=1 accumulation=2 remat=save_dots",
        "context=4 fsdp=2 micro_batch=4 accumulation=1 remat=save_qkv",
        "context=2 tensor=4 sequence_parallel=true micro_batch=8 accumulation=1 remat=full",
        "pipeline=4 fsdp=2 schedule=gpipe micro_batch=1 accumulation=4 remat=full",
        "pipeline=2 virtual=2 schedule=interleaved tensor=2 context=2 sequence_parallel=true micro_batch=2 "
        "accumulation=4 remat=full",
    ),
    "grouped": ("tensor=2 fsdp=4 sequence_parallel=true micro_batch=2 accumulation=1 remat=save_dots_but_mlp",),
    "gpt": ("tensor=2 context=2 fsdp=2 sequence_parallel=true micro_batch=4 accumulation=1 remat=full",),
    "windows": ("context=2 fsdp=4 micro_batch=2 accumulation=1 remat=full",),
    "latent": ("expert=2 tensor=2 fsdp=2 sequence_parallel=true micro_batch=2 accumulation=1 remat=full",),
    "experts": (
        "expert=4 fsdp=2 micro_batch=1 accumulation=1 remat=none",
        "expert=2 pipeline=2 context=2 schedule=gpipe micro_batch=2 accumulation=2 remat=full",
    ),
}
CASES = [(model, line) for model, lines in PLANS.items() for line in lines]


@cache
def alone(model: str) -> tuple[list[tuple[float, float]], dict[str, np.ndarray]]:
    """The model on one device."""
    return trained(workload(model), ALONE)


@pytest.mark.parametrize(("model", "line"), CASES, ids=[f"{m}: {p.split(' micro')[0]}" for m, p in CASES])
def test_a_mesh_trains_the_model_that_one_device_trains(model: str, line: str) -> None:
    check_alike(trained(workload(model), line), alone(model), rtol=2e-6)

"""Grid search in the order of the tuners that trainers bring: by the size of the model, small degrees first.

NeMo's auto configurator looks up tensor and pipeline degrees and micro-batches by the parameters of the model (its grid
for GPT-3 on GPUs of 80 GB) and runs that grid in order, tensor outermost. DeepSpeed's autotuner takes ZeRO stages from
the least upwards, and within one grows the micro-batch. Here both are one order: plans inside the bucket's grid first,
by ZeRO, tensor, pipeline and micro-batch, then all others by the same. NeMo and DeepSpeed know neither the roofline nor
the outcome of the trial before.
"""

from __future__ import annotations

import numpy as np

from asap_ray.search.pool import Pool

BUCKETS: tuple[tuple[float, tuple[int, int], tuple[int, int], int], ...] = (
    (1.0, (1, 2), (1, 1), 8),
    (8.0, (1, 4), (1, 1), 8),
    (13.0, (1, 8), (1, 1), 8),
    (23.0, (1, 8), (1, 4), 8),
    (45.0, (2, 8), (1, 4), 8),
    (95.0, (2, 8), (1, 8), 8),
    (130.0, (2, 8), (1, 16), 8),
    (195.0, (4, 8), (2, 16), 4),
    (395.0, (4, 8), (2, 32), 4),
    (790.0, (4, 8), (4, 100), 4),
    (float("inf"), (4, 8), (4, 130), 4),
)
"""Billions of parameters up to which a bucket goes; its ends of tensor and of pipeline; its largest micro-batch."""
ORDER = ("zero", "tensor", "pipeline", "micro_batch")


def in_buckets(pool: Pool) -> list[int]:
    """Rows in the order in which those tuners would come to them."""
    size = pool.problem.workload.architecture.parameters / 1e9
    _, tensor, pipeline, micro = next(bucket for bucket in BUCKETS if size <= bucket[0])
    columns = pool.columns
    inside = (
        _within(columns["tensor"], *tensor)
        & _within(columns["pipeline"], *pipeline)
        & _within(columns["micro_batch"], 1, micro)
    )
    keys = [columns[name] for name in reversed(ORDER)]
    return np.lexsort([np.arange(len(pool)), *keys, ~inside]).tolist()


def _within(column: np.ndarray, low: int, high: int) -> np.ndarray:
    return (column >= low) & (column <= high)

"""Time of the output projection and the loss, which stand behind the last layer."""

from __future__ import annotations

import numpy as np

from asap_ray.physics.calibration import Machine
from asap_ray.physics.layer import Units
from asap_ray.physics.matmul import matmul_s
from asap_ray.workload import Workload

LOGIT_BYTES = 14.0
"""HBM bytes a logit costs in the loss: written in 16 bits, read and written as float32, read again, gradient
written."""
HEAD_KERNELS = 8.0


def head_s(workload: Workload, units: Units, machine: Machine) -> np.ndarray:
    """Seconds of projection and loss, forward and backward, for one micro-batch [units]."""
    head, peak = workload.architecture.head, machine.peaks[units.precision]
    t, k, n = units.tokens, head.k, head.n / units.tensor
    matmuls = sum(matmul_s(*shape, peak, machine) for shape in ((t, k, n), (t, n, k), (k, t, n)))
    return matmuls + t * n * LOGIT_BYTES / machine.hbm_bytes_per_s

"""Time of the output projection and the loss, which stand behind the last layer."""

from __future__ import annotations

from asap_ray.physics.calibration import Machine
from asap_ray.physics.matmul import Work, gradients_work, matmul_work
from asap_ray.physics.units import Units
from asap_ray.workload import Workload

LOGIT_PASSES = 3.0
"""Times that the loss moves a logit as the matmul writes and reads it: written, read, gradient written."""
FLOAT_LOGIT_BYTES = 8.0
"""HBM bytes of a logit besides: written and read as float32."""
HEAD_KERNELS = 8.0
"""Launches of a projection and its loss, forward and backward. Counted: three matmuls, cast, max, sum of exponentials,
pick, gradient."""


def head_work(workload: Workload, units: Units, machine: Machine) -> Work:
    """Projection and loss, forward and backward, for one micro-batch [units].

    No trainer described here puts the projection in a narrow format: it decides the loss.
    """
    head, peak = workload.architecture.head, machine.plain_peaks[units.precision]
    shape = (units.tokens, head.k, head.n / units.tensor, peak, machine, 1, units.number_bytes)
    logit_bytes = LOGIT_PASSES * units.number_bytes + FLOAT_LOGIT_BYTES
    loss = units.tokens * head.n / units.tensor * logit_bytes / machine.hbm_bytes_per_s
    return matmul_work(*shape) + gradients_work(*shape) + Work.moved(loss)

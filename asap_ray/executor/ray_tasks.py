"""Plain Ray tasks for many small jobs: a job has no process of its own unless it needs one.

As `ray_tune` in all else. A job that is isolated or has a deadline gets a fresh process; one that has neither runs in
a warm worker, in about a hundredth of a second.
"""

from __future__ import annotations

from typing import ClassVar

from asap_ray.executor.ray_process import RayProcess


class RayTasks(RayProcess):
    """The executor for cheap batches: one Ray task a job."""

    runner: ClassVar[str] = "asap_ray.executor.ray_batches"

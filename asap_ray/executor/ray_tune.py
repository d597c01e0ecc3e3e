"""Ray Tune runs the jobs: on a Ray of our own on this machine, or side by side on a cluster.

    with RayTune(address=config.ray.address, workers=workers(config)) as executor:
        executor.start()  # returns at once; Ray comes up while the roofline prices the space
        for outcome in executor.stream(source):
            ...

A task takes one executor for all of its streams: Ray is started once, and gone when the context is left. Each job is a
trial of Tune in a fresh process: it has the environment of the command on this machine, is asked to end at its
deadline and then forced to, and what an isolated one writes is kept. `Job.cores`, `Job.memory_bytes` and
`Job.resources` are set aside on one node of the cluster; a job that no node can hold fails with the resource's name. A
trial whose worker is lost is run again, `retries` times. A job with a gang runs beside Tune, on hosts that are reserved
for it (`ray_gangs`, docs/slices.md). A cluster's nodes need this package and the tiers' own, of one version.

Where Ray itself is lost `stream` raises an `AsapError` in one line; outcomes that it yielded before are good, and what
ran is ended. So it is after kill -9 of the command, of a worker, of the raylet or of Ray's own driver.
"""

from __future__ import annotations

from typing import ClassVar

from asap_ray.executor.ray_process import RayProcess


class RayTune(RayProcess):
    """The executor in which Ray Tune schedules: one trial and one fresh process a job."""

    runner: ClassVar[str] = "asap_ray.executor.ray_trials"

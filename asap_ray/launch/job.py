"""A job for a cluster: the command, what of the user's it needs, and the hosts that it needs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from asap_ray.chip import Chip
from asap_ray.launch.templates import filled

RUN = "run.sh"
"""The script that every target starts: no submitter has to quote the command."""
RESULTS = "ASAP_RAY_RESULTS"
"""The variable that says where on the cluster the run directory is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Alike slices, or hosts with GPUs: `count` slices of `hosts` hosts with `chips` chips each. `topology` is that of
    a TPU slice in chips, such as 4x4x4; empty for GPUs."""

    name: str
    chip: Chip
    count: int
    hosts: int
    chips: int
    topology: str = ""

    @property
    def is_tpu(self) -> bool:
        """Whether its hosts are those of TPU slices."""
        return bool(self.topology)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchJob:
    """What is to run, and on what. `words` are those of the command, with the user's own files as `inputs/…`.

    `ray_address` is what the command is told of Ray: the one that RAY_ADDRESS names (auto), one of its own (local), or
    nothing where it has no trials. `groups` are the hosts that trials run on; none where they are compiled, which takes
    the head's cores alone.
    """

    name: str
    version: str
    words: tuple[str, ...]
    inputs: Mapping[str, bytes] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    image: str
    wheel: str
    extras: tuple[str, ...]
    ray: str
    python: str
    cpus: int
    memory_gb: int
    hours: float
    results: str
    schedule: str | None = None
    time_zone: str | None = None
    storage: str | None = None
    ray_address: str = ""
    address: str = ""
    options: tuple[str, ...] = ()
    project: str = ""
    zone: str = ""

    @property
    def seconds(self) -> int:
        """After how long the cluster ends the job, whatever it does."""
        return max(1, round(self.hours * 3600))

    @property
    def hosts(self) -> int:
        """All hosts with chips."""
        return sum(each.count * each.hosts for each in self.groups)


def run_script(job: LaunchJob) -> str:
    """The script that runs the command where it lies."""
    words = [*job.words, *([f"ray.address={job.ray_address}"] if job.ray_address else [])]
    lines = " \\\n".join(f"    {shlex.quote(word)}" for word in words)
    return filled("run.sh", version=job.version, results_variable=RESULTS, results=job.results, words=lines)

"""`task=doctor`: what this machine and its cluster can do of what a command asks, and what to type where they cannot.

What may hang, or takes memory for good (JAX, Ray, another interpreter), is asked in fresh processes with a limit, all
at once. Nothing is left behind: no run directory, no lock, no Ray.
"""

from __future__ import annotations

from collections.abc import Iterator

from asap_ray.config import Config
from asap_ray.executor import local
from asap_ray.hardware import parse_slice
from asap_ray.report.health import Check, able, health_blocks, health_fields
from asap_ray.tasks.health import cluster, devices, machine, model, services
from asap_ray.tasks.running import command_line, tell
from asap_ray.tasks.setting import load_chips
from asap_ray.tiers.protocol import Job, Outcome


def run(config: Config) -> int:
    """Run the task; returns the exit status: 1 where what the command asks cannot run here.

    Raises:
        ConfigError: a slice of the command is none.
    """
    checks = list(examined(config))
    command = " ".join(word for word in command_line().split(" ") if word != "task=doctor")
    tell(config, health_fields(checks), health_blocks(checks, command))
    return 0 if able(checks) else 1


def examined(config: Config) -> Iterator[Check]:
    """All checks, by area."""
    chips = load_chips(config)
    slices = [parse_slice(name, chips) for name in config.hardware.slices if name != devices.LOCAL]
    platform, seen = devices.platform_here()
    address, refused = cluster.address_of(config)
    jobs = [*devices.device_jobs(platform, slices), *cluster.cluster_jobs(address), *services.service_jobs(config)]
    jobs += model.model_jobs(config)
    yield from machine.machine(config)
    outcomes = _outcomes(jobs)
    yield from devices.devices(config, platform, seen, slices, outcomes)
    yield from cluster.cluster(config, address, refused, slices, outcomes.get(cluster.JOIN))
    yield from services.services(config, outcomes.get(services.TRAINER))
    yield from model.language_model(config, outcomes)


def _outcomes(jobs: list[Job]) -> dict[str, Outcome]:
    """How each job ended, by its name; they run all at once, since each mostly waits."""
    return {outcome.job.name: outcome for outcome in local.run(jobs, workers=len(jobs))}

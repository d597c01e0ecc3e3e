"""The run tier as tasks use it: which devices there are for it, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping

from asap_ray.chip import Chip
from asap_ray.config import Config
from asap_ray.errors import ConfigError
from asap_ray.hardware import Slice, parse_slice
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.problem import Problem
from asap_ray.settings import load_group
from asap_ray.stack import stack_from_mapping
from asap_ray.tasks.bundles import Bundle, load_bundles
from asap_ray.tasks.commanding import command_tier
from asap_ray.tasks.machine import LOCAL
from asap_ray.tasks.setting import Setting, load_chips
from asap_ray.tasks.trial_tiers import OURS, TrialTiers, in_our_trainer
from asap_ray.tiers.cache import default_cache
from asap_ray.tiers.protocol import Gang
from asap_ray.tiers.proxy import Proxy
from asap_ray.tiers.run import Run, RunOptions, platform_of

PLAIN = Bundle(name="default", about="the compiler's own choices", flags={})
RAY_NAMES: Mapping[str, str] = {"v5e": "TPU-V5LITEPOD", "tpu7x": "TPU-V7X"}
"""What Ray calls a chip where that is not TPU- and its name (ray.util.tpu, accelerators)."""
TPUS_OF_MANY = 4
"""Chips of each host of a TPU slice that has several hosts."""


def runners(config: Config, setting: Setting) -> TrialTiers:
    """The run tiers that a command needs, checked before anything starts.

    Raises:
        ConfigError: devices are asked for that are not here and that no cluster is named for, or our trainer does not
            have the workload's precision.
    """
    ours = stack_from_mapping(load_group("stack")[OURS])
    calibrations = calibrations_from_mappings(load_group("calibration", config.config_dir))
    chips = [each.chip for each in setting.slices]
    on_processor = all(platform_of(chip) == "cpu" for chip in chips)
    bundles = [PLAIN] if on_processor else load_bundles(config.compile.xla, chips, config.config_dir)
    tiers, problems = {}, {}
    for tier in setting.tiers:
        where = tier.problem.slice
        proxy = _proxy(config, tier.problem)
        _check_reached(config, proxy.slice or where if proxy else where)
        problem = problems[where.name] = in_our_trainer(tier.problem, ours, "run")
        for bundle in bundles:
            tiers[where.name, bundle.name] = Run(
                problem=problem,
                calibration=calibration_of(where.chip, OURS, calibrations),
                options=_options(config, proxy.slice or where if proxy else where, bundle.flags_for(where.chip) or {}),
                proxy=proxy,
            )
    return TrialTiers(
        bundles=tuple(bundles), tiers=tiers, problems=problems, workers=side_by_side(config, setting.slices)
    )


def commands(config: Config, setting: Setting) -> TrialTiers:
    """The command tiers that a command needs, checked before anything starts.

    Raises:
        ConfigError: as `commanding.command_tier`.
    """
    tiers = command_tier(config, setting)
    return TrialTiers(
        bundles=(PLAIN,),
        tiers={(where, PLAIN.name): tier for where, tier in tiers.items()},
        problems={where: tier.problem for where, tier in tiers.items()},
        workers=config.command.workers or 1,
    )


def side_by_side(config: Config, slices: tuple[Slice, ...]) -> int:
    """How many trials may run at once: on this machine as many as hold cores, or devices, of their own."""
    if all(each.name == LOCAL and platform_of(each.chip) == "cpu" for each in slices):
        return max(len(os.sched_getaffinity(0)) // config.run.cores, 1)
    return 1 if config.ray.address in (None, "local") else 256


def _proxy(config: Config, problem: Problem) -> Proxy | None:
    """The smaller job that stands for the whole, where one is asked for.

    Raises:
        ConfigError: it is no smaller, or not of the same chips.
    """
    layers, name = config.run.proxy_layers, config.run.proxy_hardware
    if layers is None and name is None:
        return None
    model, where = problem.workload.architecture, problem.slice
    if layers is not None and not model.dense_layers < layers <= model.layers:
        wanted = f"a whole number from {model.dense_layers + 1} to {model.layers}, the layers of {model.name}"
        raise ConfigError("run.proxy_layers", layers, wanted)
    small = parse_slice(name, load_chips(config)) if name is not None else None
    if small is not None:
        fits = (
            small.chip.name == where.chip.name and where.devices % small.devices == 0 and small.devices < where.devices
        )
        if not fits or problem.workload.global_batch * small.devices % where.devices:
            wanted = f"a slice of {where.chip.name} chips whose number divides {where.devices} and the batch"
            raise ConfigError("run.proxy_hardware", name, wanted)
    return Proxy(layers=layers, slice=small)


def _check_reached(config: Config, where: Slice) -> None:
    """A slice is this machine, or of a cluster that is named."""
    if where.name == LOCAL or config.ray.address not in (None, "local") or os.environ.get("RAY_ADDRESS"):
        return
    allowed = f"local, this machine, or with ray.address=HOST:PORT of a cluster that has {where.name}"
    raise ConfigError("hardware", where.name, f"with tiers=run: {allowed}")


def _options(config: Config, where: Slice, flags: Mapping[str, str]) -> RunOptions:
    run, chip = config.run, where.chip
    given = {
        "steps": run.steps,
        "warmup": run.warmup,
        "timed_s": run.seconds,
        "trace": run.trace,
        "cache": str(default_cache().with_name("executables")),
        "flags": flags,
        "timeout_s": run.timeout_s,
    }
    if platform_of(chip) == "cpu":
        return RunOptions(**given, cores=run.cores, memory_bytes=chip.usable_hbm_bytes * chip.max_domain)
    gang = gang_of(where)
    return RunOptions(
        **given,
        hosts=gang.hosts,
        resources=gang.per_host,
        topology=gang.topology,
        accelerator=gang.accelerator,
    )


def gang_of(where: Slice) -> Gang:
    """The hosts of a slice with their chips, as Ray reserves them."""
    tpu, here = where.chip.kind == "tpu", chips_a_host(where)
    return Gang(
        hosts=max(where.chips // here, 1),
        per_host={"TPU" if tpu else "GPU": float(here)},
        topology="x".join(map(str, where.topology)) if tpu else "",
        accelerator=ray_name(where.chip) if tpu else "",
    )


def chips_a_host(where: Slice) -> int:
    """Chips of one host of a slice: a TPU slice of several hosts has four on each, also where single hosts have eight
    (v5e, v6e: GKE's machine types, and `ray._private.accelerators.tpu.get_chips_per_host`)."""
    most = where.chip.chips_per_host
    if where.chip.kind == "tpu" and where.ici_chips > most:
        most = min(most, TPUS_OF_MANY)
    return min(where.chips, most)


def ray_name(chip: Chip) -> str:
    """A TPU as Ray names it."""
    return RAY_NAMES.get(chip.name, f"TPU-{chip.name.upper()}")

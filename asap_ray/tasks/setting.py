"""From a configuration to problems: the workload, and for each slice the problem, its chip's calibration, the tier."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from asap_ray.architecture import Architecture, architecture_from_mapping
from asap_ray.chip import Chip, chip_from_mapping
from asap_ray.config import MODEL_FREE, Config
from asap_ray.errors import ConfigError
from asap_ray.hardware import Slice, parse_slice
from asap_ray.interchange.exchange import Foreign
from asap_ray.interchange.huggingface import read_config
from asap_ray.narrowing import fixed, forbidden
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.problem import Problem
from asap_ray.settings import load_group
from asap_ray.space import Space
from asap_ray.stack import stack_from_mapping
from asap_ray.tasks.baseline import check_model, check_shape, foreign_baseline, model_of
from asap_ray.tasks.machine import LOCAL, chip_here
from asap_ray.tiers.roofline import Roofline
from asap_ray.workload import DTYPE_BYTES, Workload, train_shape_from_mapping

UNPUBLISHED_SHAPE = (1024, 4096)
"""Sequences a step and tokens a sequence (4M tokens, as Llama 2) where a model comes without a training shape."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What one command works on: a workload, and one tier and space for each slice asked for.

    `foreign` is the job of another trainer's config that the baseline names, where it names one.
    """

    workload: Workload
    tiers: tuple[Roofline, ...]
    spaces: tuple[Space, ...]
    foreign: Foreign | None = None

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The slices, in the order given."""
        return tuple(tier.problem.slice for tier in self.tiers)


def load(config: Config) -> Setting:
    """Read everything that a configuration names.

    Raises:
        ConfigError: something it names does not exist or cannot be used.
    """
    stack = stack_from_mapping(config.stack)
    chips = load_chips(config)
    foreign = foreign_baseline(config)
    workload = _workload(config, foreign, chips)
    calibrations = calibrations_from_mappings(load_group("calibration", config.config_dir))
    tiers, spaces = [], []
    for name in config.hardware.slices:
        slice_ = parse_slice(name, chips)
        if any(tier.problem.slice.name == slice_.name for tier in tiers):
            raise ConfigError("hardware", name, f"each slice once; this is {slice_.name} again")
        problem = Problem(
            workload=workload, slice=slice_, stack=stack, numerics=_numerics(config), margin=config.space.margin
        )
        _check_precision(problem)
        _check_batch(config, problem)
        tiers.append(Roofline(problem=problem, calibration=calibration_of(slice_.chip, stack.name, calibrations)))
        narrowings = fixed(problem, config.space.fix) + forbidden(problem, config.space.forbid)
        spaces.append(Space(problem=problem, narrowings=narrowings))
    return Setting(workload=workload, tiers=tuple(tiers), spaces=tuple(spaces), foreign=foreign)


def load_chips(config: Config) -> dict[str, Chip]:
    """All chips by name, the user's own included.

    Raises:
        ConfigError: a chip of the user's has a name or alias that is taken.
    """
    built_in = load_group("hardware")
    given = {**built_in, **load_group("hardware", config.config_dir)}  # ours first: the later one gives way
    chips: dict[str, Chip] = {}
    owners: dict[str, str] = {}
    for file, mapping in given.items():
        chip = chip_from_mapping(mapping)
        for spelling in (chip.name, chip.name.removesuffix("x"), *chip.aliases):
            owner = owners.setdefault(spelling.lower(), file)
            if owner != file:
                what = "is built in" if owner in built_in else "has it too"
                raise ConfigError(
                    f"hardware.{file}", spelling, f"allowed: a name and aliases of its own; {owner} {what}"
                )
        chips[chip.name] = chip
    if LOCAL in config.hardware.slices and LOCAL not in chips and config.task not in MODEL_FREE:
        chips[LOCAL] = chip_here(chips, config.run.devices, config.run.cores)
    return chips


def _workload(config: Config, foreign: Foreign | None, chips: Mapping[str, Chip]) -> Workload:
    """The workload asked for; what is not asked for is the baseline's, where that is a job, or as published."""
    architecture, shape = _model(config, foreign)
    batch, length = shape or UNPUBLISHED_SHAPE
    if shape is None and architecture.learned_positions:
        length = min(length, architecture.learned_positions)
    asked, precision = config.workload, config.workload.precision
    asked_batch, asked_length = asked.global_batch, asked.seq_len
    if foreign is not None:
        check_model(foreign, architecture, config.config_dir)
        theirs = foreign.batch_on(parse_slice(config.hardware.slices[0], chips).devices)
        asked_batch = check_shape(foreign, "global_batch", asked_batch, theirs)
        asked_length = check_shape(foreign, "seq_len", asked_length, foreign.seq_len)
        precision = precision or foreign.precision
    precision = precision or "bf16"
    if precision not in DTYPE_BYTES:
        raise ConfigError("workload.precision", precision, f"allowed: {', '.join(DTYPE_BYTES)}", DTYPE_BYTES)
    return Workload(
        architecture=architecture,
        global_batch=asked_batch or batch,
        seq_len=asked_length or length,
        precision=precision,
    )


def _model(config: Config, foreign: Foreign | None) -> tuple[Architecture, tuple[int, int] | None]:
    """The architecture, and the shape that it was published with, where that is known."""
    if "hf_config" in config.model:
        return read_config(Path(config.model["hf_config"])), None
    if not config.model and foreign is None:
        raise ConfigError("+model", "", "a model is needed: baseline is no trainer's config that could name one")
    mapping = config.model or (model_of(foreign, config.config_dir) if foreign else {})
    return architecture_from_mapping(mapping), train_shape_from_mapping(mapping)


def _numerics(config: Config) -> tuple[str, ...]:
    for name in config.space.numerics:
        if name != "precision":
            raise ConfigError("space.numerics", name, "allowed: precision", ("precision",))
    return tuple(config.space.numerics)


def _check_precision(problem: Problem) -> None:
    precision, chip = problem.workload.precision, problem.slice.chip
    offered = [name for name in problem.stack.precisions if name in chip.peak_flops]
    if precision not in offered:
        raise ConfigError(
            "workload.precision", precision, f"{problem.stack.name} on {chip.name} has {', '.join(offered)}", offered
        )


def _check_batch(config: Config, problem: Problem) -> None:
    # One sequence can only be split inside itself, and that is what was asked for. Several that share no factor with
    # the devices would all go through one batch shard: a slip, unless the axes are pinned by hand.
    batch, devices = problem.workload.global_batch, problem.slice.devices
    if batch > 1 and devices > 1 and math.gcd(batch, devices) == 1 and not config.space.fix and not config.plan:
        share = min(factor for factor in range(2, devices + 1) if devices % factor == 0)
        down, up = batch // devices * devices, -(-batch // devices) * devices
        near = " or ".join(str(n) for n in (down, up) if n)
        raise ConfigError(
            "workload.global_batch",
            batch,
            f"not divisible over the {devices} devices of {problem.slice.name}; allowed: a multiple of {share}, "
            f"best of {devices}, such as {near}",
        )

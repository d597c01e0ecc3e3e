"""The large TPU spaces in which faults are planted: models of 8B to 671B on 16 to 6,144 chips."""

from __future__ import annotations

from asap_ray.architecture import architecture_from_mapping
from asap_ray.config import Config
from asap_ray.contest.planted import Planted, planted
from asap_ray.hardware import parse_slice
from asap_ray.physics.calibration import Calibration, calibration_of, calibrations_from_mappings
from asap_ray.problem import Problem
from asap_ray.settings import load_group
from asap_ray.stack import stack_from_mapping
from asap_ray.tasks.compiled_cases import described
from asap_ray.tasks.setting import load_chips
from asap_ray.workload import Workload

SPACES: tuple[tuple[str, str, int, int], ...] = (
    ("llama3_1_8b", "v5e-16", 32, 8192),
    ("llama3_1_8b", "v6e-64", 128, 8192),
    ("llama3_1_70b", "v5p-128", 128, 8192),
    ("llama3_1_70b", "v5p-512", 256, 8192),
    ("mixtral8x7b", "v5p-128", 256, 4096),
    ("mixtral8x22b", "v5p-512", 512, 4096),
    ("llama3_1_405b", "v5p-2048", 1024, 8192),
    ("deepseek_v3", "v5p-2048", 4096, 4096),
    ("llama3_1_405b", "v5p-12288", 3072, 8192),
)
"""Model, slice, sequences a step, tokens a sequence; v5p names count two cores a chip."""
STACK = "maxtext"


def planted_grounds(config: Config) -> list[Planted]:
    """Every space with `compare.truths` truths each."""
    models, chips = load_group("model"), load_chips(config)
    stack = stack_from_mapping(load_group("stack")[STACK])
    calibrations = calibrations_from_mappings(load_group("calibration", config.config_dir))
    found: list[tuple[str, Problem, Calibration]] = []
    for model, slice_, batch, length in SPACES:
        architecture = architecture_from_mapping(described(models, model))
        workload = Workload(architecture=architecture, global_batch=batch, seq_len=length, precision="bf16")
        where = parse_slice(slice_, chips)
        problem = Problem(workload=workload, slice=where, stack=stack, margin=config.space.margin)
        name = f"{model} on {slice_} ({where.chips:,} chips)"
        found.append((name, problem, calibration_of(where.chip, STACK, calibrations)))
    return planted(found, config.compare.truths)

"""NVIDIA GPUs for XLA's CUDA compiler on a machine that has none, from a text that describes a GPU.

XLA's target descriptions are no public interface of JAX: this file alone knows of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from asap_ray.chip import Chip
from asap_ray.hardware import Slice

TARGETS = Path(__file__).with_name("targets.yaml")
OPTIONS: Mapping[str, str] = {"xla_gpu_autotune_level": "0"}
"""What the compiler must be told where there is no GPU to time kernels on."""


def devices(slice_: Slice) -> list[Any]:
    """The devices of a slice: `slices` domains, each a host to the compiler, of as many GPUs as a domain has.

    Raises:
        ValueError: no description of the chip is known.
        jax.errors.JaxRuntimeError: the plug-in refuses.
        NotImplementedError: JAX has not found the plug-in.
    """
    from jax.experimental import topologies

    target, topology = description(slice_.chip), f"1x{slice_.slices}x{slice_.ici_chips}"
    found = topologies.get_topology_desc(slice_.chip.name, platform="cuda", target_config=target, topology=topology)
    return list(found.devices)


def description(chip: Chip) -> str:
    """A GPU as XLA's GpuTargetConfigProto in text form; memory and its bandwidth are those of the datasheet.

    Raises:
        ValueError: no description of the chip is known.
    """
    targets = _targets()
    if chip.name not in targets["chips"]:
        raise ValueError(f"no target is known for {chip.name}, only for {', '.join(targets['chips'])}")
    one = targets["chips"][chip.name]
    kind = targets["architectures"][one["architecture"]]
    major, minor = kind["capability"]
    features = "ACCELERATED_FEATURES" if kind["accelerated"] else "NONE"
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048
  shared_memory_per_block: 49152
  shared_memory_per_core: {kind["shared_memory_per_core"]}
  shared_memory_per_block_optin: {kind["shared_memory_optin"]}
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024  thread_dim_limit_y: 1024  thread_dim_limit_z: 64
  core_count: {one["cores"]}  fpus_per_core: {kind["fpus_per_core"]}  clock_rate_ghz: {one["clock_ghz"]}
  memory_bandwidth: {int(chip.hbm_bytes_per_s)}
  device_memory_size: {int(chip.usable_hbm_bytes)}
  l2_cache_size: {one["l2"]}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }}
  device_vendor: "NVIDIA Corporation"  name: "{one["name"]}"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{one["name"]}"
"""


@lru_cache(maxsize=1)
def _targets() -> dict[str, Any]:
    return yaml.safe_load(TARGETS.read_text())

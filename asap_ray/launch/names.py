"""What Google Cloud calls chips: one table for all layers, since GKE, Compute Engine and Ray each have their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from asap_ray.chip import Chip
from asap_ray.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TpuNames:
    """A TPU: the label of GKE's nodes, GKE's machine type before the chips of a host, the accelerator type of a TPU VM
    before its number, whether that number counts TensorCores, and the software of a TPU VM."""

    gke: str
    machine: str
    vm: str
    counts_cores: bool
    runtime: str


TPUS: Mapping[str, TpuNames] = {
    "v4": TpuNames("tpu-v4-podslice", "ct4p-hightpu", "v4", True, "tpu-ubuntu2204-base"),
    "v5e": TpuNames("tpu-v5-lite-podslice", "ct5lp-hightpu", "v5litepod", False, "v2-alpha-tpuv5-lite"),
    "v5p": TpuNames("tpu-v5p-slice", "ct5p-hightpu", "v5p", True, "v2-alpha-tpuv5"),
    "v6e": TpuNames("tpu-v6e-slice", "ct6e-standard", "v6e", False, "v2-alpha-tpuv6e"),
    "tpu7x": TpuNames("tpu7x", "tpu7x-standard", "tpu7x", True, "v2-alpha-tpu7-ubuntu2404"),
}
"""GKE's TPU pages and Cloud TPU's list of software versions."""
GPUS: Mapping[str, str] = {
    "a100": "nvidia-a100-80gb",
    "a100-40": "nvidia-tesla-a100",
    "h100": "nvidia-h100-80gb",
    "h200": "nvidia-h200-141gb",
    "b200": "nvidia-b200",
    "gb200": "nvidia-gb200",
}
"""The label `cloud.google.com/gke-accelerator` of GKE's nodes; other clusters have labels of their own."""


def tpu_names(chip: Chip) -> TpuNames:
    """What Google Cloud calls a TPU.

    Raises:
        ConfigError: it rents out none.
    """
    if chip.name not in TPUS:
        raise ConfigError("hardware", chip.name, f"a TPU that Google Cloud rents out: {', '.join(TPUS)}")
    return TPUS[chip.name]

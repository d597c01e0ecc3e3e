"""The machine at hand as a chip: what `hardware=local` stands for where no file describes it.

NVIDIA GPUs are known by the name that their driver gives; else the processor's cores stand in for devices. Its peaks
are bounds that no processor exceeds, since a floor must hold; what a core really reaches is for trials to say.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from asap_ray.chip import Chip
from asap_ray.errors import ConfigError
from asap_ray.executor.memory import available_bytes

LOCAL = "local"
PROC = Path("/proc")
FASTEST_HZ = 6.5e9
"""No processor's clock is faster, turbo included: a bound, for floors."""
FLOPS_A_CYCLE: Mapping[str, float] = {"amx_bf16": 1024.0, "avx512f": 128.0, "": 64.0}
"""FLOPs of a core and cycle in bfloat16, the most by a processor's best unit: one 16 x 16 x 32 tile product in 16
cycles (Intel Architecture Instruction Set Extensions, AMX); two 512-bit fused multiply-adds of 16-bit numbers; two of
256 bits, or what others have."""
FP32_A_CYCLE: Mapping[str, float] = {"avx512f": 64.0, "": 32.0}
BYTES_A_CYCLE = 192.0
"""Bytes of a core and cycle from its nearest cache: two loads and one store of 512 bits."""
MEMORY_SHARE = 0.8
"""Share of the memory that is there which trials may take."""
DRIVER_S = 20.0


def chip_here(chips: Mapping[str, Chip], devices: int, cores: int) -> Chip:
    """What `hardware=local` stands for: the machine's GPUs, of one known kind, or `devices` made of its processor.

    Args:
        chips: every known chip by name.
        devices: of a processor, how many a trial has.
        cores: of a processor, how many each trial holds.

    Raises:
        ConfigError: the machine has GPUs that are not described, or fewer cores.
    """
    names = gpus_here()
    if not names:
        return processor(devices, cores, (PROC / "cpuinfo").read_text(), available_bytes())
    found = next((chip for chip in chips.values() if chip.kind == "gpu" and _is(chip, names[0])), None)
    if found is None:
        raise ConfigError(
            "hardware", LOCAL, f"{names[0]} is not described; hardware/local.yaml in the folder of --config-dir can be"
        )
    return replace(found, max_domain=len(names), chips_per_host=len(names))


def gpus_here() -> list[str]:
    """Names of the NVIDIA GPUs that the driver of this machine shows; none where there is no driver."""
    try:
        told = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=DRIVER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in told.stdout.splitlines() if line.strip()] if told.returncode == 0 else []


def _is(chip: Chip, name: str) -> bool:
    """Whether a driver's name, such as `NVIDIA H200` or `NVIDIA A100-SXM4-80GB`, is of a chip."""
    return chip.name in re.split(r"[^a-z0-9]+", name.lower())


def processor(devices: int, cores: int, cpuinfo: str, memory_bytes: float) -> Chip:
    """A processor as devices that share `cores` of its cores; their figures are what one of them has at most.

    Args:
        devices: of one trial.
        cores: that each trial holds alone.
        cpuinfo: the text of /proc/cpuinfo.
        memory_bytes: that the machine has left; it is shared by the trials that run side by side.

    Raises:
        ConfigError: the machine has fewer cores.
    """
    here = len(os.sched_getaffinity(0))
    if cores > here:
        raise ConfigError("run.cores", cores, f"allowed: 1 to {here}, the cores of this machine")
    flags = set(next((line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features"))), "").split())
    share = FASTEST_HZ * cores / devices
    memory = MEMORY_SHARE * memory_bytes / max(here // cores, 1) / devices
    return Chip(
        name=LOCAL,
        vendor="host",
        kind="gpu",
        peak_flops={"bf16": _best(FLOPS_A_CYCLE, flags) * share, "fp32": _best(FP32_A_CYCLE, flags) * share},
        hbm_bytes=memory,
        usable_hbm_bytes=memory,
        hbm_bytes_per_s=BYTES_A_CYCLE * share,
        clock_hz=FASTEST_HZ,
        matrix_tile=16,
        matrix_units=1,
        on_chip_bytes=2.0**21,
        fabric="switch",
        link_bytes_per_s=BYTES_A_CYCLE * share,
        max_domain=devices,
        nic_bytes_per_s=BYTES_A_CYCLE * share,
        pcie_bytes_per_s=BYTES_A_CYCLE * share,
        chips_per_host=devices,
        sources=("/proc/cpuinfo and /proc/meminfo of this machine",),
    )


def _best(known: Mapping[str, float], flags: set[str]) -> float:
    return next(value for name, value in known.items() if not name or name in flags)

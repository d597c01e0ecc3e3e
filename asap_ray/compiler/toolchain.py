"""Which compilers are installed, in which versions, and how to install what is not. Nothing is imported for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from asap_ray.chip import Chip

PACKAGES = {
    "google": ("jax", "jaxlib", "libtpu"),
    "nvidia": ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12"),
}
"""What takes part in a compilation, by the chip's vendor."""
TOO_OLD = ("v3",)
HAVE_ONE = "TPUs from v4 on (v4, v5e, v5p, v6e, tpu7x) and NVIDIA GPUs from A100 on"
EXTRAS = {"google": "tpu", "nvidia": "cuda"}
_PACKAGE = Path(__file__).resolve().parent.parent
TRAINER = ("trainer", "physics/phases.py")
LOWERING = (
    "compiler/lower.py",
    "compiler/topology.py",
    "compiler/cuda.py",
    "compiler/targets.yaml",
    "compiler/refusal.py",
)


def missing(chip: Chip) -> str:
    """Why no plan can be compiled for a chip on this machine, in one line; empty where it can be tried."""
    if chip.vendor not in PACKAGES or chip.name in TOO_OLD:
        return f"hardware={chip.name} has no compiler that works without the chip; {HAVE_ONE} have one"
    lacking = [name for name in PACKAGES[chip.vendor] if not installed_version(name)]
    if not lacking:
        return ""
    extra = EXTRAS[chip.vendor]
    return f"hardware={chip.name} needs {', '.join(lacking)}: pip install 'asap-ray[{extra}]'"


def versions(chip: Chip) -> dict[str, str]:
    """Versions of all that takes part in a compilation for a chip; empty text where something is not installed."""
    return {name: installed_version(name) for name in PACKAGES.get(chip.vendor, ("jax", "jaxlib"))}


def compiled_with(chip: Chip) -> str:
    """What a result is evidence for: the trainer by the hash of its sources, and the compiler."""
    found = versions(chip)
    names = ("jax", "libtpu") if chip.vendor == "google" else ("jax", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12")
    tools = ", ".join(f"{name} {found.get(name) or 'missing'}" for name in names)
    return f"ours@{source_hash(TRAINER)[:8]}, {tools}"


def trained_with() -> str:
    """The trainer by the hash of its sources, and JAX, that a run is evidence for."""
    return f"ours@{source_hash(TRAINER)[:8]}, jax {installed_version('jax') or 'missing'}"


@lru_cache(maxsize=8)
def source_hash(paths: Iterable[str] = (*TRAINER, *LOWERING)) -> str:
    """A hash of source files of the package, and of all in its folders; what is missing counts as empty."""
    digest = hashlib.sha256()
    for path in paths:
        root = _PACKAGE / path
        for file in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            digest.update(file.relative_to(_PACKAGE).as_posix().encode() + b"\0")
            digest.update((file.read_bytes() if file.is_file() else b"") + b"\0")
    return digest.hexdigest()


@lru_cache(maxsize=32)
def installed_version(package: str) -> str:
    """The version of a package; empty where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""

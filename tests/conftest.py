"""What all tests share: hypothesis without a clock, eight host devices, and a command line in a folder of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from asap_ray.__main__ import main

# Read when jax is first imported. With fewer threads than devices XLA's in-process collectives can wait for ever.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
HOST_FLAGS = (
    "--xla_force_host_platform_device_count=8",
    # What runs on host devices is tiny: most of its time is LLVM's, and a sixth of it is left without optimization.
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
)
os.environ.setdefault("XLA_FLAGS", " ".join(HOST_FLAGS))
os.environ.setdefault("NPROC", "32")

patient: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}  # whatever the machine
settings.register_profile("same", **patient, derandomize=True)  # the same examples in every run and on every machine
settings.register_profile("explore", **patient, max_examples=1000)  # --hypothesis-profile=explore looks further
settings.load_profile("same")


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests of Ray and of killed commands mostly wait for other processes."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or adds to the memory of whoever runs it, nor to another test's."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


class Ended(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Run one command line in this process, in an empty folder; gives status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    # What tiers=auto finds installed differs from machine to machine, and real compilations have tests of their own.
    monkeypatch.setattr("asap_ray.tasks.compiling.installed", lambda setting, ours: False)

    def run(*argv: str) -> Ended:
        status = main(argv)
        return Ended(status, *capsys.readouterr())

    return run

"""Real compilations of a small program, each in a process of its own, and every way in which one can end."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from asap_ray.compiler import toolchain
from asap_ray.compiler.request import Build
from asap_ray.executor import local
from asap_ray.hardware import make_slice
from asap_ray.layers import FeedForward
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.plan import Plan
from asap_ray.settings import load_group
from asap_ray.tiers.compile import Compile, CompileOptions
from asap_ray.tiers.protocol import Outcome
from tests.problems import CHIPS, DENSE, make_problem

sys.path.append(str(Path(__file__).parent))  # spawned processes take the path over, and find stand_in on it
LONG_S = 600.0  # no test waits for it
TPU = pytest.mark.skipif(bool(toolchain.missing(CHIPS["v5p"])), reason="no libtpu: pip install 'asap-ray[tpu]'")
GPU = pytest.mark.skipif(bool(toolchain.missing(CHIPS["h100"])), reason="no CUDA plug-in: pip install 'asap-ray[cuda]'")
NARROW = replace(DENSE, layers=3, d_model=256, ffn=FeedForward(d_ff=512))


def tier(slice_: str, program: str = "train_step", tokens: int = 64, width: int = 256, **options: object) -> Compile:
    """The stand-in's program of a model `width` wide, with so many tokens for each device."""
    model = replace(NARROW, d_model=width, ffn=FeedForward(d_ff=2 * width))
    problem = make_problem(slice_, "ours", model)
    workload = replace(problem.workload, global_batch=problem.slice.devices, seq_len=tokens)
    calibrations = calibrations_from_mappings(load_group("calibration"))
    given = {"cache": None, "timeout_s": LONG_S, "program": f"stand_in:{program}", "mesh": "stand_in:device_mesh"}
    return Compile(
        problem=replace(problem, workload=workload),
        calibration=calibration_of(problem.slice.chip, "ours", calibrations),
        options=CompileOptions(**{**given, **options}),  # type: ignore[arg-type]
    )


def everywhere(of: Compile) -> Plan:
    """The plan that shards weights and batch over all devices."""
    slice_ = of.problem.slice
    return Plan(ici=(1, slice_.ici_devices, 1, 1, 1, 1), dcn=(1, slice_.slices, 1, 1, 1, 1), remat="full")


def ended(of: Compile) -> Outcome:
    (outcome,) = local.run([of.job(everywhere(of))], 1)
    return outcome


def built(of: Compile) -> Build:
    outcome = ended(of)
    assert outcome.status == "complete", outcome.reason + outcome.output
    return outcome.value


@TPU
@pytest.mark.parametrize("slice_", ["v4-8", "2xv5e-4", "v5p-8", "v6e-1", "tpu7x-8"])
def test_each_generation_of_tpu_compiles(slice_: str) -> None:
    of = tier(slice_)
    build = built(of)
    devices = of.problem.slice.devices
    # By hand: weights and momentum are 3 layers of two 256 x 512 matrices in float32, tokens are 256 wide in bfloat16.
    state = 3 * 2 * 256 * 512 * 4 // devices
    assert build.arguments == {"0.weights": state, "0.optimizer": state, "1": 64 * 256 * 2}
    assert build.memory["arguments"] == sum(build.arguments.values())
    assert build.memory["aliased"] == 2 * state
    assert build.memory["peak"] >= build.memory["arguments"]
    assert '"estimated_cycles"' in build.text
    assert {"import", "topology", "trace", "lower", "compile", "print", "cores"} == set(build.seconds)
    assert build.peak_bytes > 100e6


@GPU
@pytest.mark.parametrize("slice_", ["a100x8", "h100x8", "h100x16", "h200x8", "b200x8"])
def test_each_generation_of_gpu_compiles(slice_: str) -> None:
    of = tier(slice_)
    build = built(of)
    state = 3 * 2 * 256 * 512 * 4 // of.problem.slice.devices
    assert build.memory["arguments"] == 2 * state + 64 * 256 * 2
    parts = ("arguments", "outputs", "temporaries")
    assert build.memory["peak"] == sum(build.memory[name] for name in parts) - build.memory["aliased"]
    assert f"num_partitions={of.problem.slice.devices}" in build.text
    assert "is_scheduled=true" in build.text


@TPU
def test_the_same_request_is_the_same_program_and_is_known_afterwards(tmp_path: Path) -> None:
    of = tier("v5e-4", cache=tmp_path)
    first = built(of)
    assert built(of).digest == first.digest
    known = of.known(everywhere(of))
    assert known is not None
    assert (known.digest, known.cached) == (first.digest, True)


@TPU
def test_what_does_not_fit_on_a_tpu_is_refused_with_its_bytes() -> None:
    # By hand: 2^21 tokens a device, 8192 wide in bfloat16, are 32 GiB; a chip has 16.
    of = tier("v5e-4", tokens=1 << 21, width=8192)
    told = of.read(ended(of))
    assert told.status == "infeasible"
    assert told.hbm_bytes is not None
    assert told.hbm_bytes > 32 * 2**30
    assert told.limit_bytes == pytest.approx(15.75 * 2**30)
    assert told.over_bytes == pytest.approx(told.hbm_bytes - told.limit_bytes)
    assert "exceeds available HBM" in told.reason


@GPU
def test_what_does_not_fit_on_a_gpu_is_told_by_us() -> None:
    of = tier("h100x8", tokens=1 << 22, width=8192)  # 64 GiB of tokens, and hidden layers of twice that
    told = of.read(ended(of))
    assert told.status == "infeasible"
    assert told.hbm_bytes is not None
    assert told.hbm_bytes > 128 * 2**30


@TPU
def test_a_slice_that_does_not_exist_is_told_in_one_line() -> None:
    of = tier("v5p-8")
    odd = make_slice(CHIPS["v5p"], (3, 3, 3))
    of = replace(of, problem=replace(of.problem, slice=odd))
    told = of.read(ended(of))
    assert told.status == "failed"
    assert told.reason.startswith("hardware=v5p:3x3x3: the compiler has no such slice: INVALID_ARGUMENT")
    assert "\n" not in told.reason


@TPU
def test_a_flag_that_does_not_exist_is_told_in_one_line() -> None:
    of = tier("v5e-4", flags={"xla_tpu_no_such_flag": "true"})
    told = of.read(ended(of))
    assert (told.status, "xla_tpu_no_such_flag" in told.reason) == ("failed", True)
    assert "\n" not in told.reason


@TPU
def test_a_fault_of_the_trainer_is_told_with_its_place() -> None:
    of = tier("v5e-4", "raises")
    told = of.read(ended(of))
    assert told.status == "failed"
    assert told.reason.startswith("NotImplementedError: no such layer")
    assert "(stand_in.py, line" in told.reason
    assert "\n" not in told.reason


@TPU
def test_a_crash_ends_in_its_signal_with_the_last_words(capfd: pytest.CaptureFixture[str]) -> None:
    of = tier("v5e-4", "crashes")
    told = of.read(ended(of))
    assert (told.status, told.reason) == ("failed", "its process was ended by SIGSEGV")
    assert told.output
    assert capfd.readouterr() == ("", "")


@TPU
def test_a_hang_ends_at_its_deadline_with_nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock jumps to the deadline once the compilation hangs, however long that takes.
    marker = tmp_path / "pids"
    monkeypatch.setenv("STAND_IN_MARKER", str(marker))
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + (LONG_S if marker.exists() else 0.0))
    monkeypatch.setattr(local, "time", clock)
    of = tier("v5e-4", "hangs")
    told = of.read(ended(of))
    assert (told.status, told.reason) == ("timeout", "not done after 600 s")
    for pid in marker.read_text().split():
        assert not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


def test_without_its_compiler_a_chip_names_the_command_that_installs_it() -> None:
    # In a Python of its own, for which libtpu is not installed; the job runs in that process, as nothing is compiled.
    code = f"""
import importlib.metadata as metadata, sys
sys.path[:0] = {[path for path in sys.path if path]!r}
found = metadata.version
def version(name):
    if name == "libtpu":
        raise metadata.PackageNotFoundError(name)
    return found(name)
metadata.version = version
from tests.compiler.test_lower_compiled import everywhere, tier
of = tier("v5e-4")
work, arguments = of.job(everywhere(of)).work, of.job(everywhere(of)).arguments
print(of.missing, work(*arguments).reason, sep="\\n")
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert told == ["hardware=v5e needs libtpu: pip install 'asap-ray[tpu]'"] * 2

"""Requests and their keys, the environment of a compilation, and libtpu's lock: all that needs no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from asap_ray.compiler import toolchain, topology
from asap_ray.compiler.lower import clear_stale_lock, reason
from asap_ray.compiler.request import Build, Request, packed
from asap_ray.hardware import make_slice, parse_slice
from asap_ray.plan import Plan
from tests.problems import CHIPS, STACKS, make_problem

PROBLEM = make_problem("v5p-16", "ours")
PLAN = Plan.parse("fsdp=8 micro_batch=1 accumulation=1 remat=full")
TOOLS = {"jax": "0.10.2", "libtpu": "0.0.42.1"}


def request(plan: Plan = PLAN, **changes: object) -> Request:
    made = Request(workload=PROBLEM.workload, plan=plan, slice=PROBLEM.slice, stack=PROBLEM.stack)
    return replace(made, **changes)  # type: ignore[arg-type]


KEY = request().key("sources", TOOLS)


@pytest.mark.parametrize(
    "changed",
    [
        request(replace(PLAN, micro_batch=2)),
        request(replace(PLAN, remat="none")),
        request(workload=replace(PROBLEM.workload, seq_len=48)),
        request(workload=replace(PROBLEM.workload, architecture=replace(PROBLEM.workload.architecture, layers=7))),
        request(slice=parse_slice("v5p-32", CHIPS)),
        request(slice=parse_slice("2xv5p-16", CHIPS)),
        request(slice=parse_slice("v4-16", CHIPS)),
        request(stack=replace(PROBLEM.stack, shards_weights=())),
        request(flags=(("xla_tpu_scoped_vmem_limit_kib", "65536"),)),
        request(program="another:train_step"),
    ],
)
def test_whatever_changes_the_program_changes_the_key(changed: Request) -> None:
    assert changed.key("sources", TOOLS) != KEY


def test_sources_and_versions_are_part_of_the_key() -> None:
    assert request().key("other sources", TOOLS) != KEY
    assert request().key("sources", TOOLS | {"libtpu": "0.0.43"}) != KEY


@pytest.mark.parametrize(
    "same",
    [
        request(replace(PLAN, schedule="gpipe", virtual=2)),  # there is no pipeline
        request(replace(PLAN, zero=1)),  # there are no replicas
        request(stack=replace(PROBLEM.stack, sources={"remat": "read in a book"})),
        request(stack=STACKS["maxtext"]),  # its policy of this name saves the same
        request(slice=replace(PROBLEM.slice, chip=replace(PROBLEM.slice.chip, usd_per_chip_hour=99.0))),
    ],
)
def test_what_only_names_a_program_does_not(same: Request) -> None:
    assert same.key("sources", TOOLS) == KEY


def test_flags_count_in_any_order() -> None:
    flags = (("a", "1"), ("b", "2"))
    assert request(flags=flags).key("s", TOOLS) == request(flags=flags[::-1]).key("s", TOOLS)


PROGRAM = """HloModule jit_step, is_scheduled=true, frontend_attributes={fingerprint="FINGER"}

FileNames
1 "/somewhere/model.py"

%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%x, %y), metadata={op_name="jit(f)/{a}" stack_frame_id=LINE}
}
"""


def test_a_program_is_the_same_wherever_its_lines_come_from() -> None:
    one, other = (
        Build(status="complete", hlo=packed(PROGRAM.replace("FINGER", finger).replace("LINE", line)))
        for finger, line in (("aa", "1"), ("bb", "22"))
    )
    assert one.digest == other.digest
    assert one.digest != replace(one, hlo=packed(PROGRAM.replace("add(%x, %y)", "add(%x, %x)"))).digest
    assert Build(status="failed").digest == ""


def test_a_build_is_read_back_as_it_was_written() -> None:
    build = Build(status="complete", memory={"peak": 1}, hlo=packed("text"), seconds={"compile": 1.5}, peak_bytes=7)
    assert Build.from_dict(build.as_dict()) == build
    assert build.text == "text"


def test_a_users_own_settings_do_not_decide_what_is_compiled() -> None:
    environment = {"HOME": "/home/me", "XLA_FLAGS": "--a", "LIBTPU_INIT_ARGS": "--b", "JAX_ENABLE_X64": "1"}
    topology.prepare(environment)
    assert environment == {
        "HOME": "/home/me",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }


def test_a_lock_that_nobody_holds_is_removed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    assert clear_stale_lock(lock)
    assert not lock.exists()
    assert not clear_stale_lock(lock)


def test_a_lock_stays_while_its_owner_lives(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    # A process's own locks never stand in its way, so another one holds it.
    hold = (
        f"import fcntl, sys; f = open({str(lock)!r}, 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        assert not clear_stale_lock(lock)
        assert lock.exists()
        owner.communicate(b"\n")
    assert clear_stale_lock(lock)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open any file")
def test_another_users_lock_stays(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    lock.chmod(0)
    assert not clear_stale_lock(lock)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("v4-128", {"topology_name": "v4:4x4x4", "chip_config_name": "megacore"}),
        ("v5p-128", {"topology_name": "v5p:4x4x4"}),
        ("2xv5e-256", {"topology_name": "v5e:16x16", "num_slices": 2}),
        ("v6e-1", {"topology_name": "v6e:1x1", "chips_per_host_bounds": [1, 1, 1]}),
        ("tpu7x-8", {"topology_name": "tpu7x:2x2x1"}),
    ],
)
def test_how_slices_are_named_to_the_compiler(name: str, told: dict[str, object]) -> None:
    assert topology.tpu_description(parse_slice(name, CHIPS)) == told


def test_every_chip_has_a_compiler_or_a_reason() -> None:
    for chip in CHIPS.values():
        assert (chip.vendor in toolchain.PACKAGES and chip.name != "v3") or "no compiler" in toolchain.missing(chip)
        assert make_slice(chip, chip.shapes[0] if chip.kind == "tpu" else (chip.max_domain,)).devices


def test_what_is_not_installed_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "installed_version", lambda package: "" if package == "libtpu" else "1.0")
    assert toolchain.missing(CHIPS["v5p"]) == "hardware=v5p needs libtpu: pip install 'asap-ray[tpu]'"
    assert toolchain.missing(CHIPS["h100"]) == ""


def test_a_reason_is_one_line() -> None:
    assert reason(ValueError("\n  the first\tof   many\nlines")) == "the first of many"
    assert reason(ValueError()) == "ValueError"

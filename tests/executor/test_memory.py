"""What is left of memory, read from made-up kernels' files; and jobs that wait for it."""

from __future__ import annotations

from pathlib import Path

import executor_chores as chores
import pytest

from asap_ray.executor import fresh, local
from asap_ray.executor.memory import available_bytes, held_bytes
from asap_ray.tiers.protocol import Job

MIB = 2**20


def machine(root: Path, available_kb: int, groups: str) -> tuple[Path, Path]:
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {available_kb} kB\n")
    (root / "proc" / "self" / "cgroup").write_text(groups)
    return root / "proc", root / "cgroup"


def fill(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def test_a_machine_without_groups_gives_what_it_has(tmp_path: Path) -> None:
    assert available_bytes(*machine(tmp_path, 1000, "0::/\n")) == 1000 * 1024


def test_a_container_of_version_2_gives_its_limit_less_what_it_holds(tmp_path: Path) -> None:
    proc, groups = machine(tmp_path, 10**9, "0::/box/inner\n")
    fill(groups / "box", memory__max=100 * MIB, memory__current=70 * MIB, memory__stat=f"inactive_file {20 * MIB}")
    fill(groups / "box" / "inner", memory__max="max", memory__current=60 * MIB)
    assert available_bytes(proc, groups) == (100 - 70 + 20) * MIB


def test_a_container_of_version_1_does_too(tmp_path: Path) -> None:
    proc, groups = machine(tmp_path, 10**9, "9:cpu:/\n4:memory:/box\n0::/\n")
    stat = f"inactive_file {MIB}\ntotal_inactive_file {2 * MIB}"
    fill(groups / "memory" / "box", memory__limit_in_bytes=50 * MIB, memory__usage_in_bytes=45 * MIB, memory__stat=stat)
    assert available_bytes(proc, groups) == (50 - 45 + 2) * MIB


def test_where_nothing_says_there_is_no_limit(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "nowhere", tmp_path) == float("inf")
    assert held_bytes(None, tmp_path) == 0.0


def jobs(tmp_path: Path, count: int, memory_bytes: float) -> list[Job]:
    arguments = [(str(tmp_path), str(n)) for n in range(count)]
    return [
        Job(name=each[1], work=chores.overlaps, arguments=each, timeout_s=600.0, memory_bytes=memory_bytes)
        for each in arguments
    ]


@pytest.mark.parametrize("there", [0.0, 1.5e12])
def test_jobs_wait_until_the_memory_they_need_is_there(
    there: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each expects a terabyte: of 1.5 one job fits, of none still one runs, so that all end.
    monkeypatch.setattr(local, "available_bytes", lambda: there)
    assert [outcome.value for outcome in local.run(jobs(tmp_path, 3, 1e12), 3)] == [1, 1, 1]


def test_jobs_run_side_by_side_where_there_is_memory_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "available_bytes", lambda: 2.5e12)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    both = [
        Job(name="meet", work=chores.meet, arguments=each, timeout_s=600.0, memory_bytes=1e12)
        for each in ((a, b), (b, a))
    ]
    assert [outcome.value for outcome in local.run(both, 2)] == [True, True]


def test_what_an_isolated_job_writes_is_kept_and_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    (outcome,) = local.run([Job(name="loud", work=chores.loud, isolated=True)], 1)
    assert (outcome.status, outcome.value != 0) == ("complete", True)
    assert outcome.output == "on stdout\nfrom a library\n"
    assert capfd.readouterr() == ("", "")


def test_the_last_words_of_a_crash_are_kept() -> None:
    (outcome,) = local.run([Job(name="dies", work=chores.complains_and_dies, isolated=True)], 1)
    assert outcome.status == "failed"
    assert "SIGSEGV" in outcome.reason
    assert outcome.output.endswith("x" * 100 + "\nit ends here\n")
    assert len(outcome.output) == fresh.KEPT_BYTES

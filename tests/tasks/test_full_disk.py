"""The disk fills up amid a search: one line says so, what had finished is kept, and the same command goes on there."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asap_ray.tasks import compiling
from tests.tasks.pretend import Pretend

JOB = ("+model=tiny", "hardware=v5e-4", "budget.trials=7", "output=json")
FINISHED = 4
PAGE = 4096


@pytest.fixture(autouse=True)
def compilers_installed(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "installed", lambda setting, ours: True)


@contextlib.contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """No file of this process may grow beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def disk_of(size: int, where: Path) -> Iterator[None]:
    """A disk of its own for a folder, which is larger once it is left."""
    where.mkdir()
    pages = -(-size // PAGE)
    made = ["mount", "-t", "tmpfs", "-o", f"size={pages * PAGE}", "tmpfs", str(where)]
    if os.geteuid() or subprocess.run(made, capture_output=True).returncode:
        pytest.skip("a disk can be mounted by root alone")
    try:
        yield
        subprocess.run(["mount", "-o", "remount,size=16m", str(where)], check=True)
    except BaseException:
        subprocess.run(["umount", "-l", str(where)], check=True)
        raise


@pytest.mark.parametrize("kind", ["a small disk", "a limit on files"])
def test_a_disk_that_is_full_amid_a_search_loses_nothing_that_had_finished(
    command, pretend: type[Pretend], kind: str, request: pytest.FixtureRequest
) -> None:
    whole = command(*JOB, "run_dir=whole")
    assert whole.status == 0, whole.err
    size = size_after("tried", FINISHED)
    pretend.cache.clear()
    pretend.compiled.clear()
    run = Path("small")
    if kind == "a small disk":
        request.addfinalizer(lambda: subprocess.run(["umount", "-l", str(run.absolute())], capture_output=True))
    with disk_of(size, run) if kind == "a small disk" else files_end_at(size):
        ended = command(*JOB, "run_dir=small")
    assert (ended.status, ended.out) == (1, "")
    said = [line for line in ended.err.splitlines() if line.startswith("asap-ray: ")]
    assert len(said) == 1, ended.err
    assert said[0].startswith(f"asap-ray: run_dir={run.absolute()}: cannot write events.jsonl: ")
    assert "Traceback" not in ended.err
    kept = [line for line in (run / "events.jsonl").read_text().splitlines() if json.loads(line)["kind"] == "tried"]
    done = [json.loads(line)["finding"]["plan"] for line in kept]
    assert len(done) in (FINISHED, FINISHED + 1)  # a disk has whole pages
    pretend.cache.clear()
    pretend.compiled.clear()
    again = command(*JOB, "run_dir=small")
    assert again.status == 0, again.err
    assert set(pretend.compiled) & set(done) == set(), "what had finished is not run again"
    assert len(pretend.compiled) == 7 - len(done)
    first, second = json.loads(whole.out), json.loads(again.out)
    assert second["best"] == first["best"]
    assert second["trials"] == first["trials"]


def size_after(kind: str, nth: int) -> int:
    """Bytes of the ledger of the whole run up to the nth event of a kind, and a little more."""
    lines = Path("whole/events.jsonl").read_bytes().splitlines(keepends=True)
    place = [i for i, line in enumerate(lines) if json.loads(line)["kind"] == kind][nth - 1]
    return sum(map(len, lines[: place + 1])) + len(lines[place]) // 2

"""The memory on disk: nothing twice, nothing lost to a neighbour, nothing broken that stops a run."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest

from asap_ray import memory
from asap_ray.cases import Case
from asap_ray.memory import Added, Memory, Read, default_memory_dir
from tests.test_cases import CASE


def cases(count: int, start: int = 0) -> list[Case]:
    return [replace(CASE, step_time_s=1.0 + number) for number in range(start, start + count)]


def test_the_memory_lies_in_the_users_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_memory_dir() == tmp_path / "asap_ray" / "memory"
    monkeypatch.setenv("HOME", str(tmp_path))
    for relative in ("", "data"):  # the specification: a relative path is to be ignored
        monkeypatch.setenv("XDG_DATA_HOME", relative)
        assert default_memory_dir() == tmp_path / ".local" / "share" / "asap_ray" / "memory"


def test_nothing_is_made_before_there_is_a_case(tmp_path: Path) -> None:
    store = Memory(tmp_path / "memory")
    assert store.read() == Read()
    assert store.add([]) == Added()
    assert not store.folder.exists()


def test_cases_are_kept_in_order_and_none_twice(tmp_path: Path) -> None:
    store = Memory(tmp_path / "deep" / "memory")
    assert store.add(cases(3)) == Added(new=3)
    assert store.add(cases(4, start=1)) == Added(new=2)
    assert store.add(cases(5)) == Added()
    assert store.read() == Read(cases=tuple(cases(5)))
    assert store.path.read_bytes().count(b"\n") == 5


def test_a_torn_line_is_passed_over_and_the_next_one_is_whole(tmp_path: Path) -> None:
    store = Memory(tmp_path)
    store.add(cases(2))
    store.path.write_bytes(store.path.read_bytes()[:-40])
    assert store.read().cases == tuple(cases(1))
    assert "1 of 2 lines are no cases" in store.read().complaint
    assert store.add(cases(2)).new == 1
    assert store.read() == Read(cases=tuple(cases(2))), "the half is gone, with what was told of it"


def test_a_last_line_without_an_end_is_kept_if_it_is_a_case(tmp_path: Path) -> None:
    store = Memory(tmp_path)
    store.add(cases(2))
    store.path.write_bytes(store.path.read_bytes()[:-1])
    assert store.add(cases(3)).new == 1
    assert store.read() == Read(cases=tuple(cases(3)))


@pytest.mark.parametrize(
    "line",
    [
        b"\x00\xff\xfe",
        b"[" * 100_000,
        b"[" * 10_000 + b"]" * 10_000,
        b'{"plan": "../../etc/passwd"}',
        json.dumps({**CASE.as_dict(), "told": "x" * 20_000}).encode(),
        b"null",
        b"Infinity",
    ],
    ids=["bytes", "long", "deep", "foreign", "too long", "null", "infinite"],
)
def test_a_foreign_line_is_told_in_one_line_and_passed_over(tmp_path: Path, line: bytes) -> None:
    store = Memory(tmp_path)
    store.add(cases(1))
    store.path.write_bytes(line + b"\n" + store.path.read_bytes())
    found = store.read()
    assert found.cases == tuple(cases(1))
    assert found.complaint == f"agents.memory_dir={tmp_path}: cases.jsonl 1 of 2 lines are no cases and are passed over"


def test_a_file_that_cannot_be_read_is_told_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, pipe, large = Memory(tmp_path / "folder"), Memory(tmp_path / "pipe"), Memory(tmp_path / "large")
    folder.path.mkdir(parents=True)
    pipe.folder.mkdir()
    os.mkfifo(pipe.path)
    large.folder.mkdir()
    large.path.write_bytes(b"\n" * 1000)
    monkeypatch.setattr(memory, "MOST_READ", 999)
    for store in (folder, pipe, large):
        found = store.read()
        assert found.cases == ()
        assert found.complaint.startswith(f"agents.memory_dir={store.folder}: cases.jsonl cannot be read (")
        assert "\n" not in found.complaint
        added = store.add(cases(1))
        assert added.new == 0
        assert "cannot be" in added.complaint


def test_a_folder_that_cannot_be_made_is_told_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Memory(tmp_path / "file" / "memory")
    assert "cannot be read" in store.read().complaint
    assert "cannot be written" in store.add(cases(1)).complaint


def test_the_oldest_go_where_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = len(json.dumps(CASE.as_dict())) + 1
    monkeypatch.setattr(memory, "MOST_BYTES", 10 * line + line // 2)
    store = Memory(tmp_path)
    for number in range(10):
        store.add(cases(1, start=number))
    assert store.read().cases == tuple(cases(10))
    store.add(cases(1, start=10))  # an eleventh does not fit: as many as fill half stay
    assert store.read().cases == tuple(cases(5, start=6))
    assert store.path.stat().st_size <= memory.MOST_BYTES
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".draft"] == []


def test_a_lock_that_is_held_too_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PATIENCE_S", 0.1)
    store = Memory(tmp_path)
    with memory._locked(tmp_path / memory.LOCK):
        found = store.add(cases(1))
    assert found.new == 0
    assert "another command has been writing for too long" in found.complaint
    assert store.add(cases(1)).new == 1


def _write(folder: str, start: int) -> None:
    for number in range(start, start + 10):
        assert Memory(Path(folder)).add(cases(1, start=number)).new == 1


def test_writers_take_turns(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(str(tmp_path), 10 * i)) for i in range(3)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert [each.exitcode for each in writers] == [0, 0, 0]
    found = Memory(tmp_path).read()
    assert found.complaint == ""
    assert {case.id for case in found.cases} == {case.id for case in cases(30)}

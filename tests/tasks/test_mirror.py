"""Run directories on another file system: nothing finished is lost, another machine goes on, and one command writes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest

from asap_ray.errors import ConfigError
from asap_ray.ledger import NAME, Ledger
from asap_ray.remote import Remote, check_scheme, local_side
from asap_ray.tasks import mirror as mirroring
from asap_ray.tasks.fetching import fetch
from asap_ray.tasks.lease import LEASE_S, Lock
from asap_ray.tasks.lease import NAME as LOCK
from asap_ray.tasks.mirror import Mirror


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fsspec.filesystem("memory").rm("/", recursive=True) if fsspec.filesystem("memory").ls("/") else None


@pytest.fixture(params=["file", "memory"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Remote:
    return Remote.at({"file": f"file://{tmp_path}/there", "memory": "memory://bucket/there"}[request.param])


def mirror_of(remote: Remote, local: Path) -> Mirror:
    return Mirror(remote=remote, local=local, lock=Lock(remote=remote, settle_s=0.0), there=fetch(remote, local))


def lines(folder: Path) -> list[str]:
    return [each["kind"] for each in Ledger(folder).events()]


def test_what_was_flushed_is_there_on_another_machine_and_goes_on_there(remote: Remote, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "elsewhere"
    mirror = mirror_of(remote, here)
    for kinds in (("start", "trial"), ("tried",)):
        for kind in kinds:
            Ledger(here).append(kind, {})
        mirror.flush()
    with (here / NAME).open("ab") as file:  # the machine dies in the middle of a line
        file.write(b'{"kind": "tri')
    mirror.flush()
    shutil.rmtree(here)

    again = mirror_of(remote, there)
    assert lines(there) == ["start", "trial", "tried"]
    Ledger(there).append("answer", {})
    assert again.end() == ""
    # One file for each look while it went on, one for all when the command has ended; the lock is gone too.
    assert remote.names() == ["events/000000000000000.jsonl"]
    assert remote.read(remote.names()[0]) == (there / NAME).read_bytes()


def test_small_segments_are_put_together_while_a_command_goes_on(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirroring, "MOST_SMALL", 3)
    monkeypatch.setattr(mirroring, "SMALL_BYTES", 500)  # eight events or so
    here = tmp_path / "here" / "cell"
    here.mkdir(parents=True)
    mirror = mirror_of(remote, here.parent)
    most = 0
    for count in range(1, 31):
        Ledger(here).append(f"event {count}", {})
        mirror.flush()
        fetch(remote, tmp_path / "reader")
        assert lines(tmp_path / "reader" / "cell") == [f"event {each}" for each in range(1, count + 1)]
        most = max(most, len(remote.names()))
    assert most <= len((here / NAME).read_bytes()) / 500 + 4
    before = remote.read(remote.names()[0])
    assert mirror.end() == ""
    assert remote.read(remote.names()[0]) == before  # what is large is not written again
    assert mirror_of(remote, tmp_path / "elsewhere").there.bounds == mirror.there.bounds


class Changing:
    """A folder whose writer puts segments together just before one of them is read."""

    def __init__(self, remote: Remote, mirror: Mirror) -> None:
        self.remote, self.mirror, self.names = remote, mirror, remote.names

    def read(self, name: str) -> bytes | None:
        if not name.endswith("/000000000000000.jsonl"):
            assert self.mirror.end() == ""
        return self.remote.read(name)


def test_who_reads_while_segments_are_put_together_reads_them_all(remote: Remote, tmp_path: Path) -> None:
    mirror = mirror_of(remote, tmp_path / "here")
    for kind in ("start", "trial", "tried"):
        Ledger(tmp_path / "here").append(kind, {})
        mirror.flush()
    assert len(remote.names()) == 3
    fetch(Changing(remote, mirror), tmp_path / "reader")  # type: ignore[arg-type]
    assert lines(tmp_path / "reader") == ["start", "trial", "tried"]


def test_segments_that_lost_their_place_and_names_that_are_no_path_of_ours_are_passed_over(tmp_path: Path) -> None:
    remote = Remote.at(f"file://{tmp_path}/there")
    for name in ("events/000000000000099.jsonl", "events/first.jsonl", ".draft", "a/.draft"):
        remote.write(name, b"{}\n")
    (tmp_path / "there" / "events" / "000000000000000.jsonl").write_bytes(b'{"kind": "start"}\n')

    class Foreign:
        read = remote.read

        def names(self) -> list[str]:
            return [*remote.names(), "../outside", "a/../../outside"]

    (tmp_path / "outside").write_text("mine")
    found = fetch(Foreign(), tmp_path / "here" / "in it")  # type: ignore[arg-type]
    assert found.bounds == {NAME: [0, 18]}
    assert list(found.changed) == ["events/first.jsonl"]
    assert (tmp_path / "outside").read_text() == "mine"


def test_events_that_only_this_machine_holds_are_kept_and_put_out(remote: Remote, tmp_path: Path) -> None:
    here = tmp_path / "here"
    mirror = mirror_of(remote, here)
    Ledger(here).append("start", {})
    mirror.flush()
    Ledger(here).append("tried", {})  # killed before the next look
    assert mirror_of(remote, here).end() == ""
    fetch(remote, tmp_path / "elsewhere")
    assert lines(tmp_path / "elsewhere") == ["start", "tried"]


def test_where_another_machine_went_on_its_events_count_and_ours_lie_beside_them(
    remote: Remote, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "elsewhere"
    mirror = mirror_of(remote, here)
    Ledger(here).append("start", {})
    mirror.flush()
    Ledger(here).append("ours", {})
    other = mirror_of(remote, there)
    Ledger(there).append("theirs", {})
    assert other.end() == ""
    fetch(remote, here)
    assert lines(here) == ["start", "theirs"]
    (aside,) = here.glob("events.aside-*")
    assert [json.loads(line)["kind"] for line in aside.read_text().splitlines()] == ["start", "ours"]


def test_files_and_ledgers_below_come_along(remote: Remote, tmp_path: Path) -> None:
    here = tmp_path / "here"
    mirror = mirror_of(remote, here)
    (here / "cells" / "a").mkdir(parents=True)
    Ledger(here / "cells" / "a").append("start", {})
    (here / "report.html").write_text("<p>")
    (here / ".draft").write_text("no")
    assert mirror.end() == ""
    fetch(remote, tmp_path / "elsewhere")
    assert lines(tmp_path / "elsewhere" / "cells" / "a") == ["start"]
    found = {path.name for path in (tmp_path / "elsewhere").rglob("[!.]*") if path.is_file()}
    assert found == {NAME, "report.html"}


def test_files_that_are_there_already_are_not_put_out_again(tmp_path: Path) -> None:
    place, here = tmp_path / "there", tmp_path / "here"
    remote = Remote.at(f"file://{place}")
    mirror = mirror_of(remote, here)
    (here / "report.html").write_text("<p>")
    (here / "memory").mkdir()
    (here / "memory" / "cases.jsonl").write_text("one")
    mirror._put_files(only=("cases.jsonl",))  # what was learnt is there before the end
    assert remote.names() == ["memory/cases.jsonl"]
    assert mirror.end() == ""
    written = {path: path.stat().st_mtime_ns for path in place.rglob("*.*")}
    again = mirror_of(remote, here)
    (here / "memory" / "cases.jsonl").write_text("one, two")
    assert again.end() == ""
    assert {path.name for path, at in written.items() if path.stat().st_mtime_ns != at} == {"cases.jsonl"}


def test_who_looks_on_where_the_run_is_takes_nothing_from_out_there(command: Any, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/there"
    words = ("+model=tiny", "hardware=v5e-4", "tiers=[roofline]", f"run_dir={uri}", "output=json")
    assert command(*words).status == 0
    newer = local_side(uri) / "report.html"
    newer.write_text("of a run that goes on")
    held = {"token": "x", "host": socket.gethostname(), "pid": os.getppid(), "at": time.time()}
    (tmp_path / "there" / LOCK).write_text(json.dumps(held))
    assert command("task=show", f"run_dir={uri}", "output=json").status == 0
    assert newer.read_text() == "of a run that goes on"
    assert command("task=doctor", f"run_dir={uri}", "output=json").status in (0, 1)  # it needs no folder


def test_a_machine_that_slept_looks_who_writes_now_before_it_writes_on(remote: Remote) -> None:
    clock = [1000.0]
    sleeper = Lock(remote=remote, settle_s=0.0, now=lambda: clock[0])
    sleeper.take()
    assert sleeper.keep()
    clock[0] += 3600.0
    Lock(remote=remote, settle_s=0.0, now=lambda: clock[0]).take()
    assert not sleeper.keep()


def test_whatever_a_client_raises_is_told_in_one_line(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(Exception):
        pass

    def refuse(*_: Any, **__: Any) -> Any:
        raise Refused("no credentials")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "find", refuse)
    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "_open", refuse)
    told = command("+model=tiny", "hardware=v5e-4", "run_dir=memory://bucket/there")
    assert (told.status, told.err.count("\n")) == (1, 1)
    assert "Refused: no credentials" in told.err


def test_one_command_writes_at_a_time(remote: Remote) -> None:
    clock = [1000.0]
    first = Lock(remote=remote, settle_s=0.0, now=lambda: clock[0])
    second = Lock(remote=remote, settle_s=0.0, now=lambda: clock[0])
    first.take()
    with pytest.raises(ConfigError, match="no other command writes to now"):
        second.take()
    clock[0] += LEASE_S - 1
    first.renew()
    clock[0] += LEASE_S - 1  # renewed since
    with pytest.raises(ConfigError):
        second.take()
    clock[0] += 2
    second.take()
    assert first.lost()
    first.give()  # not its own any more
    assert json.loads(remote.read(LOCK) or b"")["token"] == second.token
    second.give()
    assert remote.names() == []


def test_a_process_of_this_machine_that_is_gone_holds_nothing(remote: Remote) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    held = Lock(remote=remote, settle_s=0.0)
    held.renew()
    told = json.loads(remote.read(LOCK) or b"")
    remote.write(LOCK, json.dumps({**told, "token": "other", "pid": ended.pid}).encode())
    Lock(remote=remote, settle_s=0.0).take()


def test_a_ledger_is_followed_while_it_grows(remote: Remote, tmp_path: Path) -> None:
    here = tmp_path / "here"
    mirror = mirror_of(remote, here)
    mirror.lock.take()
    mirror.start()
    Ledger(here).append("start", {})
    until = time.monotonic() + 20.0
    while len(remote.names()) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert remote.names() == ["events/000000000000000.jsonl", LOCK]
    assert mirror.end() == ""


def test_a_file_of_a_disk_is_never_seen_half_written(tmp_path: Path) -> None:
    remote = Remote.at(f"file://{tmp_path}/there")
    remote.write("a/b.txt", b"one")
    remote.write("a/b.txt", b"two")
    assert remote.read("a/b.txt") == b"two"
    assert os.listdir(tmp_path / "there" / "a") == ["b.txt"]


@pytest.mark.parametrize("uri", ["nosuch://a/b", "s4://bucket/x"])
def test_a_scheme_that_nobody_knows_is_one_line(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"run_dir=.*s3://"):
        check_scheme("run_dir", uri)


def test_the_main_job_runs_there_and_another_machine_tells_of_it(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{tmp_path}/there"
    told = command("+model=tiny", "hardware=v5e-4", "tiers=[roofline]", f"run_dir={uri}", "output=json")
    assert told.status == 0, told.err
    names = {path.name for path in (tmp_path / "there").iterdir()}
    assert {"events", "report.html", "summary.json"} <= names
    assert LOCK not in names
    assert local_side(uri).is_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    shown = command("task=show", f"run_dir={uri}", "output=json")
    assert shown.status == 0, shown.err
    assert json.loads(shown.out)["state"] == "finished"


def test_a_place_that_cannot_be_written_to_ends_in_one_line(command: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = command("+model=tiny", "hardware=v5e-4", f"run_dir=file://{tmp_path}/file/there")
    assert told.status == 1
    assert told.err.startswith("asap-ray: run_dir=file://")
    assert told.err.count("\n") == 1


def test_a_bad_scheme_ends_in_one_line(command: Any) -> None:
    told = command("+model=tiny", "hardware=v5e-4", "run_dir=nosuch://a/b")
    assert (told.status, told.err.count("\n")) == (1, 1)
    assert "run_dir=nosuch://a/b" in told.err

"""The ledger: what was appended is there, in order, whatever happens to the process or the disk."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from asap_ray.errors import AsapError, ConfigError
from asap_ray.ledger import NAME, Ledger


def numbers(ledger: Ledger) -> list[int]:
    return [event["n"] for event in ledger.events()]


def test_events_come_back_in_order_and_by_kind(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for n, kind in enumerate(("trial", "verdict", "trial")):
        ledger.append(kind, {"n": n, "text": "line\nbreak \u2028 ü"})
    assert numbers(ledger) == [0, 1, 2]
    assert [event["n"] for event in Ledger(tmp_path).events("trial")] == [0, 2]
    assert next(ledger.events())["text"] == "line\nbreak \u2028 ü"
    assert {"kind", "at"} < set(next(ledger.events()))
    assert (tmp_path / NAME).read_bytes().count(b"\n") == 3, "one line an event"


def test_numpy_numbers_stay_numbers_and_paths_become_text(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append("trial", {"n": np.int64(3), "s": np.float32(0.5), "fits": np.bool_(True), "at_path": Path("/a")})
    (event,) = ledger.events()
    assert (event["n"], event["s"], event["fits"], event["at_path"]) == (3, 0.5, True, "/a")


def test_what_is_not_finite_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        ledger.append("trial", {"n": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_no_file_and_an_empty_file_hold_no_events(tmp_path: Path) -> None:
    assert list(Ledger(tmp_path).events()) == []
    (tmp_path / NAME).touch()
    ledger = Ledger(tmp_path)
    assert list(ledger.events()) == []
    ledger.append("trial", {"n": 0})
    assert numbers(ledger) == [0]
    assert not (tmp_path / "events.torn").exists()


@pytest.mark.parametrize("torn", [b"{", b'{"kind": "trial", "n": 1}', b'{"kind": "\xc3'])
def test_a_torn_last_line_is_passed_over_then_cut_off_and_kept(tmp_path: Path, torn: bytes) -> None:
    Ledger(tmp_path).append("trial", {"n": 0})
    path = tmp_path / NAME
    with path.open("ab") as file:
        file.write(torn)
    before = path.read_bytes()
    ledger = Ledger(tmp_path)
    assert numbers(ledger) == [0]
    assert path.read_bytes() == before, "a reader changes nothing: the line may be one that is being written"
    ledger.append("trial", {"n": 2})
    assert numbers(ledger) == [0, 2]
    assert (tmp_path / "events.torn").read_bytes() == torn + b"\n"


def test_every_torn_line_is_kept(tmp_path: Path) -> None:
    for torn in (b"first", b"second"):
        with (tmp_path / NAME).open("ab") as file:
            file.write(torn)
        Ledger(tmp_path).append("trial", {"n": 0})
    assert (tmp_path / "events.torn").read_text().split() == ["first", "second"]


def test_a_full_disk_is_one_error_and_leaves_the_ledger_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path)
    ledger.append("trial", {"n": 0})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(AsapError, match=r"run_dir=.*cannot write events.jsonl: No space left on device"):
            ledger.append("trial", {"n": 1})
    assert numbers(ledger) == [0]
    ledger.append("trial", {"n": 2})
    assert numbers(ledger) == [0, 2]


def test_a_line_that_is_cut_short_by_a_limit_is_taken_back(tmp_path: Path) -> None:
    # A real short write: the file may grow to 1,000 bytes, so the second event can only be written in part.
    script = """
import resource, signal, sys
from pathlib import Path
from asap_ray.errors import AsapError
from asap_ray.ledger import Ledger

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ledger = Ledger(Path(sys.argv[1]))
ledger.append("trial", {"n": 0})
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for size in (2000, 2000):
    try:
        ledger.append("trial", {"n": 1, "text": "x" * size})
    except AsapError as error:
        print(error)
ledger.append("trial", {"n": 2})
"""
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert ended.stdout.count("cannot write events.jsonl") == 2
    assert numbers(Ledger(tmp_path)) == [0, 2]


def test_a_directory_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(AsapError, match="cannot write"):
        Ledger(tmp_path / "gone").append("trial", {"n": 0})


def test_a_reader_beside_a_writer_sees_whole_events_only(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from asap_ray.ledger import Ledger

ledger = Ledger(Path(sys.argv[1]))
for n in range(300):
    ledger.append("trial", {"n": n, "text": "x" * 20_000})
"""
    writer = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    seen = 0
    while writer.poll() is None:
        found = numbers(Ledger(tmp_path))
        assert found == list(range(len(found)))
        assert len(found) >= seen
        seen = len(found)
    assert writer.returncode == 0
    assert numbers(Ledger(tmp_path)) == list(range(300))


def test_a_writer_killed_at_any_moment_loses_nothing_that_returned(tmp_path: Path) -> None:
    # The writer says each number after append has returned; it is killed while it writes, again and again.
    script = """
import sys
from pathlib import Path
from asap_ray.ledger import Ledger

ledger = Ledger(Path(sys.argv[1]))
n = sum(1 for _ in ledger.events())
while True:
    ledger.append("trial", {"n": n, "text": "x" * 100_000})
    print(n, flush=True)
    n += 1
"""
    for rounds in (1, 7, 20):
        writer = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(rounds)]
        writer.send_signal(signal.SIGKILL)
        told += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
        writer.wait()
        writer.stdout.close()
        found = numbers(Ledger(tmp_path))
        assert found[: told[-1] + 1] == list(range(told[-1] + 1))
        assert len(found) <= told[-1] + 2, "at most the one that was being written is there untold"
    Ledger(tmp_path).append("trial", {"n": -1})
    for line in (tmp_path / NAME).read_text().splitlines():
        json.loads(line)


@pytest.mark.parametrize("line", ["garbage", "3", "[1]", '{"a": 1}', '{"kind": 4}', "\0\0", "\udcff"])
def test_a_line_amid_it_that_is_no_event_is_named(tmp_path: Path, line: str) -> None:
    ledger = Ledger(tmp_path)
    ledger.append("trial", {"n": 0})
    with ledger.path.open("ab") as file:
        file.write(line.encode(errors="surrogateescape") + b"\n")
    ledger.append("trial", {"n": 2})
    with pytest.raises(ConfigError, match=r"^run_dir=.*\(line 2 is no event\)"):
        list(ledger.events())


def test_a_folder_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(ConfigError, match="directory"):
        list(Ledger(tmp_path).events())


def test_a_directory_has_one_writer_until_that_has_ended_however(tmp_path: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
from asap_ray.ledger import Ledger
ledger = Ledger(Path({str(tmp_path)!r}))
ledger.claim()
print("claimed", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "claimed\n"
        with pytest.raises(ConfigError, match="no other command writes to"):
            Ledger(tmp_path).claim()
        assert list(Ledger(tmp_path).events()) == [], "who reads claims nothing"
        other.kill()
    Ledger(tmp_path).claim()

"""Faults, each struck at a moment that is drawn: after so many events of a command, and a little later.

A fault returns whether it struck, and says whether the command is to end by it. Nothing waits on the clock for luck: a
command that ends before its moment is started again with another.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.soak.processes import Running, called, marked, parent_of
from tests.soak.study import Study

PARTS = ("raylet", "gcs_server", "asap_ray.executor.ray_host")
DISK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Fault:
    """`strike` does it, and returns whether it could; `ends` are the exit statuses with which the command may end by
    it (none: it goes on), and `says` what the one line of the error must hold. `mend` is done when that has ended."""

    strike: Callable[[Study, Running], bool]
    ends: tuple[int, ...] = ()
    says: str = ""
    mend: Callable[[Study], None] = lambda study: None
    amid_trials: bool = False


def _kill(study: Study, running: Running) -> bool:
    running.kill()
    return running.status == -signal.SIGKILL  # else it had ended just before


def _tear(study: Study) -> None:
    """Cut the last line short, or let half of a next one follow: as a crash leaves it."""
    lines, size = study.size
    if not lines:
        return
    last = len(study.ledger.read_bytes().split(b"\n")[-2]) + 1
    with study.ledger.open("r+b") as file:
        if study.random.random() < 0.7:
            file.truncate(size - study.random.randrange(1, last))
        else:
            file.seek(0, os.SEEK_END)
            file.write(study.random.choice([b'{"kind": "tri', b"\0" * 512, b'{"kind": "stop"}', b"\xff\xfe"]))


def _fill(study: Study, running: Running) -> bool:
    if not study.on_disk:
        running.end_files_at(study.size[1] + study.random.randrange(4000))
        return True
    with _filler(study).open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096) == 4096:
                pass
        except OSError:
            pass
        file.truncate(max(0, file.tell() - 4096 * study.random.randrange(4)))
    return True


def _empty(study: Study) -> None:
    _filler(study).unlink(missing_ok=True)


def _filler(study: Study) -> Path:
    return study.place / "filler"


def _skew(study: Study, running: Running) -> bool:
    off = study.random.choice([-1, 1]) * 10 ** study.random.uniform(-1, 8)
    draft = study.clock.with_suffix(".new")
    draft.write_text(str(off))
    draft.replace(study.clock)
    return True


def _twice(study: Study, running: Running) -> bool:
    second = study.another("second")
    if not second.wait() or running.ended:
        return False
    if second.status != 1 or "no other command writes to now" not in second.errors:
        study.problems.append(f"a second command ended with {second.status}: {second.errors[-300:]}")
    return True


def _kill_model(study: Study, running: Running) -> bool:
    study.serve()
    study.server.kill()
    study.server.wait()
    return True


def _stop_model(study: Study, running: Running) -> bool:
    study.serve()
    study.server.send_signal(signal.SIGSTOP)
    return True


def _garble_model(study: Study, running: Running) -> bool:
    study.serve()
    study.garble.write_text(str(study.random.randrange(100)))
    return True


def _kill_worker(study: Study, running: Running) -> bool:
    """A worker of Ray, one that has a job."""
    workers = [pid for pid in marked(str(study.place)) if called(pid).startswith("ray::")]
    return _kill_one(study, sorted({parent_of(pid) for pid in marked(str(study.place))} & set(workers)) or workers)


def _kill_part(study: Study, running: Running) -> bool:
    part = study.random.choice(PARTS)
    return _kill_one(study, [pid for pid in marked(str(study.place)) if part in called(pid).split("--", 1)[0]])


def _kill_one(study: Study, pids: list[int]) -> bool:
    if not pids:
        return False
    try:
        os.kill(study.random.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


FAULTS = {
    "command killed": Fault(_kill, ends=(-9,)),
    "command killed, last line torn": Fault(_kill, ends=(-9,), mend=_tear),
    "disk full": Fault(_fill, ends=(1, 0), says="run_dir=", mend=_empty),
    "clock set": Fault(_skew),
    "command started twice": Fault(_twice),
    "model killed": Fault(_kill_model),
    "model hung": Fault(_stop_model),
    "model garbled": Fault(_garble_model),
    "Ray worker killed": Fault(_kill_worker, amid_trials=True),
    "Ray's raylet, gcs or host killed": Fault(_kill_part, ends=(1,), says="Ray was lost", amid_trials=True),
}


def reach(study: Study, running: Running, since: int, events: int, delay_s: float) -> bool:
    """Wait until a command has written so many events, and a little longer; False where it has ended by then."""
    seen = -1
    while not running.ended:
        now = study.ledger.stat().st_size if study.ledger.exists() else 0
        if now != seen:
            seen = now
            if study.size[0] - since >= events:
                time.sleep(delay_s)
                return not running.ended
        time.sleep(0.001)
    return False


@contextmanager
def disk(place: Path) -> Iterator[bool]:
    """A small disk at a place, where this process may mount one."""
    import subprocess

    place.mkdir(parents=True)
    made = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    mounted = not os.geteuid() and subprocess.run(made, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=True)

"""One study under soak: its folders, its command, what it has on record, and what must hold once it is over."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.soak.command import CLOCK, EXECUTOR, MEASURED, TRIAL_S
from tests.soak.model_server import KEY
from tests.soak.processes import MARK, Running, marked, start

ROOT = Path(__file__).parents[2]
JOB = ("+model=tiny", "hardware=v5e-4", "tiers=[roofline,compile]", "output=json", "budget.minutes=60")
FEW = "space.fix={remat: full, attention: flash, accumulation: 1, pipeline: 1, tensor: 1, expert: 1}"
"""Eight plans: a search that tries all ends alike whoever chooses."""
SETTLE_S = 60.0
"""How long processes may take to be gone once their command was killed."""
Values = dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How studies are run, with what is done to them: one fault after the other, in an order that is drawn."""

    executor: str
    trial_s: float
    faults: tuple[str, ...]
    words: tuple[str, ...] = (*JOB, "budget.trials=8", "agents=playbook")
    model: bool = False

    @property
    def reference(self) -> str:
        """Studies of one such name come to the same."""
        return "model" if self.model else "plain"


@dataclass(kw_only=True)
class Study:
    """A run directory with all else that its command may write to, in `place`; what the soak keeps is beside it."""

    kind: Kind
    place: Path
    random: Random
    on_disk: bool = False
    """Whether `place` is a small disk of its own."""
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    ever: Values = field(default_factory=dict)
    """What had finished whenever a command was started."""
    runs: int = 0
    _port: int = 0
    _server: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.kept = self.place.with_suffix(".log")
        self.kept.mkdir(parents=True, exist_ok=True)
        self._make()
        self.run_dir, self.ledger = self.place / "run", self.place / "run" / "events.jsonl"
        self.clock, self.garble, self.measured = (self.kept / name for name in ("clock", "garble", "measured"))
        self.measured.touch()
        if self.kind.model:
            self._port = _free_port()

    def _make(self) -> None:
        for name in ("data", "cache", "t"):
            (self.place / name).mkdir(parents=True, exist_ok=True)

    def anew(self) -> None:
        """Throw away all that its commands have written, so that the next one has everything before it."""
        for path in self.place.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._make()
        self.measured.write_text("")
        self.ever = {}
        self.counts["begun anew"] += 1

    @property
    def words(self) -> list[str]:
        words = [*self.kind.words, f"run_dir={self.run_dir}"]
        if self.kind.model:
            words += ["agents=llm", f"llm.base_url=http://127.0.0.1:{self._port}/v1", "llm.model=m"]
            words += ["llm.timeout_s=0.5", FEW]
        return words

    def begin(self) -> Running:
        """Start the command, the first time or once more."""
        if self.kind.model:
            self.serve()
        self.ever |= self.finished()
        self.runs += 1
        return self.another()

    def another(self, name: str = "run") -> Running:
        """Start the same command, whatever else runs."""
        folders = {"TMPDIR": "t", "XDG_DATA_HOME": "data", "XDG_CACHE_HOME": "cache"}
        environ = {
            **{name: each for name, each in os.environ.items() if not name.startswith("RAY_")},
            **{name: str(self.place / each) for name, each in folders.items()},
            **{MARK: str(self.place), EXECUTOR: self.kind.executor, TRIAL_S: str(self.kind.trial_s)},
            **{MEASURED: str(self.measured), CLOCK: str(self.clock), "OPENAI_API_KEY": KEY},
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        forked = self.kind.executor != "ray"
        return start(self.words, environ, self.kept / f"{name}{self.runs}.out", forked=forked)

    def events(self) -> list[dict[str, Any]]:
        """Whole lines of the ledger."""
        try:
            lines = self.ledger.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    @property
    def size(self) -> tuple[int, int]:
        """Whole lines and bytes of the ledger."""
        with contextlib.suppress(FileNotFoundError):
            data = self.ledger.read_bytes()
            return data.count(b"\n"), len(data)
        return 0, 0

    def finished(self) -> Values:
        """Steps of the plans whose trials are on record, those left out that Ray has lost."""
        return values(each for each in self.events() if each["kind"] == "tried" and not each["finding"]["lost"])

    def check_measured(self, before: int) -> None:
        """Nothing that had finished when the last command was started was measured by it."""
        plans = self.measured.read_text().splitlines()[before:]
        if again := [plan for plan in plans if plan in self.ever]:
            self.counts["repeated"] += len(again)
            self.problems.append(f"measured again: {again}")

    def settle(self) -> None:
        """Wait until all that the command had started is gone, but for the model's server."""
        limit = time.monotonic() + SETTLE_S
        while (left := self.left_running()) and time.monotonic() < limit:
            time.sleep(0.01)
        if left:
            self.counts["left behind"] += len(left)
            self.problems.append(f"processes left: {left}")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def left_running(self) -> list[int]:
        server = self._server.pid if self._server else None
        return [pid for pid in marked(str(self.place)) if pid != server]

    @property
    def server(self) -> subprocess.Popen[bytes]:
        assert self._server is not None
        return self._server

    def serve(self) -> None:
        """Let the model be there, and sound."""
        self.garble.unlink(missing_ok=True)
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(signal.SIGCONT)
            return
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.model_server", str(self._port), str(self.garble)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout is not None
        with self._server.stdout as told:
            told.readline()

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()


def values(tried: Any) -> Values:
    """Steps by plan, of events of trials."""
    found: Values = {}
    for event in tried:
        estimate = event["estimate"]
        found.setdefault(event["finding"]["plan"], estimate and estimate["step_time_s"])
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

"""Gives a reader its inputs, and counts what it did with them: refused, accepted, crashed; in what time and memory."""

from __future__ import annotations

import contextlib
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from asap_ray.errors import AsapError

LIMIT_S = 10.0
"""Seconds of a core that one input may take: none comes near it, and what grows without bound does."""
LONGEST_LINE = 12_000
"""Characters of an error at most: the longest lists what is allowed."""
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class TooSlowError(BaseException):
    """An input took longer than it may; no reader may catch this."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A way in for what others wrote.

    `inputs` are near-sound inputs, `bombs` those that ask for much time or memory. `own` are the errors that the reader
    says it raises. `share` is the part of a run's examples that it gets: what costs more is tried less.
    """

    name: str
    read: Callable[[Any], object]
    inputs: st.SearchStrategy[Any]
    bombs: Sequence[Any] = ()
    own: tuple[type[Exception], ...] = (AsapError,)
    share: float = 1.0


@dataclass(kw_only=True)
class Figures:
    """What became of a reader's inputs."""

    name: str
    examples: int = 0
    refused: int = 0
    accepted: int = 0
    peak_mb: float = 0.0
    slowest_ms: float = 0.0
    crashes: dict[str, str] = field(default_factory=dict)

    def add(self, reader: Reader, value: Any) -> None:
        """Read one input."""
        self.examples += 1
        begun = time.process_time()
        try:
            with within(LIMIT_S):
                reader.read(value)
            self.accepted += 1
        except reader.own as error:
            self.refused += 1
            if fault := unfit(str(error)):
                self._crashed(f"{fault}: {str(error)[:200]!r}", value)
        except (TooSlowError, Exception) as error:
            self._crashed(f"{type(error).__name__}: {str(error)[:200]!r} at {_place(error)}", value)
        self.slowest_ms = max(self.slowest_ms, 1e3 * (time.process_time() - begun))

    def _crashed(self, what: str, value: Any) -> None:
        kind = what.partition(":")[0] + what.rpartition(" at ")[2]
        text = f"{what}\n  of {value!r}"
        if kind not in self.crashes or len(text) < len(self.crashes[kind]):
            self.crashes[kind] = text


def fuzz(reader: Reader, examples: int, at: int, *, bombs: bool = True) -> Figures:
    """Read the bombs, unless these are left out, and that many inputs, the same for the same seed."""
    found = Figures(name=reader.name)
    before_mb = reset_peak()
    for bomb in reader.bombs if bombs else ():
        found.add(reader, bomb() if callable(bomb) else bomb)

    @seed(at)
    @settings(
        max_examples=max(1, round(examples * reader.share)),
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(reader.inputs)
    def each(value: Any) -> None:
        found.add(reader, value)

    each()
    found.peak_mb = max(0.0, peak_mb() - before_mb)
    return found


def unfit(text: str) -> str:
    """Why an error's text cannot be shown as it is; empty where it can."""
    if not text.strip():
        return "Empty message"
    if not text.isprintable():
        return "Unprintable message"
    return "Long message" if len(text) > LONGEST_LINE else ""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """End what takes more of a core than that, patterns that backtrack included."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TooSlowError(f"over {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def reset_peak() -> float:
    """Forget the most memory that this process has held; gives what it holds now, in MB."""
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")
    return _held("VmRSS")


def peak_mb() -> float:
    """The most memory held since then."""
    return _held("VmHWM")


def _held(name: str) -> float:
    line = next((line for line in _STATUS.read_text().splitlines() if line.startswith(name)), "x 0")
    return int(line.split()[1]) / 1024


def _place(error: BaseException) -> str:
    """The innermost line of the package that an error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if "/asap_ray/" in each.filename] or frames[-1:]
    return f"{own[-1].filename.rpartition('/asap_ray/')[2]}:{own[-1].lineno}" if own else "?"

"""Follows the log of a trainer: its steps, the plan that it shows, and how it says that memory or numbers failed.

Patterns are the user's data. A line is matched by itself, cut to a bounded length, and a deadline ends a pattern that
backtracks without end.
"""

from __future__ import annotations

import contextlib
import math
import re
import signal
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType

from asap_ray.tiers.template import Log

LONGEST_LINE = 2000
"""Characters of a line that are looked at."""
TAIL = 20
"""Lines that are kept of the end of a log."""
SLOW_S = 5.0
"""Seconds that the patterns may take for one piece of a log."""
UNITS: Mapping[str, float] = {
    unit + tail: 1024.0 ** (power + 1)
    for power, unit in enumerate("kmgt")
    for tail in ("", "b", "ib", "ibyte", "ibytes", "byte", "bytes")
} | dict.fromkeys(("", "b", "byte", "bytes"), 1.0)
"""Bytes of a unit, in lower case: logs of trainers mean powers of 1024."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_END = re.compile(rb"[\r\n]+")


class SlowPatternError(Exception):
    """A pattern takes too long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A step as the log has it: its number, its seconds, half of what the last digit written stands for, its loss."""

    number: int
    seconds: float
    rounding_s: float = 0.0
    loss: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What a log is read with: the patterns, the value that each placeholder has in the trainer's words, which lines
    must show the plan, and what turns a rate into seconds."""

    log: Log
    wanted: Mapping[str, str]
    plan_used: tuple[str, ...]
    tokens_per_step: float
    devices: int


@dataclass(kw_only=True)
class Follower:
    """Takes a log piece by piece."""

    reading: Reading
    steps: dict[int, Step] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    other: dict[str, str] = field(default_factory=dict)
    oom: dict[str, float] | None = None
    oom_line: str = ""
    diverged: str = ""
    peak_bytes: float = 0.0
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))
    matching: str = ""

    def __post_init__(self) -> None:
        """Compile the patterns."""
        log = self.reading.log
        self._step = re.compile(log.step)
        self._oom, self._memory = _compiled(log.oom), _compiled(log.memory)
        self._diverged, self._used = _compiled(log.diverged), _compiled(self.reading.plan_used)
        self._unseen = set(self._used)
        self._rest = b""

    @property
    def unseen(self) -> list[str]:
        """Patterns of lines that must show the plan and have not come."""
        return [each.pattern for each in self._used if each in self._unseen]

    def take(self, piece: bytes) -> None:
        """Read on.

        Raises:
            SlowPatternError: a pattern does not come to an end; the text names it.
        """
        *lines, self._rest = _END.split(self._rest + piece)
        self._rest = self._rest[: 4 * LONGEST_LINE]  # a line without end is its beginning
        try:
            with _within(SLOW_S):
                for line in lines:
                    self._line(line)
        except SlowPatternError:
            raise SlowPatternError(
                f"the pattern {self.matching} takes over {SLOW_S:g} s for a line of its log"
            ) from None

    def finish(self) -> None:
        """Read a last line that has no end."""
        self.take(b"\n")

    def _line(self, raw: bytes) -> None:
        line = _COLOUR.sub("", raw.decode(errors="replace"))[:LONGEST_LINE]
        if not line.strip():
            return
        self.tail.append(line)
        for pattern in self._used:
            if found := self._search(pattern, line):
                self._unseen.discard(pattern)
                self._compare(found)
        for pattern in self._oom:
            if not self.oom and (found := self._search(pattern, line)):  # one with sizes says more than one without
                self.oom, self.oom_line = _sizes(found), line
        for pattern in self._diverged:
            if self._search(pattern, line):
                self.diverged = self.diverged or line
        for pattern in self._memory:
            if found := self._search(pattern, line):
                self.peak_bytes = max(self.peak_bytes, _sizes(found).get("peak", 0.0))
        if found := self._search(self._step, line):
            self._take_step(found)

    def _search(self, pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
        self.matching = pattern.pattern
        return pattern.search(line)

    def _compare(self, found: re.Match[str]) -> None:
        for name, text in found.groupdict().items():
            if text is None:
                continue
            self.shown[name] = text
            if not alike(text, self.reading.wanted.get(name, "")):
                self.other[name] = text

    def _take_step(self, found: re.Match[str]) -> None:
        groups = found.groupdict()
        number = _number(groups.get("step"))
        at = int(number) if number is not None and math.isfinite(number) else len(self.steps)
        timed = self._seconds(groups)
        if timed is None or at in self.steps:  # every rank may write the same line
            return
        loss = _number(groups.get("loss"))
        self.steps[at] = Step(number=at, seconds=timed[0], rounding_s=timed[1], loss=loss)
        if loss is not None and not math.isfinite(loss):
            self.diverged = self.diverged or found.string

    def _seconds(self, groups: Mapping[str, str | None]) -> tuple[float, float] | None:
        """Seconds of a step, and half of what its last digit stands for."""
        for name, unit in (("seconds", 1.0), ("ms", 1e-3)):
            if (value := _number(text := groups.get(name))) is not None and 0 < value < math.inf:
                return value * unit, unit * _half_digit(text or "")
        per_step = {
            "tokens_per_s": self.reading.tokens_per_step,
            "tokens_per_s_per_device": self.reading.tokens_per_step / self.reading.devices,
        }
        for name, tokens in per_step.items():
            if (value := _number(text := groups.get(name))) is not None and 0 < value < math.inf:
                return tokens / value, tokens / value**2 * _half_digit(text or "")
        return None


def alike(shown: str, wanted: str) -> bool:
    """Whether a value in a log is the one that was wanted: as numbers where both are, else by letters, in any case."""
    a, b = _number(shown), _number(wanted)
    if a is not None and b is not None:
        return a == b
    return shown.strip().strip("'\"").lower() == wanted.strip().lower()


def _compiled(patterns: tuple[str, ...]) -> list[re.Pattern[str]]:
    return [re.compile(each) for each in patterns]


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def _half_digit(text: str) -> float:
    digits, _, power = text.lower().partition("e")
    decimals = len(digits.partition(".")[2])
    return 0.5 * 10.0 ** (int(power or 0) - decimals)


def _sizes(found: re.Match[str]) -> dict[str, float]:
    """Bytes by group, each in the unit that its own group names."""
    groups, sizes = found.groupdict(), {}
    for name, text in groups.items():
        value = _number(text)
        if not name.endswith("_unit") and value is not None:
            sizes[name] = value * UNITS.get((groups.get(f"{name}_unit") or "").strip().lower(), 1.0)
    return sizes


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise SlowPatternError in what runs longer than this; only the main thread can be stopped so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(number: int, frame: FrameType | None) -> None:
        raise SlowPatternError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

"""What a test of an executor needs: jobs that worker processes can import, and patience without a clock to trust."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # spawned processes take the path over, and find executor_chores on it


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A process that nobody has waited for yet is a zombie: it runs nothing any more.
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


HANG_S = 600.0  # no machine is that slow: what has not happened by then never will


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait for what must happen, however slow the machine is."""

    def wait(condition: Callable[[], bool]) -> None:
        limit = time.monotonic() + HANG_S
        while not condition():
            assert time.monotonic() < limit, "it never happened"
            time.sleep(0.02)

    return wait


@pytest.fixture
def gone(until: Callable[[Callable[[], bool]], None]) -> Callable[[int], None]:
    """Wait until a process has ended."""
    return lambda pid: until(lambda: _gone(pid))

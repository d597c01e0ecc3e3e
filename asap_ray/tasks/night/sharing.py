"""What a night has to spend, shared over its cells, and cells side by side: some at a time, each as soon as there is
room for it."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TypeVar

from asap_ray.tasks.night.matrix import Cell

Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What one cell may spend: minutes, chip-hours and compilations at once; None is no limit of the night's."""

    minutes: float | None = None
    chip_hours: float | None = None
    workers: int | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """As words of a command."""
        given = {"budget.minutes": self.minutes, "budget.chip_hours": self.chip_hours, "compile.workers": self.workers}
        return tuple(f"{key}={value:.6g}" for key, value in given.items() if value is not None)


@dataclass(kw_only=True, slots=True)
class Purse:
    """What is left of a night's minutes and chip-hours, `parallel` cells at a time; None is no limit.

    Each cell that begins has an equal part of what is neither spent nor lent: of the chip-hours by cells to go, of the
    time by turns to go, of which one has `parallel` cells.
    """

    minutes: float | None
    chip_hours: float | None
    parallel: int = 1
    started: float = field(default_factory=time.monotonic)
    spent: float = 0.0
    _lent: dict[str, float] = field(default_factory=dict)

    def lend(self, cell: str, left: int) -> Share:
        """The share of a cell that begins now, `left` cells to go with it."""
        minutes = hours = None
        if self.minutes is not None:
            turns = -(-left // self.parallel)
            minutes = max(0.0, self.minutes - (time.monotonic() - self.started) / 60) / turns
        if self.chip_hours is not None:
            hours = max(0.0, self.chip_hours - self.spent - sum(self._lent.values())) / left
            self._lent[cell] = hours
        workers = max(1, (os.cpu_count() or 1) // self.parallel) if self.parallel > 1 else None
        return Share(minutes=minutes, chip_hours=hours, workers=workers)

    def paid(self, cell: str, chip_hours: float) -> None:
        """A cell has ended: what it left over is the others'."""
        self._lent.pop(cell, None)
        self.spent += chip_hours


def side_by_side(
    cells: Sequence[Cell],
    parallel: int,
    lend: Callable[[Cell, int], Share],
    work: Callable[[Cell, Share, threading.Event], Found],
) -> Iterator[tuple[Cell, Found]]:
    """Work on cells, some at a time in the order given, and yield each with what came of it as it ends.

    Args:
        cells: all of them.
        parallel: how many at once; one at a time runs in this thread.
        lend: called in this thread as a cell begins, with how many are to go with it.
        work: what is done, with an event that is set where all is to end.
    """
    stop, waiting = threading.Event(), deque(cells)
    if parallel == 1:
        while waiting:
            share = lend(waiting[0], len(waiting))
            cell = waiting.popleft()
            yield cell, work(cell, share, stop)
        return
    running: dict[Future[Found], Cell] = {}
    with ThreadPoolExecutor(parallel) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < parallel:
                    share = lend(waiting[0], len(waiting))
                    cell = waiting.popleft()
                    running[pool.submit(work, cell, share, stop)] = cell
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for each in sorted(ended, key=lambda one: cells.index(running[one])):
                    yield running.pop(each), each.result()
        finally:
            stop.set()

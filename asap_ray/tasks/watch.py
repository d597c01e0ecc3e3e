"""`task=show watch=true`: follow a run until it ends, on a terminal as one frame, elsewhere as a line an event.

The run is only read: whoever watches neither slows nor keeps it, and may leave and come back.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from asap_ray.errors import printable
from asap_ray.ledger import Ledger
from asap_ray.report.story import OPEN, Story
from asap_ray.report.terminal import rich_blocks, takes_escapes
from asap_ray.report.watching import event_line, frame
from asap_ray.tasks.story import story_of

LOOK_S = 1.0
"""How often the events are looked at; a frame's clock moves as often."""
Events = Sequence[Mapping[str, Any]]


def watch(ledger: Ledger, output: str, wait: Callable[[float], None] = time.sleep) -> None:
    """Show a run until an event says that it has ended, or until it is interrupted.

    Args:
        ledger: of the run.
        output: rich for a frame that is drawn anew, plain for lines.
        wait: what is called with the seconds between two looks.

    Raises:
        ConfigError: what the ledger holds is not of this version.
    """
    moving = output == "rich" and takes_escapes(sys.stdout)
    with _frames() if moving else _lines() as show:
        size = -1
        events: Events = ()
        while True:
            now = ledger.path.stat().st_size
            if now != size:  # a search has many events, and most looks find no new one
                size, events = now, list(ledger.events())
            with ledger.understood():
                story = story_of(events, ledger.path.parent)
            show(story, events)
            if story.state != OPEN:
                return
            wait(LOOK_S)


@contextmanager
def _lines() -> Iterator[Callable[[Story, Events], None]]:
    """Each event of the last run once, as a line."""
    told = 0

    def show(story: Story, events: Events) -> None:
        nonlocal told
        if not told:
            told = max(i for i, event in enumerate(events) if event["kind"] == "start")
        for event in events[told:]:
            if line := event_line(event):
                sys.stdout.write(printable(line) + "\n")
        told = len(events)
        sys.stdout.flush()

    yield show


@contextmanager
def _frames() -> Iterator[Callable[[Story, Events], None]]:
    """One frame, drawn anew; the last one stays."""
    from rich.console import Console, Group
    from rich.live import Live

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        yield lambda story, _: live.update(Group(*rich_blocks(frame(story, datetime.now(UTC)))), refresh=True)

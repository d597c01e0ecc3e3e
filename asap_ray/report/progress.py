"""A bar on a terminal while a large space is priced; nothing elsewhere, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from asap_ray.report.terminal import takes_escapes


@contextmanager
def progress(what: str, stream: TextIO, *, wanted: bool = True) -> Iterator[Callable[[float], None] | None]:
    """Give a function that takes the share done (0 to 1) and moves the bar; None where no bar is shown.

    Args:
        what: the words before the bar.
        stream: where to; a bar needs a terminal that takes escape codes.
        wanted: whether the work is long enough for one.
    """
    if not (wanted and takes_escapes(stream)):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    # Nothing is redirected: the bar is on stderr, and what is printed on stdout meanwhile is not its concern.
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(file=stream),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, completed=share)

"""Plain Ray tasks in the host: one a job, in workers that stay warm."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from pathlib import Path

import ray

from asap_ray.executor import ray_work
from asap_ray.executor.ray_line import Line, options


@ray.remote
def _perform(job: bytes, path: list[str] | None) -> bytes:
    return ray_work.perform(job, path, fresh=False)


def serve(line: Line, folder: Path) -> None:
    """Take jobs from the line and answer each, for ever."""
    while True:
        sent = line.next()
        assert sent is not None
        task = _perform.options(max_retries=line.retries, **options(sent.needs)).remote(sent.job, line.path)
        task.future().add_done_callback(partial(_answer, line, sent.number))


def _answer(line: Line, number: int, future: Future[bytes]) -> None:
    error = future.exception()
    if error is None:
        line.answer(number, future.result())
    else:
        line.answer(number, f"its Ray worker was {line.lost}: {str(error).splitlines()[0]}", lost=True)

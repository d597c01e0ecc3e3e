"""How many real trials Ray runs at once on this machine: as many as its memory holds.

    python -m tests.benchmarks.together

One trial of the compile tier goes first, alone, and says how much memory it takes. Then half as many more as the memory
would hold are asked for, each expecting that much and what a worker of Ray takes, and the executor decides how many run
at once. All are compilations by XLA's compiler for TPUs, of plans no two of which are alike, without a cache.
"""

from __future__ import annotations

import argparse
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from asap_ray.executor.local import Local
from asap_ray.executor.memory import available_bytes
from asap_ray.executor.protocol import Executor
from asap_ray.executor.ray_tune import RayTune
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.settings import load_group
from asap_ray.space import Space
from asap_ray.tasks.trial_tiers import OURS
from asap_ray.tiers.compile import Compile, CompileOptions
from asap_ray.tiers.protocol import Job, Outcome
from tests.problems import make_problem

WORKER_BYTES = 0.2e9
"""What a worker of Ray takes beside its trial, bytes."""
MORE = 1.5
"""Times what the memory would hold that is asked for."""
MOST = 1024


@dataclass(frozen=True, slots=True)
class Took:
    """When a trial ran, seconds by the machine's steady clock, and the most memory that it held, bytes."""

    begin_s: float
    end_s: float
    held_bytes: float


def timed(work: Callable[..., Any], arguments: tuple[Any, ...]) -> Took:
    """Do the work of a trial, in the trial's own process."""
    begin = time.monotonic()
    work(*arguments)
    return Took(begin, time.monotonic(), 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def most_at_once(took: list[Took]) -> int:
    """How many ran at one moment, at most."""
    moments = sorted([(each.begin_s, 1) for each in took] + [(each.end_s, -1) for each in took])
    running = most = 0
    for _, change in moments:
        running += change
        most = max(most, running)
    return most


def jobs(count: int, expecting: float = 0.0) -> Iterator[Job]:
    """Compilations of plans of a small space, no plan twice, that expect so many bytes each."""
    problem = make_problem("v5e-16", OURS, "tiny", batch=64, seq_len=1024)
    calibration = calibration_of(problem.slice.chip, OURS, calibrations_from_mappings(load_group("calibration")))
    tier = Compile(problem=problem, calibration=calibration, options=CompileOptions(cache=None, timeout_s=3600.0))
    for plan in islice(Space(problem=problem).sample(MOST, seed=0), count):
        job = tier.job(plan)
        yield replace(job, work=timed, arguments=(job.work, job.arguments), memory_bytes=expecting)


def ends(executor: Executor, given: Iterator[Job]) -> list[Outcome]:
    """How all of the jobs ended."""
    found = []
    for outcome in executor.stream(lambda: next(given, None)):
        found.append(outcome)
        print(f"\r{len(found)} have ended", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


@contextmanager
def least_available() -> Iterator[list[float]]:
    """The least memory that this machine has had to give since the context began, bytes, the list's one entry."""
    least, over = [available_bytes()], threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            least[0] = min(least[0], available_bytes())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield least
    finally:
        over.set()
        watcher.join()


def main() -> None:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    (alone,) = ends(Local(workers=1), jobs(1))
    there, each = available_bytes(), alone.value.held_bytes + WORKER_BYTES
    count = min(MOST, int(MORE * there / each))
    begun = time.monotonic()
    with least_available() as least, RayTune(address="local", workers=count) as executor:
        outcomes = ends(executor, jobs(count, each))
    took = [each.value for each in outcomes if each.status == "complete"]
    rows = (
        ("memory there before", f"{there / 1e9:.1f} GB"),
        ("a trial alone holds", f"{alone.value.held_bytes / 1e9:.2f} GB"),
        ("trials asked for", count),
        ("ran at once, at most", most_at_once(took)),
        ("memory left, at least", f"{least[0] / 1e9:.1f} GB"),
        ("a trial among them held, at most", f"{max(one.held_bytes for one in took) / 1e9:.2f} GB"),
        ("how they ended", ", ".join(f"{n} {name}" for name, n in Counter(each.status for each in outcomes).items())),
        ("seconds", round(time.monotonic() - begun)),
    )
    for name, value in rows:
        print(f"{name:<34}{value!s:>12}")


if __name__ == "__main__":
    from tests.benchmarks import together  # workers import what they are to do by the name of its module

    together.main()

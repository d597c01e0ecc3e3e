"""The virtual clock: when jobs end, in which order, and what a budget in virtual minutes leaves room for."""

from __future__ import annotations

import heapq

from asap_ray.executor.simulated import Recorded, Simulated
from asap_ray.tiers.protocol import Job


def job(name: str, timeout_s: float | None = None, memory_bytes: float = 0.0) -> Job:
    return Job(name=name, work=print, timeout_s=timeout_s, memory_bytes=memory_bytes)


def ends(executor: Simulated, *jobs: Job) -> list[tuple[str, str, float]]:
    waiting = iter(jobs)
    return [(each.job.name, each.status, executor.now) for each in executor.stream(lambda: next(waiting, None))]


SECONDS = {"a": 60.0, "b": 10.0, "c": 20.0, "d": 30.0}


def recorded(workers: int, memory_bytes: float = float("inf")) -> Simulated:
    records = {name: Recorded(seconds=seconds, value=name) for name, seconds in SECONDS.items()}
    return Simulated(records=records, workers=workers, memory_bytes=memory_bytes)


def test_jobs_end_when_parallel_slots_would_have_ended_them() -> None:
    # Two slots: a is in the one until 60; b, c and d follow each other in the other, to 10, 30 and 60. a started first.
    found = ends(recorded(2), *(job(name) for name in "abcd"))
    assert found == [("b", "complete", 10.0), ("c", "complete", 30.0), ("a", "complete", 60.0), ("d", "complete", 60.0)]


def test_one_slot_takes_the_sum_and_the_clock_goes_on() -> None:
    executor = recorded(1)
    assert [now for *_, now in ends(executor, *(job(name) for name in "abcd"))] == [60.0, 70.0, 90.0, 120.0]
    assert ends(executor, job("b")) == [("b", "complete", 130.0)]


def test_a_deadline_before_the_recorded_end_is_a_timeout_at_the_deadline() -> None:
    executor = recorded(1)
    assert ends(executor, job("a", timeout_s=15.0), job("b", timeout_s=10.0)) == [
        ("a", "timeout", 15.0),
        ("b", "complete", 25.0),
    ]


def test_memory_keeps_jobs_apart() -> None:
    # Of 5 bytes a takes 3; b wants 3 too and waits for a, and c behind it, though 1 would be there.
    found = ends(recorded(3, memory_bytes=5.0), job("a", memory_bytes=3.0), job("b", memory_bytes=3.0), job("c"))
    assert found == [("a", "complete", 60.0), ("b", "complete", 70.0), ("c", "complete", 80.0)]


def test_what_is_not_recorded_fails_at_once() -> None:
    (outcome,) = recorded(1).stream(iter([job("e"), None]).__next__)
    assert (outcome.status, outcome.reason) == ("failed", "nothing is recorded of e")


def test_a_source_can_keep_to_a_budget_of_virtual_time() -> None:
    executor, waiting = recorded(1), iter("abcd")
    minute = [each.job.name for each in executor.stream(lambda: job(next(waiting)) if executor.now < 65.0 else None)]
    assert minute == ["a", "b"], "a ends at 60, and b, which was in time, at 70"


def test_it_is_the_same_each_time() -> None:
    runs = {tuple(ends(recorded(2), *(job(name) for name in "dbca"))) for _ in range(3)}
    assert len(runs) == 1


def test_a_thousand_slices_end_when_whoever_is_free_first_takes_the_next() -> None:
    seconds = [10.0 * (1 + i * i % 7) for i in range(20_000)]
    free = [0.0] * 1000  # by hand: each job goes to the slot that is free first
    heapq.heapify(free)
    for each in seconds:
        heapq.heappush(free, heapq.heappop(free) + each)
    executor = Simulated(
        records={str(i): Recorded(seconds=each) for i, each in enumerate(seconds)}, workers=1000, memory_bytes=1000.0
    )
    found = ends(executor, *(job(str(i), memory_bytes=1.0) for i in range(len(seconds))))
    assert len(found) == len(seconds)
    assert executor.now == max(free)

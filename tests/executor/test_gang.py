"""Gangs of processes on this machine, and what their outcomes are together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import executor_chores as chores
import pytest

from asap_ray.errors import ConfigError
from asap_ray.executor import local
from asap_ray.executor.gang import joined, members
from asap_ray.tiers.protocol import Gang, Job, Outcome, Place

LONG_S = 600.0


def gang(work: Callable[..., object], *arguments: object, hosts: int = 2, timeout_s: float | None = LONG_S) -> Job:
    return Job(
        name="gang", work=work, arguments=arguments, timeout_s=timeout_s, gang=Gang(hosts=hosts, per_host={"CPU": 1})
    )


def only(job: Job) -> Outcome:
    (outcome,) = local.run([job], 1)
    return outcome


def test_a_gang_of_one_has_its_place_too(tmp_path: Path) -> None:
    assert only(gang(chores.place_of, str(tmp_path), hosts=1)).value[:2] == (0, 1)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("leaves", "rank 1 of 2: its process ended with status 3 and no result"),
        ("refuses", "rank 1 of 2: space.fix=tensr: did you mean tensor? no such field"),
        ("slips", "rank 1 of 2: IndexError: list index out of range (executor_chores.py, line "),
    ],
)
def test_if_one_fails_the_others_are_ended_and_the_reason_says_which(
    how: str, reason: str, tmp_path: Path, gone: Callable[[int], None]
) -> None:
    outcome = only(gang(chores.one_fails, str(tmp_path), how))
    assert outcome.status == "failed"
    assert outcome.reason.startswith(reason)
    assert isinstance(outcome.error, ConfigError) == (how == "refuses")
    for rank in range(2):
        gone(int((tmp_path / str(rank)).read_text()))


def test_a_rank_that_is_done_may_wait_for_the_others_at_its_end(tmp_path: Path) -> None:
    assert only(gang(chores.last_to_end, str(tmp_path))).value == "rank 0"
    assert (tmp_path / "ended well").exists()


def test_leaving_early_ends_all_of_it(tmp_path: Path, until: Callable, gone: Callable[[int], None]) -> None:
    jobs = iter([Job(name="adds", work=chores.add, arguments=(1, 1)), gang(chores.one_fails, str(tmp_path), "waits")])
    outcomes = local.stream(lambda: next(jobs, None), 2)
    assert next(outcomes).value == 2  # type: ignore[call-overload]
    until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
    outcomes.close()
    for rank in range(2):
        gone(int((tmp_path / str(rank)).read_text()))


class TestJoined:
    def job(self, hosts: int) -> Job:
        return gang(chores.add, hosts=hosts)

    def outcome(self, status: str, reason: str = "", **more: object) -> Outcome:
        return Outcome(job=self.job(1), status=status, reason=reason, **more)  # type: ignore[arg-type]

    def test_ranks_that_fail_alike_are_told_once(self) -> None:
        ended = {rank: self.outcome("failed", "out of memory") for rank in (1, 3, 4, 5, 6)}
        told = joined(self.job(8), ended)
        assert told.reason == "rank 1, 3, 4, 5 and others of 8: out of memory"

    def test_a_failure_outweighs_a_deadline_and_both_are_told(self) -> None:
        told = joined(self.job(2), {0: self.outcome("timeout", "late"), 1: self.outcome("failed", "gone")})
        assert (told.status, told.reason) == ("failed", "rank 0 of 2: late; rank 1 of 2: gone")

    def test_a_users_error_of_any_rank_is_kept_with_what_the_failed_wrote(self) -> None:
        error = ConfigError("a", "b", "c")
        ended = {
            0: self.outcome("complete", output="fine"),
            1: self.outcome("failed", "peer lost", output="one"),
            2: self.outcome("failed", "a=b: c", error=error, output="two"),
        }
        told = joined(self.job(3), ended)
        assert told.error is error
        assert told.output == "rank 1:\none\nrank 2:\ntwo\n"

    def test_members_know_their_place(self) -> None:
        job = gang(chores.add, 1)
        assert [each.arguments for each in members(job, "h:1")] == [
            (1, Place(rank=rank, hosts=2, coordinator="h:1")) for rank in range(2)
        ]
        assert {each.gang for each in members(job, "h:1")} == {None}

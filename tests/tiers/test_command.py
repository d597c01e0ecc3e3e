"""The command tier with a small trainer of ours, in real processes: every way in which a trial can end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from asap_ray.executor import local
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.plan import Plan
from asap_ray.settings import load_group
from asap_ray.tiers import trainer_process
from asap_ray.tiers.command import Command, CommandOptions, step_time, verdict
from asap_ray.tiers.finding import Finding
from asap_ray.tiers.following import Step
from asap_ray.tiers.launch import Ran, profiled
from asap_ray.tiers.protocol import Outcome
from asap_ray.tiers.template import Words
from asap_ray.tiers.templates import template_from_mapping
from tests.problems import make_problem

TOY = Path(__file__).with_name("toy_trainer.py")
ONE = Plan.parse("fsdp=4 micro_batch=3 accumulation=1 remat=full")
TWO = Plan.parse("fsdp=2 tensor=2 micro_batch=3 accumulation=2 remat=full sequence_parallel=true")
CALIBRATIONS = calibrations_from_mappings(load_group("calibration"))


def tier(tmp_path: Path, *words: str, timeout_s: float = 60.0, steps: int = 4, **options: object) -> Command:
    """The generic template with further words for the toy."""
    template = template_from_mapping("generic", load_group("command")["generic"])
    problem = make_problem("v5e-4", "maxtext", batch=12)
    return Command(
        problem=problem,
        calibration=calibration_of(problem.slice.chip, "maxtext", CALIBRATIONS),
        template=replace(template, argv=(*template.argv, Words(words=words))),
        options=CommandOptions(
            python=sys.executable,
            script=str(TOY),
            steps=steps,
            timeout_s=timeout_s,
            folder=str(tmp_path / "trials"),
            **options,  # type: ignore[arg-type]
        ),
    )


def tried(command: Command, *plans: Plan) -> list[Finding]:
    """What comes of plans in the executor of this machine, in their order."""
    jobs = [command.job(plan) for plan in plans]
    found = {outcome.job.name: command.read(outcome) for outcome in local.run(jobs, 1)}
    return [found[job.name] for job in jobs]


def here(command: Command, plan: Plan = ONE) -> Finding:
    """What comes of a plan whose job runs in this process."""
    job = command.job(plan)
    return command.read(Outcome(job=job, status="complete", value=profiled(job.arguments[0])))


def gone(pids: Sequence[int]) -> bool:
    """Whether no process is left of these; a zombie that its parent has not reaped yet has ended."""
    limit = time.monotonic() + 5.0
    while time.monotonic() < limit:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class TestComplete:
    def test_step_times_are_those_of_the_log_without_the_first_steps(self, tmp_path: Path) -> None:
        first, second = tried(tier(tmp_path), ONE, TWO)
        # 0.02 s a micro-batch; half as much again with a tensor axis. A sleep is never short, and late by little.
        assert [each.status for each in (first, second)] == ["complete", "complete"], (first.reason, second.reason)
        assert first.estimate is not None
        assert second.estimate is not None
        assert 0.020 <= first.estimate.step_time_s < 0.035
        assert 0.060 <= second.estimate.step_time_s < 0.085
        low, high = first.estimate.interval_s
        assert low <= first.estimate.step_time_s <= high
        assert first.estimate.source == "command"
        assert first.hbm_bytes is None  # its log says nothing of memory
        assert sum(first.estimate.time_parts.values()) == pytest.approx(first.estimate.step_time_s)

    def test_it_ends_a_trainer_that_has_shown_enough(self, tmp_path: Path) -> None:
        begun = time.monotonic()
        assert here(tier(tmp_path, "--fault", "endless")).status == "complete"
        assert time.monotonic() - begun < 20

    def test_evidence_names_the_template_by_what_it_says(self, tmp_path: Path) -> None:
        one, other = tier(tmp_path, trainer="toy 1.0"), tier(tmp_path, "--verbose", trainer="toy 1.0")
        assert one.evidence.startswith("command generic@")
        assert one.evidence.endswith(", toy 1.0")
        assert one.evidence != other.evidence

    def test_its_log_is_kept_and_its_scratch_folder_is_not(self, tmp_path: Path) -> None:
        here(tier(tmp_path))
        (trial,) = (tmp_path / "trials").iterdir()
        assert "step 0 seconds" in (trial / "trainer.log").read_text()
        assert not (trial / "scratch").exists()

    def test_a_trace_that_is_none_is_told_and_the_steps_hold(self, tmp_path: Path) -> None:
        command = tier(tmp_path, "--marker", "{trace_dir}/host.xplane.pb", "--fault", "torn trace")
        found = here(replace(command, template=replace(command.template, trace="*.xplane.pb")))
        assert found.status == "complete"
        assert found.profile is None
        assert "host.xplane.pb" in found.facts["trace_fault"]


class TestOtherEnds:
    def test_out_of_memory_is_infeasible_with_the_bytes(self, tmp_path: Path) -> None:
        found = here(tier(tmp_path, "--fault", "memory"))
        assert found.status == "infeasible"
        assert (found.hbm_bytes, found.limit_bytes, found.over_bytes) == (3.5 * 2**30, 2.0 * 2**30, 1.5 * 2**30)
        assert "needs 3.5 GiB" in found.reason

    def test_a_log_without_steps_is_quoted(self, tmp_path: Path) -> None:
        found = here(tier(tmp_path, "--fault", "no steps"))
        assert found.status == "failed"
        assert found.reason == "its log has no step times; last lines: all is well | all is well | all is well"

    def test_a_crash_is_told_with_its_status_and_its_last_line(self, tmp_path: Path) -> None:
        found = here(tier(tmp_path, "--fault", "crash"))
        assert found.status == "failed"
        assert found.reason.startswith("the trainer ended with status 1; last lines: ")
        assert found.reason.endswith("RuntimeError: the data set is gone")

    def test_a_loss_that_is_no_number_has_diverged(self, tmp_path: Path) -> None:
        found = here(tier(tmp_path, "--fault", "diverge"))
        assert found.status == "failed"
        assert found.reason.startswith("diverged: its loss is no finite number: step 3 seconds")

    def test_a_trainer_that_runs_another_plan_has_failed(self, tmp_path: Path) -> None:
        found = here(tier(tmp_path, "--fault", "lie"), TWO)
        assert found.status == "failed"
        assert found.reason == "the trainer ran tensor=1; the plan says 2"

    def test_a_trainer_that_does_not_show_its_plan_has_failed(self, tmp_path: Path) -> None:
        found = here(tier(tmp_path, "--fault", "silent about its plan"))
        assert found.status == "failed"
        assert found.reason.startswith("its log does not show the plan: no line matches mesh data=")

    def test_a_program_that_is_not_there_says_so(self, tmp_path: Path) -> None:
        command = tier(tmp_path)
        found = here(replace(command, options=replace(command.options, python="/nowhere/python")))
        assert found.status == "failed"
        assert (
            found.reason == "the trainer ended with status 127; last lines: /nowhere/python: No such file or directory"
        )

    def test_a_line_of_any_length_is_read(self, tmp_path: Path) -> None:
        assert here(tier(tmp_path, "--fault", "long line")).status == "complete"

    def test_a_pattern_without_end_is_stopped(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("asap_ray.tiers.following.SLOW_S", 0.3)
        command = tier(tmp_path, "--fault", "long line")
        log = replace(command.template.log, diverged=("(a+)+b",))
        found = here(replace(command, template=replace(command.template, log=log)))
        assert found.status == "failed"
        assert found.reason == "the pattern (a+)+b takes over 0.3 s for a line of its log"

    def test_a_secret_reaches_a_trainer_by_name_alone_and_no_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TOY_TOKEN", "hunter2-hunter2")
        monkeypatch.setenv("OTHER_TOKEN", "correct-horse")
        found = here(tier(tmp_path, "--fault", "secret", pass_env=("TOY_TOKEN",)))
        assert found.reason.endswith("my key is *** and None")
        assert "hunter2" not in repr(found)


class TestNothingIsLeft:
    def test_a_hang_is_ended_at_the_deadline(self, tmp_path: Path) -> None:
        found = here(tier(tmp_path, "--fault", "hang", timeout_s=0.5))
        assert found.status == "timeout"
        assert found.reason == "not done after 0.5 s, with 0 of 6 steps; it wrote nothing"

    def test_a_deaf_trainer_is_ended_with_its_child_in_another_session(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(trainer_process, "GRACE_S", 0.3)
        marker = tmp_path / "pids"
        found = here(tier(tmp_path, "--fault", "stubborn", "--marker", str(marker), timeout_s=2.0))
        pids = [int(word) for word in marker.read_text().split()]
        assert found.status == "timeout"
        assert len(pids) == 2
        assert gone(pids)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])  # SIGTERM is an executor's at a deadline
    def test_a_job_that_is_killed_takes_its_trainer_along(self, tmp_path: Path, number: int) -> None:
        marker = tmp_path / "pids"
        command = tier(tmp_path, "--fault", "stubborn", "--marker", str(marker))
        guards: list[int] = []

        def kill_job() -> None:
            while not marker.exists():
                time.sleep(0.02)
            guards.append(parent_of(int(marker.read_text().split()[0])))
            os.kill(parent_of(guards[0]), number)

        killer = threading.Thread(target=kill_job)
        killer.start()
        (outcome,) = local.run([command.job(ONE)], 1)
        killer.join()
        assert command.read(outcome).reason.startswith("its process")
        assert gone([*map(int, marker.read_text().split()), *guards])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class TestStepTime:
    def test_interval_by_hand(self) -> None:
        # Median 1.0; absolute deviations 0.1, 0.1, 0, 0: median 0.05, sigma 0.07413; 1.2533 * 0.07413 / 2 = 0.046454,
        # with 0.03 between processes 0.055300, times 1.645 is 0.090968 in the logarithm.
        steps = [Step(number=i, seconds=s, rounding_s=0.0005) for i, s in enumerate((1.0, 1.1, 0.9, 1.0))]
        middle, (low, high) = step_time(steps, 0.03)
        assert middle == 1.0
        assert high == pytest.approx(1.095234 + 0.0005, abs=2e-5)
        assert low == pytest.approx(0.913047 - 0.0005, abs=2e-5)

    def test_one_step_says_too_little(self, tmp_path: Path) -> None:
        order = tier(tmp_path).job(ONE).arguments[0]
        steps = tuple(Step(number=i, seconds=1.0) for i in range(3))
        assert verdict(Ran(ended="exited", status=0, steps=steps), order) == (
            "failed",
            "steps in its log after the first 2: 1, and 2 are needed",
        )

    def test_a_process_that_the_kernel_ended_for_memory_does_not_fit(self, tmp_path: Path) -> None:
        order = tier(tmp_path).job(ONE).arguments[0]
        killed = Ran(ended="exited", status=-9, killed_for_memory=True)
        assert verdict(killed, order)[0] == "infeasible"
        assert verdict(replace(killed, killed_for_memory=False), order) == (
            "failed",
            "the trainer ended by signal 9; it wrote nothing",
        )

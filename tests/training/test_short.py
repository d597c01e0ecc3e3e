"""Short trainings in real processes, on devices made of this machine's processor."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from asap_ray.executor import local
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.settings import load_group
from asap_ray.stack import stack_from_mapping
from asap_ray.tiers.protocol import Gang, Job, Outcome
from asap_ray.tiers.run import Run, RunOptions, run_plan
from asap_ray.training.environment import Cores, NoCoreError
from asap_ray.training.request import Ran, RunRequest
from tests.training import runs

CLOSE = 2e-3
"""Float32 sums over another mesh, relatively, after a few steps."""


def ran(asked: RunRequest, hosts: int = 1) -> Ran:
    gang = Gang(hosts=hosts, per_host={"CPU": 1}) if hosts > 1 else None
    job = Job(name="run", work=run_plan, arguments=(asked,), timeout_s=240.0, isolated=True, gang=gang)
    (outcome,) = local.run([job], workers=1)
    assert outcome.status == "complete", (outcome.reason, outcome.output)
    return outcome.value


def tier(**options: object) -> Run:
    problem = Problem(workload=runs.JOB, slice=runs.here(4), stack=stack_from_mapping(load_group("stack")["ours"]))
    known = calibrations_from_mappings(load_group("calibration"))
    return Run(
        problem=problem,
        calibration=calibration_of(problem.slice.chip, "ours", known),
        options=RunOptions(**{"steps": 3, "timed_s": 0.0, "trace": False, **options}),  # pyright: ignore[reportArgumentType]
    )


@pytest.fixture(scope="module")
def alone() -> Ran:
    return ran(runs.request("data=4 micro_batch=2", trace=True))


def test_a_run_times_its_steps_and_tells_its_program_and_its_trace(alone: Ran) -> None:
    assert (alone.status, len(alone.steps_s), len(alone.losses)) == ("complete", 3, 4)  # and one to warm up
    assert all(each > 0 for each in alone.steps_s)
    assert alone.losses[0] == pytest.approx(4.16, rel=0.1)  # ln 64, of weights that know nothing yet
    assert alone.losses[-1] < alone.losses[0]
    assert alone.devices == "4 x cpu"
    assert alone.trace_fault == ""
    assert alone.profile is not None
    assert {op["category"] for op in alone.profile["ops"]} >= {"matmul", "all_reduce"}


@pytest.mark.parametrize(
    "axes", ["fsdp=2 tensor=2 sequence_parallel=true micro_batch=4", "pipeline=2 fsdp=2 schedule=gpipe micro_batch=2"]
)
def test_every_plan_trains_the_same_model_on_the_same_batch(alone: Ran, axes: str) -> None:
    accumulation = 2 if "pipeline" in axes else 1
    asked = runs.request(axes)
    found = ran(replace(asked, plan=replace(asked.plan, accumulation=accumulation)))
    assert found.losses == pytest.approx(alone.losses, rel=CLOSE)


def test_a_gang_of_two_processes_trains_as_one_process_does(alone: Ran) -> None:
    """Two hosts of two devices each meet over gloo."""
    found = ran(runs.request("data=2 fsdp=2 micro_batch=2 zero=1"), hosts=2)
    assert found.devices == "4 x cpu"
    assert found.losses == pytest.approx(alone.losses, rel=CLOSE)


def test_a_run_that_cannot_win_ends_early_and_says_so() -> None:
    found = ran(runs.request("fsdp=4 micro_batch=2", steps=50, hopeless_s=1e-9))
    assert (found.status, len(found.steps_s)) == ("pruned", 3)
    told = tier().read(Outcome(job=tier().job(PLAN), status="complete", value=found))
    assert told.status == "pruned"
    assert told.estimate is not None
    assert told.estimate.step_time_s == sorted(found.steps_s)[1]


PLAN = Plan.parse(f"fsdp=4 micro_batch=2 {runs.LINE}")


def said(found: Ran, run: Run, status: str = "complete", **told: object) -> object:
    given = {"value": found, "reason": "", "output": "", **told}
    return run.read(Outcome(job=run.job(PLAN), status=status, **given))  # pyright: ignore[reportArgumentType]


GOOD = Ran(status="complete", steps_s=(1.0, 1.1, 1.2), losses=(4.0, 3.9, 3.8), peak_bytes=1e6, seconds={"build": 8.0})


def test_a_run_is_read_as_its_median_step_with_what_processes_differ_by() -> None:
    found = said(GOOD, tier())
    assert (found.status, found.estimate.step_time_s, found.estimate.source) == ("complete", 1.1, "run")
    low, high = found.estimate.interval_s
    assert low < 1.1 * 0.955 < 1.1 * 1.05 < high  # 90% of processes that lie 3% apart, at least: 1.645 x 3%
    assert found.estimate.floor_s < 1.1
    assert found.chip_hours == pytest.approx(8.0 * 4 / 3600)


def test_a_loss_unlike_the_first_runs_is_no_speed() -> None:
    run = tier()
    said(GOOD, run)
    found = said(replace(GOOD, steps_s=(0.1, 0.1, 0.1), losses=(4.0, 3.9, 3.7)), run)
    assert (found.status, found.estimate) == ("failed", None)
    assert found.reason.startswith("wrong numbers: the loss of step 3 is 3.7000, and 3.8000 in the first trial")
    assert said(replace(GOOD, losses=(4.01, 3.91, 3.81)), run).status == "complete"  # 0.25% off
    assert run.hopeless_s is not None  # of the runs whose numbers were right alone
    assert run.hopeless_s > 1.0


def test_a_loss_that_is_no_number_is_told_as_divergence() -> None:
    found = said(Ran(status="failed", reason="diverged: the loss of step 2 is nan"), tier())
    assert (found.status, found.reason) == ("failed", "diverged: the loss of step 2 is nan")


def test_memory_that_is_not_there_is_told_in_bytes() -> None:
    job = Job(
        name="eats",
        work=runs.eating,
        arguments=(runs.request("fsdp=4 micro_batch=2", memory_bytes=400e6),),
        timeout_s=120.0,
        isolated=True,
    )
    (outcome,) = local.run([job], workers=1)
    found = tier().read(outcome)
    assert found.status == "infeasible"
    assert 0 < found.over_bytes < 400e6
    assert found.reason.startswith("out of host memory: it held 0.4")


def test_a_run_that_hangs_and_one_that_is_killed_are_told_and_leave_nothing(tmp_path: Path) -> None:
    log, theirs = tmp_path / "pids", tmp_path / "pids of the gang"  # apart: who writes first is not known
    asked = runs.request("fsdp=4 micro_batch=2")
    hangs = Job(name="hangs", work=runs.sleeping, arguments=(asked, str(log)), timeout_s=3.0, isolated=True)
    gang = Gang(hosts=2, per_host={"CPU": 1})
    killed = replace(hangs, name="killed", arguments=(asked, str(theirs)), timeout_s=60.0, gang=gang)
    watcher = subprocess.Popen([sys.executable, "-c", KILLER, str(theirs)])
    found = {each.job.name: each for each in local.run([hangs, killed], workers=2)}
    watcher.wait(30)
    assert (found["hangs"].status, found["hangs"].reason) == ("timeout", "not done after 3 s")
    assert found["killed"].status == "failed"
    assert "SIGKILL" in found["killed"].reason
    assert not [
        pid
        for pid in map(int, (log.read_text() + theirs.read_text()).split())
        if Path(f"/proc/{pid}").exists() and alive(pid)
    ]


KILLER = """
import os, signal, sys, time
limit = time.monotonic() + 25
while time.monotonic() < limit:
    pids = open(sys.argv[1]).read().split() if os.path.exists(sys.argv[1]) else []
    if len(pids) == 2:
        os.kill(int(pids[-1]), signal.SIGKILL)
        time.sleep(3)
        break
    time.sleep(0.05)
"""


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_two_processes_never_hold_one_core() -> None:
    mine = os.sched_getaffinity(0)
    core = min(mine)
    first, second = Cores(), Cores()
    try:
        assert first.claim(1, [core]) == (core,)
        assert os.sched_getaffinity(0) == {core}
        with pytest.raises(NoCoreError, match="no 1 of the 1 cores are free"):
            second.claim(1, [core], wait_s=0.1)
        first.release()
        assert second.claim(1, [core], wait_s=0.1) == (core,)
    finally:
        first.release()
        second.release()
        os.sched_setaffinity(0, mine)


def test_a_core_is_free_again_once_who_held_it_is_killed() -> None:
    mine = os.sched_getaffinity(0)
    core = max(mine)
    code = "import sys,time\nfrom asap_ray.training.environment import Cores\n"
    code += f"c=Cores(); c.claim(1,[{core}]); print('held',flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(NoCoreError):
            Cores().claim(1, [core], wait_s=0.0)
        holder.kill()
        holder.wait()
        again = Cores()
        assert again.claim(1, [core], wait_s=5.0) == (core,)
        again.release()
    os.sched_setaffinity(0, mine)


def test_two_small_runs_fit_beside_each_other_in_memory() -> None:
    """What a job asks for is what its process holds, not all that it may hold."""
    job = tier(memory_bytes=9e9, cores=1).job(PLAN)
    assert 0.5e9 < job.memory_bytes < 2.5e9
    (asked,) = job.arguments
    assert asked.memory_bytes == 9e9

"""What a study costs with many trials: ms and kB a trial at 1,000, 10,000 and 100,000 of them.

    python -m tests.benchmarks.scale                              # all of it, some hours of one core
    python -m tests.benchmarks.scale --trials 1000 10000 --by random --keep /tmp/scale

A search over the 200,000 fastest plans of Llama 2 70B on 512 H100s runs for real: searcher, ledger, report, Parquet,
memory and resume; only its trials are pretended, each over at once with a step that a hash of its plan decides. Every
row is a process of its own, so that memory is what that study holds.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from asap_ray.agents.coordinator import Coordinator
from asap_ray.agents.playbook import Playbook
from asap_ray.diagnosis import diagnose
from asap_ray.knowledge import load_cards
from asap_ray.ledger import Ledger
from asap_ray.memory import Memory
from asap_ray.physics.calibration import Calibration, calibration_from_mapping
from asap_ray.physics.estimate import Estimate
from asap_ray.physics.roofline import Pricer
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.recipe import PLAIN, Recipe
from asap_ray.report.answer import Answer, Searched, SliceAnswer
from asap_ray.report.files import write_report
from asap_ray.report.live import Live
from asap_ray.search.blackbox import black_box
from asap_ray.search.pool import Pool, pool_of_space
from asap_ray.search.protocol import Searcher
from asap_ray.search.study import Study
from asap_ray.settings import load_group
from asap_ray.space import Space
from asap_ray.tasks import record
from asap_ray.tasks.derived import write_derived
from asap_ray.tasks.loop import Budget, Loop
from asap_ray.tasks.recorder import Recorder
from asap_ray.tasks.remembering import cases_of
from asap_ray.tasks.story import story_of
from asap_ray.tasks.trials import Clock, Trials, key_of
from asap_ray.tiers.finding import Finding
from asap_ray.tiers.protocol import Job, Outcome
from asap_ray.tiers.roofline import Roofline
from tests.problems import make_problem

SIZES = (1_000, 10_000, 100_000)
MODEL = "llama2_70b"
SEARCHERS = ("agents", "random", "tpe")
STEP_S = 40.0
"""Of every trial, within a tenth: above all floors, so that the search never has a reason to end."""
WIDTH = 16


@dataclass(frozen=True, kw_only=True)
class Pretended:
    """A tier whose trials are over at once."""

    problem: Problem
    calibration: Calibration
    name: str = "run"
    evidence: str = "pretended"
    timeout_s: float = 60.0

    def job(self, plan: Plan, recipe: Recipe = PLAIN) -> Job:
        """Nothing to do."""
        return Job(name=plan.line, work=print, arguments=(plan,))

    def known(self, plan: Plan, recipe: Recipe = PLAIN) -> Finding | None:
        """Nothing is."""
        return None

    def read(self, outcome: Outcome) -> Finding:
        """A step that depends on the plan alone."""
        (plan,) = outcome.job.arguments
        priced = self._roofline.estimates([plan])[0]
        step = STEP_S * (0.9 + 0.2 * zlib.crc32(plan.line.encode()) / 2**32)
        return Finding(
            plan=plan,
            status="complete",
            source=self.name,
            evidence=self.evidence,
            hbm_bytes=priced.hbm_bytes,
            estimate=_taking(priced, step),
            seconds={"steps": step},
        )

    @property
    def _roofline(self) -> Roofline:
        return Roofline(problem=self.problem, calibration=self.calibration)


def _taking(priced: Estimate, step: float) -> Estimate:
    ratio = step / priced.step_time_s
    return replace(
        priced,
        step_time_s=step,
        interval_s=(0.98 * step, 1.02 * step),
        time_parts={name: ratio * value for name, value in priced.time_parts.items()},
        source="run",
    )


class AtOnce:
    """An executor in which every job is over as soon as it starts."""

    def stream(self, source: Callable[[], Job | None]) -> Iterator[Outcome]:
        """As `executor.protocol.Executor.stream`."""
        while job := source():
            yield Outcome(job=job, status="complete")


@dataclass(kw_only=True)
class Measured:
    """Seconds of the processor, as others may use the machine, and bytes that the process came to hold, by what was
    done."""

    trials: int
    seconds: dict[str, float] = field(default_factory=dict)
    bytes_: dict[str, int] = field(default_factory=dict)

    def time(self, name: str, work: Callable[[], Any]) -> Any:
        """Do some work."""
        before, began = _held(), time.process_time()
        value = work()
        self.seconds[name], self.bytes_[name] = time.process_time() - began, _held() - before
        return value


def _held() -> int:
    """The most memory that this process has held, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@cache
def ground(slice_: str = "h100x512", stack: str = "megatron") -> tuple[Pool, Calibration]:
    """The pool that is searched, with the constants it is priced with."""
    problem = make_problem(slice_, stack, MODEL, batch=1024, seq_len=4096)
    kind = problem.slice.chip.kind
    calibration = calibration_from_mapping(kind, load_group("calibration")[kind])
    space = Space(problem=problem)
    chunks = Roofline(problem=problem, calibration=calibration).fitting(space)
    return pool_of_space(space, Pricer(problem, calibration), chunks), calibration


def searcher_by(name: str, pool: Pool) -> Searcher:
    """The playbook with its sampler, or a sampler alone."""
    if name == "agents":
        return Coordinator(pool=pool, brain=Playbook(cards=load_cards()), study=Study(pool, "tpe", 0))
    return black_box(pool, name, 0)


def measure(pool: Pool, calibration: Calibration, by: str, trials: int, run_dir: Path) -> Measured:
    """Search, then all that is made of the search, and the same once more from its record."""
    found = Measured(trials=trials)
    run_dir.mkdir(parents=True, exist_ok=True)
    priced = _priced(pool)
    ledger = Ledger(run_dir)
    ledger.append("start", _start(pool))
    record.swept(ledger, priced)
    tier = Pretended(problem=pool.problem, calibration=calibration)
    loop = found.time("search", lambda: _searched(pool, tier, by, trials, ledger))
    searched = Searched(base="default", source="run", trials=tuple(loop.tried), stopped="pretended")
    answer = _answer(pool, replace(priced, searched=searched), run_dir)
    record.searched(ledger, answer.slices[0])
    record.answered(ledger, answer)
    del loop, searched, answer
    before = found.time("resume", lambda: record.finished(ledger.events(), pool.problem.workload, _stack(pool)))
    assert len({key_of(each) for each in before}) == trials
    del before
    story = found.time("story", lambda: story_of(list(ledger.events()), run_dir))
    found.time("report", lambda: write_report(story.answer, run_dir))
    found.time("tables", lambda: write_derived(list(ledger.events()), run_dir))
    memory = Memory(run_dir / "memory")
    found.time("memory", lambda: memory.add(cases_of(list(ledger.events()))))
    found.time("recall", memory.read)
    return found


def _searched(pool: Pool, tier: Pretended, by: str, trials: int, ledger: Ledger) -> Loop:
    clock, shown = Clock(), Live(io.StringIO(), None, "default")
    recorder, where = Recorder(ledger, shown), pool.problem.slice.name
    loop = Loop(
        where=where,
        pool=pool,
        searcher=searcher_by(by, pool),
        trials=Trials(where=where, bundle="default", tier=tier, executor=AtOnce(), clock=clock, watcher=recorder),
        budget=Budget(trials=trials),
        clock=clock,
        listener=recorder,
        width=WIDTH,
    )
    stopped = loop.run()
    assert len(loop.results) == trials, stopped
    return loop


def _stack(pool: Pool) -> dict[str, Any]:
    return {**load_group("stack")[pool.problem.stack.name]}


def _start(pool: Pool) -> dict[str, Any]:
    names = {"task": "tune", "model": MODEL, "stack": pool.problem.stack.name, "seed": 0}
    given = {"config": {"stack": _stack(pool)}, "workload": record.job_of(pool.problem.workload)}
    return {**names, "command": "tests.benchmarks.scale", "versions": {}, **given}


def _priced(pool: Pool) -> SliceAnswer:
    best = pool.estimate(int(pool.step_s.argmin()))
    return SliceAnswer(
        slice=pool.problem.slice,
        total=len(pool),
        legal=len(pool),
        fitting=len(pool),
        removed={},
        ranked=(best,),
        reasons=("pretended",),
        diagnosis=diagnose(best),
    )


def _answer(pool: Pool, one: SliceAnswer, run_dir: Path) -> Answer:
    return Answer(
        task="tune",
        model=MODEL,
        workload=pool.problem.workload,
        stack=pool.problem.stack.name,
        seed=0,
        slices=(one,),
        wall_s=0.0,
        versions={},
        run_dir=run_dir,
        stop_reason="pretended",
    )


def main() -> None:
    """Measure each size by each searcher, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=SIZES)
    parser.add_argument("--by", nargs="+", default=SEARCHERS)
    parser.add_argument("--keep", type=Path, help="a folder for the run directories, else they are thrown away")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        pool, calibration = ground()
        found = measure(pool, calibration, given.by[0], given.trials[0], given.keep)
        print(json.dumps({"trials": found.trials, "seconds": found.seconds, "bytes": found.bytes_}))
        return
    for by in given.by:
        for trials in given.trials:
            with tempfile.TemporaryDirectory() as folder:
                where = (given.keep or Path(folder)) / f"{by}-{trials}"
                words = ["--one", "--by", by, "--trials", str(trials), "--keep", str(where)]
                ended = subprocess.run(
                    [sys.executable, "-m", "tests.benchmarks.scale", *words], stdout=subprocess.PIPE, check=True
                )
                found = json.loads(ended.stdout)
                print(by, trials)
                for name, seconds in found["seconds"].items():
                    print(
                        f"  {name:8} {1000 * seconds / trials:9.3f} ms  {found['bytes'][name] / 1024 / trials:9.2f} kB"
                    )
                for path in sorted(where.iterdir()):
                    print(f"  {path.name:20} {path.stat().st_size / 1024 / trials:9.3f} kB a trial")
                print(flush=True)


if __name__ == "__main__":
    main()

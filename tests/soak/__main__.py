"""Studies with faults at random moments, until as many have struck: `python -m tests.soak --seed 7 --faults 200`.

Each study is run again after each fault until it ends well, and is then held against the same study undisturbed. The
exit status is 0 where nothing was lost, repeated or left behind; otherwise folders with what went wrong are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from tests.soak.checks import check
from tests.soak.faults import FAULTS, Fault, disk, reach
from tests.soak.processes import Running
from tests.soak.study import JOB, Kind, Study

KILLS = ("command killed", "command killed, last line torn")
MODEL = ("model killed", "model hung", "model garbled")
RAY = ("Ray worker killed", "Ray worker killed", "Ray's raylet, gcs or host killed", "Ray's raylet, gcs or host killed")
HERE = Kind(
    executor="here",
    trial_s=0.02,
    faults=(*KILLS, *KILLS, "disk full", "disk full", "clock set", "clock set", "command started twice"),
)
LOCAL = Kind(executor="local", trial_s=0.05, faults=(*KILLS, "command killed", "disk full", "clock set"))
ASKING = Kind(executor="here", trial_s=0.02, faults=(*MODEL, *MODEL, *KILLS), words=JOB, model=True)
THROUGH_RAY = Kind(executor="ray", trial_s=0.3, faults=(*RAY, *KILLS, "disk full"))
CYCLE = (HERE, ASKING, LOCAL, HERE, ASKING, THROUGH_RAY)
MOST_MISSES = 30
"""Times in a row that a command may end before a fault's moment; after that the fault is passed over, and told."""
IMPORTED = (
    *("asap_ray.tasks.searching", "asap_ray.tasks.thinking", "asap_ray.tasks.tune", "asap_ray.tasks.remembering"),
    *("optuna", "pyarrow.parquet", "openai", "httpx2", "asap_ray.agents.llm", "asap_ray.agents.reasoning"),
)


def main() -> int:
    """Run the soak; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="studies side by side")
    parser.add_argument("--short", action="store_true", help="no study that starts Ray or a process for each trial")
    given = parser.parse_args()
    for name in IMPORTED:  # once here, for all commands that are forked
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    begun, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="soak", dir="/tmp"))
    told = _all(given, root)
    total: Counter[str] = sum((Counter(each["counts"]) for each in told), Counter())
    problems = [f"{each['name']}: {problem}" for each in told for problem in each["problems"]]
    for line in table(total, len(told), len(problems), time.monotonic() - begun, given.seed):
        print(line)
    for problem in problems:
        print(f"! {problem}")
    if problems:
        print(f"what was left of it is in {root}")
        return 1
    shutil.rmtree(root)
    return 0


def table(total: Counter[str], studies: int, problems: int, seconds: float, seed: int) -> list[str]:
    """The figures, a line each."""
    struck = {name: total[name] for name in FAULTS if total[name]}
    rows = [(f"  {name}", count) for name, count in struck.items()]
    rows = [("faults", sum(struck.values())), *rows, ("faults that found no moment", total["passed over"])]
    rows += [
        ("studies", studies + total["begun anew"]),
        ("commands started", total["commands"]),
        ("trials finished", total["finished"]),
    ]
    rows += [(name, total[name]) for name in ("lost", "repeated", "left behind")]
    rows += [("problems", problems), ("seconds", round(seconds)), ("seed", seed)]
    return [f"{name:<36}{value:>8}" for name, value in rows]


def _all(given: argparse.Namespace, root: Path) -> list[dict]:
    """What became of the undisturbed studies and then of all others, `jobs` at a time, each in a process of its own."""
    cycle = (HERE, ASKING) if given.short else CYCLE
    waiting = [(f"whole_{each.reference}", each, ()) for each in {each.reference: each for each in cycle}.values()]
    found = _side_by_side(waiting, given, root)
    waiting, left, number = [], given.faults, 0
    while left > 0:
        kind, random = cycle[number % len(cycle)], Random(f"{given.seed} {number}")
        faults = random.sample(kind.faults, len(kind.faults))[:left]
        waiting.append((str(number), kind, tuple(faults)))
        left, number = left - len(faults), number + 1
    return found + _side_by_side(waiting, given, root)


def _side_by_side(
    waiting: list[tuple[str, Kind, tuple[str, ...]]], given: argparse.Namespace, root: Path
) -> list[dict]:
    running: dict[int, str] = {}
    found: list[dict] = []
    waiting = list(waiting)
    while waiting or running:
        while waiting and len(running) < given.jobs:
            name, kind, faults = waiting.pop(0)
            sys.stdout.flush()
            if pid := os.fork():
                running[pid] = name
                continue
            try:
                told = soaked(name, kind, faults, Random(f"{given.seed} {name} moments"), root)
                (root / f"{name}.json").write_text(json.dumps(told))
                os._exit(0)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
        pid, _ = os.waitpid(-1, 0)
        if (name := running.pop(pid, None)) is not None:
            path = root / f"{name}.json"
            fault = {"name": name, "counts": {}, "problems": ["the soak itself failed"]}
            found.append(json.loads(path.read_text()) if path.exists() else fault)
            print(f"study {name}: {found[-1]['line'] if path.exists() else 'failed'}", file=sys.stderr, flush=True)
    return found


def soaked(name: str, kind: Kind, faults: tuple[str, ...], random: Random, root: Path) -> dict:
    """A study with its faults, and what became of it."""
    begun, place = time.monotonic(), root / name
    whole = name.startswith("whole")
    with disk(place) if kind is HERE and not whole else contextlib.nullcontext(False) as on_disk:
        study = Study(kind=kind, place=place, random=random, on_disk=on_disk)
        reference = None if whole else Study(kind=kind, place=root / f"whole_{kind.reference}", random=random)
        try:
            _faulted(study, faults, reference)
            check(study, reference)
        finally:
            study.close()
            if study.problems and on_disk:
                shutil.copytree(place, root / f"{name}.kept")
    line = f"{kind.executor}, {sum(study.counts[each] for each in FAULTS)} faults, {time.monotonic() - begun:.0f} s"
    line += "".join(f"\n  ! {problem}" for problem in study.problems)
    return {"name": name, "counts": study.counts, "problems": study.problems, "line": line}


def _faulted(study: Study, faults: tuple[str, ...], reference: Study | None) -> None:
    """Start the command until all faults have struck, and once more to its end.

    A study that has ended well while faults wait is checked, and begun anew: a command that finds all of it done has
    hardly a moment for them.
    """
    waiting, misses, events = list(faults), 0, len(reference.events()) if reference else 0
    while True:
        before, since = len(study.measured.read_text().splitlines()), study.size[0]
        running, struck, at = study.begin(), list[str](), 0
        while waiting:
            fault = FAULTS[waiting[0]]
            at = _moment(study.random, at, events, fault)
            if not (
                reach(study, running, since, at, _delay(study.random, at, events)) and fault.strike(study, running)
            ):
                misses += 1
                if misses > MOST_MISSES:
                    study.counts["passed over"] += 1
                    waiting.pop(0)
                break
            misses = 0
            struck.append(waiting.pop(0))
            if fault.ends:
                break
        _end(study, running, struck)
        study.check_measured(before)
        if not waiting and not struck:
            return
        if waiting and running.status == 0:
            check(study, reference)
            study.anew()


def _moment(random: Random, since: int, events: int, fault: Fault) -> int:
    """After how many events of the command: any, the last one more often, since files are written there."""
    first, most = max(since, events // 4 if fault.amid_trials else 0), events - 2 if fault.amid_trials else events
    return events - 1 if random.random() < 0.2 and not fault.amid_trials else random.randint(min(first, most), most)


def _delay(random: Random, at: int, events: int) -> float:
    return random.uniform(0.0, 0.3 if at >= events - 1 else 0.03)


def _end(study: Study, running: Running, struck: list[str]) -> None:
    """Wait for the end of a command, hold that to what struck it, and mend what can be."""
    if not running.wait():
        study.problems.append(f"hung after {struck}")
    fault = FAULTS[struck[-1]] if struck else Fault(lambda study, running: True)
    ends, errors = fault.ends or (0,), running.errors
    wrong = running.status not in ends or "Traceback" in errors
    if running.status == 1:
        wrong |= not errors.strip().splitlines()[-1].startswith("asap-ray: ") or fault.says not in errors
    if wrong:
        study.problems.append(f"run {study.runs} ended with {running.status} after {struck}: {errors[-1500:]}")
    if running.status != 0:
        study.settle()
    for name in struck:
        study.counts[name] += 1
        FAULTS[name].mend(study)
    study.counts["commands"] += 1


if __name__ == "__main__":
    sys.exit(main())

"""One cell of a night: its study as a process of its own, run again where it was lost, and the row that it comes to."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from asap_ray.cases import LONG, clean
from asap_ray.errors import ConfigError
from asap_ray.ledger import Ledger
from asap_ray.redaction import hidden
from asap_ray.report.answer import Answer, SliceAnswer, Tried
from asap_ray.report.night import Row
from asap_ray.report.story import Story
from asap_ray.tasks.night.matrix import Cell
from asap_ray.tasks.night.settings import settings_of
from asap_ray.tasks.night.sharing import Share
from asap_ray.tasks.story import story_of
from asap_ray.tiers.trainer_process import TrainerProcess

LOG = "log"
MISTAKE = 1
"""The exit status of a command that the user must change: again it would end alike."""
LOOK_S = 0.5
GRACE_S = 600.0
"""What a study may take beyond its minutes: to price its space, to write its report."""
LONGEST_S = 12 * 3600.0
"""What a study may take that was given no minutes."""
TAIL = 2000


def study(argv: Sequence[str], log: Path, limit_s: float, stop: threading.Event) -> int | None:
    """Run a command to its end, and return its exit status; None where it took too long, or `stop` was set. Nothing of
    it is left."""
    limit = time.monotonic() + limit_s
    with TrainerProcess(argv, log, os.getcwd(), os.environ) as process:
        while not process.gone() and time.monotonic() < limit and not stop.is_set():
            time.sleep(LOOK_S)
        late = not process.gone()
        status = process.end()
    return None if late else status


def attempt(
    cell: Cell,
    folder: Path,
    memory: Path,
    share: Share,
    retries: int,
    say: Callable[[str], None],
    stop: threading.Event,
) -> int:
    """Run the study of a cell in a folder, again where it is lost: its finished trials are kept. Returns how often."""
    given = [word for word in share.words if not any(each.startswith(word.partition("=")[0]) for each in cell.words)]
    words = [*cell.words, *given, f"agents.memory_dir={memory}", f"run_dir={folder}", "output=plain"]
    argv = [sys.executable, "-m", "asap_ray", *words]
    limit_s = LONGEST_S if share.minutes is None else 60 * share.minutes + GRACE_S
    folder.mkdir(parents=True, exist_ok=True)
    for count in range(1, retries + 2):
        status = study(argv, folder / LOG, limit_s, stop)
        if status in (0, MISTAKE) or stop.is_set():
            return count
        say(f"  {cell.name}: {lost_words(status)}{'; again' if count <= retries else ''}")
    return retries + 1


def lost_words(status: int | None) -> str:
    """How a study was lost."""
    if status is None:
        return "it took too long and was ended"
    return f"it ended with {'signal ' + str(-status) if status < 0 else 'status ' + str(status)}"


def read_cell(night: str, cell: Cell, folder: Path, attempts: int) -> tuple[Row, list[Tried]]:
    """The row of a cell, from the events of its study, with all of its trials."""
    plain: dict[str, Any] = {
        "night": night,
        "cell": cell.name,
        "words": hidden(cell.words, os.environ),
        "attempts": attempts,
    }
    plain |= {"workload": cell.workload, "slice": cell.slice, "stack": cell.stack, "run_dir": str(folder)}
    try:
        events = list(Ledger(folder).events())
        story = story_of(events, folder)
    except (ConfigError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        return Row(**plain, ok=False, reason=_last_words(folder)), []
    last = events[-1]
    if last["kind"] != "answer" or story.answer is None:
        return Row(**plain, ok=False, reason=_last_words(folder)), []
    one = story.answer.winner
    tried = [*one.trials, *(each for each in story.earlier if each.where == one.slice.name)]
    row = Row(**plain, ok=True, **_figures(story, story.answer, one, tried), versions=_versions(last))
    return replace(row, settings=settings_of(events, one.slice.chip, row.bundle)), tried


def _versions(event: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(number) for name, number in event.get("versions", {}).items()}


def _figures(story: Story, answer: Answer, one: SliceAnswer, tried: Sequence[Tried]) -> dict[str, Any]:
    best = story.best(one)
    found = best.finding.estimate if best is not None else one.best
    told: dict[str, Any] = {
        "trials": len(tried),
        "chip_hours": sum(each.finding.chip_hours for each in tried),
        "wall_s": answer.wall_s,
        "stopped": one.searched.stopped if one.searched else answer.stop_reason,
    }
    if best is not None:
        told |= {"bundle": best.bundle, "evidence": best.finding.evidence, "digest": best.finding.digest}
        told |= {"trials_to_best": _place(best, tried), "roofline_step_time_s": best.roofline.step_time_s}
    if found is not None:
        low, high = found.interval_s
        told |= {"plan": found.plan.line, "source": found.source, "step_time_s": found.step_time_s}
        told |= {"low_s": low, "high_s": high, "floor_s": found.floor_s, "mfu": found.mfu}
        told |= {"hbm_bytes": found.hbm_bytes, "parts": dict(found.time_parts)}
    return told


def _place(best: Tried, tried: Sequence[Tried]) -> int | None:
    """How many trials of its tier it took until the best plan was tried."""
    numbered = sorted((each for each in tried if each.finding.source == best.finding.source), key=lambda t: t.number)
    for place, each in enumerate(numbered, start=1):
        if (each.finding.plan, each.bundle) == (best.finding.plan, best.bundle):
            return place
    return None


def _last_words(folder: Path) -> str:
    """What a study that has no answer said last."""
    try:
        lines = (folder / LOG).read_bytes()[-TAIL:].decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return clean(hidden(lines[-1].removeprefix("asap-ray: "), os.environ), LONG) if lines else "it left nothing"

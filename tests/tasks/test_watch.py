"""`task=show watch=true`: a run that goes on is followed to its end, each event told once, and its frame fits."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from asap_ray.ledger import Ledger
from asap_ray.report.terminal import print_blocks
from asap_ray.report.watching import SHOWN, frame
from asap_ray.tasks import compiling, watch
from asap_ray.tasks.story import story_of
from tests.tasks.pretend import Pretend

RUN = ("+model=tiny", "hardware=v5e-4", "tiers=[roofline,compile]", "budget.compile=10", "output=json", "run_dir=run")
SHOW = ("task=show", "run_dir=run", "output=plain")


@pytest.fixture
def lines(command: Any, pretend: type[Pretend], monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The events of a run of ten trials, of which the file then holds only those up to the first that began."""
    monkeypatch.setattr(compiling, "installed", lambda setting, ours: True)
    ended = command(*RUN)
    assert ended.status == 0, ended.err
    path = Path("run/events.jsonl")
    found = path.read_bytes().splitlines(keepends=True)
    begun = next(place for place, line in enumerate(found) if json.loads(line)["kind"] == "trial")
    path.write_bytes(b"".join(found[: begun + 1]))
    return found


def test_a_run_that_goes_on_is_followed_line_by_line_to_its_end(
    command: Any, lines: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, waited = Path("run/events.jsonl"), [0]
    left = lines[len(path.read_bytes().splitlines()) :]

    def wait(seconds: float) -> None:
        waited[0] += 1
        if waited[0] % 2 and left:  # every other look finds nothing new
            with path.open("ab") as file:
                file.write(b"".join(left[:4]))
            del left[:4]
        assert waited[0] < 10 * len(lines)

    monkeypatch.setattr(watch.watch, "__defaults__", (wait,))
    told = command(*SHOW, "watch=true")
    assert told.status == 0, told.err
    assert left == []
    kinds = [json.loads(line)["kind"] for line in lines]
    for word, kind in (("start", "start"), ("trial", "trial"), ("tried", "tried"), ("answer", "answer")):
        assert told.out.count(f" {word}: ") == kinds.count(kind)
    assert told.out.index(" answer: ") < told.out.index("So far on v5e-4")  # the story follows, as without watch
    journal = Path("run/optuna.journal").absolute()
    assert told.out.splitlines()[-1].split() == ["dashboard", "optuna-dashboard", str(journal)]


def test_a_frame_says_what_runs_and_for_how_long(lines: list[bytes], capsys: pytest.CaptureFixture[str]) -> None:
    events = list(Ledger(Path("run").absolute()).events())
    began = datetime.fromisoformat(events[-1]["at"])
    story = story_of(events, Path("run"))
    print_blocks(frame(story, began + timedelta(seconds=75)), "plain", sys.stdout)
    out = capsys.readouterr().out
    assert f"trial 0 for 75.0 s: {events[-1]['plan']}" in out
    assert "last event 75.0 s ago" in out
    assert "none has ended" in out
    assert "by roofline" in out


def test_a_frame_of_many_trials_shows_the_last_and_the_best(
    lines: list[bytes], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path("run/events.jsonl")
    path.write_bytes(b"".join(lines))
    monkeypatch.setattr(watch, "takes_escapes", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "200")
    watch.watch(Ledger(Path("run").absolute()), "rich", lambda seconds: None)
    out = capsys.readouterr().out
    assert "10 complete" in out
    best = json.loads(lines[-1])["best"]
    assert f"MFU: {best}"[:60] in " ".join(out.split())
    assert len(re.findall(r"^ +\d+ +\w+ +complete ", out, re.MULTILINE)) == SHOWN


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("+model=tiny", "watch=true"), "watch=true: for task=show"),
        (("task=show", "run_dir=x", "watch=true", "output=json"), "output=json: rich or plain with watch=true"),
        (("task=show", "run_dir=x", "watch=true"), "run_dir="),
    ],
)
def test_only_a_run_can_be_watched(command: Any, words: tuple[str, ...], said: str) -> None:
    told = command(*words)
    assert (told.status, told.err.count("\n")) == (1, 1)
    assert said in told.err

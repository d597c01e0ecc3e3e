"""The short form of `python -m tests.soak`: a fault of each kind that needs no Ray and no process for each trial."""

from __future__ import annotations

import subprocess
import sys

from tests.soak.study import ROOT


def test_nothing_is_lost_repeated_or_left_behind() -> None:
    words = (sys.executable, "-m", "tests.soak", "--short", "--seed", "7", "--faults", "17", "--jobs", "2")
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    told = {name.strip(): int(count) for name, count in (line.rsplit(None, 1) for line in ended.stdout.splitlines())}
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert told["faults"] + told["faults that found no moment"] == 17
    assert told["faults that found no moment"] <= 2
    assert (told["lost"], told["repeated"], told["left behind"], told["problems"]) == (0, 0, 0, 0)

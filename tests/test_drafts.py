"""Files that are there whole or not at all, also where a command is killed amid writing them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from asap_ray.drafts import draft_of, write_whole

KILLED = """
import os, pathlib, signal, sys
from asap_ray.drafts import draft_of
with draft_of(pathlib.Path(sys.argv[1])) as draft:
    draft.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_command_leaves_the_old_file_and_the_next_one_its_draft_to_nobody(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "summary.json", "old")
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
    write_whole(path, "new")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["new"]


def test_what_fails_amid_writing_changes_nothing(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "a", "old")
    with pytest.raises(LookupError), draft_of(path) as draft:
        draft.write_bytes({}["nothing to write"])
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"a": "old"}


def test_bytes_of_a_path_that_are_no_text_are_escapes(tmp_path: Path) -> None:
    assert write_whole(tmp_path / "a", os.fsdecode(b"\xff")).read_text() == "\\udcff"


def test_several_that_write_one_file_take_turns(tmp_path: Path) -> None:
    """As a run and those who show it meanwhile: none fails, none sees or leaves half of another's."""
    path, texts = tmp_path / "trials.parquet", [str(number) * 100_000 for number in range(6)]

    def write(text: str) -> None:
        for _ in range(20):
            write_whole(path, text)
            assert path.read_text() in texts

    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(write, texts))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]

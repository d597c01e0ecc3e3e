"""The files of a run directory, each written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from asap_ray.drafts import write_whole
from asap_ray.report import leaderboard
from asap_ray.report.answer import Answer
from asap_ray.report.page import page
from asap_ray.report.summary import summary_text


def write_report(answer: Answer, run_dir: Path) -> tuple[Path, ...]:
    """Write summary.json, leaderboard.{csv,json,md} and report.html, and return their paths.

    A reader never sees half a file: each is written beside its place and renamed into it.

    Raises:
        OSError: the directory cannot be made or written.
    """
    rows = leaderboard.records(answer)
    texts = {
        "summary.json": summary_text(answer) + "\n",
        "leaderboard.csv": leaderboard.csv_text(rows),
        "leaderboard.json": leaderboard.json_text(rows),
        "leaderboard.md": leaderboard.markdown_text(rows),
        "report.html": page(answer),
    }
    run_dir.mkdir(parents=True, exist_ok=True)
    return tuple(write_whole(run_dir / name, text) for name, text in texts.items())

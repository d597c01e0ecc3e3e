"""What must hold of a study once its command has ended well."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from tests.soak.model_server import KEY
from tests.soak.study import Study, values

TORN = "events.torn"


def check(study: Study, whole: Study | None) -> None:
    """Nothing finished is lost or told otherwise, the answer is that of the undisturbed study, files can be read, and
    nothing is left."""
    for place, problem in enumerate(_problems(study, whole)):
        if place < 20:
            study.problems.append(problem)


def _problems(study: Study, whole: Study | None) -> Iterator[str]:
    study.settle()
    now = last(study)
    lost = {plan: step for plan, step in study.ever.items() if now.get(plan, -1.0) != step}
    study.counts["lost"] += len(lost)
    study.counts["finished"] += len(now)
    if lost:
        yield f"lost, or with another step: {lost}, now {now}"
    yield from (f"told otherwise: {each}" for each in _otherwise(study))
    if whole is not None:
        yield from _differs(study, whole)
    yield from _unread(study)
    left = sorted(names(study.place) - (names(whole.place) if whole else set()) - {f"run/{TORN}"} if whole else [])
    left += sorted(str(path) for path in (study.place / "t").iterdir())
    study.counts["left behind"] += len(left)
    yield from (f"left behind: {each}" for each in left)
    for path in (*study.place.rglob("*"), *study.kept.glob("*.out"), *study.kept.glob("*.err")):
        if path.is_file() and KEY.encode() in path.read_bytes():
            yield f"the key is in {path}"


def last(study: Study) -> dict[str, float | None]:
    """Steps by plan of the last run in a ledger."""
    events = study.events()
    start = max(place for place, event in enumerate(events) if event["kind"] == "start")
    return values(event for event in events[start:] if event["kind"] == "tried")


def _otherwise(study: Study) -> Iterator[str]:
    """Plans whose trials that were not lost have different steps in one ledger."""
    found: dict[str, float | None] = {}
    for event in study.events():
        if event["kind"] == "tried" and not event["finding"]["lost"]:
            ((plan, step),) = values([event]).items()
            if found.setdefault(plan, step) != step:
                yield f"{plan}: {found[plan]}, then {step}"


def _differs(study: Study, whole: Study) -> Iterator[str]:
    ours, theirs = (json.loads((each.run_dir / "summary.json").read_text()) for each in (study, whole))
    for name in ("best", "trials"):
        if ours[name] != theirs[name]:
            yield f"{name} is {ours[name]}, undisturbed {theirs[name]}"
    if last(study) != last(whole):
        yield f"trials are {last(study)}, undisturbed {last(whole)}"


def _unread(study: Study) -> Iterator[str]:
    for path in sorted(study.place.rglob("*")):
        try:
            if path.is_file():
                _read(path)
        except Exception as error:  # whatever a reader raises is what is told
            yield f"{path} cannot be read: {type(error).__name__}: {error}"


def _read(path: Path) -> None:
    if path.suffix == ".json":
        json.loads(path.read_text())
    elif path.suffix in (".jsonl", ".journal"):
        for line in path.read_text().splitlines():
            json.loads(line)
    elif path.suffix == ".csv":
        rows = list(csv.reader(path.open(newline="")))
        assert len(rows) > 1, "no rows"
        assert len({len(row) for row in rows}) == 1, "rows of different lengths"
    elif path.suffix == ".parquet":
        import pyarrow.parquet as parquet

        assert parquet.read_table(path).num_rows
    elif path.suffix in (".html", ".md", ".yaml", ".yml", ".sh", ".txt"):
        assert path.read_text().endswith("\n"), "its end is missing"


def names(place: Path) -> set[str]:
    """Files of a study, below its folder, but for those that the run or plans give names of their own."""
    found = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_symlink() or path.is_file()}
    return {name for name in found if not name.startswith("t/")}

"""What `task=doctor` tells: each thing that was looked at, what was found, and what to type where it falls short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from asap_ray.report.outline import Block, Grid

Status = Literal["ok", "lacking", "without"]
WORDS = {"ok": "ok", "lacking": "LACKING", "without": "without"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that was looked at.

    `lacking`: what was asked for cannot run so. `without`: it can, but something that may be wanted is not there.
    `fix` is what to type, a command or words of ours; empty where nothing is to be done.
    """

    area: str
    name: str
    status: Status
    found: str
    fix: str = ""


def able(checks: Sequence[Check]) -> bool:
    """Whether what was asked for can run."""
    return not any(each.status == "lacking" for each in checks)


def health_fields(checks: Sequence[Check]) -> dict[str, Any]:
    """The same as one JSON object."""
    return {"task": "doctor", "able": able(checks), "checks": [asdict(each) for each in checks]}


def health_blocks(checks: Sequence[Check], command: str) -> Iterator[Block]:
    """What a reader is told: a table an area, then what to do, then whether the command can run."""
    for area in dict.fromkeys(each.area for each in checks):
        rows = tuple((each.name, WORDS[each.status], each.found) for each in checks if each.area == area)
        yield Block(title=area, grid=Grid(header=("", "", "found"), rows=rows, words=("", "found")))
    for status, title in (("lacking", "To do"), ("without", "To have more")):
        facts = tuple((each.name, each.fix) for each in checks if each.status == status and each.fix)
        if facts:
            yield Block(title=title, facts=facts)
    ready = "can run here" if able(checks) else "cannot run here before that is done"
    yield Block(facts=((command, ready),), strong=True)

"""The words for trials, by the tier that they went through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """How a tier is spoken of: plans are `done`, a trial is a `trial`, figures are `by` something."""

    done: str
    undone: str
    trial: str
    by: str


WORDS: Mapping[str, Words] = {
    "compile": Words(done="compiled", undone="did not compile", trial="compilation", by="the compiler"),
    "run": Words(done="run", undone="did not run", trial="run", by="the clock"),
    "command": Words(done="run", undone="did not run", trial="run", by="the trainer's log"),
}


def words_of(source: str) -> Words:
    """The words for a tier."""
    return WORDS.get(source, WORDS["compile"])

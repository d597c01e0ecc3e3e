"""Text of others reaches terminals, pages and tables as text alone, wherever it stands in what a run has recorded."""

from __future__ import annotations

import copy
import csv
import io
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from asap_ray.errors import ConfigError
from asap_ray.ledger import NAME, Ledger
from asap_ray.report import outline, page, terminal
from asap_ray.report.answer import Answer
from asap_ray.report.leaderboard import csv_text, markdown_text, records
from asap_ray.report.story import story_blocks
from asap_ray.tasks.record import answer_of
from asap_ray.tasks.story import story_of
from tests.fuzz.run_readers import searched

EVIL = "\x1b[2J\x1b]0;x\x07\u202e<img src=x onerror=alert(1)></script>[red]{0}{x.__class__}%s|`../../x\n=1+1"
"""Escapes, a change of direction, HTML, markup, braces, a table's bar, a path, a second line, a formula."""
MARKS = ("\x1b", "\x07", "\u202e", "\ud800")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Elements(HTMLParser):
    """Elements that are not of the page's own making."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("src") == "x" or any(name.startswith("on") for name in given):
            self.found.append(tag)


def text_keys(value: Any) -> Iterator[str]:
    """Names under which texts stand, in all of some events."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, str):
                yield name
            yield from text_keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from text_keys(inner)


def poisoned(value: Any, keys: frozenset[str]) -> Any:
    """The events with that text under these names."""
    if isinstance(value, dict):
        return {k: EVIL if k in keys and isinstance(v, str) else poisoned(v, keys) for k, v in value.items()}
    return [poisoned(each, keys) for each in value] if isinstance(value, list) else value


KEYS = sorted(set(text_keys(json.loads(json.dumps(searched())))) - {"kind", "at", "status"})


def read(keys: frozenset[str], folder: Path) -> tuple[Any, Answer] | None:
    """What is told of a run whose texts of these names are poisoned; None where it is refused."""
    events = poisoned(copy.deepcopy(list(searched())), keys)
    (folder / NAME).write_text("".join(json.dumps(each) + "\n" for each in events))
    ledger = Ledger(folder)
    try:
        with ledger.understood():
            found = list(ledger.events())
            return story_of(found, folder), answer_of(found, folder)
    except ConfigError:
        return None


def printed(blocks: list[Any]) -> str:
    """What a terminal is sent, in colour and plain; colours themselves left out."""
    plain, colour = io.StringIO(), Terminal()
    terminal.print_blocks(blocks, "plain", plain)
    terminal.print_blocks(blocks, "rich", colour)
    own = colour.getvalue()
    for style in ("\x1b[1;36m", "\x1b[2m", "\x1b[1;32m", "\x1b[0m"):
        own = own.replace(style, "")
    return plain.getvalue() + own


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Answer]:
    """A story and an answer with that text wherever it is taken."""
    folder = tmp_path_factory.mktemp("poisoned")
    taken = frozenset(key for key in KEYS if read(frozenset({key}), folder) is not None)
    assert {"reason", "command", "hypothesis"} <= taken
    found = read(taken, folder)
    assert found is not None
    return found


def test_every_text_of_a_run_is_printed_as_text(told: tuple[Any, Answer]) -> None:
    story, answer = told
    text = printed([*story_blocks(story), *outline.outline(answer, compiles=True)])
    assert not [mark for mark in MARKS if mark in text]
    assert "\n=1+1" not in text


def test_a_page_holds_no_element_of_others(told: tuple[Any, Answer]) -> None:
    text = page.page(told[1])
    elements = Elements()
    elements.feed(text)
    assert elements.found == []
    assert not [mark for mark in MARKS if mark in text]


def test_tables_keep_their_rows(told: tuple[Any, Answer]) -> None:
    rows = records(told[1])
    assert markdown_text(rows).count("\n") == len(rows) + 2
    assert len(list(csv.reader(io.StringIO(csv_text(rows))))) == len(rows) + 1

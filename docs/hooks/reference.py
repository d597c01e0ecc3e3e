"""The reference of the site: all keys and names, from the rows that `--help` is written from."""

from __future__ import annotations

import dataclasses
import inspect
from collections import defaultdict
from collections.abc import Iterable

from asap_ray.checks.keys import TASKS
from asap_ray.config import Config
from asap_ray.settings import load_group
from asap_ray.usage import Key, keys

GROUPS = {
    "model": "`+model=NAME`",
    "hardware": "chips, in names of slices",
    "stack": "`stack=NAME`",
    "scenario": "`+scenario=NAME`",
    "nightly": "`nightly=NAME`",
    "command": "`command=NAME`",
    "xla": "`compile.xla=NAME`",
}


def filled(page: str) -> str:
    """The page with its tables in the places of their marks."""
    parts = {"tasks": tasks(), "keys": key_tables(), "names": name_tables()}
    for name, text in parts.items():
        mark = f"<!-- {name} -->"
        assert mark in page, mark
        page = page.replace(mark, text)
    return page


def tasks() -> str:
    """Every task with what it does."""
    return _table(("task", "what it does"), ((f"`task={name}`", text) for name, text in TASKS.items()))


def key_tables() -> str:
    """A table for each owner of keys, those of no owner first."""
    owners = {field.name: field.default_factory for field in dataclasses.fields(Config)}
    found: dict[str, list[Key]] = defaultdict(list)
    for key in keys():
        found[key.path.rpartition(".")[0]].append(key)
    parts = []
    for owner in sorted(found, key=lambda name: name != ""):
        about = inspect.getdoc(owners[owner]) or "" if owner else "What no other section owns."
        parts.append(f"### {owner or 'The command'}\n\n{about}\n\n{_key_table(found[owner])}")
    return "\n\n".join(parts)


def _key_table(rows: Iterable[Key]) -> str:
    return _table(
        ("key", "type", "default", "allowed", "what it is"),
        ((f"`{key.name}`", key.type, f"`{key.default}`", key.allowed, key.help) for key in rows),
    )


def name_tables() -> str:
    """The names of every group of `conf/`, with what their files say that they are."""
    parts = []
    for group, words in GROUPS.items():
        rows = ((f"`{given.get('name', name)}`", _about(given)) for name, given in load_group(group).items())
        parts.append(f"### {group.capitalize()}: {words}\n\n{_table(('name', 'from'), rows)}")
    return "\n\n".join(parts)


def _about(given: dict[str, object]) -> str:
    said = given.get("about") or given.get("source") or given.get("sources") or given.get("title") or ""
    return str(said[0] if isinstance(said, list) else said)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = tuple(head)
    lines = (head, ("---",) * len(head), *rows)
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

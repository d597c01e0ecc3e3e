"""Carry the record of compilations over an edit of the trainer that leaves its programs as they were.

The record and the cache are found by a hash of sources, so that any edit of the trainer makes them stale. But where a
program's StableHLO, the text that the compiler is given, is the same under both sources, so is all that came of it.
This makes that text for every plan of the record, under the sources that Python finds:

    python -m asap_ray.tasks.renewing > old.json            # in a worktree at the commit before
    python -m asap_ray.tasks.renewing > new.json            # in the new one
    python -m asap_ray.tasks.renewing old.json new.json     # in the new one

(The old worktree takes `compiler/lowered.py` and this file as they are now; neither is among the sources of the hash.)
The last command names the new trainer in the lines of the record whose texts agree, copies their results in the cache
to where the new trainer looks for them, and lists the lines whose programs differ: these have to be compiled again
(`task=validate tiers=[compile] validate.recompile=true`, which finds all others in the cache).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asap_ray.compiler import toolchain
from asap_ray.compiler.lowered import lowered_digest, prepare
from asap_ray.compiler.request import Request
from asap_ray.config import Config
from asap_ray.interchange.measured_tables import read_tables
from asap_ray.tasks.compiled_cases import RESULTS, Case, _tier, cases, record_dir, write_record
from asap_ray.tasks.predictions import load_mapper, map_rows
from asap_ray.tasks.validate import KEY, carried_tables
from asap_ray.tiers.cache import Cache, default_cache
from asap_ray.tiers.recorded import Recorded, read_record


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """A program before it is compiled: the hash of its text, and where its results lie in the cache."""

    digest: str
    cached: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Texts:
    """All programs of the record under one state of the sources, by the line's key; `trainer` is the trainer's hash, as
    lines name it."""

    trainer: str
    programs: Mapping[str, Text]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"trainer": self.trainer, "programs": {key: [t.digest, t.cached] for key, t in self.programs.items()}}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Texts:
        """Read what `as_dict` wrote."""
        programs = {key: Text(digest=each[0], cached=each[1]) for key, each in given["programs"].items()}
        return cls(trainer=given["trainer"], programs=programs)


def texts_of(found: Iterable[tuple[Case, Request, str]]) -> Texts:
    """The texts of some programs, each given with where its results lie in the cache."""
    programs = {}
    for case, request, cached in found:
        programs[json.dumps(case.key)] = Text(digest=lowered_digest(request), cached=cached)
        print(case.model, case.plan.line, file=sys.stderr)
    return Texts(trainer=toolchain.source_hash(toolchain.TRAINER)[:8], programs=programs)


def renewed(lines: Sequence[Recorded], old: Texts, new: Texts) -> tuple[list[Recorded], list[Recorded]]:
    """The lines of a record, those whose programs are the same naming the new trainer; and those that are not."""
    found, differ = [], []
    for line in lines:
        key = json.dumps(line.key)
        before, now = old.programs.get(key), new.programs.get(key)
        same = before is not None and now is not None and before.digest == now.digest
        current = line.compiled_with.startswith(f"ours@{old.trainer},")
        if same and current:
            line = replace(line, compiled_with=line.compiled_with.replace(old.trainer, new.trainer, 1))
        else:
            differ.append(line)
        found.append(line)
    return found, differ


def copied(folder: Path, old: Texts, new: Texts) -> int:
    """Copy the results of programs that are the same to where the new sources look for them; returns how many."""
    cache, count = Cache(folder), 0
    for key, now in new.programs.items():
        before = old.programs.get(key)
        if before is None or before.digest != now.digest:
            continue
        if (build := cache.read(before.cached)) is not None:
            cache.write(now.cached, build)
            count += 1
    return count


def _requests() -> Iterable[tuple[Case, Request, str]]:
    config = Config(task="validate", tiers=["compile"])
    tables = read_tables(KEY, carried_tables())
    rows = map_rows(tables, load_mapper(config.config_dir, config.space.margin)).rows
    for case in cases(config, {row.id: row for row in rows}):
        request = _tier(config, case)._request(case.plan)
        yield case, request, request.key(toolchain.source_hash(), toolchain.versions(request.slice.chip))


def main(words: Sequence[str]) -> int:
    """The texts of all programs as JSON, or, given those of two states of the sources, the record and cache renewed."""
    if not words:
        prepare(os.environ)
        json.dump(texts_of(_requests()).as_dict(), sys.stdout, indent=1)
        return 0
    old, new = (Texts.from_dict(json.loads(Path(each).read_text())) for each in words)
    lines, differ = renewed(read_record(record_dir() / RESULTS), old, new)
    print(f"{copied(default_cache(), old, new)} results are in the cache under the new sources", file=sys.stderr)
    print(f"{write_record(lines)}: {len(lines) - len(differ)} of {len(lines)} lines are renewed", file=sys.stderr)
    for line in differ:
        print(f"another program: {line.model} {line.hardware} {line.plan}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

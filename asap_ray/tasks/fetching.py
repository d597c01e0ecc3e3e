"""What lies in a folder on another file system, and how it comes to this machine.

Most file systems out there cannot append, so a ledger lies there as segments, `events/<first byte>.jsonl`. Read one
after another they are the ledger; one that does not begin where those before it end is none of it: it was put together
with others into one, or its writer had lost the folder.
"""

from __future__ import annotations

import fcntl
import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from asap_ray.drafts import draft_of
from asap_ray.ledger import NAME
from asap_ray.remote import Remote
from asap_ray.tasks import lease

FOLDER = "events"
TRIES = 5
"""How often a folder is read again whose segments are put together meanwhile."""
_SEGMENT = re.compile(rf"((?:.+/)?){FOLDER}/(\d{{15,}})\.jsonl")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What lies out there and here alike: of each ledger the bytes at which its segments begin and the last ends, and
    of each other file when it was changed here, in ns."""

    bounds: dict[str, list[int]] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)


class _Gone(Exception):
    """A segment is not there any more that was a moment ago."""


def segment(ledger: str, first: int) -> str:
    """The name of the segment of a ledger (`NAME`, below any folder) that begins with a byte."""
    return f"{ledger.removesuffix(NAME)}{FOLDER}/{first:015d}.jsonl"


def segments_in(names: Iterable[str]) -> dict[str, list[int]]:
    """By ledger, the bytes with which segments begin, in their order."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for name in names:
        if parts := _SEGMENT.fullmatch(name):
            found[f"{parts[1]}{NAME}"].append(int(parts[2]))
    return {ledger: sorted(firsts) for ledger, firsts in found.items()}


def fetch(remote: Remote, local: Path) -> Fetched:
    """Make a local folder like the one out there; events that lie here alone, since a machine died, stay.

    Raises:
        OSError: the folder out there cannot be read, or the local one not written to.
    """
    local.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(local):
        for _ in range(TRIES):
            try:
                return _fetched(remote, local)
            except _Gone:
                continue
    raise OSError("what lies there changes all the time")


def _fetched(remote: Remote, local: Path) -> Fetched:
    names = [name for name in remote.names() if _is_ours(name)]
    found = Fetched()
    for ledger, firsts in segments_in(names).items():
        data, found.bounds[ledger] = _joined(remote, ledger, firsts)
        _place_ledger(local / ledger, data)
    for name in names:
        if name != lease.NAME and not _SEGMENT.fullmatch(name) and (data := remote.read(name)) is not None:
            _place(local / name, data)
            found.changed[name] = (local / name).stat().st_mtime_ns
    return found


def _is_ours(name: str) -> bool:
    """Whether a name may be a path below a folder of this machine; drafts and other hidden files are nobody's."""
    return not any(part.startswith(".") for part in PurePosixPath(name).parts)


def _joined(remote: Remote, ledger: str, firsts: Iterable[int]) -> tuple[bytes, list[int]]:
    data, bounds = bytearray(), [0]
    for first in firsts:
        if first == len(data):
            piece = remote.read(segment(ledger, first))
            if piece is None:
                raise _Gone
            data += piece
            bounds += [len(data)] if piece else []
    return bytes(data), bounds


def _place_ledger(path: Path, data: bytes) -> None:
    here = path.read_bytes() if path.exists() else b""
    if here.startswith(data):
        return
    if here and not data.startswith(here):  # another machine has gone on from before these
        path.rename(path.with_suffix(f".aside-{uuid.uuid4().hex[:8]}"))
    _place(path, data)


def _place(path: Path, data: bytes) -> None:
    if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with draft_of(path) as draft:
        draft.write_bytes(data)


@contextmanager
def _one_at_a_time(local: Path) -> Iterator[None]:
    """Any number of commands may look at a run, and each fetches it into the same folder."""
    with (local / ".fetching").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

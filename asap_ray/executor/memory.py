"""How much memory this machine, or the container that this process is in, has to give (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def available_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> float:
    """Bytes that can still be taken before the machine or a container swaps or kills; inf where nothing says."""
    return min([_machine_bytes(proc), *(_left(group) for group in _groups(proc, cgroups))])


def held_bytes(pid: int | None, proc: Path = PROC) -> float:
    """Bytes of memory that a process holds now; 0 where it is gone."""
    try:
        return int((proc / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError, IndexError):
        return 0.0


def _machine_bytes(proc: Path) -> float:
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError:
        return float("inf")
    return next((int(line.split()[1]) * 1024.0 for line in lines if line.startswith("MemAvailable:")), float("inf"))


def _groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The folders of this process's control groups that may limit memory, each with those around it.

    A line of /proc/self/cgroup is `number:controllers:path`: version 2 has no controllers in its only line, version 1
    has one line for memory and a folder of that name.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root = cgroups / "memory" if "memory" in controllers.split(",") else None if controllers else cgroups
        if root is not None:
            # Inside of a container the path may be that of the host, which is not here: then the root is its own.
            yield from (folder for folder in _upwards(root, path) if folder.is_dir())


def _upwards(root: Path, path: str) -> Iterator[Path]:
    parts = [part for part in path.split("/") if part and part != ".."]
    for length in range(len(parts), -1, -1):
        yield root.joinpath(*parts[:length])


def _left(group: Path) -> float:
    """What a control group may still take: its limit less what it holds, without the file cache it would give up."""
    limit = _number(group, "memory.max", "memory.limit_in_bytes")
    held = _number(group, "memory.current", "memory.usage_in_bytes")
    if limit is None or held is None:
        return float("inf")
    return max(0.0, limit - held + _cached(group))


def _number(group: Path, *names: str) -> float | None:
    for name in names:
        try:
            text = (group / name).read_text().strip()
        except OSError:
            continue
        return None if text == "max" else float(text)
    return None


def _cached(group: Path) -> float:
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0.0
    found = dict(line.split() for line in lines if len(line.split()) == 2)
    return float(found.get("total_inactive_file", found.get("inactive_file", 0)))

"""What this machine is: Python and packages, cores, memory, and folders that can really be written to."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

from asap_ray.compiler.toolchain import installed_version
from asap_ray.config import Config
from asap_ray.executor.memory import available_bytes
from asap_ray.report import units
from asap_ray.report.health import Check
from asap_ray.tiers.cache import default_cache
from asap_ray.tiers.compile import COMPILE_BYTES

AREA = "This machine"
OLDEST = (3, 11)
NAME = "asap-ray"
WRITTEN_BYTES = 1 << 20
LOW_BYTES = 1e9
"""A run directory with less room may fill up: reports, traces and logs of a long run take some hundred MB."""
EXTRAS: Mapping[str, str] = {
    "gp": "search=gp",
    "cmaes": "search=cmaes",
    "xprof": "more views of a trace",
}
"""Extras with what they are for; those of compilers are looked at with the devices."""


def machine(config: Config) -> Iterator[Check]:
    """All checks of this machine."""
    yield _python(sys.version_info[:2])
    yield packages(requires_of(NAME))
    yield from extras(requires_of(NAME), config)
    yield _cores()
    yield _memory(available_bytes(), needed=config.compiles)
    yield folder("run_dir", config.run_path, fix="run_dir=PATH of a folder that you may write to")
    cache = default_cache() if config.compile.cache is None else Path(os.path.expanduser(config.compile.cache))
    yield folder("compile.cache", cache.absolute(), fix="compile.cache=PATH of a folder that you may write to")


def _python(here: tuple[int, int]) -> Check:
    text = ".".join(map(str, OLDEST))
    if here < OLDEST:
        found = f"{platform.python_version()}, and {text} is the oldest that will do"
        return Check(area=AREA, name="python", status="lacking", found=found, fix=f"python{text} -m venv .venv")
    return Check(area=AREA, name="python", status="ok", found=f"{platform.python_version()} at {sys.executable}")


def requires_of(package: str) -> list[Requirement]:
    """What an installed package requires, extras included; nothing where it is not installed, as in a checkout."""
    try:
        return [Requirement(text) for text in requires(package) or ()]
    except PackageNotFoundError:
        return []


def unmet(wanted: Iterable[Requirement], extra: str = "") -> list[str]:
    """Of what is required, what is missing or of another version, each as pip takes it."""
    lacking = []
    for each in wanted:
        if each.marker and not each.marker.evaluate({"extra": extra}):
            continue
        here = installed_version(each.name)
        if not here or not each.specifier.contains(here, prereleases=True):
            lacking.append(f"{each.name}{each.specifier}")
    return lacking


def packages(wanted: Iterable[Requirement]) -> Check:
    """Whether all that every run needs is there, in versions that will do."""
    wanted = list(wanted)
    if not wanted:
        found = f"{NAME} runs from a checkout and is not installed, so that nothing says what it requires"
        fix = f"{sys.executable} -m pip install -e ."
        return Check(area=AREA, name="packages", status="without", found=found, fix=fix)
    if lacking := unmet(wanted):
        return Check(
            area=AREA, name="packages", status="lacking", found=f"not met: {', '.join(lacking)}", fix=install(lacking)
        )
    return Check(area=AREA, name="packages", status="ok", found="all that is required, in versions that will do")


def install(lacking: Iterable[str]) -> str:
    """The command that installs what is lacking, by the interpreter that runs now."""
    words = " ".join(f"'{each}'" for each in lacking)
    return f"{sys.executable} -m pip install {words}"


def extras(wanted: Iterable[Requirement], config: Config) -> Iterator[Check]:
    """What brings more where it is installed."""
    wanted = list(wanted)
    plain = set(unmet(wanted))
    for extra, purpose in EXTRAS.items():
        lacking = [each for each in unmet(wanted, extra) if each not in plain]
        asked = config.search.method == extra
        if not lacking:
            status, found = "ok", f"installed, for {purpose}"
        else:
            status, found = "lacking" if asked else "without", f"{', '.join(lacking)} is for {purpose}"
        fix = install(lacking) if lacking else ""
        yield Check(area=AREA, name=f"extra {extra}", status=status, found=found, fix=fix)


def _cores() -> Check:
    here, all_ = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    text = units.count(here) + (f" of {all_} are this process's" if here < all_ else "")
    return Check(area=AREA, name="cores", status="ok", found=text)


def _memory(left_bytes: float, *, needed: bool) -> Check:
    """How many compilations fit in memory side by side."""
    count = int(left_bytes // COMPILE_BYTES) if left_bytes != float("inf") else (os.cpu_count() or 1)
    found = f"{units.gigabytes(left_bytes)} free, room for {count} compilations of {units.gigabytes(COMPILE_BYTES)}"
    if count:
        return Check(area=AREA, name="memory", status="ok", found=found)
    status = "lacking" if needed else "without"
    return Check(area=AREA, name="memory", status=status, found=found, fix="tiers=roofline, or free some memory")


def folder(name: str, path: Path, *, fix: str) -> Check:
    """Whether a file can be written to a folder, which is made for it and taken away again, and the room there."""
    made = [place for place in (path, *path.parents) if not place.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(WRITTEN_BYTES))
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(path).free
    except OSError as error:
        found = f"{path} cannot be written to: {error.strerror or error}"
        return Check(area=AREA, name=name, status="lacking", found=found, fix=fix)
    finally:
        with contextlib.suppress(OSError):  # where another command has put something there meanwhile
            for place in made:
                place.rmdir()
    found = f"{path} takes files, {units.gigabytes(free)} free"
    if free < LOW_BYTES:
        return Check(area=AREA, name=name, status="without", found=found, fix=fix)
    return Check(area=AREA, name=name, status="ok", found=found)

"""Traces of JAX: taken with its profiler, and read from the `*.xplane.pb` files that it leaves, one a host.

A file also holds the program of each module that ran, so that ops are read as the compile tier reads them: category,
phase, source, FLOPs, bytes. Names are data and are never used as anything else. Hosts are read one after the other, and
of each only what its middle steps add up to is kept.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from asap_ray.compiler.facts import Facts
from asap_ray.compiler.hlo import HloError, parse
from asap_ray.errors import shown
from asap_ray.plan import Plan
from asap_ray.profile import trace
from asap_ray.profile.planes import Reader
from asap_ray.profile.summary import StepSummary, summarise
from asap_ray.profile.table import Op, Profile
from asap_ray.profile.trace import DeviceSteps, steps_of
from asap_ray.profile.xspace import Tables, TraceError, read_tables
from asap_ray.workload import Workload

SUFFIX = ".xplane.pb"
MOST_BYTES = 2**29
"""Of one file: reading takes some 15 times its size in memory."""


@contextlib.contextmanager
def capture(folder: str | Path) -> Iterator[None]:
    """Take a trace of what runs inside into a folder, of ops and of the host's main events, not of Python's calls."""
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 1
    with jax.profiler.trace(str(folder), profiler_options=options):
        yield


@contextlib.contextmanager
def step(number: int) -> Iterator[None]:
    """Mark what runs inside as one step of a training loop; it should not return before the step is over."""
    import jax

    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        yield


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """A trace as it was read: the steps of each device, and what is not certain.

    `peaks` are FLOP/s and bytes/s of HBM of a device, 0 where the trace does not tell them.
    """

    files: tuple[Path, ...]
    devices: tuple[DeviceSteps, ...]
    chip: str
    peaks: tuple[float, float]
    flags: tuple[str, ...] = ()

    @property
    def summary(self) -> StepSummary:
        """A step in a few figures."""
        return summarise(self.devices)

    def profile(self, *, chip: str = "", clock_hz: float = 0.0) -> Profile:
        """The normalised profile, of the mean device; `chip` and `clock_hz` as there."""
        return trace.profile_of(self.devices, chip=chip or self.chip, clock_hz=clock_hz, flags=self.flags)


def files_of(path: str | Path) -> tuple[Path, ...]:
    """The files of one profile, one a host: the file itself, or those of the newest profile in or below a folder.

    Raises:
        TraceError: there are none.
    """
    root = Path(path).expanduser()
    try:
        if root.is_file():
            return (root,)
        if not root.is_dir():
            raise TraceError(f"{shown(path)}: there is no such file or folder")
        sessions: defaultdict[Path, list[tuple[int, Path]]] = defaultdict(list)
        for file in root.rglob("*" + SUFFIX):
            sessions[file.parent].append((file.stat().st_mtime_ns, file))
    except OSError as error:
        raise TraceError(f"{shown(path)}: cannot be read: {error.strerror}") from None
    if not sessions:
        raise TraceError(f"{shown(path)}: no *{SUFFIX} in it or below it, which is what JAX's profiler writes")
    newest = max(sessions, key=lambda folder: (max(sessions[folder])[0], folder))
    return tuple(sorted(file for _, file in sessions[newest]))


def read(path: str | Path, *, hlo: str = "", plan: Plan | None = None, workload: Workload | None = None) -> Trace:
    """Read a trace.

    Args:
        path: a file, a profile's folder, or any folder above it; of several profiles the newest.
        hlo: the text of the main program; without it the one that the trace holds is read.
        plan: names the mesh axes of collectives.
        workload: says which keys attention sees.

    Raises:
        TraceError: a file is no trace, is cut off, or holds no work of a device.
    """
    files = files_of(path)
    devices: list[DeviceSteps] = []
    programs = Programs(hlo, plan, workload)
    chip, peaks = "", (0.0, 0.0)
    for file in files:
        found, reader = _read_file(file, programs)
        devices += found
        chip, peaks = chip or reader.chip, peaks if all(peaks) else reader.peaks
    if not any(_took_time(each) for each in devices):
        text = "no op of a device is in it: nothing ran while it was taken, or it was stopped too soon"
        raise TraceError(f"{shown(path)}: {text}")
    return Trace(files=files, devices=tuple(devices), chip=chip, peaks=peaks, flags=tuple(programs.flags))


def _took_time(device: DeviceSteps) -> bool:
    return 0.0 < math.fsum((*device.account.exposed.values(), *device.account.waits.values())) < math.inf


def profile_of(
    path: str | Path,
    *,
    hlo: str = "",
    plan: Plan | None = None,
    workload: Workload | None = None,
    chip: str = "",
    clock_hz: float = 0.0,
) -> Profile:
    """The profile that a trace holds; arguments and errors as `read`, `chip` and `clock_hz` as in `Profile`."""
    return read(path, hlo=hlo, plan=plan, workload=workload).profile(chip=chip, clock_hz=clock_hz)


def _read_file(file: Path, programs: Programs) -> tuple[list[DeviceSteps], Reader]:
    data = _bytes(file)
    try:
        tables = read_tables(data)
    except TraceError as error:
        raise TraceError(f"{shown(file)}: {error}") from None
    from jax.profiler import ProfileData  # JAX takes a second to load

    try:
        planes = list(ProfileData.from_serialized_xspace(data).planes)
    except RuntimeError as error:
        raise TraceError(f"{shown(file)}: JAX cannot read it: {shown(error)}") from None
    reader = Reader(tables, programs.of(tables))
    try:
        host = reader.host(file.name.removesuffix(SUFFIX), planes)  # JAX calls it after the host
        return [steps_of(host, device) for device in reader.devices(planes)], reader
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:  # stats that no profiler writes
        raise TraceError(f"{shown(file)}: it holds what no profiler writes: {shown(error)}") from error


def _bytes(file: Path) -> bytes:
    try:
        size = file.stat().st_size
        if size > MOST_BYTES:
            text = f"{size:,} bytes are more than the {MOST_BYTES:,} that are read; trace fewer steps"
            raise TraceError(f"{shown(file)}: {text}")
        return file.read_bytes()
    except OSError as error:
        raise TraceError(f"{shown(file)}: cannot be read: {error.strerror}") from None


class Programs:
    """What the programs of a trace say of their instructions; the same on every host, so each is read once."""

    def __init__(self, hlo: str, plan: Plan | None, workload: Workload | None) -> None:
        self.hlo, self.plan, self.workload = hlo, plan, workload
        self.flags: list[str] = []
        self._rows: dict[str, dict[str, Op]] = {}

    def of(self, tables: Tables):
        """The rows of a program by its name, for one file."""

        def rows(module: str) -> Mapping[str, Op]:
            if module not in self._rows:
                self._rows[module] = self._read(module, tables)
            return self._rows[module]

        return rows

    def _read(self, module: str, tables: Tables) -> dict[str, Op]:
        bare = module.partition("(")[0]
        try:
            if self.hlo and (not module or self.hlo.startswith(f"HloModule {bare},")):
                return self._facts(self.hlo)
            held = next((each for name, each in tables.programs.items() if name in (module, bare)), None)
            return self._facts(_printed(held)) if held else {}
        except HloError as error:
            self.flags.append(f"the program {shown(module)} is not read: {shown(error)}")
            return {}

    def _facts(self, text: str) -> dict[str, Op]:
        module = parse(text)
        try:
            return Facts(module, self.plan, self.workload).rows()
        except HloError as error:  # a small program beside the main one, or another plan than the one that ran
            if self.plan is None:
                raise
            self.flags.append(f"mesh axes are not known: {shown(error)}")
            return Facts(module, None, self.workload).rows()


def _printed(program: bytes) -> str:
    """A serialized program as text."""
    try:
        from jaxlib import _hlo  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        raise HloError("this jaxlib does not print programs") from None
    try:
        return _hlo.HloModule.from_serialized_hlo_module_proto(program).to_string()
    except (RuntimeError, ValueError, TypeError) as error:
        raise HloError(f"XLA cannot read it: {error}") from None

"""Traces of JAX: taken with its profiler, and read from the `*.xplane.pb` files that it leaves, one a host.

On TPUs and GPUs each device has a plane of its own, with lines of ops, of asynchronous ops, of streams. On CPUs there
are only the host's threads: events that carry `hlo_op` and `device_ordinal` are the devices' work. A file also holds
the program of each module that ran, so that ops are read as the compile tier reads them: category, phase, source,
FLOPs, bytes. Names are data and are never used as anything else.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asap_ray.compiler.facts import Facts
from asap_ray.compiler.hlo import HloError, parse
from asap_ray.errors import shown
from asap_ray.plan import Plan
from asap_ray.profile import trace
from asap_ray.profile.kinds import Kind, category_of, kind_of, phase_of, short_name, started_by
from asap_ray.profile.sweep import merged
from asap_ray.profile.table import Op, Profile
from asap_ray.profile.trace import Device, Host
from asap_ray.profile.xspace import TraceError, Value, read_tables
from asap_ray.workload import Workload

SUFFIX = ".xplane.pb"
MOST_BYTES = 2**31 - 1
"""A protocol buffer cannot be longer; a file that is was not written by a profiler."""
HOST_PLANE = "/host:CPU"
OPS, ASYNC_OPS, MODULES = "XLA Ops", "Async XLA Ops", "XLA Modules"
_DEVICE = re.compile(r"/device:(TPU|GPU):\d+$")
_DERIVED = ("Steps", OPS, ASYNC_OPS, MODULES, "Framework Ops", "Framework Name Scope", "Source code", "Launch Stats")
_QUIET = ("ThreadpoolListener::", "end: ", "Wait", "ThunkExecutor::")
_INPUT = re.compile(
    r"IteratorGetNext|Iterator::|Prefetch|infeed|data_?load|(next|get|load)_batch|input_(fn|pipeline)|^input\b|"
    r"grain\b|PyGrain",
    re.IGNORECASE,
)
_BUSY = re.compile(
    r"TransferTo|TransferH2D|BufferFromHost|copy_array_to_devices|device_put|Linearize|shard_args|PjitFunction|"
    r"::Execute|ExecuteReplicated|ParseArguments|EnqueueProgram|DoEnqueue|RunProgramRequest|backend_compile|"
    r"trace_to_jaxpr|lower_sharding|Compile"
)


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
    """A trace as it was read: hosts with their devices, and what is not certain of it."""

    files: tuple[Path, ...]
    hosts: tuple[Host, ...]
    chip: str = ""
    flags: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """Devices of all hosts."""
        return sum(len(host.devices) for host in self.hosts)


def files_of(path: str | Path) -> tuple[Path, ...]:
    """The files of one profile, one a host: the file itself, or those of the newest profile below a folder.

    Raises:
        TraceError: there are none.
    """
    root = Path(path).expanduser()
    if root.is_file():
        return (root,)
    if not root.is_dir():
        raise TraceError(f"{shown(path)}: there is no such file or folder")
    sessions: defaultdict[Path, list[Path]] = defaultdict(list)
    for file in root.rglob("*" + SUFFIX):
        sessions[file.parent].append(file)
    if not sessions:
        raise TraceError(f"{shown(path)}: no *{SUFFIX} in it or below it, which is what JAX's profiler writes")
    newest = max(sessions, key=lambda folder: (max(file.stat().st_mtime_ns for file in sessions[folder]), folder))
    return tuple(sorted(sessions[newest]))


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
    hosts, flags, chips = [], [], []
    for file in files:
        reading = _File(file, hlo, plan, workload)
        hosts.append(reading.host())
        flags += reading.flags
        chips.append(reading.chip)
    if not any(host.devices for host in hosts):
        raise TraceError(
            f"{shown(path)}: no op of a device is in it: nothing ran while it was taken, or it was cut short"
        )
    return Trace(
        files=files,
        hosts=tuple(hosts),
        chip=next((chip for chip in chips if chip), ""),
        flags=tuple(dict.fromkeys(flags)),
    )


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
    found = read(path, hlo=hlo, plan=plan, workload=workload)
    return trace.profile_of(found.hosts, chip=chip or found.chip, clock_hz=clock_hz, flags=found.flags)


@dataclass
class _File:
    """Reads one host's file."""

    file: Path
    hlo: str
    plan: Plan | None
    workload: Workload | None
    flags: list[str] = field(default_factory=list)
    chip: str = ""
    _rows: dict[str, dict[str, Op]] = field(default_factory=dict)
    _kinds: dict[tuple[str, str], Kind] = field(default_factory=dict)

    def host(self) -> Host:
        data = self._bytes()
        try:
            tables = read_tables(data)
        except TraceError as error:
            raise TraceError(f"{shown(self.file)}: {error}") from None
        from jax.profiler import ProfileData  # JAX takes a second to load

        try:
            planes = list(ProfileData.from_serialized_xspace(data).planes)
        except RuntimeError as error:
            raise TraceError(f"{shown(self.file)}: JAX cannot read it: {shown(error)}") from None
        self.tables = tables
        self.stats = {table.plane: table.kinds for table in tables.planes}
        name = tables.hostnames[0] if tables.hostnames else self.file.name.removesuffix(SUFFIX)
        devices = [self._device(plane) for plane in planes if _DEVICE.match(plane.name)]
        found = _HostEvents()
        for plane in planes:
            if plane.name == HOST_PLANE:
                self._threads(plane, found)
        if not devices:
            devices = found.devices()
        return Host(
            name=name,
            devices=tuple(device for device in devices if any(device.lines)),
            annotated=found.steps(),
            busy=found.busy(),
        )

    def _bytes(self) -> bytes:
        try:
            size = self.file.stat().st_size
            if size > MOST_BYTES:
                raise TraceError(f"{shown(self.file)}: {size:,} bytes: no profiler writes more than {MOST_BYTES:,}")
            return self.file.read_bytes()
        except OSError as error:
            raise TraceError(f"{shown(self.file)}: cannot be read: {error.strerror}") from None

    def _device(self, plane: Any) -> Device:
        stats = dict(plane.stats)
        self.chip = self.chip or str(stats.get("device_type_string") or stats.get("gpu_device_name") or "")
        lines = list(plane.lines)
        launches = [(*_span(each), str(each.name)) for line in lines if line.name == MODULES for each in line.events]
        launches.sort()
        if ":GPU:" in plane.name and (streams := [line for line in lines if line.name not in _DERIVED]):
            found = [self._stream(plane.name, line) for line in streams]
            return Device(name=plane.name.removeprefix("/device:"), lines=tuple(found), launches=())
        found = [self._ops(plane.name, line, launches) for line in lines if line.name in (OPS, ASYNC_OPS)]
        return Device(name=plane.name.removeprefix("/device:"), lines=tuple(found), launches=tuple(launches))

    def _ops(self, plane: str, line: Any, launches: list[tuple[float, float, str]]) -> tuple:
        """A TPU's line; the program of an op is the one that runs when it does."""
        found, at = [], 0
        for each in sorted(line.events, key=lambda event: event.start_ns):
            start, end = _span(each)
            while at + 1 < len(launches) and launches[at + 1][0] <= start:
                at += 1
            module = launches[at][2] if launches else ""
            found.append((start, end, self._kind(plane, str(each.name), module)))
        return tuple(found)

    def _stream(self, plane: str, line: Any) -> tuple:
        found = []
        for each in line.events:
            stats = dict(each.stats)
            name = str(stats.get("hlo_op") or each.name)
            found.append((*_span(each), self._kind(plane, name, _module(stats))))
        return tuple(found)

    def _threads(self, plane: Any, found: _HostEvents) -> None:
        for line in plane.lines:
            thread: defaultdict[int, list[tuple[float, float, Kind]]] = defaultdict(list)
            for each in line.events:
                name = str(each.name)
                if name.startswith(_QUIET):
                    continue
                stats = dict(each.stats)
                if "hlo_op" in stats:
                    module, device = _module(stats), int(stats.get("device_ordinal", 0))
                    span = _span(each)
                    thread[device].append((*span, self._kind(plane.name, str(stats["hlo_op"]), module)))
                    found.ran(device, module, int(stats.get("run_id", 0)), span)
                elif "step_num" in stats:
                    found.annotated[name].append(_span(each))
                elif _INPUT.search(name):
                    found.input.append(_span(each))
                elif _BUSY.search(name):
                    found.host.append(_span(each))
            for device, spans in thread.items():
                found.lines[device].append(tuple(spans))

    def _kind(self, plane: str, text: str, module: str) -> Kind:
        key = module, text
        if key not in self._kinds:
            stats = self.stats.get(plane, {}).get(text, {})
            said = str(stats.get("hlo_category", ""))
            known = self._program(module).get(short_name(text)) or _said(text, stats)
            self._kinds[key] = kind_of(text, said=said, known=known, module=module)
        return self._kinds[key]

    def _program(self, module: str) -> dict[str, Op]:
        """What the module's program says of its instructions; nothing where it cannot be read."""
        if module not in self._rows:
            try:
                self._rows[module] = Facts(parse(self._text(module)), self.plan, self.workload).rows()
            except HloError as error:
                self._rows[module] = {}
                if module:
                    self.flags.append(f"the program of {shown(module)} is not read: {error}")
        return self._rows[module]

    def _text(self, module: str) -> str:
        bare = module.partition("(")[0]
        if self.hlo and self.hlo.startswith(f"HloModule {bare},"):
            return self.hlo
        held = next((each for name, each in self.tables.programs.items() if name in (module, bare)), None)
        if held is None:
            raise HloError("the trace does not hold it")
        return _printed(held)


class _HostEvents:
    """What the threads of a host did."""

    def __init__(self) -> None:
        self.lines: defaultdict[int, list[tuple]] = defaultdict(list)
        self.runs: dict[tuple[int, str, int], tuple[float, float]] = {}
        self.annotated: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        self.input: list[tuple[float, float]] = []
        self.host: list[tuple[float, float]] = []

    def ran(self, device: int, module: str, run: int, span: tuple[float, float]) -> None:
        """Widen a run of a program by one of its ops."""
        start, end = self.runs.get((device, module, run), span)
        self.runs[device, module, run] = min(start, span[0]), max(end, span[1])

    def devices(self) -> list[Device]:
        """The devices that the threads worked for."""
        return [
            Device(
                name=f"CPU:{number}",
                lines=tuple(lines),
                launches=tuple(sorted((*span, of) for (device, of, _), span in self.runs.items() if device == number)),
            )
            for number, lines in sorted(self.lines.items())
        ]

    def steps(self) -> tuple[tuple[float, float], ...]:
        """The steps of the loop that takes longest, of several that are annotated."""
        loops = self.annotated.values()
        most = max(loops, key=lambda spans: sum(end - start for start, end in spans), default=[])
        return tuple(sorted(most))

    def busy(self) -> dict[str, tuple[tuple[float, float], ...]]:
        """When the host was busy with input, and with launches and transfers."""
        return {"input": tuple(merged(self.input)), "host": tuple(merged(self.host))}


def _span(event: Any) -> tuple[float, float]:
    start = event.start_ns * 1e-9
    return start, start + event.duration_ns * 1e-9


def _module(stats: dict[str, Any]) -> str:
    name = str(stats.get("hlo_module", ""))
    return f"{name}({stats['program_id']})" if "program_id" in stats and "(" not in name else name


def _said(text: str, stats: dict[str, Value]) -> Op | None:
    """What a TPU's profiler says of an op, where its program is not known; FLOPs are counted of matmuls alone."""
    if "hlo_category" not in stats:
        return None
    name = started_by(text)
    category, scope = category_of(name, str(stats["hlo_category"])), str(stats.get("tf_op", ""))
    return Op(
        name=name,
        scope=scope,
        category=category,
        phase=phase_of(scope) or "other",
        flops=_number(stats.get("flops")) if category in ("matmul", "attention") else 0.0,
        hbm_bytes=_number(stats.get("bytes_accessed")),
        source=str(stats.get("source", "")),
    )


def _number(value: Value | None) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _printed(program: bytes) -> str:
    """A serialized program as text."""
    try:
        from jaxlib import _hlo  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        raise HloError("this jaxlib does not print programs") from None
    try:
        return _hlo.HloModule.from_serialized_hlo_module_proto(program).to_string()
    except (RuntimeError, ValueError) as error:
        raise HloError(f"XLA cannot read it: {shown(error)}") from None

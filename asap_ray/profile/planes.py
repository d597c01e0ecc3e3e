"""From the planes of a trace to hosts and devices: which lines hold ops, whose they are, which program they are of.

A TPU's plane has the lines `XLA Ops`, `Async XLA Ops` (from a start to its done) and `XLA Modules`; a GPU's has a line
for each stream, whose events carry `hlo_op` and `hlo_module`. On CPUs the threads of `/host:CPU` do the devices' work:
their events carry `hlo_op`, `device_ordinal` and `run_id`. Steps that a loop annotates carry `step_num`, on any thread.
Planes are those of `jax.profiler.ProfileData`, or anything that looks like them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from asap_ray.profile.kinds import Kind, category_of, kind_of, phase_of, short_name, started_by
from asap_ray.profile.steps import Device, Event, Host, Span
from asap_ray.profile.sweep import merged
from asap_ray.profile.table import Op
from asap_ray.profile.xspace import Tables, Value

HOST_PLANE = "/host:CPU"
OPS, ASYNC_OPS, MODULES = "XLA Ops", "Async XLA Ops", "XLA Modules"
DERIVED = ("Steps", OPS, ASYNC_OPS, MODULES, "Framework Ops", "Framework Name Scope", "Source code", "Launch Stats")
"""Lines that are no stream of a GPU."""
LINES = (OPS, ASYNC_OPS)
_DEVICE = re.compile(r"/device:(TPU|GPU):\d+$")
_QUIET = ("ThreadpoolListener::", "end: ", "Wait", "ThunkExecutor::")
"""Beginnings of the names of events that say nothing of a step."""
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
PEAKS = {"peak_teraflops_per_second": 1e12, "peak_hbm_bw_gigabytes_per_second": 1e9}
"""Stats of a device's plane that give its peaks, and their units."""
Programs = Callable[[str], Mapping[str, Op]]
"""Rows of one run of each instruction of a program, by the program's name."""


class PlaneLike(Protocol):
    """A plane: `lines` have a name and events, events a name, start_ns, duration_ns and stats."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def lines(self) -> Iterable[Any]: ...  # noqa: D102

    @property
    def stats(self) -> Iterable[Any]: ...  # noqa: D102


class Reader:
    """Reads the planes of one host's file: the host first, then one device after the other.

    `chip` is what the devices are called, `peaks` are FLOP/s and bytes/s of HBM of one, where the planes tell.
    """

    def __init__(self, tables: Tables, programs: Programs) -> None:
        self.stats = {table.plane: table.kinds for table in tables.planes}
        self.programs = programs
        self.chip, self.peaks = "", (0.0, 0.0)
        self._kinds: dict[tuple[str, str], Kind] = {}
        self._threads = _Threads(self)

    def host(self, name: str, planes: Iterable[PlaneLike]) -> Host:
        """What the planes say of a host."""
        for plane in planes:
            if plane.name == HOST_PLANE:
                self._threads.read(plane)
        threads = self._threads
        busy = {"input": tuple(merged(threads.input)), "host": tuple(merged(threads.busy))}
        return Host(name=name, annotated=threads.steps(), busy=busy)

    def devices(self, planes: Iterable[PlaneLike]) -> Iterator[Device]:
        """What the planes say of each device that did anything; ask for the host first, which may have done it."""
        own = [plane for plane in planes if _DEVICE.match(plane.name)]
        self.chip = "" if own else "cpu"
        found = map(self._device, own) if own else self._threads.devices()
        return (device for device in found if any(device.lines))

    def kind(self, plane: str, text: str, module: str) -> Kind:
        """The kind of an op of a program."""
        key = module, text
        if key not in self._kinds:
            stats = self.stats.get(plane, {}).get(text, {})
            known = self.programs(module).get(short_name(text))
            self._kinds[key] = kind_of(
                text, said=str(stats.get("hlo_category", "")), known=known or _said(text, stats), module=module
            )
        return self._kinds[key]

    def _device(self, plane: PlaneLike) -> Device:
        stats, lines = dict(plane.stats), list(plane.lines)
        name = plane.name.removeprefix("/device:")
        self.chip = self.chip or str(
            stats.get("device_type_string") or stats.get("gpu_device_name") or name[:3].lower()
        )
        flops, memory = (float(stats.get(key, 0.0)) * unit for key, unit in PEAKS.items())
        self.peaks = self.peaks if all(self.peaks) else (flops, memory)
        streams = [line for line in lines if line.name not in DERIVED]
        if name.startswith("GPU") and streams:
            return Device(name=name, lines=tuple(self._stream(plane.name, line) for line in streams))
        launches = sorted(
            (*_span(each), str(each.name)) for line in lines if line.name == MODULES for each in line.events
        )
        core, beside = ([self._core(plane.name, line, launches) for line in lines if line.name == of] for of in LINES)
        begun = {kind.op.name for line in core for _, _, kind in line if kind.counts}
        return Device(
            name=name, lines=(*core, *(_counted_once(line, begun) for line in beside)), launches=tuple(launches)
        )

    def _core(self, plane: str, line: Any, launches: list[tuple[float, float, str]]) -> tuple[Event, ...]:
        """A line of ops, each of the program that runs when it starts."""
        found, at = [], 0
        for each in sorted(line.events, key=lambda event: event.start_ns):
            start, end = _span(each)
            while at + 1 < len(launches) and launches[at + 1][0] <= start:
                at += 1
            found.append((start, end, self.kind(plane, str(each.name), launches[at][2] if launches else "")))
        return tuple(found)

    def _stream(self, plane: str, line: Any) -> tuple[Event, ...]:
        found = []
        for each in line.events:
            stats = dict(each.stats)
            kind = self.kind(plane, str(stats.get("hlo_op") or each.name), module_name(stats))
            found.append((*_span(each), kind))
        return tuple(found)


class _Threads:
    """What the threads of a host did."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.lines: defaultdict[int, list[tuple[Event, ...]]] = defaultdict(list)
        self.runs: dict[tuple[int, str, int], Span] = {}
        self.annotated: defaultdict[str, list[Span]] = defaultdict(list)
        self.input: list[Span] = []
        self.busy: list[Span] = []

    def read(self, plane: PlaneLike) -> None:
        for line in plane.lines:
            ops: defaultdict[int, list[Event]] = defaultdict(list)
            for each in line.events:
                name = str(each.name)
                if not name.startswith(_QUIET):
                    self._event(plane.name, name, each, ops)
            for device, events in ops.items():
                self.lines[device].append(tuple(events))

    def _event(self, plane: str, name: str, event: Any, ops: dict[int, list[Event]]) -> None:
        stats, span = dict(event.stats), _span(event)
        if "hlo_op" in stats:
            module, device = module_name(stats), int(stats.get("device_ordinal", 0))
            ops[device].append((*span, self.reader.kind(plane, str(stats["hlo_op"]), module)))
            run = device, module, int(stats.get("run_id", 0))
            start, end = self.runs.get(run, span)
            self.runs[run] = min(start, span[0]), max(end, span[1])
        elif "step_num" in stats:
            self.annotated[name].append(span)
        elif _INPUT.search(name):
            self.input.append(span)
        elif _BUSY.search(name):
            self.busy.append(span)

    def devices(self) -> list[Device]:
        """The devices that the threads worked for."""
        launches: defaultdict[int, list[tuple[float, float, str]]] = defaultdict(list)
        for (device, module, _), span in self.runs.items():
            launches[device].append((*span, module))
        return [
            Device(name=f"CPU:{number}", lines=tuple(lines), launches=tuple(sorted(launches[number])))
            for number, lines in sorted(self.lines.items())
        ]

    def steps(self) -> tuple[Span, ...]:
        """The steps of the loop that takes longest, of several that are annotated."""
        loops = self.annotated.values()
        return tuple(sorted(max(loops, key=lambda spans: sum(end - start for start, end in spans), default=[])))


def module_name(stats: Mapping[str, Any]) -> str:
    """A program's name with its id, `jit_step(12)`, as the plane of programs has it."""
    name = str(stats.get("hlo_module", ""))
    return f"{name}({stats['program_id']})" if "program_id" in stats and "(" not in name else name


def _counted_once(line: tuple[Event, ...], begun: set[str]) -> tuple[Event, ...]:
    """A line of asynchronous ops, whose starts stand in the core's line too."""
    return tuple(
        (start, end, replace(kind, counts=False) if kind.op.name in begun else kind) for start, end, kind in line
    )


def _span(event: Any) -> Span:
    start = event.start_ns * 1e-9
    return start, start + event.duration_ns * 1e-9


def _said(text: str, stats: Mapping[str, Value]) -> Op | None:
    """What a TPU's profiler says of an op, where its program is not known; FLOPs are counted of matmuls alone."""
    if "hlo_category" not in stats:
        return None
    name, scope = started_by(text), str(stats.get("tf_op", ""))
    category = category_of(name, str(stats["hlo_category"]))
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

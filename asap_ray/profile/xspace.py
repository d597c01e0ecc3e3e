"""The tables of an XSpace (`*.xplane.pb`): what stands with each kind of event, and the programs that ran.

`jax.profiler.ProfileData` gives planes, lines and events, but not what is kept once a kind of event: on TPUs an op's
category, FLOPs, bytes and scope; in the plane `/host:metadata` each program's HLO. These few fields are read here from
the bytes, lines skipped, by the field numbers of xplane.proto (openxla/xla, tsl/profiler/protobuf). Whatever the bytes
are, nothing is trusted of them: every length is held against what is left, and depth is fixed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from asap_ray.errors import AsapError

METADATA_PLANE = "/host:metadata"
HLO_PROTO = "Hlo Proto"
Value = int | float | str | bytes
_PLANES, _HOSTNAMES = 1, 4
_PLANE_NAME, _EVENT_METADATA, _STAT_METADATA = 2, 4, 5
_KIND_NAME, _KIND_DISPLAY, _KIND_STATS = 2, 4, 5
_DOUBLE, _UNSIGNED, _SIGNED, _TEXT, _BYTES, _REFERENCE = 2, 3, 4, 5, 6, 7


class TraceError(AsapError, ValueError):
    """A trace cannot be read; the text names the file and what is wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One plane's kinds of events: the stats that stand with each, by the kind's name."""

    plane: str
    kinds: dict[str, dict[str, Value]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """What a file says besides its events: `programs` are serialized HLO modules by name and id, `jit_step(12)`."""

    planes: tuple[Table, ...]
    hostnames: tuple[str, ...]
    programs: dict[str, bytes]


def read_tables(data: bytes) -> Tables:
    """The tables of a file.

    Raises:
        TraceError: the bytes are no XSpace, or are cut off; the text does not name the file.
    """
    view = memoryview(data)
    planes, hostnames, programs = [], [], {}
    for number, value in _fields(view):
        if number == _PLANES and isinstance(value, memoryview):
            table = _table(value)
            planes.append(table)
            if table.plane == METADATA_PLANE:
                programs |= _programs(table)
        elif number == _HOSTNAMES and isinstance(value, memoryview):
            hostnames.append(_text(value))
    if not planes:
        raise TraceError("it holds no planes: it is no profile, or an empty one")
    return Tables(planes=tuple(planes), hostnames=tuple(hostnames), programs=programs)


def _table(plane: memoryview) -> Table:
    name, kinds, names = "", [], {}
    for number, value in _fields(plane):
        if not isinstance(value, memoryview):
            continue
        if number == _PLANE_NAME:
            name = _text(value)
        elif number == _EVENT_METADATA:
            kinds.append(_entry(value)[1])
        elif number == _STAT_METADATA:
            key, entry = _entry(value)
            names[key] = next((_text(each) for no, each in _fields(entry) if no == 2 and not isinstance(each, int)), "")
    return Table(plane=name, kinds=dict(_kind(kind, names) for kind in kinds))


def _entry(pair: memoryview) -> tuple[int, memoryview]:
    """Key and value of an entry of a map."""
    key, found = 0, memoryview(b"")
    for number, value in _fields(pair):
        if number == 1 and isinstance(value, int):
            key = value
        elif number == 2 and isinstance(value, memoryview):
            found = value
    return key, found


def _kind(kind: memoryview, names: dict[int, str]) -> tuple[str, dict[str, Value]]:
    name, stats = "", {}
    for number, value in _fields(kind):
        if not isinstance(value, memoryview):
            continue
        if number == _KIND_NAME:
            name = _text(value)
        elif number == _KIND_DISPLAY:
            stats["display_name"] = _text(value)
        elif number == _KIND_STATS:
            key, found = _stat(value, names)
            stats[key] = found
    return name, stats


def _stat(stat: memoryview, names: dict[int, str]) -> tuple[str, Value]:
    key, found = 0, 0
    for number, value in _fields(stat):
        if number == 1 and isinstance(value, int):
            key = value
        elif number == _REFERENCE and isinstance(value, int):
            found = names.get(value, "")
        elif number == _SIGNED and isinstance(value, int):
            found = value - (1 << 64) if value >> 63 else value
        elif number == _UNSIGNED and isinstance(value, int):
            found = value
        elif number == _TEXT and isinstance(value, memoryview):
            found = _text(value)
        elif number == _BYTES and isinstance(value, memoryview):
            found = bytes(value)
        elif number == _DOUBLE and isinstance(value, memoryview):
            found = struct.unpack("<d", value)[0]
    return names.get(key, ""), found


def _programs(table: Table) -> dict[str, bytes]:
    """Serialized HloModuleProtos by name: the first field of each HloProto."""
    found = {}
    for name, stats in table.kinds.items():
        proto = stats.get(HLO_PROTO)
        if isinstance(proto, bytes):
            for number, each in _fields(memoryview(proto)):
                if number == 1 and isinstance(each, memoryview):
                    found[name] = bytes(each)
    return found


def _text(value: memoryview) -> str:
    return bytes(value).decode("utf-8", "replace")


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field of a message: whole numbers as such, all else as bytes."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise TraceError("it is no profile: its bytes are no protocol buffer")
        if size > end - at:
            raise TraceError(f"it is cut off, or no profile: a field of {size:,} bytes has {end - at:,} left")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise TraceError("it is cut off, or no profile: a number does not end")

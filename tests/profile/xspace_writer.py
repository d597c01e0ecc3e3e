"""A writer of XSpace files for tests, by the field numbers of xplane.proto: what devices leave that are not here."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Stat = int | float | str | bytes


@dataclass
class Kind:
    """A kind of event with the stats that are kept once for it."""

    name: str
    stats: Mapping[str, Stat] = field(default_factory=dict)


@dataclass
class Plane:
    """A plane: `lines` have events as (start, end, kind, stats), in microseconds."""

    name: str
    lines: Mapping[str, Sequence[tuple[float, float, Kind | str, Mapping[str, Stat]]]] = field(default_factory=dict)
    stats: Mapping[str, Stat] = field(default_factory=dict)
    kinds: Sequence[Kind] = ()
    """Kinds of no event, such as those that hold programs."""


def xspace(*planes: Plane, hostname: str = "host") -> bytes:
    """The bytes of a file."""
    return b"".join(_bytes(1, _plane(number, plane)) for number, plane in enumerate(planes)) + _bytes(4, hostname)


def _plane(number: int, plane: Plane) -> bytes:
    kinds: dict[str, int] = {}
    names: dict[str, int] = {}
    told: list[Kind] = []

    def kind_number(kind: Kind | str) -> int:
        kind = Kind(kind) if isinstance(kind, str) else kind
        if kind.name not in kinds:
            kinds[kind.name] = len(kinds) + 1
            told.append(kind)
        return kinds[kind.name]

    def stats(field_number: int, given: Mapping[str, Stat]) -> bytes:
        return b"".join(
            _bytes(field_number, _int(1, names.setdefault(key, len(names) + 1)) + _value(value))
            for key, value in given.items()
        )

    lines = b""
    for place, (name, events) in enumerate(plane.lines.items()):
        body = b"".join(
            _bytes(
                4,
                _int(1, kind_number(kind))
                + _int(2, round(start * 1e6))
                + _int(3, round((end - start) * 1e6))
                + stats(4, own),
            )
            for start, end, kind, own in events
        )
        lines += _bytes(3, _int(1, place) + _bytes(2, name) + _int(3, 0) + body)
    for kind in plane.kinds:
        kind_number(kind)
    tables = b"".join(
        _bytes(
            4,
            _int(1, kinds[kind.name])
            + _bytes(2, _int(1, kinds[kind.name]) + _bytes(2, kind.name) + stats(5, kind.stats)),
        )
        for kind in told
    )
    own = stats(6, plane.stats)
    tables += b"".join(_entry(5, no, _int(1, no) + _bytes(2, name)) for name, no in names.items())
    return _int(1, number) + _bytes(2, plane.name) + lines + tables + own


def _entry(number: int, key: int, value: bytes) -> bytes:
    """An entry of a map."""
    return _bytes(number, _int(1, key) + _bytes(2, value))


def _value(value: Stat) -> bytes:
    if isinstance(value, float):
        return _varint(2 << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return _int(4, value)
    return _bytes(5 if isinstance(value, str) else 6, value)


def _int(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _bytes(number: int, value: str | bytes) -> bytes:
    body = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])

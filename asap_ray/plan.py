"""A plan: one point of the search space, hashable, ordered, and printable in one line that can be read back.

A line is a list of `field=value`. A mesh axis is written `size`, or `size@a.b.c` where its parts on the slice's ICI
axes are given, and `xN` behind it is its size across the data-centre network:

    fsdp=16@4.4.1 tensor=4@1.1.4 micro_batch=2 accumulation=8 remat=full
    data=1x6 tensor=8 micro_batch=1 accumulation=32 zero=1 sequence_parallel=true remat=selective

An expert axis that subdivides others has no parts of its own: it lies where they lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from asap_ray.errors import ConfigError

AXES = ("data", "fsdp", "pipeline", "context", "expert", "tensor")
"""Mesh axes in canonical order; on a shared ICI axis the later one lies innermost."""

SCHEDULES = ("none", "gpipe", "1f1b", "interleaved", "zero_bubble")
"""Pipeline schedules; `interleaved` is Megatron's interleaved 1F1B and MaxText's circular schedule."""

PRECISIONS = ("bf16", "fp16", "fp32", "fp8", "int8", "mxfp8", "mxfp4", "nvfp4")
ATTENTION_KERNELS = ("flash", "unfused")
KNOBS = (
    "micro_batch",
    "accumulation",
    "zero",
    "schedule",
    "virtual",
    "sequence_parallel",
    "remat",
    "precision",
    "attention",
)
FIELDS = AXES + KNOBS
MOST_PARTS = 8
"""Axes of a slice that a layout may name; a torus has three."""

Six = tuple[int, int, int, int, int, int]
ONES: Six = (1, 1, 1, 1, 1, 1)


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Plan:
    """How one training step is spread over the devices of a slice.

    `ici` and `dcn` are the sizes of each mesh axis inside a slice (or NVLink domain) and across; `layout` gives for
    each mesh axis its factor on each ICI axis, or is empty where there is nothing to choose. `micro_batch` is in
    sequences for each batch shard, `accumulation` counts the micro-batches of a step. `zero` is the ZeRO stage of the
    `data` axis (0 to 2); the `fsdp` axis always shards weights, gradients and optimizer state (stage 3).
    """

    ici: Six = ONES
    dcn: Six = ONES
    layout: tuple[tuple[int, ...], ...] = ()
    micro_batch: int = 1
    accumulation: int = 1
    zero: int = 0
    schedule: str = "none"
    virtual: int = 1
    sequence_parallel: bool = False
    remat: str = "none"
    precision: str = "bf16"
    attention: str = "flash"

    @property
    def sizes(self) -> Six:
        """Total size of each mesh axis."""
        a, b = self.ici, self.dcn
        return (a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3], a[4] * b[4], a[5] * b[5])

    @property
    def axes(self) -> dict[str, int]:
        """Total size of each mesh axis by name."""
        return dict(zip(AXES, self.sizes, strict=True))

    @property
    def line(self) -> str:
        """The plan in one line, without what is at its default; `Plan.parse` reads it back."""
        return " ".join(self._tokens())

    def _tokens(self) -> Iterator[str]:
        for i, axis in enumerate(AXES):
            if self.ici[i] * self.dcn[i] > 1:
                where = f"@{'.'.join(map(str, self.layout[i]))}" if self._has_parts(i) else ""
                across = f"x{self.dcn[i]}" if self.dcn[i] > 1 else ""
                yield f"{axis}={self.ici[i]}{where}{across}"
        for field in fields(self):
            value = getattr(self, field.name)
            always = field.name in ("micro_batch", "accumulation", "remat")
            if field.name in KNOBS and (always or value != field.default):
                yield f"{field.name}={str(value).lower() if isinstance(value, bool) else value}"

    def _has_parts(self, i: int) -> bool:
        return bool(self.layout) and self.ici[i] > 1 and math.prod(self.layout[i]) == self.ici[i]

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON: the axes with more than one device, ici and dcn sizes, and every knob."""
        axes = {axis: size for axis, size in self.axes.items() if size > 1}
        return {
            **axes,
            "ici": dict(zip(AXES, self.ici, strict=True)),
            "dcn": dict(zip(AXES, self.dcn, strict=True)),
            "layout": {a: list(self.layout[i]) for i, a in enumerate(AXES) if self._has_parts(i)},
            **{knob: getattr(self, knob) for knob in KNOBS},
        }

    @classmethod
    def parse(cls, text: str, key: str = "plan") -> Plan:
        """Read a plan from its line.

        Raises:
            ConfigError: a field is unknown, given twice, or its value cannot be read.
        """
        ici, dcn, knobs = list(ONES), list(ONES), {}
        parts: dict[int, tuple[int, ...]] = {}
        seen: set[str] = set()
        for token in text.split():
            name, _, value = token.partition("=")
            if name not in FIELDS:
                raise ConfigError(key, token, f"unknown field; allowed: {', '.join(FIELDS)}", FIELDS)
            if name in seen:
                raise ConfigError(key, token, f"{name} is given twice")
            seen.add(name)
            if name in AXES:
                i = AXES.index(name)
                ici[i], dcn[i], where = _parse_axis(value, f"{key}.{name}")
                parts |= {i: where} if where else {}
            else:
                knobs[name] = _parse_knob(name, value, f"{key}.{name}")
        rank = max((len(p) for p in parts.values()), default=0)
        layout = tuple(parts.get(i, (1,) * rank) for i in range(6)) if rank else ()
        lacking = [i for i, p in enumerate(layout) if ici[i] > 1 and i not in (*parts, AXES.index("expert"))]
        if lacking or any(len(p) != rank for p in layout):
            raise ConfigError(key, text, "every axis needs a part for each ICI axis, such as fsdp=16@4.4.1")
        return cls(ici=six(ici), dcn=six(dcn), layout=layout, **knobs)


def six(values: Iterable[int]) -> Six:
    """Six numbers, one for each mesh axis, as a tuple of that length."""
    a, b, c, d, e, f = values
    return (a, b, c, d, e, f)


def _parse_axis(text: str, key: str) -> tuple[int, int, tuple[int, ...]]:
    inside, crosses, across = text.partition("x")
    size, lies, where = inside.partition("@")
    ici, dcn = _positive(size, key), _positive(across, key) if crosses else 1
    if where.count(".") >= MOST_PARTS:
        raise ConfigError(key, text, f"at most {MOST_PARTS} parts, one for each axis of a slice")
    parts = tuple(_positive(part, key) for part in where.split(".")) if lies else ()
    if parts and math.prod(parts) != ici:
        raise ConfigError(key, text, f"the parts {where} multiply to {math.prod(parts)}, not to {ici}")
    return ici, dcn, parts


def _parse_knob(name: str, text: str, key: str) -> object:
    choices = {"schedule": SCHEDULES, "precision": PRECISIONS, "attention": ATTENTION_KERNELS}.get(name)
    if choices and text not in choices:
        raise ConfigError(key, text, f"allowed: {', '.join(choices)}", choices)
    if name == "sequence_parallel":
        if text.lower() not in ("true", "false"):
            raise ConfigError(key, text, "allowed: true, false")
        return text.lower() == "true"
    if name == "zero":
        if text not in ("0", "1", "2"):
            raise ConfigError(key, text, "allowed: 0, 1, 2 (stage 3 is the fsdp axis)")
        return int(text)
    return text if choices or name == "remat" else _positive(text, key)


def _positive(text: str, key: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0):
        raise ConfigError(key, text or "''", "allowed: a positive whole number")
    return int(text)

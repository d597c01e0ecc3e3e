"""Collectives of a program: what moves, among whom, over which axes of the mesh, and how many bytes a device sends.

The ids in replica groups are positions in the program's device assignment, which is the mesh flattened. A program for
several TPU slices is written for one of them: its groups number that slice's devices, and what crosses the data-centre
network is a pair of host transfers (`send` and `recv`), whose attributes name the slices.

Bytes are what each device sends in the best ring: the share (n-1)/n of what is gathered, scattered or exchanged among
n, twice that of what is reduced everywhere, and all of what is passed on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from asap_ray.compiler.hlo import Computation, HloError, Instruction
from asap_ray.plan import AXES, Plan

KINDS = {
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-reduce": "all_reduce",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "permute",
    "collective-broadcast": "all_gather",
}
"""Opcodes of collectives, and their names in a profile."""
TRANSFERS = {
    "ALL_GATHER": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "ALL_REDUCE": "all_reduce",
    "ALL_TO_ALL": "all_to_all",
    "ONE_TO_ONE": "permute",
}
"""Transfer types of the runtime between slices."""

_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(?([^)]*\)?)\)?)? ?\{([^}]*)\}")
_NAMED_AXIS = re.compile(r"'([^']+)'=(\d+)")
_PART = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_SENT_PAIRS = re.compile(r'_xla_send_recv_source_target_pairs="?\{((?:\{\d+,\d+\},?)*)\}')
_GROUP = re.compile(r"\{([\d,]*)\}")
_TYPE = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_TARGET = re.compile(r'_xla_megascale_target=("[^"]*"|\{.*?\}\})')
_SLICES = re.compile(r"\{([\d,:]+)\}x")
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')
SLICE_IDS = 100000
"""Devices of slice s have numbers from (s + 1) times this on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective: `bytes` is the whole array that is gathered, reduced or exchanged, or what is passed on.

    `axes` are the mesh axes over which members of a group differ, `exact` says whether a group is all of them.
    `ranks` is the size of a group; `crosses` whether it spans slices, `inside` whether it spans devices of one. `links`
    are the link axes of the slice, by number, along which members of a group differ; None where that is not known.
    """

    kind: str
    bytes: float
    ranks: int
    axes: tuple[str, ...]
    inside: bool = True
    crosses: bool = False
    exact: bool = True
    links: tuple[int, ...] | None = None

    @property
    def level(self) -> str:
        """`dcn` where it leaves the slice, else `ici`."""
        return "dcn" if self.crosses else "ici"

    @property
    def wire_bytes(self) -> float:
        """Bytes that a device sends."""
        return sent_bytes(self.kind, self.bytes, self.ranks)


def sent_bytes(kind: str, bytes_: float, ranks: int) -> float:
    """Bytes that each of some ranks sends in a collective over `bytes_`, as `Collective` counts them."""
    if ranks <= 1:
        return 0.0
    if kind == "permute":
        return bytes_
    return bytes_ * (ranks - 1) / ranks * (2.0 if kind == "all_reduce" else 1.0)


class DeviceMesh:
    """Where the devices of a program stand in the mesh of its plan."""

    def __init__(self, plan: Plan, partitions: int) -> None:
        """The mesh as `partitions` devices number it: all of the plan's, or those of one slice.

        Raises:
            HloError: the program is for another number of devices.
        """
        inside, whole = int(np.prod(plan.ici)), int(np.prod(plan.sizes))
        if partitions not in (inside, whole):
            raise HloError(f"the program is for {partitions} devices, the plan has {whole}, {inside} in a slice")
        self.sliced = partitions != whole
        self.sizes = plan.ici if self.sliced else plan.sizes
        self.ici, self.dcn = np.array(plan.ici), plan.dcn
        self.coordinates = np.stack(np.unravel_index(np.arange(partitions), self.sizes), axis=1)  # [devices, axes]
        self.slices = np.stack(np.unravel_index(np.arange(int(np.prod(plan.dcn))), plan.dcn), axis=1)
        self.steps = np.array(plan.layout) if plan.layout else None  # [axes, links]

    def axes_of(self, groups: np.ndarray) -> tuple[tuple[str, ...], bool, bool, bool]:
        """Axes that members of groups [groups, ranks] differ in; inside a slice, across; and whether they are whole."""
        places = self.coordinates[groups]  # [groups, ranks, axes]
        differs = (places != places[:, :1]).any(axis=(0, 1))
        slices, within = places // self.ici, places % self.ici
        crosses = bool((slices != slices[:, :1]).any()) and not self.sliced
        inside = bool((within != within[:, :1]).any())
        whole = int(np.prod(np.array(self.sizes)[differs])) == groups.shape[1]
        return _names(differs), inside, crosses, whole

    def links_of(self, groups: np.ndarray) -> tuple[int, ...] | None:
        """Link axes of a slice along which members of groups [groups, ranks] differ."""
        if self.steps is None:
            return None
        within = self.coordinates[groups] % self.ici  # [groups, ranks, axes]
        found: set[int] = set()
        for axis, steps in enumerate(self.steps):
            along = np.stack(np.unravel_index(within[..., axis], steps), axis=-1)  # [groups, ranks, links]
            found.update(np.flatnonzero((along != along[:, :1]).any(axis=(0, 1))).tolist())
        return tuple(sorted(found))

    def axes_across(self, slices: Sequence[int]) -> tuple[str, ...]:
        """Axes that some slices, by number from 0, differ in."""
        places = self.slices[list(slices)]
        return _names((places != places[:1]).any(axis=0))


def _names(differs: np.ndarray) -> tuple[str, ...]:
    return tuple(axis for axis, differ in zip(AXES, differs, strict=True) if differ)


def collective(mesh: DeviceMesh, computation: Computation, instruction: Instruction) -> Collective:
    """What a collective's instruction, or its start, does.

    Raises:
        HloError: its groups are printed in no form that is known.
    """
    kind = KINDS[instruction.opcode.removesuffix("-start")]
    given = sum(array.bytes for each in computation.operands(instruction) for array in each.arrays)
    if kind == "permute":
        pairs = _pairs(_PAIRS, instruction.attributes)
        axes, inside, crosses, _ = mesh.axes_of(pairs) if len(pairs) else ((), False, False, True)
        return Collective(kind=kind, bytes=given, ranks=2, axes=axes, inside=inside, crosses=crosses)
    groups = replica_groups(instruction.attributes, len(mesh.coordinates))
    axes, inside, crosses, exact = mesh.axes_of(groups)
    ranks = groups.shape[1]
    whole = given * ranks if kind == "all_gather" else given
    return Collective(
        kind=kind,
        bytes=whole,
        ranks=ranks,
        axes=axes,
        inside=inside,
        crosses=crosses,
        exact=exact,
        links=None if crosses else mesh.links_of(groups),
    )


def transfer(mesh: DeviceMesh, computation: Computation, send: Instruction) -> Collective:
    """What a `send` to other slices, or to another device, begins."""
    given = computation.operands(send)[0].arrays[0].bytes
    if not (found := _TYPE.search(send.attributes)):
        pairs = _pairs(_SENT_PAIRS, send.attributes)
        axes, inside, crosses, _ = mesh.axes_of(pairs) if len(pairs) else ((), True, False, True)
        return Collective(kind="permute", bytes=given, ranks=2, axes=axes, inside=inside, crosses=crosses)
    kind = TRANSFERS.get(found[1])
    if kind is None:
        raise HloError(f"{send.name}: unknown transfer between slices {found[1]}")
    slices = _slices(send.attributes, len(mesh.slices))
    ranks = 2 if kind == "permute" else len(slices)
    return Collective(
        kind=kind,
        bytes=given * ranks if kind == "all_gather" else given,
        ranks=ranks,
        axes=mesh.axes_across(slices),
        inside=False,
        crosses=True,
    )


def rendezvous(attributes: str) -> str:
    """The name under which a send and a receive between slices meet, or nothing."""
    found = _RENDEZVOUS.search(attributes)
    return found[1] if found else ""


def _slices(attributes: str, count: int) -> list[int]:
    """Slices that one group of a transfer joins: `"{1,2}x{0:15}"` by slice, `{{100002->200000},…}` by device."""
    found = _TARGET.search(attributes)
    text = found[1] if found else ""
    if listed := _SLICES.search(text):
        return sorted({int(each) - 1 for each in _spelled(listed[1])})
    first = re.search(r"\{([\d,\->]+)\}", text)
    devices = [int(each) for each in re.findall(r"\d+", first[1])] if first else []
    slices = sorted({device // SLICE_IDS - 1 for device in devices if device >= SLICE_IDS})
    return slices if len(slices) > 1 else list(range(count))


def _spelled(text: str) -> list[int]:
    """`1,2` or `0:3` as numbers."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition(":")
        found += range(int(first), int(last or first) + 1)
    return found


def _pairs(pattern: re.Pattern[str], attributes: str) -> np.ndarray:
    found = pattern.search(attributes)
    pairs = [[int(each) for each in group.split(",")] for group in _GROUP.findall(found[1])] if found else []
    return np.array([pair for pair in pairs if pair[0] != pair[1]], np.int64).reshape(-1, 2)


def replica_groups(attributes: str, devices: int) -> np.ndarray:
    """The groups of a collective [groups, ranks], in each form that XLA prints: listed, as an iota, by mesh axes.

    Raises:
        HloError: the form is not known, or groups differ in size.
    """
    found = re.search(r"replica_groups=(mesh\[[^\]]*\][^{]*\{[^}]*\}|\S*)", attributes)
    if not found:
        raise HloError(f"a collective without replica groups: {attributes[:120]!r}")
    return _read_groups(found[0].rstrip(","), devices)


@lru_cache(maxsize=1024)
def _read_groups(text: str, devices: int) -> np.ndarray:
    if found := _IOTA.match(text):
        shape, source = _ints(found[1]), _ints(found[2])
        ids = np.arange(int(np.prod(source))).reshape(source)
        return (ids.transpose(_ints(found[3])) if found[3] else ids).reshape(shape)
    if found := _NAMED.match(text):
        return _named_groups(*found.groups())
    if found := _LISTED.match(text):
        groups = [_ints(group) for group in _GROUP.findall(found[1])]
        if not groups:
            return np.arange(devices)[None, :]
        if len({len(group) for group in groups}) == 1:
            return np.array(groups)
    raise HloError(f"cannot read {text[:120]!r}")


def _ints(text: str | None) -> list[int]:
    return [int(each) for each in text.split(",") if each] if text else []


def _named_groups(mesh: str, ids: str | None, axes: str) -> np.ndarray:
    """Groups over axes of a mesh of its own, such as `mesh['a'=2,'b'=8] {'b'}`; `'b':(2)4` is a part of an axis: of its
    8 ranks, 4 in a row of those that are left when its first 2 are split off."""
    sizes = {name: int(size) for name, size in _NAMED_AXIS.findall(mesh)}
    members = {name: (int(before or 1), int(size or sizes[name])) for name, before, size in _PART.findall(axes)}
    shape, inner = [], []
    for name, size in sizes.items():
        before, own = members.get(name, (size, 1))
        inner.append(len(shape) + 1)
        shape += [before, own, size // before // own]
    devices = np.arange(int(np.prod(shape)))
    if ids:
        devices = _device_order(ids)
    outer = [axis for axis in range(len(shape)) if axis not in inner]
    ranks = int(np.prod([shape[axis] for axis in inner]))
    return devices.reshape(shape).transpose(outer + inner).reshape(-1, ranks)


def _device_order(text: str) -> np.ndarray:
    """Devices of a mesh in its order: `[2,8]T(1,0)`, or a list."""
    found = re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if not found:
        return np.array(_ints(text.strip("()")))
    shape = _ints(found[1])
    ids = np.arange(int(np.prod(shape))).reshape(shape)
    return (ids.transpose(_ints(found[2])) if found[2] else ids).ravel()


def last_device(attributes: str) -> int:
    """The largest number of a device that a collective names; 0 where it names none, or in a form that is not known."""
    pairs = _pairs(_PAIRS, attributes)
    try:
        groups = pairs if len(pairs) else replica_groups(attributes, 1)
    except HloError:
        return 0
    return int(groups.max(initial=0))


def ascends(attributes: str) -> bool | None:
    """Whether a permute sends to the next higher device, as most of its pairs do; None where it has no pairs."""
    pairs = _pairs(_PAIRS, attributes)
    return bool(2 * np.count_nonzero(pairs[:, 1] > pairs[:, 0]) >= len(pairs)) if len(pairs) else None

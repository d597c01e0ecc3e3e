"""The slice and the mesh of a measured row: degrees as its framework counts them, ranks laid as it lays them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from asap_ray.chip import Chip
from asap_ray.hardware import Slice, default_topology, make_slice
from asap_ray.interchange.measured_words import Unmappable, whole
from asap_ray.meshes import layouts_of
from asap_ray.plan import AXES, Plan, six
from asap_ray.problem import Problem, batch_shards
from asap_ray.stack import Stack

Row = Mapping[str, Any]
INSIDE_OUT = ("tensor", "context", "expert", "fsdp", "data", "pipeline")
"""Axes from neighbouring ranks outwards: Megatron's order tp-cp-ep-dp-pp; MaxText's mesh ends with tensor too."""

FSDP = re.compile(r"FSDP[^=\d]*(?: 2D)?=(\d+)(?:x(\d+))?")
SEVERAL = re.compile(r"\b(\d+)x v\d\w*-\d+|\b(\d+) slice")
TOPOLOGY = re.compile(r"topology (\d+)x(\d+)x(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Degrees:
    """Size of each mesh axis over all devices, ZeRO stage of the data axis, chunks a pipeline stage."""

    sizes: Mapping[str, int]
    zero: int
    virtual: int

    def batch_ranks(self, stack: Stack) -> int:
        """Ranks that the batch is split over."""
        return batch_shards(stack, self.sizes)


def mesh_degrees(row: Row, stack: Stack, devices: int) -> Degrees:
    """The mesh that a row describes.

    Raises:
        Unmappable: a degree is missing, or they do not multiply to the devices.
    """
    text = str(row.get("fsdp_zero") or "")
    found = FSDP.search(text)
    fsdp = int(found[1]) * int(found[2] or 1) if found else 1
    if "FSDP" in text and not found:
        raise Unmappable("fsdp: how it and pure replicas share the devices is not stated")
    tensor, pipeline = whole(row, "tp"), whole(row, "pp")
    context, expert = whole(row, "cp", 1), whole(row, "ep", 1)
    rest = tensor * pipeline * context * fsdp * (expert if stack.expert_multiplies else 1)
    data = whole(row, "dp", max(devices // rest, 1) if fsdp == 1 else 1)
    if fsdp > 1 and data * rest != devices and data == fsdp:
        data = 1  # Megatron's FSDP shards over the whole data axis, and the table counts its ranks twice
    if data * rest != devices:
        raise Unmappable("mesh: its degrees do not multiply to the devices")
    if not stack.expert_multiplies:
        # Experts that are spread over tensor ranks too are split by that axis already.
        expert = math.gcd(expert, data * fsdp * context)
    sizes = {"data": data, "fsdp": fsdp, "pipeline": pipeline, "context": context, "expert": expert, "tensor": tensor}
    sharded = re.search(r"ZeRO-1|distributed optimizer", text)
    zero = 2 if "ZeRO-2" in text else 1 if sharded else 0
    return Degrees(sizes=sizes, zero=zero, virtual=whole(row, "vpp", 1) if pipeline > 1 else 1)


def slice_of(row: Row, chip: Chip, degrees: Degrees) -> Slice:
    """The slice of a row: its stated topology, the sold shape of its chip count, or NVLink domains filled evenly.

    Raises:
        Unmappable: no slice has that many chips.
    """
    chips, notes = whole(row, "chips"), str(row.get("notes") or "")
    if chip.kind == "gpu":
        domain = _domain(chips, chip.max_domain, degrees.sizes["tensor"])
        return make_slice(chip, (domain,), chips // domain)
    if found := TOPOLOGY.search(notes):
        shape = tuple(sorted(int(n) for n in found.groups()))
        if math.prod(shape) == chips:
            return make_slice(chip, shape)
    found = SEVERAL.search(notes)
    count = int(next(n for n in found.groups() if n)) if found else 1
    if chips % count:
        raise Unmappable("slice: its chips do not divide into the slices stated")
    shape = default_topology(chip, chips // count)
    if shape is None and not found and chip.wrap != "cube":
        count = max(chips // chip.max_domain, 1)
        shape = default_topology(chip, chips // count) if chips % count == 0 else None
    if shape is None:
        raise Unmappable("slice: no slice has that many chips")
    return make_slice(chip, shape, count)


def _domain(chips: int, most: int, tensor: int) -> int:
    """GPUs in each NVLink domain: full ones where they divide the job, else alike ones that hold a tensor group."""
    if chips <= most:
        return chips
    sizes = [n for n in range(1, most + 1) if chips % n == 0]
    whole_groups = [n for n in sizes if n % tensor == 0]
    return most if most in sizes else max(whole_groups or sizes)


def placed(problem: Problem, plan: Plan, degrees: Degrees) -> Plan:
    """The plan with its mesh on the slice: axes fill it from the inside out, the rest goes across.

    Raises:
        Unmappable: the axes do not fill the slice.
    """
    inside, across, room = dict.fromkeys(AXES, 1), dict(degrees.sizes), problem.slice.ici_devices
    subdivided = not problem.stack.expert_multiplies
    for axis in INSIDE_OUT:
        if axis == "expert" and subdivided:
            continue
        inside[axis] = math.gcd(across[axis], room)
        across[axis] //= inside[axis]
        room //= inside[axis]
    if room != 1:
        raise Unmappable("mesh: its axes do not fill the slice or domain")
    if subdivided:
        ranks = inside["context"] * inside["fsdp"] * inside["data"]
        inside["expert"] = math.gcd(degrees.sizes["expert"], ranks)
        across["expert"] = degrees.sizes["expert"] // inside["expert"]
    plan = replace(plan, ici=six(inside[a] for a in AXES), dcn=six(across[a] for a in AXES))
    return replace(plan, layout=_layout(problem, plan))


def _layout(problem: Problem, plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Of the useful layouts the one that serves the inner axes best, as JAX assigns torus axes to a mesh."""
    if len(problem.slice.axes) == 1:
        return ()
    table = layouts_of(problem, plan.ici)
    if not len(table):
        raise Unmappable("mesh: its axes have no layout on the torus")
    rates = [-table.gather_bytes_per_s[:, AXES.index(axis)] for axis in reversed(INSIDE_OUT)]
    best = int(np.lexsort(rates)[0])
    return table.plan_layout(best)

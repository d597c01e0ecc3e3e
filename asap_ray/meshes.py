"""Meshes: every useful way to lay the six axes over a slice, as columns, with the rates their collectives get.

A mesh is an ICI part, one row of `topology.layouts`, and a split of the slices (or nodes) over the same axes across the
data-centre network. Where a stack's expert axis subdivides the others, each mesh comes once for every expert degree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from asap_ray.errors import ConfigError
from asap_ray.plan import AXES, Plan, Six, six
from asap_ray.problem import Problem, divided_axes, expert_split, replica_axes, sharding_axes, usable_axes
from asap_ray.rates import Group
from asap_ray.topology import LayoutTable, layouts


@dataclass(frozen=True, kw_only=True, slots=True)
class Meshes:
    """Meshes as columns [meshes]: `columns` by name (`tensor`, `tensor_ici`, `tensor_dcn`, …), `table` row by row."""

    columns: Mapping[str, np.ndarray]
    table: LayoutTable

    def __len__(self) -> int:
        """Number of meshes."""
        return len(self.columns["data"])

    def take(self, rows: np.ndarray) -> Meshes:
        """The rows of a mask or an index."""
        return Meshes(columns={k: v[rows] for k, v in self.columns.items()}, table=self.table.take(rows))

    def plan_fields(self, mesh: int) -> tuple[Six, Six, tuple[tuple[int, ...], ...]]:
        """`ici`, `dcn` and `layout` of one mesh, as a `Plan` takes them; no layout where nothing lies on two ICI
        axes."""
        ici, dcn = (six(int(self.columns[f"{axis}_{level}"][mesh]) for axis in AXES) for level in ("ici", "dcn"))
        return ici, dcn, self.table.plan_layout(mesh)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshProduct:
    """Every useful mesh of a problem, before any rule but the axes that its stack and model have.

    It is the product of ICI layouts, splits across the network `dcn` [splits, 6] and `experts` [degrees], the degrees
    of an expert axis that subdivides the others (1 alone elsewhere). Rows are made when they are asked for: thousands
    of devices in several slices have millions of meshes, and their columns would fill the memory.
    """

    problem: Problem
    table: LayoutTable
    dcn: np.ndarray
    experts: np.ndarray

    def __len__(self) -> int:
        """Number of meshes."""
        return len(self.table) * len(self.dcn) * len(self.experts)

    def take(self, rows: np.ndarray) -> Meshes:
        """The meshes of some row numbers [meshes], each below the product's length."""
        layout, split, degree = np.unravel_index(rows, (len(self.table), len(self.dcn), len(self.experts)))
        columns = _columns(self.table.sizes[layout].astype(np.int64), self.dcn[split])
        if _subdividing(self.problem):
            columns["expert"] = self.experts[degree]
            columns["expert_ici"], columns["expert_dcn"] = expert_split(columns)
        return Meshes(columns=columns, table=self.table.take(layout))

    def sizes(self, axis: str) -> tuple[int, ...]:
        """The total sizes that one axis takes in any mesh, ascending."""
        if axis == "expert" and _subdividing(self.problem):
            return tuple(int(degree) for degree in self.experts)
        inside, across = self.table.sizes[:, AXES.index(axis)].astype(np.int64), self.dcn[:, AXES.index(axis)]
        return tuple(int(size) for size in np.unique(np.outer(np.unique(inside), np.unique(across))))


def build_meshes(problem: Problem) -> MeshProduct:
    """The product of all useful meshes of a problem."""
    axes = [a for a in usable_axes(problem) if a != "expert" or problem.stack.expert_multiplies]
    across = np.array(factorisations(problem.slice.slices, len(axes)))
    dcn = np.ones((len(across), len(AXES)), np.int64)
    dcn[:, [AXES.index(axis) for axis in axes]] = across
    return MeshProduct(
        problem=problem,
        table=layouts(problem.slice, tuple(axis in axes for axis in AXES), groups=mesh_groups(problem)),
        dcn=dcn,
        experts=np.array(_degrees(problem)),
    )


def mesh_groups(problem: Problem) -> tuple[Group, ...]:
    """The groups of several mesh axes, or of parts of them, that a plan's collectives may run over inside a slice.

    These are the ranks that shard and that replicate the dense weights, and the routed ones. Where an expert group
    subdivides other axes, its own ranks and what it leaves of those groups depend on the expert degree.
    """
    stack, usable = problem.stack, usable_axes(problem)
    whole = [sharding_axes(stack), replica_axes(stack)]
    if not _subdividing(problem):
        whole += [tuple(axis for axis in axes if axis != "expert") for axes in whole]
    members = [tuple(axis in axes and axis in usable for axis in AXES) for axes in whole]
    groups = [Group(members=each) for each in members if sum(each) > 1]
    if _subdividing(problem):
        within = tuple(AXES.index(axis) for axis in divided_axes(stack))
        inner = tuple(m in within for m in range(len(AXES)))
        inside = {math.gcd(degree, problem.slice.ici_devices) for degree in _degrees(problem)} - {1}
        for ways in sorted(inside):
            groups.append(Group(members=inner, part="inner", within=within, ways=ways))
            groups += [Group(members=each, part="outer", within=within, ways=ways) for each in members if any(each)]
    return tuple(dict.fromkeys(groups))


def _degrees(problem: Problem) -> list[int]:
    """The sizes of an expert axis that subdivides the others; 1 alone elsewhere."""
    experts = problem.workload.architecture.experts
    count = experts.experts if experts and _subdividing(problem) else 1
    return [d for d in range(1, count + 1) if count % d == 0]


def _subdividing(problem: Problem) -> bool:
    return "expert" in usable_axes(problem) and not problem.stack.expert_multiplies


def _columns(ici: np.ndarray, dcn: np.ndarray) -> dict[str, np.ndarray]:
    columns = {axis: ici[:, i] * dcn[:, i] for i, axis in enumerate(AXES)}
    columns |= {f"{axis}_ici": ici[:, i].copy() for i, axis in enumerate(AXES)}
    return columns | {f"{axis}_dcn": dcn[:, i].copy() for i, axis in enumerate(AXES)}


def meshes_of(problem: Problem, plans: list[Plan]) -> Meshes:
    """The meshes of given plans, in their order; each plan's layout must be given and useful.

    Raises:
        ConfigError: a plan's ICI sizes do not fill the slice, or its layout is not one of the useful ones.
    """
    rows = [_row(problem, plan) for plan in plans]
    joined = {name: np.concatenate([getattr(row, name) for row in rows]) for name in LayoutTable.__dataclass_fields__}
    ici, dcn = np.array([plan.ici for plan in plans]), np.array([plan.dcn for plan in plans])
    return Meshes(columns=_columns(ici, dcn), table=LayoutTable(**joined))


def layouts_of(problem: Problem, ici: Six) -> LayoutTable:
    """The useful layouts of a plan's ICI sizes; an expert axis that subdivides the others lies where they lie."""
    fixed = list(ici)
    if not problem.stack.expert_multiplies:
        fixed[AXES.index("expert")] = 1
    return layouts(problem.slice, sizes=tuple(fixed), groups=mesh_groups(problem))


def laid_out(problem: Problem, plan: Plan) -> LayoutTable:
    """The useful layouts of a plan's ICI sizes; one if the plan names it.

    Raises:
        ConfigError: the sizes do not fill the slice, or the layout named is not one of the useful ones.
    """
    table = layouts_of(problem, plan.ici)
    if not len(table):
        raise ConfigError(
            "plan", plan.line, f"its ici sizes do not fill the {problem.slice.ici_devices} devices inside"
        )
    if not plan.layout or len(problem.slice.axes) == 1:
        return table
    known = [table.plan_layout(row) for row in range(len(table))]
    if plan.layout not in known:
        shown = [i for i in range(len(AXES)) if table.sizes[0, i] > 1]
        lines = [" ".join(f"{AXES[i]}@{'.'.join(map(str, layout[i]))}" for i in shown) for layout in known]
        raise ConfigError("plan", plan.line, f"the layouts worth having are {'; '.join(lines)}", lines)
    return table.take(np.array([known.index(plan.layout)]))


def _row(problem: Problem, plan: Plan) -> LayoutTable:
    table = laid_out(problem, plan)
    return table.take(np.arange(1))


@lru_cache(maxsize=256)
def factorisations(n: int, parts: int) -> tuple[tuple[int, ...], ...]:
    """All ordered ways to write n as a product of `parts` positive factors."""
    if parts == 1:
        return ((n,),)
    heads = [d for d in range(1, n + 1) if n % d == 0]
    return tuple((head, *rest) for head in heads for rest in factorisations(n // head, parts - 1))

"""Layouts judged by groups of mesh axes too: what is kept holds the best of all, up to the cheapest plan."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import defaultdict

import numpy as np
import pytest

from asap_ray import meshes
from asap_ray.architecture import Architecture
from asap_ray.meshes import build_meshes, mesh_groups
from asap_ray.physics.calibration import calibrations_from_mappings
from asap_ray.physics.roofline import Pricer
from asap_ray.plan import AXES, Plan
from asap_ray.problem import Problem, usable_axes
from asap_ray.settings import load_group
from asap_ray.space import Space
from asap_ray.topology import layouts
from tests.brute_layouts import Factors, every_layout, figures, splits
from tests.problems import CHIPS, DENSE, MOE, make_problem, parse_slice

CALIBRATIONS = calibrations_from_mappings(load_group("calibration"))
CASES = [
    (slice_, stack, model)
    for slice_ in ("v5e-4", "v5e-8", "v5e-16", "v5p-16", "tpu7x-16")
    for stack in ("maxtext", "torchtitan", "megatron")
    for model in (DENSE, MOE)
]
# Whole rings, where strides of one group can make up the ring; with fewer axes, so that all layouts can be tried.
CASES += [
    ("v5e-256", "maxtext", DENSE),
    ("v5e-256", "torchtitan", DENSE),
    ("v5e-256", "megatron", MOE),
    ("v5p-128", "maxtext", DENSE),
    ("v5p-128", "megatron", MOE),
]


def by_sizes(rows: list[Factors]) -> dict[tuple[int, ...], list[Factors]]:
    found: dict[tuple[int, ...], list[Factors]] = defaultdict(list)
    for factors in rows:
        found[tuple(math.prod(steps) for steps in factors)].append(factors)
    return found


@pytest.mark.parametrize(("slice_", "stack", "model"), CASES, ids=lambda value: getattr(value, "name", value))
def test_kept_layouts_hold_the_best_for_every_mix_of_axes_and_groups(
    slice_: str, stack: str, model: Architecture
) -> None:
    problem = make_problem(slice_, stack, model)
    own = [axis in usable_axes(problem) and (axis != "expert" or problem.stack.expert_multiplies) for axis in AXES]
    columns = itertools.product(*(splits(axis.size, own) for axis in problem.slice.axes))
    everything = by_sizes([tuple(zip(*column, strict=True)) for column in columns])
    kept = by_sizes([tuple(map(tuple, factors)) for factors in build_meshes(problem).table.factors.tolist()])
    assert set(kept) == set(everything)
    rng = np.random.default_rng(0)
    scale = np.array([1e9, 1e9, 1e9, 0.1])  # so that no figure drowns the others
    for sizes, candidates in everything.items():
        costs, reached = (np.array([figures(problem, f) for f in rows]) for rows in (candidates, kept[sizes]))
        weights = rng.exponential(size=(40, *costs.shape[1:])) ** 3 * scale
        best = np.tensordot(weights, costs, axes=([1, 2], [1, 2])).min(axis=1)
        found = np.tensordot(weights, reached, axes=([1, 2], [1, 2])).min(axis=1)
        np.testing.assert_allclose(found, best, rtol=1e-8)
        for k, m in itertools.product(range(costs.shape[1]), range(4)):  # each figure alone, too
            assert reached[:, k, m].min() <= costs[:, k, m].min() * (1 + 1e-8)


@pytest.mark.parametrize(("slice_", "stack", "model"), CASES, ids=lambda value: getattr(value, "name", value))
def test_no_kept_layout_is_beaten_throughout(slice_: str, stack: str, model: Architecture) -> None:
    problem = make_problem(slice_, stack, model)
    for rows in by_sizes([tuple(map(tuple, f)) for f in build_meshes(problem).table.factors.tolist()]).values():
        costs = np.array([figures(problem, factors) for factors in rows])
        as_good = (costs[:, None] <= costs[None]).all(axis=(2, 3))
        assert as_good.sum() == len(rows)  # each row only as good as itself


def test_a_group_keeps_a_layout_that_its_axes_would_drop() -> None:
    """Seen by single axes alone, a pod of 16x16 loses layouts that are faster for fsdp and context together."""
    slice_ = parse_slice("v5e-256", CHIPS)
    problem = make_problem("v5e-256", "maxtext", DENSE)
    own = tuple(axis in usable_axes(problem) for axis in AXES)
    few, more = layouts(slice_, own), layouts(slice_, own, groups=mesh_groups(problem))
    rows = [{tuple(map(tuple, f)) for f in table.factors.tolist()} for table in (few, more)]
    assert len(rows[1]) > len(rows[0])
    assert len(np.unique(few.sizes, axis=0)) == len(np.unique(more.sizes, axis=0))
    together = 6  # the row of `figures` after those of the axes: what shards weights
    gains = []
    least, most = (by_sizes(sorted(found)) for found in rows)
    for sizes in most:
        with_groups, without = (
            min(figures(problem, factors)[together][0] for factors in table[sizes]) for table in (most, least)
        )
        assert with_groups <= without
        gains.append(without / with_groups if with_groups else 1.0)
    assert max(gains) > 1.5


@pytest.mark.parametrize("stack", ["maxtext", "torchtitan"])
def test_sizes_that_no_layout_has_give_an_empty_table(stack: str) -> None:
    groups = mesh_groups(make_problem("v5e-256", stack, MOE))
    table = layouts(parse_slice("v5e-256", CHIPS), sizes=(3,) + (None,) * 5, groups=groups)
    assert table.factors.shape == (0, 6, 2)


PRICED = [
    ("v5e-16", "maxtext", DENSE, 16),
    ("v5e-16", "maxtext", MOE, 8),
    ("v5e-16", "torchtitan", MOE, 8),
    ("v5p-16", "megatron", MOE, 8),
    ("tpu7x-16", "maxtext", MOE, 8),
    ("tpu7x-16", "torchtitan", MOE, 8),
]


def cheapest(problem: Problem) -> dict[Plan, float]:
    """The least step time of every legal plan, over the layouts that its space has."""
    space, found = Space(problem=problem), defaultdict[Plan, float](lambda: math.inf)
    pricer = Pricer(problem, CALIBRATIONS[problem.slice.chip.kind])
    for rows in space.chunks():
        for i, seconds in enumerate(pricer.price(rows).step_time_s.tolist()):
            plan = dataclasses.replace(space.plan(rows, i), layout=())
            found[plan] = min(found[plan], seconds)
    return found


@pytest.mark.parametrize(
    ("slice_", "stack", "model", "batch"), PRICED, ids=lambda value: str(getattr(value, "name", value))
)
def test_every_plan_is_as_cheap_as_on_the_best_of_all_layouts(
    monkeypatch: pytest.MonkeyPatch, slice_: str, stack: str, model: Architecture, batch: int
) -> None:
    # Wide and with long sequences, so that traffic does not all hide.
    wide = dataclasses.replace(model, d_model=model.d_model * 64)
    problem = make_problem(slice_, stack, wide, batch=batch, seq_len=384)
    kept = cheapest(problem)
    monkeypatch.setattr(meshes, "layouts", every_layout)
    everywhere = cheapest(problem)
    assert kept.keys() == everywhere.keys()
    plans = list(kept)
    np.testing.assert_allclose([kept[p] for p in plans], [everywhere[p] for p in plans], rtol=1e-9)
    assert min(kept.values()) == pytest.approx(min(everywhere.values()), rel=1e-9)

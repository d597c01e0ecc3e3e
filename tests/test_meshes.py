"""Meshes: the product of layouts, splits across the network and expert degrees, made row by row when asked for."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from asap_ray.errors import ConfigError
from asap_ray.meshes import build_meshes, factorisations, laid_out, meshes_of
from asap_ray.plan import AXES, Plan
from asap_ray.problem import MESH_COLUMNS
from asap_ray.space import Space
from tests.brute_force import all_meshes
from tests.brute_layouts import figures
from tests.problems import DENSE, MOE, STACKS, all_plans, make_problem


@pytest.mark.parametrize("n", [1, 2, 7, 12, 36])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_factorisations_are_all_ordered_products(n: int, parts: int) -> None:
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    expected = [factors for factors in itertools.product(divisors, repeat=parts) if math.prod(factors) == n]
    assert sorted(factorisations(n, parts)) == expected


def test_factorisations_are_counted_prime_by_prime() -> None:
    """Each prime's exponent is shared out on its own: C(e + k - 1, k - 1) ways over k parts."""
    assert len(factorisations(2**9 * 3, 6)) == math.comb(9 + 5, 5) * math.comb(1 + 5, 5)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("model", [DENSE, MOE], ids=lambda model: model.name)
@pytest.mark.parametrize("slice_", ["v5e-8", "2xv5e-4", "h100:3x4", "h100:6x2"])
def test_rows_are_all_meshes_found_by_trying(slice_: str, model: object, stack: str) -> None:
    problem = make_problem(slice_, stack, model)  # type: ignore[arg-type]
    product = build_meshes(problem)
    meshes = product.take(np.arange(len(product)))
    found = []
    for row in range(len(meshes)):
        ici, dcn, layout = meshes.plan_fields(row)
        factors = tuple(tuple(steps) for steps in meshes.table.factors[row].tolist())
        assert layout in (factors, ())
        found.append((ici, dcn, figures(problem, factors)))
    degrees = {1, *(d for d in range(1, 7) if 6 % d == 0)}  # others divide no number of experts: no need to list them
    expected = [
        (ici, dcn, figures(problem, factors))
        for ici, dcn, factors in all_meshes(problem)
        if problem.stack.expert_multiplies or ici[4] * dcn[4] in degrees
    ]
    assert len(found) == len(set(found))
    assert set(found) == set(expected)


@pytest.mark.parametrize("stack", ["maxtext", "megatron", "torchtitan"])
def test_rows_are_the_same_however_they_are_taken(stack: str) -> None:
    product = build_meshes(make_problem("2xv5e-16", stack, MOE))
    whole = product.take(np.arange(len(product)))
    assert set(whole.columns) == set(MESH_COLUMNS)
    assert len(whole) == len(product)
    rows = np.random.default_rng(0).permutation(len(product))[:100]
    some, again = product.take(rows), whole.take(rows)
    for name in MESH_COLUMNS:
        np.testing.assert_array_equal(some.columns[name], again.columns[name])
    np.testing.assert_array_equal(some.table.factors, again.table.factors)
    for axis in AXES:
        assert product.sizes(axis) == tuple(np.unique(whole.columns[axis]).tolist())
        inside, across = whole.columns[f"{axis}_ici"], whole.columns[f"{axis}_dcn"]
        np.testing.assert_array_equal(whole.columns[axis], inside * across)


def test_an_expert_group_takes_the_nearest_ranks() -> None:
    """Three domains of four: of six ranks in a group as many lie inside as divide the four that are there: two."""
    product = build_meshes(make_problem("h100:3x4", "megatron", MOE))
    c = product.take(np.arange(len(product))).columns
    whole = (c["data_ici"] == 4) & (c["data_dcn"] == 3)
    splits = {tuple(row) for row in np.stack([c["expert"], c["expert_ici"], c["expert_dcn"]], axis=1)[whole].tolist()}
    assert splits == {(1, 1, 1), (2, 2, 1), (3, 1, 3), (6, 2, 3)}


def test_a_plan_without_a_layout_gets_the_useful_ones() -> None:
    problem = make_problem("v5e-8", "ours")
    plan = Plan.parse("fsdp=4 tensor=2")
    table = laid_out(problem, plan)
    assert sorted(table.factors[:, [1, 5]].tolist()) == [[[1, 4], [2, 1]], [[2, 2], [1, 2]]]
    one = laid_out(problem, Plan.parse("fsdp=4@1.4 tensor=2@2.1"))
    assert one.factors[:, [1, 5]].tolist() == [[[1, 4], [2, 1]]]


def test_a_layout_that_is_not_useful_is_refused_with_those_that_are() -> None:
    problem = make_problem("v5e-8", "ours")
    with pytest.raises(ConfigError, match=r"worth having are fsdp@\d\.\d tensor@\d\.\d; fsdp@\d\.\d tensor@\d\.\d"):
        laid_out(problem, Plan.parse("fsdp=4@4.1 tensor=2@1.2"))
    with pytest.raises(ConfigError, match="do not fill the 8 devices"):
        laid_out(problem, Plan.parse("fsdp=2 tensor=2"))


@pytest.mark.parametrize("stack", ["ours", "torchtitan"])
def test_meshes_of_plans_are_the_rows_they_came_from(stack: str) -> None:
    space = Space(problem=make_problem("v5p-16", stack, MOE, batch=8))
    plans = all_plans(space)[::97]
    meshes = meshes_of(space.problem, plans)
    assert [meshes.plan_fields(i) for i in range(len(plans))] == [(p.ici, p.dcn, p.layout) for p in plans]


def test_one_device_has_one_mesh_and_no_layout() -> None:
    product = build_meshes(make_problem("v5e-1", "ours"))
    meshes = product.take(np.arange(len(product)))
    assert [meshes.plan_fields(i) for i in range(len(meshes))] == [((1,) * 6, (1,) * 6, ())]

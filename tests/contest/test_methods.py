"""Every method keeps to its plans; orders and moves against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from asap_ray.contest.buckets import in_buckets
from asap_ray.contest.ground import Field
from asap_ray.contest.methods import DEFAULT, SLOW, TAUGHT, Means, methods_named
from asap_ray.contest.play import Budget, play
from asap_ray.contest.relief import LESS, USEFUL, Relief
from asap_ray.errors import ConfigError
from asap_ray.physics.estimate import TIME_PARTS
from asap_ray.search.protocol import Result
from tests.agents.scripted import Scripted
from tests.contest.grounds import small_field

QUICK = [each.name for each in methods_named(("all",)) if each.name not in (*SLOW, *TAUGHT)]


@pytest.fixture(scope="module")
def field() -> Field:
    return small_field(gate=lambda row: row % 3 != 0)


@pytest.mark.parametrize("name", QUICK)
def test_no_plan_is_tried_twice_and_gated_methods_see_gated_plans_alone(field: Field, name: str) -> None:
    (method,) = methods_named((name,))
    found = play(field, "g", method, 0, Budget(trials=25, least=25), told=True)
    passing = {field.pool.plan(int(row)).line for row in np.flatnonzero(field.gate)}
    assert len(set(found.plans)) == len(found.plans) > 0
    assert not method.gated or set(found.plans) <= passing


def test_methods_without_the_gate_come_to_every_plan(field: Field) -> None:
    for name in ("exhaustive", "buckets", "random"):
        found = play(field, "g", methods_named((name,))[0], 0, Budget(trials=40, least=40), told=True)
        assert set(found.plans) == {field.pool.plan(row).line for row in range(len(field.pool))}


def test_names_stand_for_methods(field: Field) -> None:
    assert [each.name for each in methods_named(("auto", "greedy"))] == list(DEFAULT)
    with pytest.raises(ConfigError, match=r"compare\.methods.*allowed"):
        methods_named(("tpee",))


def test_greedy_is_the_rooflines_order_and_a_seeded_sampler_begins_with_it(field: Field) -> None:
    order = [field.gated.plan(int(row)).line for row in np.argsort(field.gated.step_s, kind="stable")]
    greedy, seeded = (
        play(field, "g", methods_named((name,))[0], 0, Budget(trials=9, least=9), told=True).plans
        for name in ("greedy", "tpe_seeded")
    )
    assert list(greedy) == order[:9]
    assert list(seeded[:3]) == order[:3]


def test_buckets_take_zero_and_then_small_degrees_first(field: Field) -> None:
    pool = field.pool  # a model of less than a billion parameters: tensor 1 and 2, no pipeline, micro-batch up to 8

    def key(row: int) -> tuple[bool, int, int, int, int, int]:
        plan = pool.plan(row)
        inside = plan.axes["tensor"] <= 2 and plan.axes["pipeline"] == 1 and plan.micro_batch <= 8
        return (not inside, plan.zero, plan.axes["tensor"], plan.axes["pipeline"], plan.micro_batch, row)

    assert in_buckets(pool) == sorted(range(len(pool)), key=key)


def test_relief_starts_with_least_memory_and_then_spends_less_on_the_largest_bottleneck(field: Field) -> None:
    pool = field.pool
    searcher = Relief(pool)
    (first,) = searcher.ask(1)
    row = pool.row(first.plan)
    assert row is not None
    assert pool.hbm_bytes[row] == pool.hbm_bytes.min()
    searcher.tell([Result(candidate=first, status="complete", step_time_s=1.0)])
    (second,) = searcher.ask(1)
    after = pool.row(second.plan)
    assert after is not None
    costs = {name: pool.parts[row, i] for i, name in enumerate(TIME_PARTS) if name not in USEFUL}
    for name in sorted(costs, key=lambda each: -costs[each]):
        part = TIME_PARTS.index(name)
        if (pool.parts[:, part] <= LESS * costs[name]).any() and costs[name] > 0:
            assert pool.parts[after, part] <= LESS * costs[name]
            return
    pytest.fail("nothing can be relieved")


def test_a_language_model_is_a_method_where_there_is_one_to_ask(field: Field) -> None:
    script = Scripted()
    (method,) = methods_named(("llm",), Means(asker=lambda: script))
    found = play(field, "g", method, 0, Budget(trials=9, least=9), told=True)
    assert len(set(found.plans)) == 9
    assert script.asked
    assert "llm" not in QUICK
    with pytest.raises(ConfigError, match=r"compare\.methods=llm"):
        methods_named(("llm",))[0].make(field, 0)

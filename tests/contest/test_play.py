"""One search: regrets, costs and the clock by hand, the same again with the same seed, none past its budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asap_ray.contest.ground import Field
from asap_ray.contest.methods import Method, methods_named
from asap_ray.contest.play import START_UP_S, STEPS, Budget, Played, play, play_many
from asap_ray.search.blackbox import InOrder
from tests.contest.grounds import small_field, small_replay


def in_order(*rows: int) -> Method:
    return Method(name="order", about="", make=lambda field, seed: InOrder(field.pool, "order", rows))


@pytest.fixture(scope="module")
def field() -> Field:
    return small_field()


def test_regret_is_against_the_best_plan_there_is(field: Field) -> None:
    found = play(field, "g", in_order(4, 3, 2, 9, 0), 0, Budget())
    best, steps = np.nanmin(field.step_s), field.step_s
    so_far = [None, steps[3], min(steps[3], steps[2]), min(steps[3], steps[2]), min(steps[[3, 2, 0]])]
    assert found.regret == pytest.approx([None if step is None else step / best - 1 for step in so_far])
    assert found.bad == (True, False, False, True, False)


def test_a_trial_costs_its_start_up_and_twenty_steps_of_all_chips(field: Field) -> None:
    found = play(field, "g", in_order(4, 3), 0, Budget())
    chips = field.pool.problem.slice.chips
    assert found.chip_s == pytest.approx([chips * START_UP_S, chips * (START_UP_S + STEPS * field.step_s[3])])


def test_trials_of_a_round_run_side_by_side_and_rounds_one_after_the_other(field: Field) -> None:
    found = play(field, "g", in_order(0, 1, 4, 2), 0, Budget(width=3))
    takes = [START_UP_S + STEPS * (0.0 if np.isnan(step) else step) for step in field.step_s[[0, 1, 4, 2]]]
    first = max(takes[:3])
    assert found.end_s == pytest.approx([*takes[:3], first + takes[3]])


def test_a_search_ends_with_its_budget_or_once_the_best_was_found_and_enough_is_played(field: Field) -> None:
    best = int(np.nanargmin(field.step_s))
    others = [row for row in range(len(field.pool)) if row != best]
    assert len(play(field, "g", in_order(best, *others), 0, Budget(least=7, width=1)).regret) == 7
    assert len(play(field, "g", in_order(*others), 0, Budget(trials=11)).regret) == 11
    few = play(field, "g", in_order(*others[:4]), 0, Budget())
    assert (len(few.regret), few.stopped) == (4, "every plan that is legal and fits was tried")


def test_noise_is_measured_and_regret_is_of_what_is_true(field: Field) -> None:
    noisy = replace(field, noise=lambda row, seed: 100.0 if row == 0 else 1.0)
    found = play(noisy, "g", in_order(0, 1), 0, Budget())
    best = np.nanmin(field.step_s)
    assert found.regret == pytest.approx([field.step_s[0] / best - 1, field.step_s[1] / best - 1])


@pytest.mark.parametrize("name", ["tpe_gated", "playbook_mixed", "relief", "playbook_no_gate"])
def test_the_same_again_with_the_same_seed(field: Field, name: str) -> None:
    (method,) = methods_named((name,))
    first, again = (play(field, "g", method, 3, Budget(trials=12), told=True) for _ in range(2))
    assert first == again
    assert len(set(first.plans)) == len(first.plans)


def test_what_is_written_of_a_search_is_read_back(field: Field) -> None:
    (method,) = methods_named(("playbook",))
    found = play(field, "g", method, 0, Budget(trials=6), told=True)
    assert found.why[0].startswith("ranking: the roofline")
    again = Played.from_dict(found.as_dict())
    assert again.regret == pytest.approx(found.regret, rel=1e-4)
    assert replace(again, regret=(), chip_s=(), end_s=()) == replace(found, regret=(), chip_s=(), end_s=())


def test_a_job_plays_each_seed_where_seeds_matter() -> None:
    found = play_many(small_replay(), ["random", "greedy"], [5, 6], Budget(trials=4))
    assert [(each["method"], each["seed"]) for each in found] == [("random", 5), ("random", 6), ("greedy", 5)]
    assert [bool(each["plans"]) for each in found] == [True, False, True]

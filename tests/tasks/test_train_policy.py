"""`task=train_policy`: what it learns from, what it is tested on, and the search that uses what it wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asap_ray.agents.features import FEATURES, VERSION
from asap_ray.agents.learned import read_weights
from asap_ray.ledger import Ledger
from asap_ray.search.protocol import Candidate
from asap_ray.settings import data_dir
from asap_ray.tasks.held_out import regrets
from asap_ray.tasks.lessons import lessons_made_up, lessons_of_runs, lessons_of_tables
from tests.tasks.test_trajectories import LOOP

TABLE = data_dir("knowledge") / "measured" / "vtrain_multi.parquet"
TRAIN = ("task=train_policy", f"train_policy.tables={TABLE}", "train_policy.steps=5", "train_policy.made_up=0")


@pytest.fixture(scope="module")
def lessons():
    return lessons_of_tables([TABLE])


def test_what_is_trained_is_written_and_says_what_it_was_trained_on(command) -> None:
    ended = command(*TRAIN, "run_dir=run", "seed=3", "output=json")
    assert ended.status == 0, ended.err
    told, weights = json.loads(ended.out), read_weights(Path("run/policy.npz"))
    assert told["workloads"] == weights.origin.workloads == 2
    assert weights.origin.sources == ("vTrain, many nodes",)
    assert (weights.origin.seed, weights.origin.features) == (3, FEATURES)
    assert Path("run/policy.npz").stat().st_size < 200_000
    words = [sys.executable, "-m", "asap_ray", *TRAIN, "run_dir=again", "seed=3", "output=json"]
    again = subprocess.run(words, capture_output=True, text=True)
    assert (again.returncode, again.stderr) == (0, "")  # also where JAX misses a driver
    for name, array in read_weights(Path("again/policy.npz")).arrays.items():
        np.testing.assert_array_equal(array, weights.arrays[name])


def test_what_is_left_out_has_no_part_and_is_what_is_tested_on(command) -> None:
    words = (*TRAIN[:3], "train_policy.made_up=2", "train_policy.leave_out='GPT 3072x30'", "run_dir=run")
    ended = command(*words, "output=json")
    assert ended.status == 1  # one workload of the table is left: nothing to tell apart
    assert "train_policy.leave_out=GPT 3072x30" in ended.err
    both = f"train_policy.tables=[{TABLE},{TABLE.with_name('vtrain_single.parquet')}]"
    ended = command(TRAIN[0], both, *TRAIN[2:], "train_policy.leave_out='many nodes'", "run_dir=run", "output=json")
    told = json.loads(ended.out)
    assert (told["sources"], told["left_out"], told["tested_on"]) == (["vTrain, one node"], ["many nodes"], 2)
    assert set(told["regret"]) == {"roofline", "playbook", "policy"}
    for figures in told["regret"].values():
        assert figures == sorted(figures, reverse=True)


def test_a_run_is_a_lesson_and_a_search_uses_the_policy(command, pretend) -> None:
    assert command(*LOOP).status == 0
    (lesson,) = lessons_of_runs([Ledger(Path("runs/one"))])
    assert len(lesson.pool) == 7
    np.testing.assert_allclose(lesson.steps_s, 1.1 * lesson.pool.step_s, rtol=2e-3)  # each trainer has its own layers
    assert command(*TRAIN, "train_policy.runs=runs", "run_dir=trained").status == 0
    assert read_weights(Path("trained/policy.npz")).origin.workloads == 3
    ended = command(*LOOP[:-1], "agents=policy", "agents.policy=trained/policy.npz", "run_dir=runs/two", "output=json")
    assert ended.status == 0, ended.err
    authors = {each["author"] for each in Ledger(Path("runs/two")).events("proposal")}
    assert authors == {"policy"}


def test_weights_that_do_not_fit_give_way_to_the_playbook_in_one_line(command, pretend) -> None:
    assert command(*TRAIN, "run_dir=run").status == 0
    weights = read_weights(Path("run/policy.npz"))
    replace(weights, origin=replace(weights.origin, version=VERSION + 1)).save(Path("old.npz"))
    ended = command(*LOOP, "agents=policy", "agents.policy=old.npz", "output=plain")
    assert ended.status == 0
    (line,) = [line for line in (ended.out + ended.err).splitlines() if "agents=policy:" in line]
    assert "the playbook proposes instead" in line
    assert {each["author"] for each in Ledger(Path("runs/one")).events("proposal")} == {"playbook"}


def test_lessons_of_tables_are_workloads_with_the_median_of_their_runs(lessons) -> None:
    assert {each.source for each in lessons} == {"vTrain, many nodes"}
    assert all(np.isfinite(each.steps_s).all() and len(each.steps_s) >= 3 for each in lessons)


def test_regret_is_what_the_best_found_is_behind_the_best_there_is(lessons) -> None:
    class Backwards:
        """Tries the worst first."""

        name = "backwards"

        def __init__(self, lesson) -> None:
            self.left = np.argsort(-lesson.steps_s).tolist()
            self.lesson = lesson

        def ask(self, count):
            rows, self.left = self.left[:count], self.left[count:]
            return [Candidate(number=row, plan=self.lesson.pool.plan(row), author=self.name) for row in rows]

        def tell(self, results) -> None: ...

    lesson = lessons[0]
    worst = np.sort(lesson.steps_s)[::-1] / lesson.steps_s.min() - 1.0
    found = regrets([lesson], lambda pool: Backwards(lesson))
    np.testing.assert_allclose(found, [worst[0], worst[2], worst[4], worst[9]])


def test_lessons_that_are_made_up_differ_from_the_roofline_and_from_each_other() -> None:
    one, other = lessons_made_up(1, seed=0)[0], lessons_made_up(1, seed=1)[0]
    errors = np.log(one.steps_s / one.pool.step_s)
    assert 0.02 < errors.std() < 0.5
    assert not np.allclose(one.steps_s[:10] / one.pool.step_s[:10], other.steps_s[:10] / other.pool.step_s[:10])
    np.testing.assert_array_equal(lessons_made_up(1, seed=0)[0].steps_s, one.steps_s)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("train_policy.leave_out=nobody",), "part of the name of a source: vTrain, many nodes"),
        (("train_policy.leave_out=vtrain",), "less than all there is"),
        (("train_policy.runs=nowhere",), "train_policy.runs=nowhere"),
        (("train_policy.made_up=-1",), "a whole number from 0 to 1,000"),
        (("+model=tiny",), "rows name their own models"),
    ],
)
def test_a_mistake_is_one_line(command, words: tuple[str, ...], told: str) -> None:
    ended = command(*TRAIN[:3], *(() if "made_up" in words[0] else TRAIN[3:]), *words)
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert told in ended.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("agents=policy", "agents.policy=none.npz"), "agents.policy=none.npz"),
        (("agents=policy", f"agents.policy={__file__}"), "a file that task=train_policy wrote"),
        (("agents.policy=some.npz",), "only with agents=policy"),
        (("train_policy.steps=7",), "train_policy.steps=7: for task=train_policy"),
    ],
)
def test_a_mistake_in_a_search_is_one_line(command, pretend, words: tuple[str, ...], told: str) -> None:
    ended = command(*LOOP, *words)
    assert ended.status == 1
    assert ended.err.count("\n") == 1
    assert told in ended.err

"""The policy: its networks by hand, its files, and what it proposes in a search."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asap_ray.agents import learned
from asap_ray.agents.brief import Brief
from asap_ray.agents.coordinator import Coordinator, Rules
from asap_ray.agents.features import FEATURES, VERSION, features_of, state_of
from asap_ray.agents.learned import ARRAYS, MOST, Origin, Policy, Weights, read_weights
from asap_ray.agents.playbook import Playbook, open_rows
from asap_ray.agents.trusted import Trusted
from asap_ray.search.pool import Pool
from asap_ray.search.study import Study
from tests.agents.doubles import Double, play, slow_link, small_pool

ORIGIN = Origin(version=VERSION, features=FEATURES, workloads=7, sources=("a",), left_out=(), seed=0)


def weights_of(**figures: float) -> Weights:
    """Two equal members that say about MOST * tanh(sum of w * figure), for small figures."""
    n, small = len(FEATURES), 1e-3
    w1 = np.zeros((2, n, 2), np.float32)
    for name, weight in figures.items():
        w1[:, FEATURES.index(name), 0] = small * weight
    w2 = np.zeros((2, 2, 2), np.float32)
    w2[:, 0, 0] = 1.0
    w3 = np.zeros((2, 2), np.float32)
    w3[:, 0] = 1.0 / small
    zeros = {"mean": np.zeros(n), "b1": np.zeros((2, 2)), "b2": np.zeros((2, 2))}
    arrays = {**zeros, "scale": np.ones(n), "w1": w1, "w2": w2, "w3": w3}
    return Weights(arrays={k: np.asarray(v, np.float32) for k, v in arrays.items()}, origin=ORIGIN)


def searcher(pool: Pool, weights: Weights) -> Coordinator:
    return Coordinator(pool=pool, brain=Policy(weights=weights), study=Study(pool, "random", 0))


def test_the_network_is_two_hidden_layers_worked_out_by_loops() -> None:
    rng = np.random.default_rng(0)
    m, f, h = 3, len(FEATURES), 4
    shapes = {"mean": (f,), "scale": (f,), "w1": (m, f, h), "b1": (m, h), "w2": (m, h, h), "b2": (m, h), "w3": (m, h)}
    arrays = {name: np.abs(rng.normal(size=shape)) + 0.1 for name, shape in shapes.items()}
    figures = rng.normal(size=(2, f))
    found = learned.forward(np, arrays, figures)
    for k in range(m):
        for r in range(2):
            x = np.clip((figures[r] - arrays["mean"]) / arrays["scale"], -3, 3)
            one = np.tanh(x @ arrays["w1"][k] + arrays["b1"][k])
            two = np.tanh(one @ arrays["w2"][k] + arrays["b2"][k])
            assert found[k, r] == pytest.approx(0.5 * np.tanh(two @ arrays["w3"][k]))


def test_what_members_do_not_agree_on_is_not_corrected() -> None:
    weights = weights_of(tensor=1.0)
    figures = np.zeros((2, len(FEATURES)), np.float32)
    figures[:, FEATURES.index("tensor")] = (-0.1, 0.1)
    np.testing.assert_allclose(weights.residual(figures), MOST * np.tanh([-0.1, 0.1]), rtol=1e-3)
    against = {**weights.arrays, "w3": weights.arrays["w3"] * np.array([[1.0], [-1.0]], np.float32)}
    np.testing.assert_array_equal(replace(weights, arrays=against).residual(figures), 0.0)


def test_weights_without_an_opinion_leave_the_ranking_as_it_is() -> None:
    pool = small_pool()
    agents = searcher(pool, weights_of())
    rows = [row for row, _ in zip(open_rows(agents.brief(), set()), range(3), strict=False)]
    assert [each.plan for each in agents.brain.propose(agents.brief(), 3)] == [pool.plan(row) for row in rows]


def test_weights_against_an_axis_keep_it_out_of_the_first_proposals() -> None:
    pool = small_pool()
    plain = searcher(pool, weights_of()).brain.propose(searcher(pool, weights_of()).brief(), 1)[0]
    axis, size = max(plain.plan.axes.items(), key=lambda each: each[1])
    agents = searcher(pool, weights_of(**{axis: 1.0}))
    first = agents.brain.propose(agents.brief(), 1)[0]
    assert size > first.plan.axes[axis]
    assert "policy, trained on 7 workloads" in first.hypothesis
    assert "mostly for" in first.hypothesis


def test_proposals_are_legal_new_and_tell_what_they_change_and_predict() -> None:
    pool = small_pool()
    double = Double(pool, faults=[slow_link("fsdp", "fsdp")])
    agents = searcher(pool, weights_of(tensor=0.3))
    results = play(agents, double, rounds=5)
    assert agents.refused == 0
    assert len({each.candidate.plan for each in results}) == len(results)
    proposals = [each.candidate.proposal for each in results if each.candidate.proposal]
    assert any(each.base is not None and each.mechanism.startswith("policy: ") for each in proposals)
    for each in proposals:
        assert each.prediction.low < each.prediction.high
        assert each.hypothesis.startswith("the policy")


def test_of_a_large_pool_only_the_first_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "SCORED", 5)
    pool = small_pool()
    agents = searcher(pool, weights_of(tensor=1.0, data=-1.0))
    brief = agents.brief()
    told = Policy(weights=weights_of(tensor=1.0, data=-1.0)).corrected(brief)
    changed = np.flatnonzero(told.expected_s != brief.expected_s)
    assert len(changed) <= 5
    assert set(changed) <= set(np.argsort(brief.expected_s)[:5].tolist())


def test_a_refused_proposal_is_replaced_by_the_next_of_the_ranking() -> None:
    agents = searcher(small_pool(), weights_of())
    first, second = agents.brain.propose(agents.brief(), 2)
    again = agents.brain.revise(agents.brief(), first, "no", [])
    assert again is not None
    assert again.plan == second.plan


class Contrary(Policy):
    """A policy that was taught the wrong way round: the slowest plans come first."""

    def corrected(self, brief: Brief) -> Brief:
        return replace(brief, expected_s=1.0 / brief.expected_s)


def test_a_policy_whose_gambles_come_to_nothing_loses_its_turn_to_the_playbook() -> None:
    pool = small_pool()
    brain = Trusted(inner=Contrary(weights=weights_of()), rules=Playbook(cards=()), share=0.0)
    agents = Coordinator(pool=pool, brain=brain, study=Study(pool, "random", 0), rules=Rules(share=0.0))
    slow = float(np.median(pool.step_s))
    double = Double(pool, too_big=lambda plan: bool(pool.step_s[pool.row(plan)] > slow))
    authors = [each.candidate.author for each in play(agents, double, rounds=3)]
    assert authors == ["policy"] * 3 + ["playbook"] * 6  # one round may be lost
    assert agents.brain.name == "policy"


def test_a_policy_that_goes_with_the_roofline_keeps_its_turn() -> None:
    pool = small_pool()
    brain = Trusted(inner=Policy(weights=weights_of()), rules=Playbook(cards=()), share=0.0)
    agents = Coordinator(pool=pool, brain=brain, study=Study(pool, "random", 0), rules=Rules(share=0.0))
    double = Double(pool, too_big=lambda plan: plan.axes["tensor"] > 1)
    assert {each.candidate.author for each in play(agents, double, rounds=3)} == {"policy"}


def test_weights_are_read_as_they_were_written(tmp_path: Path) -> None:
    weights = weights_of(tensor=0.7)
    weights.save(tmp_path / "policy.npz")
    found = read_weights(tmp_path / "policy.npz")
    assert found.origin == weights.origin
    for name in ARRAYS:
        np.testing.assert_array_equal(found.arrays[name], weights.arrays[name])


@pytest.mark.parametrize("spoilt", ["version", "features", "shape", "nan", "text", "empty"])
def test_what_does_not_fit_is_told(tmp_path: Path, spoilt: str) -> None:
    path, weights = tmp_path / "policy.npz", weights_of()
    if spoilt == "version":
        weights = replace(weights, origin=replace(ORIGIN, version=VERSION + 1))
    elif spoilt == "features":
        weights = replace(weights, origin=replace(ORIGIN, features=FEATURES[1:]))
    elif spoilt == "shape":
        weights.arrays["b1"] = weights.arrays["b1"][:1]
    elif spoilt == "nan":
        weights.arrays["w3"][0, 0] = np.nan
    weights.save(path)
    if spoilt in ("text", "empty"):
        path.write_text(json.dumps({}) if spoilt == "text" else "")
    with pytest.raises(ValueError, match=r"version|shape|holds no weights"):
        read_weights(path)


def test_figures_of_a_brief_without_trials_start_from_the_plan_expected_first() -> None:
    pool = small_pool()
    brief = searcher(pool, weights_of()).brief()
    state = state_of(brief)
    assert state.base == int(np.argmin(pool.step_s))
    assert features_of(pool, np.array([state.base]), state)[0, FEATURES.index("gain")] == 0.0
